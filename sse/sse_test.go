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

// onBoth runs test with HTTP/1.1 and with HTTP/2.
func onBoth(t *testing.T, test func(t *testing.T, http2 bool)) {
	t.Run("HTTP 1.1", func(t *testing.T) { test(t, false) })
	t.Run("HTTP 2", func(t *testing.T) { test(t, true) })
}

// of serves s.
func of(s pawl.Scope[tally], opts ...sse.Option) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error { return sse.Serve(w, r, s, opts...) }
}

// TestStream: the current state first, then each change, a deletion and a new beginning included; a client that leaves ends the handler.
//
// Proves SCOPE-13.
func TestStream(t *testing.T) {
	onBoth(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		server := serve(t, http2, of(s, sse.Retry(1500*time.Millisecond)))
		c := server.get("GET", "", "")
		require.Equal(t, http2, c.ProtoMajor == 2)
		require.Equal(t, 200, c.StatusCode)
		require.Equal(t, "text/event-stream", c.Header.Get("Content-Type"))
		require.Equal(t, "no-store", c.Header.Get("Cache-Control"))
		require.Equal(t, "no", c.Header.Get("X-Accel-Buffering"))
		c.want(message{name: "gone", id: "0-gone", data: "null"})
		require.Equal(t, "1500", c.retry)
		count(t, s)
		c.want(message{id: "1", data: `{"n":1,"secret":""}`})
		_, err := s.SetState(t.Context(), tally{Text: "two\nlines\r\n: and more\u2028"})
		require.NoError(t, err)
		m, _ := c.next()
		require.Equal(t, "2", m.id)
		var got tally
		require.NoError(t, json.Unmarshal([]byte(m.data), &got))
		require.Equal(t, "two\nlines\r\n: and more\u2028", got.Text)
		require.NoError(t, s.Delete(t.Context()))
		c.want(message{name: "gone", id: "3-gone", data: "null"})
		_, err = s.SetState(t.Context(), tally{N: 7}, pawl.IfAbsent(), pawl.WithTTL(time.Hour))
		require.NoError(t, err)
		c.want(message{id: "4", data: `{"n":7,"secret":""}`})
		_, err = s.PatchState(t.Context(), pawl.Patch{"n": 7}, pawl.WithTTL(time.Millisecond)) // nothing but the expiry moves
		require.NoError(t, err)
		c.want(message{name: "gone", id: "4-gone", data: "null"}) // expired
		c.leave()
		require.NoError(t, server.result())
	})
}

// TestReconnect: who comes back gets the newest at once, unless it has that already; then it gets the next.
//
// Proves SCOPE-13.
func TestReconnect(t *testing.T) {
	s, _ := inMemory(t)
	server := serve(t, false, of(s, sse.Heartbeat(10*time.Millisecond)))
	for range 3 {
		count(t, s)
	}
	state := func(n int) message {
		return message{id: strconv.Itoa(n), data: `{"n":` + strconv.Itoa(n) + `,"secret":""}`}
	}
	for _, last := range []string{"", "2", "9", "3-gone", "nonsense"} { // 9: of a runtime that was started again since
		server.get("GET", "", last).want(state(3))
	}
	server.get("GET", "?lastEventId=2", "").want(state(3))
	same := []*client{server.get("GET", "", "3"), server.get("GET", "?lastEventId=3", ""), server.get("GET", "?lastEventId=2", "3")}
	count(t, s)
	for _, c := range same {
		c.want(state(4))
	}
	_, err := s.PatchState(t.Context(), pawl.Patch{"n": 5}, pawl.WithTTL(time.Millisecond))
	require.NoError(t, err)
	c := server.get("GET", "", "5") // the version has not moved, but the state is gone
	c.want(message{name: "gone", id: "5-gone", data: "null"})
}

// TestUntil: the stream ends after the state that ends it, and who has that is told not to come back.
func TestUntil(t *testing.T) {
	onBoth(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		server := serve(t, http2, of(s, sse.Until(func(s tally) bool { return s.N >= 2 })))
		c := server.get("GET", "", "")
		c.want(message{name: "gone", id: "0-gone", data: "null"})
		count(t, s)
		c.want(message{id: "1", data: `{"n":1,"secret":""}`})
		count(t, s)
		c.want(message{id: "2", data: `{"n":2,"secret":""}`})
		c.over()
		require.NoError(t, server.result())
		c = server.get("GET", "", "1")
		c.want(message{id: "2", data: `{"n":2,"secret":""}`})
		c.over()
		require.Equal(t, 204, server.get("GET", "", "2").StatusCode)
	})
}

