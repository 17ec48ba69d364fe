package sse_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/sse"
)

// onBothProtocols runs test with HTTP/1.1 and with HTTP/2.
func onBothProtocols(t *testing.T, test func(t *testing.T, http2 bool)) {
	t.Run("HTTP 1.1", func(t *testing.T) { test(t, false) })
	t.Run("HTTP 2", func(t *testing.T) { test(t, true) })
}

// handlerOf returns a handler that serves s.
func handlerOf(s pawl.Scope[tally], opts ...sse.Option) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error { return sse.Serve(w, r, s, opts...) }
}

// The stream starts with the current state and sends each change, including deletion and
// re-creation. The handler returns when the client leaves.
//
// Proves SCOPE-13.
func TestStream(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		server := serve(t, http2, handlerOf(s, sse.Retry(1500*time.Millisecond)))
		c := server.get("GET", "", "")
		require.Equal(t, http2, c.ProtoMajor == 2)
		require.Equal(t, 200, c.StatusCode)
		require.Equal(t, "text/event-stream", c.Header.Get("Content-Type"))
		require.Equal(t, "no-store", c.Header.Get("Cache-Control"))
		require.Equal(t, "no", c.Header.Get("X-Accel-Buffering"))
		c.want(message{name: "gone", id: "0-gone", data: "null"})
		require.Equal(t, "1500", c.retry)
		count(t, s)
		c.want(message{id: memoryID(1), data: `{"n":1,"secret":""}`})
		_, err := s.SetState(t.Context(), tally{Text: "two\nlines\r\n: and more\u2028"})
		require.NoError(t, err)
		m, _ := c.next()
		require.Equal(t, memoryID(2), m.id)
		var got tally
		require.NoError(t, json.Unmarshal([]byte(m.data), &got))
		require.Equal(t, "two\nlines\r\n: and more\u2028", got.Text)
		require.NoError(t, s.Delete(t.Context()))
		c.want(message{name: "gone", id: "3-gone", data: "null"})
		_, err = s.SetState(t.Context(), tally{N: 7}, pawl.IfAbsent(), pawl.WithTTL(time.Hour))
		require.NoError(t, err)
		c.want(message{id: memoryID(4), data: `{"n":7,"secret":""}`})
		_, err = s.PatchState(t.Context(), pawl.Patch{"n": 7}, pawl.WithTTL(time.Millisecond)) // only the expiry changes
		require.NoError(t, err)
		c.want(message{name: "gone", id: "4-gone", data: "null"}) // expired
		c.leave()
		require.NoError(t, server.result())
	})
}

// A client that reconnects gets the newest state at once. If it already has that state, it gets the
// next one.
//
// Proves SCOPE-13.
func TestReconnect(t *testing.T) {
	s, _ := inMemory(t)
	server := serve(t, false, handlerOf(s, sse.Heartbeat(10*time.Millisecond)))
	for range 3 {
		count(t, s)
	}
	state := func(n int) message {
		return message{id: memoryID(n), data: `{"n":` + strconv.Itoa(n) + `,"secret":""}`}
	}
	for _, last := range []string{"", memoryID(2), memoryID(9), "3", "3.OTHER", "3-gone", "nonsense"} { // OTHER: a process before this one
		server.get("GET", "", last).want(state(3))
	}
	server.get("GET", "?lastEventId="+memoryID(2), "").want(state(3))
	same := []*client{server.get("GET", "", memoryID(3)), server.get("GET", "?lastEventId="+memoryID(3), ""), server.get("GET", "?lastEventId="+memoryID(2), memoryID(3))}
	count(t, s)
	for _, c := range same {
		c.want(state(4))
	}
	_, err := s.PatchState(t.Context(), pawl.Patch{"n": 5}, pawl.WithTTL(time.Millisecond))
	require.NoError(t, err)
	c := server.get("GET", "", memoryID(5)) // the version is unchanged, but the state has expired
	c.want(message{name: "gone", id: "5-gone", data: "null"})
}

