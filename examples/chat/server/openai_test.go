package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
)

const secretKey = "sk-proj-0123456789abcdefWXYZ"

// modelServer is a server with the OpenAI protocol, and a model that uses it.
type modelServer struct {
	*openAI
	transport *http.Transport
	mu        sync.Mutex
	keys      []string // idempotency keys of the requests so far
	bodies    []string
	conns     map[net.Conn]http.ConnState
}

// serveModel starts a modelServer; answer gets the number of the request, from 1. The end of the
// test asserts that no connection and no goroutine is left.
func serveModel(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *modelServer {
	t.Helper()
	before := goleak.IgnoreCurrent()
	pr := &modelServer{conns: map[net.Conn]http.ConnState{}}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, "POST /v1/chat/completions?v=1", r.Method+" "+r.URL.String())
		assert.Equal(t, "Bearer "+secretKey, r.Header.Get("Authorization"))
		pr.mu.Lock()
		pr.keys, pr.bodies = append(pr.keys, r.Header.Get(idempotency.Header)), append(pr.bodies, string(body))
		n := len(pr.keys)
		pr.mu.Unlock()
		answer(n, w, r)
	}))
	srv.Config.ConnState = func(c net.Conn, s http.ConnState) {
		pr.mu.Lock()
		defer pr.mu.Unlock()
		pr.conns[c] = s
	}
	srv.Start()
	pr.openAI = newModel(t, srv.URL+"/v1/?v=1")
	retrying := pr.client.Transport.(*idempotency.Transport)
	pr.transport = retrying.Base.(*http.Transport)
	retrying.Retry.First, retrying.Retry.Max = time.Millisecond, 5*time.Millisecond
	t.Cleanup(func() {
		pr.transport.CloseIdleConnections()
		srv.Close()
		goleak.VerifyNone(t, before)
	})
	return pr
}

func newModel(t *testing.T, base string) *openAI {
	t.Helper()
	m, err := newOpenAI(base, secretKey+"\n", "small")
	require.NoError(t, err)
	return m
}

// requests returns the number of requests. It asserts that all are equal and share one key.
func (pr *modelServer) requests(t *testing.T) int {
	t.Helper()
	pr.mu.Lock()
	defer pr.mu.Unlock()
	for i := range pr.keys {
		assert.Equal(t, "turn-1/0", pr.keys[i])
		assert.Equal(t, pr.bodies[0], pr.bodies[i])
	}
	return len(pr.keys)
}

// ended waits until all connections are closed.
func (pr *modelServer) ended(t *testing.T) {
	t.Helper()
	assert.Eventually(t, func() bool {
		pr.mu.Lock()
		defer pr.mu.Unlock()
		for _, s := range pr.conns {
			if s != http.StateClosed {
				return false
			}
		}
		return true
	}, 10*time.Second, time.Millisecond, "a connection is still open")
}

// emit writes text and flushes it.
func emit(w http.ResponseWriter, text string) {
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

// textEvent returns a chunk with text.
func textEvent(text string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", text)
}

// callEvent returns a chunk with pieces of tool calls.
func callEvent(pieces string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":null,\"tool_calls\":[%s]}}]}\n\n", pieces)
}

// finishEvent returns a chunk that ends an answer.
func finishEvent(reason string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":%q}]}\n\n", reason)
}

const doneEvent = "data: [DONE]\n\n"