// TestView: what is shown is what the view returns, and nothing else of the state.
func TestView(t *testing.T) {
	s, _ := inMemory(t)
	_, err := s.SetState(t.Context(), tally{N: 4, Secret: "hush"})
	require.NoError(t, err)
	view := func(s pawl.Snapshot[tally]) any {
		return map[string]any{"half": s.ReadOnly().N / 2, "version": s.Version, "raw": json.RawMessage("[1,\n\n2]")}
	}
	c := serve(t, false, of(s, sse.View(view))).get("GET", "", "")
	c.want(message{id: "1", data: `{"half":2,"raw":[1,2],"version":1}`})
	require.NoError(t, s.Delete(t.Context()))
	c.want(message{name: "gone", id: "2-gone", data: "null"})
}

// broken is a store that is out of order.
type broken struct{ persist.Store }

func (broken) Load(context.Context, persist.Key) (persist.Record, error) {
	return persist.Record{}, errors.New("disk on fire at 10.0.0.7")
}

// deaf hides that a ResponseWriter can flush.
type deaf struct{ http.ResponseWriter }

// TestRefusals: what fails before the first event is answered with its status, and shows nothing but a code.
func TestRefusals(t *testing.T) {
	s, _ := inMemory(t)
	count(t, s)
	down, err := pawl.Open(pawl.Config{Store: broken{memory.New()}})
	require.NoError(t, err)
	closed, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	ended := pawl.Memory[tally](closed, "a")
	require.NoError(t, closed.Close(t.Context()))
	unflushable := func(w http.ResponseWriter, r *http.Request) error { return sse.Serve(deaf{w}, r, s) }
	var argument *pawl.ArgumentError
	for name, test := range map[string]struct {
		method, code string
		status       int
		handler      func(http.ResponseWriter, *http.Request) error
		is, as       any
	}{
		"method":       {"POST", "METHOD", 405, of(s), sse.ErrMethod, nil},
		"unavailable":  {"GET", "UNAVAILABLE", 503, of(pawl.Session[tally](down, "a")), pawl.ErrUnavailable, nil},
		"closed":       {"GET", "CLOSED", 503, of(ended), pawl.ErrClosed, nil},
		"zero scope":   {"GET", "ARGUMENT", 500, of(pawl.Scope[tally]{}), nil, &argument},
		"no flush":     {"GET", "INTERNAL", 500, unflushable, http.ErrNotSupported, nil},
		"nil option":   {"GET", "ARGUMENT", 500, of(s, nil), nil, &argument},
		"no heartbeat": {"GET", "ARGUMENT", 500, of(s, sse.Heartbeat(0)), nil, &argument},
		"no time":      {"GET", "ARGUMENT", 500, of(s, sse.WriteTimeout(-1)), nil, &argument},
		"other until":  {"GET", "ARGUMENT", 500, of(s, sse.Until(func(int) bool { return true })), nil, &argument},
		"other view":   {"GET", "ARGUMENT", 500, of(s, sse.View(func(pawl.Snapshot[int]) any { return 1 })), nil, &argument},
		"bad view":     {"GET", "INTERNAL", 500, of(s, sse.View(func(pawl.Snapshot[tally]) any { return func() {} })), nil, nil},
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

// TestHead: the header, and nothing else.
func TestHead(t *testing.T) {
	s, _ := inMemory(t)
	server := serve(t, false, of(s))
	c := server.get("HEAD", "", "")
	require.Equal(t, "text/event-stream", c.Header.Get("Content-Type"))
	c.over()
	require.NoError(t, server.result())
}

// middleware wraps a ResponseWriter as logging does.
type middleware struct{ http.ResponseWriter }

func (m middleware) Unwrap() http.ResponseWriter { return m.ResponseWriter }

// TestMiddleware: a wrapped ResponseWriter will do, and so will one for tests, which has no deadlines.
func TestMiddleware(t *testing.T) {
	s, _ := inMemory(t)
	server := serve(t, false, func(w http.ResponseWriter, r *http.Request) error { return sse.Serve(middleware{w}, r, s) })
	c := server.get("GET", "", "")
	c.want(message{name: "gone", id: "0-gone", data: "null"})
	count(t, s)
	c.want(message{id: "1", data: `{"n":1,"secret":""}`})
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent()) // this request has no context that ends with it
	recorder := httptest.NewRecorder()
	require.NoError(t, sse.Serve(recorder, httptest.NewRequest("GET", "/", nil), s, sse.Until(func(tally) bool { return true })))
	require.Equal(t, "retry: 3000\n\nid: 1\ndata: {\"n\":1,\"secret\":\"\"}\n\n", recorder.Body.String())
}

// TestFailure: a stream that cannot go on says so, with a code only.
func TestFailure(t *testing.T) {
	onBoth(t, func(t *testing.T, http2 bool) {
		store := memory.New()
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		s := pawl.Session[tally](rt, "a")
		count(t, s)
		server := serve(t, http2, of(s))
		watch := func(failed string, fail func()) error {
			c := server.get("GET", "", "")
			c.want(message{id: "1", data: `{"n":1,"secret":""}`})
			fail()
			c.want(message{name: "failed", data: `{"code":"` + failed + `"}`})
			c.over()
			return server.result()
		}
		require.ErrorIs(t, watch("CLOSED", func() { require.NoError(t, rt.Close(t.Context())) }), pawl.ErrClosed)
		rt, err = pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		s = pawl.Session[tally](rt, "a")
		server = serve(t, http2, of(s))
		var schema *pawl.SchemaError
		require.ErrorAs(t, watch("SCHEMA", func() { // a newer release writes
			_, err := store.Commit(t.Context(), persist.Commit{ID: "newer.1", Writes: []persist.Write{{Key: s.Key(), Expected: 1, Version: 2, Doc: []byte(`{}`), Schema: 9}}})
			require.NoError(t, err)
		}), &schema)
		require.NoError(t, rt.Close(t.Context()))
	})
}

// TestIdle: a stream on which nothing happens outlives the server's timeouts and its own write timeout, and heartbeats come.
func TestIdle(t *testing.T) {
	onBoth(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		t.Parallel()
		const short = time.Second
		server := serve(t, http2, of(s, sse.Heartbeat(short*3/2), sse.WriteTimeout(short)), func(s *http.Server) {
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
		c.want(message{id: "1", data: `{"n":1,"secret":""}`})
	})
}

// TestStuckClient: a client that does not read any more is given up.
func TestStuckClient(t *testing.T) {
	onBoth(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		server := serve(t, http2, of(s, sse.WriteTimeout(200*time.Millisecond)))
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
			require.NoError(t, c.Request.Context().Err(), "the handler does not return")
		}
	})
}