// The stream ends after the final state. A client that reconnects with the final state gets 204.
func TestUntil(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		server := serve(t, http2, handlerOf(s, sse.Until(func(s tally) bool { return s.N >= 2 })))
		c := server.get("GET", "", "")
		c.want(message{name: "gone", id: "0-gone", data: "null"})
		count(t, s)
		c.want(message{id: memoryID(1), data: `{"n":1,"secret":""}`})
		count(t, s)
		c.want(message{id: memoryID(2), data: `{"n":2,"secret":""}`})
		c.wantEnd()
		require.NoError(t, server.result())
		c = server.get("GET", "", memoryID(1))
		c.want(message{id: memoryID(2), data: `{"n":2,"secret":""}`})
		c.wantEnd()
		require.Equal(t, 204, server.get("GET", "", memoryID(2)).StatusCode)
	})
}

// The stream shows only the result of the view, and no other part of the state.
func TestView(t *testing.T) {
	s, _ := inMemory(t)
	_, err := s.SetState(t.Context(), tally{N: 4, Secret: "hush"})
	require.NoError(t, err)
	view := func(s pawl.Snapshot[tally]) any {
		return map[string]any{"half": s.ReadOnly().N / 2, "version": s.Version, "raw": json.RawMessage("[1,\n\n2]")}
	}
	c := serve(t, false, handlerOf(s, sse.View(view))).get("GET", "", "")
	c.want(message{id: memoryID(1), data: `{"half":2,"raw":[1,2],"version":1}`})
	require.NoError(t, s.Delete(t.Context()))
	c.want(message{name: "gone", id: "2-gone", data: "null"})
}

// broken is a store whose Load fails.
type broken struct{ persist.Store }

func (broken) Load(context.Context, persist.Key) (persist.Record, error) {
	return persist.Record{}, errors.New("disk on fire at 10.0.0.7")
}

// noFlush hides that a ResponseWriter can flush.
type noFlush struct{ http.ResponseWriter }

// A failure before the first event is answered with its HTTP status and a code, without details.
func TestRefusals(t *testing.T) {
	s, _ := inMemory(t)
	count(t, s)
	down, err := pawl.Open(pawl.Config{Store: broken{memory.New()}})
	require.NoError(t, err)
	defer func() { require.NoError(t, down.Close(context.Background())) }()
	closed, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	ended := pawl.Memory[tally](closed, "a")
	require.NoError(t, closed.Close(t.Context()))
	unflushable := func(w http.ResponseWriter, r *http.Request) error { return sse.Serve(noFlush{w}, r, s) }
	var argument *pawl.ArgumentError
	for name, test := range map[string]struct {
		method, code string
		status       int
		handler      func(http.ResponseWriter, *http.Request) error
		is, as       any
	}{
		"method":       {"POST", "METHOD", 405, handlerOf(s), sse.ErrMethod, nil},
		"unavailable":  {"GET", "UNAVAILABLE", 503, handlerOf(pawl.Session[tally](down, "a")), pawl.ErrUnavailable, nil},
		"closed":       {"GET", "CLOSED", 503, handlerOf(ended), pawl.ErrClosed, nil},
		"zero scope":   {"GET", "ARGUMENT", 500, handlerOf(pawl.Scope[tally]{}), nil, &argument},
		"no flush":     {"GET", "INTERNAL", 500, unflushable, http.ErrNotSupported, nil},
		"nil option":   {"GET", "ARGUMENT", 500, handlerOf(s, nil), nil, &argument},
		"no heartbeat": {"GET", "ARGUMENT", 500, handlerOf(s, sse.Heartbeat(0)), nil, &argument},
		"no timeout":   {"GET", "ARGUMENT", 500, handlerOf(s, sse.WriteTimeout(-1)), nil, &argument},
		"until of int": {"GET", "ARGUMENT", 500, handlerOf(s, sse.Until(func(int) bool { return true })), nil, &argument},
		"view of int":  {"GET", "ARGUMENT", 500, handlerOf(s, sse.View(func(pawl.Snapshot[int]) any { return 1 })), nil, &argument},
		"bad view":     {"GET", "INTERNAL", 500, handlerOf(s, sse.View(func(pawl.Snapshot[tally]) any { return func() {} })), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, false, test.handler)
			c := server.get(test.method, "", "")
			require.Equal(t, test.status, c.StatusCode)
			require.Equal(t, "application/problem+json", c.Header.Get("Content-Type"))
			require.Empty(t, c.Header.Get("X-Accel-Buffering"))
			body, err := io.ReadAll(c.Body)
			require.NoError(t, err)
			require.JSONEq(t, `{"title":"`+http.StatusText(test.status)+`","status":`+strconv.Itoa(test.status)+`,"code":"`+test.code+`"}`, string(body))
			err = server.result()
			require.Error(t, err)
			if test.is != nil {
				require.ErrorIs(t, err, test.is.(error))
			}
			if test.as != nil {
				require.ErrorAs(t, err, test.as)
			}
			if test.status == 405 {
				require.Equal(t, "GET, HEAD", c.Header.Get("Allow"))
			}
		})
	}
}