func TestOpenAIRequest(t *testing.T) {
	pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		emit(w, textEvent("Hel")+textEvent("lo")+finishEvent("stop")+doneEvent)
	})
	p := Prompt{
		Key: "turn-1/0", System: "Be brief.",
		Messages: []Message{
			{Role: "user", Text: "search x"},
			{Role: "assistant", Text: "Found.", Status: "done", Steps: []Step{{Calls: []Call{{ID: "a", Name: "search", Args: `{"q":"x"}`, Result: "X", Done: true}}}}},
			{Role: "user", Text: "charge 5"},
			{Role: "assistant", Status: "stopped", Steps: []Step{{Calls: []Call{{ID: "b", Name: "charge_card", Args: `{"amount":5}`}}}, {}}},
			{Role: "user", Text: "both"},
		},
		Steps: []Step{{Text: "So.", Calls: []Call{{ID: "c", Name: "search", Args: `{}`, Result: "Y", Done: true}, {ID: "d", Name: "search", Args: `{}`, Result: "Z", Done: true}}}},
		Tools: []Tool{{Name: "search", Description: "Looks it up.", Parameters: json.RawMessage(`{"type":"object"}`)}},
	}
	text, calls, err := askAll(t, t.Context(), pr, p)
	require.NoError(t, err)
	assert.Equal(t, "Hello", text)
	assert.Empty(t, calls)
	assert.Equal(t, 1, pr.requests(t))
	assert.JSONEq(t, `{"model":"small","stream":true,"messages":[
		{"role":"system","content":"Be brief."},
		{"role":"user","content":"search x"},
		{"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"search","arguments":"{\"q\":\"x\"}"}}]},
		{"role":"tool","tool_call_id":"a","content":"X"},
		{"role":"assistant","content":"Found."},
		{"role":"user","content":"charge 5"},
		{"role":"assistant","content":"","tool_calls":[{"id":"b","type":"function","function":{"name":"charge_card","arguments":"{\"amount\":5}"}}]},
		{"role":"tool","tool_call_id":"b","content":"(not done)"},
		{"role":"assistant","content":"(no text: stopped)"},
		{"role":"user","content":"both"},
		{"role":"assistant","content":"So.","tool_calls":[{"id":"c","type":"function","function":{"name":"search","arguments":"{}"}},{"id":"d","type":"function","function":{"name":"search","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c","content":"Y"},
		{"role":"tool","tool_call_id":"d","content":"Z"}],
		"tools":[{"type":"function","function":{"name":"search","description":"Looks it up.","parameters":{"type":"object"}}}]}`, pr.bodies[0])
}

