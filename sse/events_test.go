package sse_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/sse"
	"github.com/pawl-go/pawl/stream"
)

// note is the event of these tests.
type note struct {
	N    int    `json:"n"`
	Text string `json:"text,omitempty"`
}

// newLog returns a log in memory and its runtime, which the end of the test closes.
func newLog(t testing.TB) (*stream.Log, *pawl.Runtime) {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	log, err := stream.New(rt, stream.Config{Events: []stream.Type{stream.Of[note]("note")}})
	require.NoError(t, err)
	return log, rt
}

// add appends the next notes to the stream "a", one by one, and returns their messages.
func add(t testing.TB, log *stream.Log, from, n int) (all []message) {
	t.Helper()
	for i := from; i < from+n; i++ {
		made, err := log.Append(t.Context(), "a", stream.Any, note{N: i})
		require.NoError(t, err)
		data, err := json.Marshal(note{N: i})
		require.NoError(t, err)
		all = append(all, message{name: "note", id: made[0].ID, data: string(data)})
	}
	return all
}

// eventsOf returns a handler that serves the stream "a".
func eventsOf(log *stream.Log, opts ...sse.Option) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		return sse.ServeEvents(w, r, func(ctx context.Context, after string) iter.Seq2[sse.Event, error] {
			return func(yield func(sse.Event, error) bool) {
				for e, err := range log.WatchAfter(ctx, "a", after) {
					if !yield(sse.Event{ID: e.ID, Name: e.Type, Data: e.Raw}, err) {
						return
					}
				}
			}
		}, opts...)
	}
}

// sequence returns a handler that serves some events, and then an error unless it is nil.
func sequence(events []sse.Event, failed error, opts ...sse.Option) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		return sse.ServeEvents(w, r, func(context.Context, string) iter.Seq2[sse.Event, error] {
			return func(yield func(sse.Event, error) bool) {
				for _, e := range events {
					if !yield(e, nil) {
						return
					}
				}
				if failed != nil {
					yield(sse.Event{}, failed)
				}
			}
		}, opts...)
	}
}

// A client reads a stream, and loses its connection again and again while events are appended. With
// the last id that it received it gets every event once, in their order.
//
// Proves STREAM-1.
func TestEventsAfterReconnect(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, http2 bool) {
		log, _ := newLog(t)
		server := serve(t, http2, eventsOf(log, sse.Retry(1500*time.Millisecond)))
		const events = 60
		want := add(t, log, 0, 5)
		added := make(chan []message, 1)
		go func() {
			defer close(added)
			added <- add(t, log, 5, events-5)
		}()
		var got []message
		last := ""
		for connection := 0; len(got) < events; connection++ {
			c := server.get("GET", "", last)
			require.Equal(t, 200, c.StatusCode)
			require.Equal(t, "text/event-stream", c.Header.Get("Content-Type"))
			for range min(connection%7, events-len(got)) { // 0: it leaves before the first event
				m, ok := c.next()
				require.True(t, ok)
				got, last = append(got, m), m.id
				require.Equal(t, "1500", c.retry)
			}
			c.leave()
			require.NoError(t, server.result())
		}
		require.Equal(t, append(want, <-added...), got)

		c := server.get("GET", "?lastEventId="+last, "") // has all; gets the next one
		next := add(t, log, events, 1)
		c.want(next[0])
	})
}

// A client whose stream was deleted and made anew starts with the first event of the new one, whether
// it is connected or comes back with an id of the old one. So does a client with a text that is no id.
//
// Proves STREAM-1.
func TestEventsOfAnotherLife(t *testing.T) {
	log, _ := newLog(t)
	server := serve(t, false, eventsOf(log))
	old := add(t, log, 0, 3)
	c := server.get("GET", "", "")
	for _, m := range old {
		c.want(m)
	}
	require.NoError(t, log.DeleteStream(t.Context(), "a"))
	reconnected := server.get("GET", "", old[1].id) // before the stream is made anew
	anew := add(t, log, 10, 5)
	require.NotEqual(t, old[0].id, anew[0].id)
	clients := []*client{c, reconnected}
	for _, last := range []string{old[0].id, old[2].id, "nonsense", "a-b", "-1", "1", "-", strings.Repeat("9", 40), anew[0].id + "9999999999999999999"} {
		clients = append(clients, server.get("GET", "", last))
	}
	for _, c := range clients {
		for _, m := range anew {
			c.want(m)
		}
	}
	server.get("GET", "", anew[3].id).want(anew[4])
}

