package idempotency_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
)

// This file tests unusual handlers and requests.

// A client leaves before the handler has committed anything, and the handler answers with that
// error. The error is not stored, and the repeat does the work. Proves IDEM-1.
func TestClientLeavesFirst(t *testing.T) {
	rt, keys := onMemory(t, idempotency.Config{})
	g := newGate()
	s := serve(t, keys.Middleware(g))
	work := func(w http.ResponseWriter, r *http.Request) {
		if err := deposit(r.Context(), rt, nil, "deposited"); err != nil {
			http.Error(w, pawl.Code(err), pawl.HTTPStatus(err))
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := s.try(ctx, "POST", "/orders", "k", `{"item":7}`)
		gone <- err
	}()
	r := g.in(t)
	leave()
	require.Error(t, <-gone)
	<-r.Context().Done()
	g.next <- work
	g.next <- work
	var a answer
	testkit.Eventually(t, func() bool { a = s.post("k"); return a.code409() == "" })
	require.Equal(t, 201, a.status, a.body)
	require.Equal(t, "deposited", a.body)
	require.EqualValues(t, 1, balance(t, rt))
}

// code409 returns the body of a 409 answer, which says that the first request still runs.
func (a answer) code409() string {
	if a.status == 409 {
		return a.body
	}
	return ""
}

// A handler has lost its lease, and its key was deleted and reused for another payload. Its client
// does not get the response of that payload. Proves IDEM-6.
func TestLateHandlerOfAnotherPayload(t *testing.T) {
	rt, keys := onMemory(t, idempotency.Config{})
	g := newGate()
	s := serve(t, keys.Middleware(g))
	first := s.async("k")
	g.in(t)
	failed, leave := make(chan struct{}), make(chan struct{})
	g.next <- func(_ http.ResponseWriter, r *http.Request) {
		_ = deposit(r.Context(), rt, io.EOF, "mine")
		close(failed)
		<-leave
	}
	<-failed
	forget(t, rt)
	g.next <- func(w http.ResponseWriter, r *http.Request) {
		if err := deposit(r.Context(), rt, nil, "for another payload"); err != nil {
			panic(err)
		}
	}
	require.Equal(t, "for another payload", s.send("POST", "/orders", "k", "another").body)
	close(leave)
	a := <-first
	require.Equal(t, 503, a.status, a.body)
	require.Equal(t, "IDEMPOTENCY_OUTCOME_UNKNOWN", a.code(t))
	require.EqualValues(t, 1, balance(t, rt))
}

// An invalid status panics where the handler writes it, as without the middleware, and the key
// stays free. Proves IDEM-4.
func TestInvalidStatus(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{})
	g := newGate()
	s := serve(t, keys.Middleware(g))
	for _, status := range []int{-1, 0, 99, 1000} {
		panicked := make(chan any, 1)
		g.next <- func(w http.ResponseWriter, _ *http.Request) {
			defer func() {
				panicked <- recover()
				panic(http.ErrAbortHandler)
			}()
			w.WriteHeader(status)
		}
		_, err := s.try(t.Context(), "POST", "/orders", "k", `{"item":7}`)
		g.in(t)
		require.Error(t, err)
		require.NotNil(t, <-panicked, status)
	}
	g.next <- say(200, "at last")
	require.Equal(t, "at last", s.post("k").body)
}

// Status 101 is a final status, as for the server, and its response is not stored. Proves IDEM-3.
func TestSwitchingProtocols(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{})
	g := newGate()
	s := serve(t, keys.Middleware(g))
	g.next <- func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Upgrade", "odd")
		w.WriteHeader(http.StatusSwitchingProtocols)
	}
	conn := s.dial()
	_, err := io.WriteString(conn, "POST /up HTTP/1.1\r\nHost: x\r\nUser: ann\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
	require.NoError(t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "101")
	g.in(t)
	free(t, s, "/up", "k", g)
}