// Every kind of stream gives the expected text, calls and error.
func TestOpenAIStreams(t *testing.T) {
	call := func(index int, id, name, args string) string {
		return fmt.Sprintf(`{"index":%d,"id":%q,"type":"function","function":{"name":%q,"arguments":%q}}`, index, id, name, args)
	}
	hi := textEvent("Hi")
	for name, c := range map[string]struct {
		stream, text string
		calls        []Call
		err          string
		final        bool
	}{
		"text":                        {stream: hi + textEvent(" you") + finishEvent("stop") + doneEvent, text: "Hi you"},
		"CRLF":                        {stream: strings.ReplaceAll(": hello\n\n"+hi+finishEvent("stop")+doneEvent, "\n", "\r\n"), text: "Hi"},
		"comments and other fields":   {stream: ": keep-alive\n\nevent: x\nid: 1\nretry: 5\n" + hi + ":\n\n" + finishEvent("stop") + doneEvent, text: "Hi"},
		"no space after the colon":    {stream: "data:{\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\ndata:[DONE]\n\n", text: "Hi"},
		"usage and an error of null":  {stream: hi + finishEvent("stop") + "data: {\"choices\":[],\"usage\":{\"total_tokens\":3},\"error\":null}\n\n" + doneEvent, text: "Hi"},
		"no [DONE]":                   {stream: hi + finishEvent("length"), text: "Hi"},
		"no finish_reason":            {stream: hi + doneEvent, text: "Hi"},
		"no last line end":            {stream: hi + "data: [DONE]", text: "Hi"},
		"nothing after [DONE] counts": {stream: hi + doneEvent + textEvent("more") + "data: {\n", text: "Hi"},
		"refusal":                     {stream: "data: {\"choices\":[{\"delta\":{\"refusal\":\"No.\"}}]}\n\n" + finishEvent("stop") + doneEvent, text: "No."},
		"one call":                    {stream: hi + callEvent(call(0, "a", "f", `{"x":`)) + callEvent(call(0, "", "", `1}`)) + finishEvent("tool_calls") + doneEvent, text: "Hi", calls: []Call{{Name: "f", Args: `{"x":1}`}}},
		"a call that repeats its id":  {stream: callEvent(call(0, "a", "f", `{`)) + callEvent(call(0, "a", "f", `}`)) + doneEvent, calls: []Call{{Name: "f", Args: `{}`}}},
		"calls mixed":                 {stream: callEvent(call(0, "a", "f", "")+","+call(1, "b", "g", "")) + callEvent(call(1, "", "", `{"y"`)+","+call(0, "", "", `{"x"`)) + callEvent(call(0, "", "", `:1}`)+","+call(1, "", "", `:2}`)) + finishEvent("tool_calls") + doneEvent, calls: []Call{{Name: "f", Args: `{"x":1}`}, {Name: "g", Args: `{"y":2}`}}},
		"calls without an index":      {stream: callEvent(`{"id":"a","function":{"name":"f","arguments":"{}"}},{"id":"b","function":{"name":"f","arguments":"{}"}}`) + doneEvent, calls: []Call{{Name: "f", Args: `{}`}, {Name: "f", Args: `{}`}}},
		"an index of a billion":       {stream: callEvent(call(1e9, "a", "f", "{}")+","+call(-1, "b", "f", "{}")) + doneEvent, calls: []Call{{Name: "f", Args: `{}`}, {Name: "f", Args: `{}`}}},
		"empty":                       {err: "unexpected EOF"},
		"ends without a reason":       {stream: hi, text: "Hi", err: "unexpected EOF"},
		"ends within a call":          {stream: callEvent(call(0, "a", "f", "{}")), err: "unexpected EOF"},
		"ends within a line":          {stream: hi + finishEvent("stop")[:20], text: "Hi", err: "no chunk"},
		"an error in mid-stream":      {stream: hi + "data: {\"error\":{\"message\":\"overloaded " + secretKey + "\"}}\n\n" + finishEvent("stop") + doneEvent, text: "Hi", err: "overloaded [hidden]"},
		"an error as text":            {stream: hi + "data: {\"error\":\"overloaded\"}\n\n", text: "Hi", err: "overloaded"},
		"no JSON":                     {stream: hi + "data: <html>\n\n" + doneEvent, text: "Hi", err: "no chunk"},
		"no chunk":                    {stream: hi + "data: [1]\n\n" + doneEvent, text: "Hi", err: "no chunk"},
		"a page":                      {stream: "<html>\n<body>Welcome</body>\n</html>", err: "unexpected EOF"},
		"withheld":                    {stream: hi + finishEvent("content_filter") + doneEvent, text: "Hi", err: "withheld", final: true},
		"a call without a name":       {stream: callEvent(call(0, "a", "", "{}")) + doneEvent, err: "without a name"},
		"a call without arguments":    {stream: callEvent(call(0, "a", "f", "")) + doneEvent, err: "no JSON object"},
		"arguments that are null":     {stream: callEvent(call(0, "a", "f", "null")) + doneEvent, err: "no JSON object"},
		"arguments that are a list":   {stream: callEvent(call(0, "a", "f", "[]")) + doneEvent, err: "no JSON object"},
		"arguments that are cut":      {stream: hi + callEvent(call(0, "a", "f", `{"x":`)) + finishEvent("length") + doneEvent, text: "Hi", err: "no JSON object"},
		"one of two calls is no call": {stream: callEvent(call(0, "a", "f", "{}")+","+call(1, "b", "f", "{}}")) + doneEvent, err: "no JSON object"},
		"a line without end":          {stream: hi + "data: " + strings.Repeat("x", openAILine), text: "Hi", err: "too long"},
		"an answer without end":       {stream: hi + strings.Repeat(": "+strings.Repeat("x", openAILine/2)+"\n", 17) + finishEvent("stop") + doneEvent, text: "Hi", err: "too large"},
		"calls without end":           {stream: callEvent(manyCalls(openAICalls+1)) + doneEvent, err: "more than 64"},
	} {
		t.Run(name, func(t *testing.T) {
			pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) { emit(w, c.stream) })
			text, calls, err := askAll(t, t.Context(), pr, promptOf("x"))
			assert.Equal(t, c.text, text)
			assert.Equal(t, c.calls, calls)
			if c.err == "" {
				assert.NoError(t, err)
			} else if assert.ErrorContains(t, err, c.err) {
				assert.NotContains(t, err.Error(), secretKey)
				assert.Equal(t, c.final, pawl.IsNonRetryable(err))
			}
			assert.Equal(t, 1, pr.requests(t), "a request whose answer has started must not be repeated")
		})
	}
}

func manyCalls(n int) string {
	pieces := make([]string, n)
	for i := range pieces {
		pieces[i] = fmt.Sprintf(`{"index":%d,"id":"c%d","function":{"name":"f","arguments":"{}"}}`, i, i)
	}
	return strings.Join(pieces, ",")
}

// A text arrives complete, however the network splits it.
func TestOpenAIUnicode(t *testing.T) {
	pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		for _, b := range []byte("data: {\"choices\":[{\"delta\":{\"content\":\"grüß \"}}]}\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"😀 \\ud83d\\ude00 👩‍\"}}]}\n\n" + textEvent("🚀") + doneEvent) {
			emit(w, string([]byte{b}))
		}
	})
	text, _, err := askAll(t, t.Context(), pr, promptOf("x"))
	assert.NoError(t, err)
	assert.Equal(t, "grüß 😀 😀 👩‍🚀", text)
}