// TestSlowClient: a client that is slow to read misses versions, is told how many, and gets the newest.
//
// Proves SCOPE-13.
func TestSlowClient(t *testing.T) {
	s, _ := inMemory(t)
	server := serve(t, false, of(s))
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
		id, err := strconv.Atoi(m.id)
		require.NoError(t, err)
		skipped := 0
		if m.comment != "" {
			skipped, err = strconv.Atoi(strings.TrimPrefix(m.comment, "missed "))
			require.NoError(t, err)
		}
		require.Equal(t, last+skipped+1, id)
		last, got, missed = id, got+1, missed+skipped
		if last == changes {
			require.Equal(t, changes, got+missed)
			require.Positive(t, missed)
		}
	}
}

// TestShutdown: a server whose requests end with it does not wait for its clients.
func TestShutdown(t *testing.T) {
	onBoth(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		server := serve(t, http2, of(s), func(s *http.Server) {
			base, end := context.WithCancel(context.Background())
			s.BaseContext = func(net.Listener) context.Context { return base }
			s.RegisterOnShutdown(end)
		})
		c := server.get("GET", "", "")
		c.want(message{name: "gone", id: "0-gone", data: "null"})
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		require.NoError(t, server.Config.Shutdown(ctx))
		c.over()
		require.NoError(t, server.result())
	})
}

// TestClientVanishes: many clients come and go while the state changes, and no handler stays.
func TestClientVanishes(t *testing.T) {
	onBoth(t, func(t *testing.T, http2 bool) {
		s, _ := inMemory(t)
		server := serve(t, http2, of(s))
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