// HEAD returns the header without a body.
func TestHead(t *testing.T) {
	s, _ := inMemory(t)
	server := serve(t, false, handlerOf(s))
	c := server.get("HEAD", "", "")
	require.Equal(t, "text/event-stream", c.Header.Get("Content-Type"))
	c.wantEnd()
	require.NoError(t, server.result())
}

// middleware wraps a ResponseWriter, like logging middleware.
type middleware struct{ http.ResponseWriter }

func (m middleware) Unwrap() http.ResponseWriter { return m.ResponseWriter }

// Serve works with a wrapped ResponseWriter, and with a recorder that has no deadlines.
func TestMiddleware(t *testing.T) {
	s, _ := inMemory(t)
	server := serve(t, false, func(w http.ResponseWriter, r *http.Request) error { return sse.Serve(middleware{w}, r, s) })
	c := server.get("GET", "", "")
	c.want(message{name: "gone", id: "0-gone", data: "null"})
	count(t, s)
	c.want(message{id: memoryID(1), data: `{"n":1,"secret":""}`})
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent()) // the context of this request does not end
	recorder := httptest.NewRecorder()
	require.NoError(t, sse.Serve(recorder, httptest.NewRequest("GET", "/", nil), s, sse.Until(func(tally) bool { return true })))
	require.Equal(t, "retry: 3000\n\nid: "+memoryID(1)+"\ndata: {\"n\":1,\"secret\":\"\"}\n\n", recorder.Body.String())
}

// A stream that fails sends an event with a code, without details, and ends.
func TestFailure(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, http2 bool) {
		store := memory.New()
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		s := pawl.Session[tally](rt, "a")
		count(t, s)
		server := serve(t, http2, handlerOf(s))
		watch := func(failed string, fail func()) error {
			c := server.get("GET", "", "")
			c.want(message{id: "1", data: `{"n":1,"secret":""}`})
			fail()
			c.want(message{name: "failed", data: `{"code":"` + failed + `"}`})
			c.wantEnd()
			return server.result()
		}
		require.ErrorIs(t, watch("CLOSED", func() { require.NoError(t, rt.Close(t.Context())) }), pawl.ErrClosed)
		rt, err = pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		s = pawl.Session[tally](rt, "a")
		server = serve(t, http2, handlerOf(s))
		var schema *pawl.SchemaError
		require.ErrorAs(t, watch("SCHEMA", func() { // a newer release writes
			_, err := store.Commit(t.Context(), persist.Commit{ID: "newer.1", Writes: []persist.Write{{Key: s.Key(), Expected: 1, Version: 2, Doc: []byte(`{}`), Schema: 9}}})
			require.NoError(t, err)
		}), &schema)
		require.NoError(t, rt.Close(t.Context()))
	})
}