// A refusal by the provider is a final error, which shows no secrets. Some statuses are not final.
func TestOpenAIRefusals(t *testing.T) {
	for status, final := range map[int]bool{204: true, 300: true, 400: true, 401: true, 402: true, 403: true, 404: true, 413: true, 422: true, 409: false, 501: false} {
		pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			emit(w, `{"error":{"message":"no\u001b[31m good:\n `+secretKey+`, Bearer `+secretKey+` sk-******WXYZ `+secretKey[:12]+`... `+strings.Repeat("ä ", 500)+`"}}`)
		})
		text, _, err := askAll(t, t.Context(), pr, promptOf("x"))
		require.ErrorContains(t, err, fmt.Sprint(status))
		assert.Empty(t, text)
		assert.Equal(t, final, pawl.IsNonRetryable(err), "%d", status)
		assert.Less(t, len(err.Error()), 600)
		if status != 204 {
			assert.Contains(t, err.Error(), "no [31m good: [hidden] Bearer [hidden] [hidden] [hidden] ä ä")
		}
		assert.Equal(t, 1, pr.requests(t))
	}
	for body, want := range map[string]string{"": "no reason", "<html>": "no reason", `{"error":"plain"}`: ": plain", `{"error":7}`: "no reason"} {
		pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(400)
			emit(w, body)
		})
		_, _, err := askAll(t, t.Context(), pr, promptOf("x"))
		assert.ErrorContains(t, err, want)
	}
}

func TestOpenAIRedirectsAreNotFollowed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("the key was sent to another server") }))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, status) })
		_, _, err := askAll(t, t.Context(), pr, promptOf("x"))
		require.ErrorContains(t, err, fmt.Sprint(status))
		assert.True(t, pawl.IsNonRetryable(err))
	}
}

// dropConn closes the connection without a response.
func dropConn(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// A request is repeated under the same key until its answer starts.
func TestOpenAIRepeats(t *testing.T) {
	pr := serveModel(t, func(n int, w http.ResponseWriter, r *http.Request) {
		switch n {
		case 1:
			http.Error(w, "later", http.StatusInternalServerError)
		case 2:
			dropConn(w)
		case 3:
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			emit(w, textEvent("Hi")+finishEvent("stop")+doneEvent)
		}
	})
	text, _, err := askAll(t, t.Context(), pr, promptOf("x"))
	assert.NoError(t, err)
	assert.Equal(t, "Hi", text)
	assert.Equal(t, 4, pr.requests(t))
}

func TestOpenAIRepeatsWithinABudget(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter)
		err    string
	}{
		"500": {func(w http.ResponseWriter) { w.WriteHeader(500); emit(w, `{"error":{"message":"broken"}}`) }, "500 Internal Server Error: broken"},
		"429": {func(w http.ResponseWriter) { w.WriteHeader(429) }, "429"},
		"cut": {dropConn, "cannot be reached"},
	} {
		t.Run(name, func(t *testing.T) {
			pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) { c.answer(w) })
			_, _, err := askAll(t, t.Context(), pr, promptOf("x"))
			require.ErrorContains(t, err, c.err)
			assert.False(t, pawl.IsNonRetryable(err), "the caller may retry later")
			assert.Equal(t, openAIRetry.Attempts, pr.requests(t))
		})
	}
}

// A connection that breaks within an answer is an error and not retried, because the caller has
// seen a part.
func TestOpenAICutInMidStream(t *testing.T) {
	pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		emit(w, textEvent("Hi"))
		panic(http.ErrAbortHandler)
	})
	text, _, err := askAll(t, t.Context(), pr, promptOf("x"))
	assert.Equal(t, "Hi", text)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.False(t, pawl.IsNonRetryable(err))
	assert.Equal(t, 1, pr.requests(t))

	pr = serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		emit(w, callEvent(manyCalls(1))+finishEvent("tool_calls"))
		panic(http.ErrAbortHandler)
	})
	_, calls, err := askAll(t, t.Context(), pr, promptOf("x"))
	assert.NoError(t, err, "an answer is complete after its finish_reason")
	assert.Len(t, calls, 1)
}

