// Package sse serves a watch of a scope as Server-Sent Events, the format that a browser's
// EventSource reads. [ServeEvents] serves a sequence of events, such as an event stream.
//
// Each event of [Serve] carries the whole state, so a later event makes up for a skipped or lost one:
//
//	id: 7
//	data: {"done":3,"of":10}
//
//	event: gone
//	id: 8-gone
//	data: null
//
// The id is the version; for a scope in memory, whose versions a new process counts from 1 again, the
// process follows it: 7.MFZWIZLT. (A new runtime or Local in the same process counts from 1, too: give
// its scopes other ids.) "-gone" says that the scope has no state: it never had one, was
// deleted, or has expired. Versions between two ids may be missing, if they came faster than they could be
// sent. Then an event named "missed" comes before the newer state and says how many. It has no id:
//
//	event: missed
//	data: {"count":3}
//
// An event named "failed" is the last event of a stream that cannot continue. Its data holds only
// the code of the error, as [pawl.Code] returns it: {"code":"UNAVAILABLE"}. (EventSource uses the
// name "error" for a lost connection.)
//
// # Reconnecting
//
// EventSource reconnects by itself and sends the last id that it received. It then receives the
// current state at once, unless it already has it. A page that was rendered at some version of a
// persisted scope can say so in the URL, as ?lastEventId=7.
//
// The response 204 makes EventSource stop. It is sent to a client that already has the state after
// which [Until] ends the stream. EventSource also stops after any other response than 200, such as
// the response to an error before the first event.
//
// # Event streams
//
// [ServeEvents] skips nothing. Each event has the id that the caller gives it, and a client that
// reconnects goes on after the last one that it received. A slow client is sent the events at its
// own speed. An event named "failed" is the last one, as above.
//
// # Shutting down
//
// [http.Server.Shutdown] waits for handlers and does not end the contexts of their requests. Let it
// end them, otherwise it waits until every client has left:
//
//	base, end := context.WithCancel(context.Background())
//	server := &http.Server{Handler: mux, BaseContext: func(net.Listener) context.Context { return base }}
//	server.RegisterOnShutdown(end)
//
// Closing the runtime ends all streams too, with code CLOSED.
package sse

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/pawl-go/pawl"
)

// ErrMethod is returned by Serve for a request that is neither GET nor HEAD. The response was 405.
var ErrMethod = errors.New("sse: method is neither GET nor HEAD")

// Option changes how a watch is served.
type Option func(*settings)

type settings struct {
	heartbeat    time.Duration
	retry        time.Duration
	writeTimeout time.Duration
	until        any // func(T) bool; nil: none
	view         any // func(pawl.Snapshot[T]) any; nil: none
}

// Heartbeat sets how often a comment is sent while nothing changes. It makes proxies keep the
// connection and shows that a client is gone. The default is 15 seconds.
func Heartbeat(d time.Duration) Option { return func(s *settings) { s.heartbeat = d } }

// Retry sets how long a client waits before it reconnects. The default is 3 seconds.
func Retry(d time.Duration) Option { return func(s *settings) { s.retry = d } }

// WriteTimeout sets how long a client may take to receive an event before the stream ends. It
// replaces the write timeout of the server. The default is 30 seconds.
func WriteTimeout(d time.Duration) Option { return func(s *settings) { s.writeTimeout = d } }

// Until ends the stream after the first state for which done returns true. T is the type of the
// scope. Done must not change the state.
func Until[T any](done func(T) bool) Option { return func(s *settings) { s.until = done } }

// View sends the result of view, as JSON, instead of the state, for a state that holds private
// data. T is the type of the scope. View is not called for a scope without state.
func View[T any](view func(pawl.Snapshot[T]) any) Option { return func(s *settings) { s.view = view } }