// A transaction with a response fails, and the handler's own answer is too large to store. That
// answer is sent, but not stored. Proves IDEM-3.
func TestFailedRespondThenTooLarge(t *testing.T) {
	rt, keys := onMemory(t, idempotency.Config{MaxBody: 100})
	g := newGate()
	s := serve(t, keys.Middleware(g))
	for range 2 {
		g.next <- func(w http.ResponseWriter, r *http.Request) {
			_ = deposit(r.Context(), rt, io.EOF, "no")
			_, _ = io.WriteString(w, strings.Repeat("x", 101))
		}
		a := s.post("k")
		g.in(t)
		require.Len(t, a.body, 101)
		require.False(t, a.replayed())
	}
}

// A response with unannounced trailers arrives with them, and is not stored. Proves IDEM-3.
func TestUndeclaredTrailers(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{})
	var runs atomic.Int64
	h := httptest.NewUnstartedServer(keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		w.Header().Set("X-A", "b")
		_, _ = io.WriteString(w, "text")
		w.Header().Set(http.TrailerPrefix+"X-Sum", "7")
	})))
	h.EnableHTTP2 = true
	h.StartTLS()
	t.Cleanup(h.Close)
	for n := range 2 {
		r, err := http.NewRequestWithContext(t.Context(), "POST", h.URL, nil)
		require.NoError(t, err)
		r.Header = http.Header{"User": {"ann"}, idempotency.Header: {"k"}}
		response, err := h.Client().Do(r)
		require.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, "text", string(text))
		require.Equal(t, "b", response.Header.Get("X-A"))
		require.Equal(t, "7", response.Trailer.Get("X-Sum"))
		require.EqualValues(t, n+1, runs.Load())
	}
}

// Code outside the handler has already parsed the form and so read the body. The payload of the key
// is still the form. Proves IDEM-1.
func TestParsedForms(t *testing.T) {
	var runs atomic.Int64
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		_, _ = io.WriteString(w, r.FormValue("amount"))
	})
	_, keys := onMemory(t, idempotency.Config{Principal: func(r *http.Request) string { return r.FormValue("account") }})
	s := serve(t, keys.Middleware(h))
	const kind = "application/x-www-form-urlencoded"
	require.Equal(t, "7", s.send("POST", "/", "k", "account=a&amount=7", "Content-Type", kind).body)
	require.True(t, s.send("POST", "/", "k", "account=a&amount=7", "Content-Type", kind).replayed())
	require.Equal(t, 422, s.send("POST", "/", "k", "account=a&amount=8", "Content-Type", kind).status)

	form := func(name, text string) string {
		var b bytes.Buffer
		m := multipart.NewWriter(&b)
		require.NoError(t, m.SetBoundary("edge"))
		require.NoError(t, m.WriteField("account", "a"))
		part, err := m.CreateFormFile("f", name)
		require.NoError(t, err)
		_, _ = io.WriteString(part, text)
		require.NoError(t, m.Close())
		return b.String()
	}
	upload := func(name, text string) answer {
		return s.send("POST", "/", "file", form(name, text), "Content-Type", "multipart/form-data; boundary=edge")
	}
	require.Equal(t, 200, upload("a.txt", "one").status)
	require.True(t, upload("a.txt", "one").replayed())
	require.Equal(t, 422, upload("a.txt", "two").status)
	require.Equal(t, 422, upload("b.txt", "one").status)
	require.EqualValues(t, 2, runs.Load())
}

// A handler wrapped by the middlewares of two Keys on one store runs once per key. Proves IDEM-1.
func TestMiddlewareOfTwoKeys(t *testing.T) {
	var runs atomic.Int64
	rt, outer := onMemory(t, idempotency.Config{})
	inner := keysOn(t, rt, idempotency.Config{Require: true})
	s := serve(t, outer.Middleware(inner.Middleware(counted(&runs))))
	a := s.post("k")
	require.Equal(t, 201, a.status, a.body)
	require.Equal(t, `run 1 of {"item":7}`, a.body)
	require.True(t, s.post("k").replayed())
	require.EqualValues(t, 1, runs.Load())
}