// A server that stops sending at any point of its answer causes a timeout error.
func TestOpenAISilence(t *testing.T) {
	for name, c := range map[string]struct {
		begin    func(w http.ResponseWriter)
		requests int
		err      string // error of the last attempt
	}{
		"no headers":         {func(http.ResponseWriter) {}, 2, "timeout awaiting response headers"},
		"no body":            {func(w http.ResponseWriter) { emit(w, "") }, 1, errSilent.Error()},
		"after a word":       {func(w http.ResponseWriter) { emit(w, textEvent("Hi")) }, 1, errSilent.Error()},
		"within a line":      {func(w http.ResponseWriter) { emit(w, finishEvent("stop")[:30]) }, 1, errSilent.Error()},
		"within an error":    {func(w http.ResponseWriter) { w.WriteHeader(400); emit(w, `{"err`) }, 1, errSilent.Error()},
		"within a 500 error": {func(w http.ResponseWriter) { w.WriteHeader(500); emit(w, `{"err`) }, 2, errSilent.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) {
				c.begin(w)
				<-r.Context().Done()
			})
			pr.client.Transport.(*idempotency.Transport).Retry.Attempts = 2
			pr.idle = 20 * time.Millisecond
			if name == "no headers" {
				pr.transport.ResponseHeaderTimeout = 20 * time.Millisecond
			}
			_, _, err := askAll(t, t.Context(), pr, promptOf("x"))
			require.ErrorContains(t, err, c.err)
			assert.False(t, pawl.IsNonRetryable(err))
			assert.LessOrEqual(t, pr.requests(t), c.requests) // the server may miss a request that was canceled early
			pr.ended(t)
		})
	}
}

// When the context ends, Answer returns its cause at once and closes the connection.
func TestOpenAIEndsWithItsContext(t *testing.T) {
	gone := errors.New("gone")
	for name, begin := range map[string]func(w http.ResponseWriter){
		"no headers":    func(w http.ResponseWriter) {},
		"no body":       func(w http.ResponseWriter) { emit(w, "") },
		"after a word":  func(w http.ResponseWriter) { emit(w, textEvent("Hi")) },
		"within a line": func(w http.ResponseWriter) { emit(w, finishEvent("stop")[:30]) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) {
				begin(w)
				cancel(gone)
				<-r.Context().Done()
			})
			_, _, err := askAll(t, ctx, pr, promptOf("x"))
			assert.ErrorIs(t, err, gone)
			assert.Equal(t, 1, pr.requests(t))
			pr.ended(t)
		})
	}
	t.Run("between two words", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			emit(w, textEvent("a")+textEvent("b")+textEvent("c")+finishEvent("stop")+doneEvent)
		})
		var got []string
		for d, err := range pr.Answer(ctx, promptOf("x")) {
			got = append(got, fmt.Sprint(d.Text, err))
			cancel(gone)
		}
		assert.Equal(t, []string{"a<nil>", "gone"}, got, "text that has arrived must not be delivered after the end")
	})
	t.Run("before it begins", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		cancel(gone)
		pr := serveModel(t, func(int, http.ResponseWriter, *http.Request) { t.Error("a request") })
		_, _, err := askAll(t, ctx, pr, promptOf("x"))
		assert.ErrorIs(t, err, gone)
	})
	t.Run("while waiting for a repeat", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		pr := serveModel(t, func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "25")
			w.WriteHeader(429)
			time.AfterFunc(5*time.Millisecond, func() { cancel(gone) })
		})
		_, _, err := askAll(t, ctx, pr, promptOf("x"))
		assert.ErrorIs(t, err, gone)
		assert.Equal(t, 1, pr.requests(t))
	})
}

func TestOpenAIConsumerLeaves(t *testing.T) {
	left := make(chan struct{})
	pr := serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		emit(w, textEvent("a")+textEvent("b"))
		<-r.Context().Done()
		close(left)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for d, err := range pr.Answer(ctx, promptOf("x")) {
		assert.NoError(t, err)
		assert.Equal(t, "a", d.Text)
		cancel() // then leaves: the loop body must not be called again
		break
	}
	<-left
	pr.ended(t)
	pr = serveModel(t, func(_ int, w http.ResponseWriter, r *http.Request) { emit(w, callEvent(manyCalls(2))+doneEvent) })
	for range pr.Answer(t.Context(), promptOf("x")) {
		break
	}
}

// offlineModel returns a model whose provider is a function, for use in a synctest bubble.
func offlineModel(t *testing.T, answer roundTripper) *openAI {
	m := newModel(t, "http://model.test")
	m.client.Transport.(*idempotency.Transport).Base = answer
	return m
}

type roundTripper func(*http.Request) *http.Response

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