// Serve answers r with the current state of s and its changes, until the client leaves, r's context
// ends, [Until] ends the stream, or the watch fails. The package comment describes the stream.
// Serve leaves no goroutine behind.
//
// Serve returns nil when the client left, did not receive an event in time, or received the last
// one. An error before the first event is returned and answered with the status of
// [pawl.HTTPStatus] and a body of type application/problem+json that holds [pawl.Code]. Such errors
// are those of [pawl.Scope.Watch]; ErrMethod; *pawl.ArgumentError for an option; an error of the
// JSON encoding; and an error that wraps [http.ErrNotSupported] if w cannot flush, because a
// wrapper around it has no Unwrap. A later error is returned too, and ends the stream with an event
// named "failed".
func Serve[T any](w http.ResponseWriter, r *http.Request, s pawl.Scope[T], opts ...Option) error {
	rs, err := newResponse(w, r, opts)
	if err != nil {
		return err
	}
	st, err := newStream[T](rs)
	if err != nil {
		return rs.refuse(err)
	}
	ctx, cancel := context.WithCancel(r.Context())
	changes := s.Changes(ctx)
	defer func() {
		cancel()
		for range changes {
		}
	}()
	first, ok := <-changes
	if !ok {
		return nil // the client has left
	}
	e, err := st.encode(first)
	switch {
	case err != nil:
	case e.final && e.id == st.last:
		w.WriteHeader(http.StatusNoContent)
		return nil
	default:
		err = st.open()
	}
	switch {
	case errors.Is(err, errLeft), err != nil && r.Context().Err() != nil:
		return nil
	case err != nil:
		return rs.refuse(err)
	case r.Method == http.MethodHead:
		return nil
	}
	if e.id == st.last {
		e.text = nil
	}
	return st.run(changes, e)
}

// refuse answers a request with an error instead of a stream.
func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"title": http.StatusText(status), "status": status, "code": code})
}

// errLeft is the error of a write to a client that has left or is too slow.
var errLeft = errors.New("sse: client left")

// response is the response to one request.
type response struct {
	settings
	w    http.ResponseWriter
	conn *http.ResponseController
	last string // the last id that the client received; "": none
}

// newResponse returns the response to r. It refuses a request with a wrong method or wrong options,
// and returns the error.
func newResponse(w http.ResponseWriter, r *http.Request, opts []Option) (*response, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "METHOD")
		return nil, ErrMethod
	}
	rs := &response{w: w, conn: http.NewResponseController(w), last: r.Header.Get("Last-Event-ID")}
	if rs.last == "" {
		rs.last = r.URL.Query().Get("lastEventId")
	}
	rs.settings = settings{heartbeat: 15 * time.Second, retry: 3 * time.Second, writeTimeout: 30 * time.Second}
	for _, o := range opts {
		if o == nil {
			return nil, rs.refuse(&pawl.ArgumentError{Argument: "option", Reason: "nil"})
		}
		o(&rs.settings)
	}
	if rs.heartbeat <= 0 || rs.writeTimeout <= 0 || rs.retry < 0 {
		return nil, rs.refuse(&pawl.ArgumentError{Argument: "option", Reason: "duration is not positive"})
	}
	return rs, nil
}

// refuse answers the request with err instead of a stream, and returns err.
func (rs *response) refuse(err error) error {
	refuse(rs.w, pawl.HTTPStatus(err), pawl.Code(err))
	return err
}

// stream is the response of Serve.
type stream[T any] struct {
	*response
	done func(T) bool               // settings.until; nil: none
	show func(pawl.Snapshot[T]) any // settings.view; nil: none
}

func newStream[T any](rs *response) (*stream[T], error) {
	st := &stream[T]{response: rs}
	var ok bool
	if st.done, ok = st.until.(func(T) bool); !ok && st.until != nil {
		return nil, &pawl.ArgumentError{Argument: "Until", Reason: fmt.Sprintf("%T does not take a %T", st.until, *new(T))}
	}
	if st.show, ok = st.view.(func(pawl.Snapshot[T]) any); !ok && st.view != nil {
		return nil, &pawl.ArgumentError{Argument: "View", Reason: fmt.Sprintf("%T does not take a snapshot of %T", st.view, *new(T))}
	}
	return st, nil
}