// A header that is configured twice, or is always stored, is replayed once. Proves IDEM-1.
func TestDuplicateHeaders(t *testing.T) {
	var runs atomic.Int64
	_, keys := onMemory(t, idempotency.Config{Headers: []string{"location", "X-A", "x-a"}})
	s := serve(t, keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-A", "b")
		counted(&runs).ServeHTTP(w, r)
	})))
	for range 2 {
		a := s.post("k")
		require.Equal(t, []string{"/orders/1"}, a.header["Location"])
		require.Equal(t, []string{"b"}, a.header["X-A"])
	}
}

// http.TimeoutHandler inside the middleware answers for a handler that responds at about the same
// moment. The transaction of that handler counts for every repeat, or for none. Proves IDEM-6.
func TestTimeoutHandlerInside(t *testing.T) {
	rt, keys := onMemory(t, idempotency.Config{})
	verdict := make(chan error, 1)
	var first atomic.Bool
	s := serve(t, keys.Middleware(http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !first.CompareAndSwap(true, false) {
			_, _ = io.WriteString(w, "second")
			return
		}
		<-r.Context().Done()
		verdict <- deposit(context.WithoutCancel(r.Context()), rt, nil, "late")
	}), time.Millisecond, "too late")))
	landed := int64(0)
	for n := range 50 {
		first.Store(true)
		key := fmt.Sprint("k", n)
		a := s.post(key)
		err := <-verdict
		if err == nil {
			landed++
			again := s.post(key)
			require.True(t, again.replayed())
			require.Equal(t, "late", again.body)
		} else {
			if !errors.Is(err, idempotency.ErrResponded) { // the timeout responded first
				require.ErrorIs(t, err, pawl.ErrLeaseLost)
			}
			require.Equal(t, "too late", a.body)
		}
		require.Equal(t, landed, balance(t, rt))
	}
}

// A response without a content type is replayed without one. Proves IDEM-1.
func TestNoContentType(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{})
	s := serve(t, keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, "<html>")
	})))
	for range 2 {
		require.NotContains(t, s.post("k").header, "Content-Type")
	}
}

// A handler that sets a wrong Content-Length gets the same whole response to every client.
// Proves IDEM-1.
func TestWrongContentLength(t *testing.T) {
	for _, length := range []string{"2", "200", "odd"} {
		_, keys := onMemory(t, idempotency.Config{})
		s := serve(t, keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", length)
			_, _ = io.WriteString(w, "whole response")
		})))
		first, again := s.post("k"), s.post("k")
		require.True(t, again.replayed())
		for _, a := range []answer{first, again} {
			require.Equal(t, 200, a.status)
			require.Equal(t, "whole response", a.body, length)
			require.Equal(t, "14", a.header.Get("Content-Length"))
		}
	}
}

// A body that is too large is refused with the limit that it exceeded, also if an outer handler set
// that limit. Proves IDEM-1.
func TestLimitOfOuterHandler(t *testing.T) {
	var runs atomic.Int64
	_, keys := onMemory(t, idempotency.Config{MaxRequest: 1000})
	inner := keys.Middleware(counted(&runs))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/outer" {
			r.Body = http.MaxBytesReader(w, r.Body, 100)
		}
		inner.ServeHTTP(w, r)
	}))
	for path, limit := range map[string]string{"/outer": " 100 bytes", "/": " 1000 bytes"} {
		a := s.send("POST", path, "k", strings.Repeat("x", 2000))
		require.Equal(t, 413, a.status, a.body)
		require.Equal(t, "IDEMPOTENCY_REQUEST_BODY", a.code(t))
		require.Contains(t, a.body, limit)
	}
	require.Zero(t, runs.Load())
}