func TestOpenAIRetryAfter(t *testing.T) {
	for _, after := range []time.Duration{7 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			requests := 0
			m := offlineModel(t, func(*http.Request) *http.Response {
				if requests++; requests == 1 {
					return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {fmt.Sprint(after.Seconds())}}, Body: http.NoBody}
				}
				return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(textEvent("Hi") + finishEvent("stop") + doneEvent))}
			})
			begin := time.Now()
			_, _, err := askAll(t, t.Context(), m, promptOf("x"))
			if after == time.Hour { // longer than the budget
				assert.ErrorContains(t, err, "429")
				assert.False(t, pawl.IsNonRetryable(err))
				assert.Equal(t, 1, requests)
				assert.Zero(t, time.Since(begin))
				return
			}
			assert.NoError(t, err)
			assert.Equal(t, 2, requests)
			assert.GreaterOrEqual(t, time.Since(begin), after)
		})
	}
}

// The idle timeout starts again with each line of the server and does not run while the consumer
// works. The whole answer has no time limit.
func TestOpenAIIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := offlineModel(t, func(r *http.Request) *http.Response {
			out, in := io.Pipe()
			context.AfterFunc(r.Context(), func() { _ = in.CloseWithError(context.Cause(r.Context())) }) // like a connection
			go func() {
				for _, text := range []string{": wait\n", ": wait\n", textEvent("a"), ": wait\n", textEvent("b")} {
					time.Sleep(openAIIdle - time.Second)
					_, _ = io.WriteString(in, text)
				}
			}()
			return &http.Response{StatusCode: 200, Body: out}
		})
		begin, text := time.Now(), ""
		var err error
		for d, failure := range m.Answer(t.Context(), promptOf("x")) {
			if text, err = text+d.Text, failure; err == nil {
				time.Sleep(3 * openAIIdle)
			}
		}
		assert.Equal(t, "ab", text)
		assert.Equal(t, errSilent, err)
		assert.Greater(t, time.Since(begin), 10*openAIIdle)
		synctest.Wait()
	})
}

// An answer is read to the end of its body, so that its connection can be reused.
func TestOpenAIReadsToTheEnd(t *testing.T) {
	body := &bytesUntilEOF{Reader: bytes.NewReader([]byte(textEvent("Hi") + finishEvent("stop") + doneEvent))}
	m := offlineModel(t, func(*http.Request) *http.Response { return &http.Response{StatusCode: 200, Body: body} })
	_, _, err := askAll(t, t.Context(), m, promptOf("x"))
	assert.NoError(t, err)
	assert.True(t, body.ended && body.closed)
}

type bytesUntilEOF struct {
	*bytes.Reader
	ended, closed bool
}

func (b *bytesUntilEOF) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p[:min(len(p), 7)])
	b.ended = b.ended || err == io.EOF
	return n, err
}

func (b *bytesUntilEOF) Close() error { b.closed = true; return nil }

func TestOpenAIConfig(t *testing.T) {
	for _, base := range []string{"localhost:8080/v1", "ftp://user:" + secretKey + "@host/", "http://", "://", "http://%zz?" + secretKey} {
		_, err := newOpenAI(base, "", "small")
		require.Error(t, err, base)
		assert.NotContains(t, err.Error(), secretKey)
	}
	_, err := newOpenAI("", secretKey[:10]+"\n"+secretKey[10:], "small")
	require.Error(t, err)
	assert.NotContains(t, err.Error(), secretKey[:10])
	m, err := newOpenAI("", "", "small")
	require.NoError(t, err)
	assert.Equal(t, "https://api.openai.com/v1/chat/completions", m.url)
	assert.Equal(t, openAIHeaders, m.client.Transport.(*idempotency.Transport).Base.(*http.Transport).ResponseHeaderTimeout)

	m = newModel(t, "http://user:"+secretKey+"@127.0.0.1:1/?api-key="+secretKey) // no server listens there
	m.client.Transport.(*idempotency.Transport).Retry = pawl.Retry{Attempts: 1}
	_, _, err = askAll(t, t.Context(), m, promptOf("x"))
	require.ErrorContains(t, err, "cannot be reached")
	assert.NotContains(t, err.Error(), secretKey)
	assert.False(t, pawl.IsNonRetryable(err))

	p := promptOf("x")
	p.Tools[0].Parameters = json.RawMessage("{")
	_, _, err = askAll(t, t.Context(), m, p)
	assert.True(t, pawl.IsNonRetryable(err), "%v", err)
}