// A client that reads slowly misses no event: the sequence waits for it.
func TestEventsForSlowClient(t *testing.T) {
	const events = 100
	data := json.RawMessage(`"` + strings.Repeat("x", 200_000) + `"`)
	ahead := make(chan int, events+1)
	server := serve(t, false, func(w http.ResponseWriter, r *http.Request) error {
		return sse.ServeEvents(w, r, func(context.Context, string) iter.Seq2[sse.Event, error] {
			return func(yield func(sse.Event, error) bool) {
				for n := range events {
					ahead <- n
					if !yield(sse.Event{ID: strconv.Itoa(n), Data: data}, nil) {
						return
					}
				}
			}
		})
	})
	c := server.get("GET", "", "")
	for n := range events {
		c.want(message{id: strconv.Itoa(n), data: string(data)})
		if n == 0 {
			require.Less(t, len(ahead), events, "the sequence must wait for the client")
		}
	}
	c.wantEnd()
	require.NoError(t, server.result())
}

// The handler returns when a client stops reading, while it sends an event and while it sends
// heartbeats.
func TestEventsForStuckClient(t *testing.T) {
	big := sse.Event{Data: strings.Repeat("x", 1<<20)}
	onBothProtocols(t, func(t *testing.T, http2 bool) {
		endless := func(w http.ResponseWriter, r *http.Request) error {
			return sse.ServeEvents(w, r, func(context.Context, string) iter.Seq2[sse.Event, error] {
				return func(yield func(sse.Event, error) bool) {
					for yield(big, nil) {
					}
				}
			}, sse.WriteTimeout(200*time.Millisecond))
		}
		server := serve(t, http2, endless)
		server.get("GET", "", "")
		require.NoError(t, server.result())
	})
}

// brokenWriter is a ResponseWriter whose client is gone: writes fail, except the first few.
type brokenWriter struct {
	*httptest.ResponseRecorder
	writes int
}

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.writes--; w.writes < 0 {
		return 0, errors.New("gone")
	}
	return w.ResponseRecorder.Write(p)
}

// A heartbeat that cannot be sent ends the context of the sequence. None comes before the retry field, however
// short its interval.
func TestEventsEndAfterFailedHeartbeat(t *testing.T) {
	w := &brokenWriter{httptest.NewRecorder(), 2} // the retry field and one heartbeat
	err := sse.ServeEvents(w, httptest.NewRequest("GET", "/", nil), func(ctx context.Context, _ string) iter.Seq2[sse.Event, error] {
		return func(yield func(sse.Event, error) bool) {
			<-ctx.Done()
			yield(sse.Event{}, context.Cause(ctx))
		}
	}, sse.Heartbeat(time.Nanosecond))
	require.NoError(t, err)
	require.Equal(t, "retry: 3000\n\n:\n\n", w.Body.String())
}

// A stream without events is opened at once, sends heartbeats, and outlives the timeouts of the
// server.
func TestIdleEvents(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, http2 bool) {
		log, _ := newLog(t)
		t.Parallel()
		const short = time.Second
		server := serve(t, http2, eventsOf(log, sse.Heartbeat(short*3/4), sse.WriteTimeout(short)), func(s *http.Server) {
			s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = short, short, short
		})
		c := server.get("GET", "", "") // returns although there is no event
		for c.beats < 2 {
			line, err := c.lines.ReadString('\n')
			require.NoError(t, err)
			if strings.HasPrefix(line, ":") {
				c.beats++
			}
		}
		c.want(add(t, log, 0, 1)[0])
		c.leave()
		require.NoError(t, server.result())
	})
}

// The response ends with the sequence. Every form of an event is sent as EventSource reads it.
func TestEventForms(t *testing.T) {
	server := serve(t, false, sequence([]sse.Event{
		{Data: "two\nlines\r\n\u2028"}, {ID: "7", Data: nil}, {ID: "ä 8", Name: "some name", Data: json.RawMessage("[1,\n2]")},
	}, nil))
	c := server.get("GET", "", "")
	m, _ := c.next()
	var text string
	require.NoError(t, json.Unmarshal([]byte(m.data), &text))
	require.Equal(t, "two\nlines\r\n\u2028", text)
	c.want(message{id: "7", data: "null"})
	c.want(message{name: "some name", id: "ä 8", data: "[1,2]"})
	c.wantEnd()
	require.NoError(t, server.result())
}