// process is the name of this process in ids.
var process = rand.Text()[:8]

// event is an encoded change.
type event struct {
	id    string
	text  []byte // nil: the client already has it
	final bool   // the stream ends after it
}

// encode returns the event of c. It returns the error of c, or of the JSON encoding.
func (st *stream[T]) encode(c pawl.Change[T]) (e event, err error) {
	if c.Err != nil {
		return e, c.Err
	}
	var text bytes.Buffer
	if c.Missed > 0 {
		fmt.Fprintf(&text, "event: missed\ndata: {\"count\":%d}\n\n", c.Missed)
	}
	e.id = strconv.FormatUint(c.Version, 10)
	state := c.ReadOnly()
	if state == nil {
		e.id += "-gone"
		fmt.Fprintf(&text, "event: gone\nid: %s\ndata: null\n\n", e.id)
		e.text = text.Bytes()
		return e, nil
	}
	shown := any(state)
	if st.show != nil {
		shown = st.show(c.Snapshot)
	}
	data, err := json.Marshal(shown) // one line
	if err != nil {
		return e, fmt.Errorf("sse: %w", err)
	}
	if c.Time.IsZero() { // in memory
		e.id += "." + process
	}
	fmt.Fprintf(&text, "id: %s\ndata: %s\n\n", e.id, data)
	e.text, e.final = text.Bytes(), st.done != nil && st.done(*state)
	return e, nil
}

// open sends the response header. If w cannot flush, it sends nothing and returns an error that
// wraps http.ErrNotSupported.
func (rs *response) open() error {
	h := rs.w.Header()
	header := map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"} // nginx reads the last
	for name, value := range header {
		h.Set(name, value)
	}
	rs.setDeadline()
	err := rs.conn.Flush()
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, http.ErrNotSupported):
		return errLeft
	}
	for name := range header {
		h.Del(name)
	}
	return fmt.Errorf("sse: cannot flush: %w", err)
}

// setDeadline sets the deadline of the next write. A ResponseWriter without deadlines, as in some
// tests, has none.
func (rs *response) setDeadline() { _ = rs.conn.SetWriteDeadline(time.Now().Add(rs.writeTimeout)) }

// send writes text to the client and flushes it. It returns errLeft if that fails.
func (rs *response) send(text []byte) error {
	rs.setDeadline()
	if _, err := rs.w.Write(text); err != nil {
		return errLeft
	}
	if rs.conn.Flush() != nil {
		return errLeft
	}
	_ = rs.conn.SetWriteDeadline(time.Time{}) // in HTTP/2 a deadline ends even an idle stream
	return nil
}

// preamble returns the text that a stream begins with.
func (rs *response) preamble() []byte {
	return fmt.Appendf(nil, "retry: %d\n\n", rs.retry.Milliseconds())
}

// failure returns the event of an error that ends a stream.
func failure(err error) []byte {
	return fmt.Appendf(nil, "event: failed\ndata: {\"code\":%q}\n\n", pawl.Code(err))
}

// comment is sent as a heartbeat.
var comment = []byte(":\n\n")

// run sends e and the changes after it, until there are no more or the client has left.
func (st *stream[T]) run(changes <-chan pawl.Change[T], e event) error {
	e.text = append(st.preamble(), e.text...)
	beat := time.NewTicker(st.heartbeat)
	defer beat.Stop()
	defer st.setDeadline() // for the end of the response, which the server writes
	for {
		if st.send(e.text) != nil || e.final {
			return nil
		}
		select {
		case c, ok := <-changes:
			if !ok {
				return nil
			}
			var err error
			if e, err = st.encode(c); err != nil {
				_ = st.send(failure(err))
				return err
			}
			beat.Reset(st.heartbeat)
		case <-beat.C:
			e.text = comment
		}
	}
}