// A stream without changes outlives the server's timeouts and its own write timeout, and sends
// heartbeats.
func TestIdle(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		t.Parallel()
		const short = time.Second
		server := serve(t, http2, handlerOf(s, sse.Heartbeat(short*3/2), sse.WriteTimeout(short)), func(s *http.Server) {
			s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = short, short, short
		})
		c := server.get("GET", "", "")
		c.want(message{name: "gone", id: "0-gone", data: "null"})
		for c.beats < 1 {
			line, err := c.lines.ReadString('\n')
			require.NoError(t, err)
			if strings.HasPrefix(line, ":") {
				c.beats++
			}
		}
		count(t, s)
		c.want(message{id: memoryID(1), data: `{"n":1,"secret":""}`})
	})
}

// The handler returns when a client stops reading.
func TestStuckClient(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		server := serve(t, http2, handlerOf(s, sse.WriteTimeout(200*time.Millisecond)))
		c := server.get("GET", "", "")
		c.want(message{name: "gone", id: "0-gone", data: "null"})
		big := strings.Repeat("x", 1<<20)
		for n := 1; ; n++ {
			_, err := s.SetState(t.Context(), tally{N: n, Text: big})
			require.NoError(t, err)
			select {
			case err := <-server.results:
				require.NoError(t, err)
				return
			case <-time.After(time.Millisecond):
			}
			require.NoError(t, c.Request.Context().Err(), "the handler did not return")
		}
	})
}

// A client that reads slowly misses versions, is told how many by an event of its own, and gets the
// newest. The event has no id, so that it is not taken for a version when the client reconnects.
//
// Proves SCOPE-13.
func TestSlowClient(t *testing.T) {
	s, _ := inMemory(t)
	server := serve(t, false, handlerOf(s))
	c := server.get("GET", "", "")
	c.want(message{name: "gone", id: "0-gone", data: "null"})
	const changes = 200
	big := strings.Repeat("x", 200_000)
	for n := range changes {
		_, err := s.SetState(t.Context(), tally{N: n + 1, Text: big})
		require.NoError(t, err)
	}
	for last, got, missed := 0, 0, 0; last < changes; {
		m, ok := c.next()
		require.True(t, ok)
		skipped := 0
		if m.name == "missed" {
			require.Empty(t, m.id)
			var data struct{ Count int }
			require.NoError(t, json.Unmarshal([]byte(m.data), &data))
			require.Positive(t, data.Count)
			skipped = data.Count
			m, ok = c.next()
			require.True(t, ok)
		}
		id, err := strconv.Atoi(strings.TrimSuffix(m.id, "."+sse.Process))
		require.NoError(t, err)
		require.Equal(t, last+skipped+1, id)
		last, got, missed = id, got+1, missed+skipped
		if last == changes {
			require.Equal(t, changes, got+missed)
			require.Positive(t, missed)
		}
	}
}

// Shutdown does not wait for clients if the request contexts end with the server.
func TestShutdown(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		server := serve(t, http2, handlerOf(s), func(s *http.Server) {
			base, end := context.WithCancel(context.Background())
			s.BaseContext = func(net.Listener) context.Context { return base }
			s.RegisterOnShutdown(end)
		})
		c := server.get("GET", "", "")
		c.want(message{name: "gone", id: "0-gone", data: "null"})
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		require.NoError(t, server.Config.Shutdown(ctx))
		c.wantEnd()
		require.NoError(t, server.result())
	})
}

// Every handler returns when its client disconnects, at any time and while the state changes.
func TestClientsDisconnect(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		server := serve(t, http2, handlerOf(s))
		const clients = 30
		for i := range clients {
			c := server.get("GET", "", "")
			if i%3 > 0 {
				_, ok := c.next()
				require.True(t, ok)
			}
			count(t, s)
			c.leave()
		}
		for range clients {
			require.NoError(t, server.result())
		}
	})
}