// A sequence that fails sends an event with a code, without details, and ends.
func TestFailedEvents(t *testing.T) {
	sent := sse.Event{ID: "1", Data: 1}
	var argument *pawl.ArgumentError
	for name, test := range map[string]struct {
		events []sse.Event
		failed error
		code   string
		as     any
	}{
		"error":        {nil, &pawl.UnavailableError{Cause: errors.New("disk on fire at 10.0.0.7")}, "UNAVAILABLE", nil},
		"later":        {[]sse.Event{sent}, errors.New("disk on fire at 10.0.0.7"), "INTERNAL", nil},
		"bad data":     {[]sse.Event{sent, {Data: func() {}}, sent}, nil, "INTERNAL", nil},
		"line in id":   {[]sse.Event{{ID: "1\ndata: 2"}}, nil, "ARGUMENT", &argument},
		"zero in id":   {[]sse.Event{{ID: "\x00"}}, nil, "ARGUMENT", &argument},
		"line in name": {[]sse.Event{{Name: "x\rdata: 2"}}, nil, "ARGUMENT", &argument},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, false, sequence(test.events, test.failed))
			c := server.get("GET", "", "")
			if len(test.events) > 0 && test.events[0].Data != nil {
				c.want(message{id: "1", data: "1"})
			}
			c.want(message{name: "failed", data: `{"code":"` + test.code + `"}`})
			c.wantEnd()
			err := server.result()
			require.Error(t, err)
			if test.failed != nil {
				require.ErrorIs(t, err, test.failed)
			}
			if test.as != nil {
				require.ErrorAs(t, err, test.as)
			}
		})
	}
	t.Run("closed", func(t *testing.T) {
		log, rt := newLog(t)
		server := serve(t, false, eventsOf(log))
		first := add(t, log, 0, 1)
		c := server.get("GET", "", "")
		c.want(first[0])
		require.NoError(t, rt.Close(t.Context()))
		c.want(message{name: "failed", data: `{"code":"CLOSED"}`})
		c.wantEnd()
		require.ErrorIs(t, server.result(), pawl.ErrClosed)
	})
}

// A panic of the sequence is one of the handler, which the HTTP server recovers from.
func TestPanicOfEvents(t *testing.T) {
	require.PanicsWithValue(t, "oh", func() {
		_ = sse.ServeEvents(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil), func(context.Context, string) iter.Seq2[sse.Event, error] {
			panic("oh")
		})
	})
}

// A request that cannot be served is refused with a status, and HEAD returns the header only.
func TestRefusedEvents(t *testing.T) {
	for name, test := range map[string]struct {
		method, code string
		status       int
		handler      func(http.ResponseWriter, *http.Request) error
	}{
		"method":    {"POST", "METHOD", 405, sequence(nil, nil)},
		"no events": {"GET", "ARGUMENT", 500, func(w http.ResponseWriter, r *http.Request) error { return sse.ServeEvents(w, r, nil) }},
		"no flush": {"GET", "INTERNAL", 500, func(w http.ResponseWriter, r *http.Request) error {
			return sequence(nil, nil)(noFlush{w}, r)
		}},
		"nil option": {"GET", "ARGUMENT", 500, sequence(nil, nil, nil)},
		"heartbeat":  {"GET", "ARGUMENT", 500, sequence(nil, nil, sse.Heartbeat(0))},
		"until":      {"GET", "ARGUMENT", 500, sequence(nil, nil, sse.Until(func(int) bool { return true }))},
		"view":       {"GET", "ARGUMENT", 500, sequence(nil, nil, sse.View(func(pawl.Snapshot[int]) any { return 1 }))},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, false, test.handler)
			c := server.get(test.method, "", "")
			require.Equal(t, test.status, c.StatusCode)
			body, err := io.ReadAll(c.Body)
			require.NoError(t, err)
			require.Contains(t, string(body), `"code":"`+test.code+`"`)
			require.Error(t, server.result())
		})
	}
	log, _ := newLog(t)
	add(t, log, 0, 1)
	server := serve(t, false, eventsOf(log))
	c := server.get("HEAD", "", "")
	require.Equal(t, "text/event-stream", c.Header.Get("Content-Type"))
	c.wantEnd()
	require.NoError(t, server.result())
}

// Every handler returns when its client disconnects, at any time and while events are appended.
func TestClientsOfEventsDisconnect(t *testing.T) {
	onBothProtocols(t, func(t *testing.T, http2 bool) {
		log, _ := newLog(t)
		server := serve(t, http2, eventsOf(log, sse.Heartbeat(time.Millisecond)))
		const clients = 30
		for i := range clients {
			c := server.get("GET", "", "")
			add(t, log, i, 1)
			for range i % 3 {
				_, ok := c.next()
				require.True(t, ok)
			}
			c.leave()
		}
		for range clients {
			require.NoError(t, server.result())
		}
	})
}
