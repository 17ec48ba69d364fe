// Package sse shows a scope to browsers while it changes: it serves a watch as Server-Sent Events, the format that EventSource reads.
//
// Each event carries the whole state, so that one that was skipped or lost is made up for by the next:
//
//	id: 7
//	data: {"done":3,"of":10}
//
//	event: gone
//	id: 8-gone
//	data: null
//
// The id is the version; "-gone" says that the scope has no state, having never had one, or having been deleted or expired. Between two ids versions
// may be missing, because they came faster than they could be sent; then a comment, ": missed 3", says how many.
//
// An event named "failed" is the last one of a stream that cannot go on. Its data is a code, {"code":"UNAVAILABLE"}, as of [pawl.Code], and nothing else of the
// error. (The name "error" is taken: EventSource uses it for a lost connection.)
//
// # Reconnecting
//
// EventSource reconnects by itself, with the last id that it got. It then receives the newest at once, unless that is what it has already. A page that was
// rendered at some version can say so in the URL, as ?lastEventId=7. The answer 204 tells EventSource not to come back: it is given to a client that already
// has the state after which [Until] ends. To answers other than 200, such as those for errors before the first event, it does not come back
// either.
//
// # Shutting down
//
// [http.Server.Shutdown] waits for handlers, and does not end the contexts of their requests. Let it do so, or else it waits for
// as long as clients stay:
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
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/pawl-go/pawl"
)

// ErrMethod is returned for a request that is neither GET nor HEAD; it was answered with 405.
var ErrMethod = errors.New("sse: method is neither GET nor HEAD")

// Option changes how a watch is served.
type Option func(*settings)

type settings struct {
	heartbeat, retry, within time.Duration
	until, view              any // of whatever type: see stream
}

// Heartbeat sets how often a comment is sent while nothing changes, so that proxies keep the connection and a client that vanished is noticed. The
// default is 15 seconds.
func Heartbeat(d time.Duration) Option { return func(s *settings) { s.heartbeat = d } }

// Retry sets how long a client is told to wait before it reconnects. The default is 3 seconds.
func Retry(d time.Duration) Option { return func(s *settings) { s.retry = d } }

// WriteTimeout sets how long a client may take to receive an event before it is given up. The default is 30 seconds. It replaces that of the server.
func WriteTimeout(d time.Duration) Option { return func(s *settings) { s.within = d } }

// Until ends the stream after a state of which done reports true was sent. T is that of the scope. Done must not change the state.
func Until[T any](done func(T) bool) Option { return func(s *settings) { s.until = done } }

// View shows what view returns, as JSON, instead of the state: states can hold what is not for everybody. T is that of the scope. View is not asked about a scope
// without state.
func View[T any](view func(pawl.Snapshot[T]) any) Option { return func(s *settings) { s.view = view } }

// Serve answers r with the changes of s, from the current state on, until the client leaves, r's context ends, [Until] says so or the watch fails. The
// package comment describes the stream. It has returned from all that it started when it returns.
//
// It returns nil when the client left, could not be written to in time, or got all there was. Errors before the first event are returned, and answered with
// the status of [pawl.HTTPStatus] and a body of type application/problem+json that holds [pawl.Code]: those of [pawl.Scope.Watch]; ErrMethod;
// *pawl.ArgumentError for an option; an error that wraps [http.ErrNotSupported] if w cannot flush, being wrapped in something without
// Unwrap; and one of the JSON encoding. Later errors are returned too, and end the stream with an event named "failed".
func Serve[T any](w http.ResponseWriter, r *http.Request, s pawl.Scope[T], opts ...Option) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "METHOD")
		return ErrMethod
	}
	st, err := newStream[T](w, r, opts)
	if err != nil {
		refuse(w, pawl.HTTPStatus(err), pawl.Code(err))
		return err
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
		return nil // the client left
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
		refuse(w, pawl.HTTPStatus(err), pawl.Code(err))
		return err
	case r.Method == http.MethodHead:
		return nil
	}
	if e.id == st.last {
		e.text = nil
	}
	return st.run(changes, e)
}

// refuse answers a request that gets no stream.
func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"title": http.StatusText(status), "status": status, "code": code})
}

// errLeft says that the client cannot be written to any more.
var errLeft = errors.New("sse: the client left")

// stream is one answer.
type stream[T any] struct {
	settings
	w    http.ResponseWriter
	conn *http.ResponseController
	last string                     // the id that the client has
	done func(T) bool               // settings.until; may be nil, as the next
	show func(pawl.Snapshot[T]) any // settings.view
}

func newStream[T any](w http.ResponseWriter, r *http.Request, opts []Option) (*stream[T], error) {
	st := &stream[T]{w: w, conn: http.NewResponseController(w), last: r.Header.Get("Last-Event-ID")}
	if st.last == "" {
		st.last = r.URL.Query().Get("lastEventId")
	}
	st.settings = settings{heartbeat: 15 * time.Second, retry: 3 * time.Second, within: 30 * time.Second}
	for _, o := range opts {
		if o == nil {
			return nil, &pawl.ArgumentError{Argument: "option", Reason: "nil"}
		}
		o(&st.settings)
	}
	if st.heartbeat <= 0 || st.within <= 0 || st.retry < 0 {
		return nil, &pawl.ArgumentError{Argument: "option", Reason: "a time that is not positive"}
	}
	var ok bool
	if st.done, ok = st.until.(func(T) bool); !ok && st.until != nil {
		return nil, &pawl.ArgumentError{Argument: "Until", Reason: fmt.Sprintf("%T is not about %T", st.until, *new(T))}
	}
	if st.show, ok = st.view.(func(pawl.Snapshot[T]) any); !ok && st.view != nil {
		return nil, &pawl.ArgumentError{Argument: "View", Reason: fmt.Sprintf("%T is not about %T", st.view, *new(T))}
	}
	return st, nil
}

// event is a change as it is sent.
type event struct {
	id    string
	text  []byte // nil: the client has it already
	final bool   // the last one
}

// encode returns the event of c, or the error of c.
func (st *stream[T]) encode(c pawl.Change[T]) (e event, err error) {
	if c.Err != nil {
		return e, c.Err
	}
	var text bytes.Buffer
	if c.Missed > 0 {
		fmt.Fprintf(&text, ": missed %d\n", c.Missed)
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
	data, err := json.Marshal(shown) // compact, so it is one line
	if err != nil {
		return e, fmt.Errorf("sse: %w", err)
	}
	fmt.Fprintf(&text, "id: %s\ndata: %s\n\n", e.id, data)
	e.text, e.final = text.Bytes(), st.done != nil && st.done(*state)
	return e, nil
}

// open sends the header. It returns an error that wraps http.ErrNotSupported, before anything is sent, if that would stay on the way.
func (st *stream[T]) open() error {
	h := st.w.Header()
	header := map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"} // the last is for nginx
	for name, value := range header {
		h.Set(name, value)
	}
	st.limit()
	err := st.conn.Flush()
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

// limit gives the client its time for the next write. Where that cannot be done, as in some tests, it has no limit.
func (st *stream[T]) limit() { _ = st.conn.SetWriteDeadline(time.Now().Add(st.within)) }

// send writes text to the client and returns errLeft if that cannot be done.
func (st *stream[T]) send(text []byte) error {
	st.limit()
	if _, err := st.w.Write(text); err != nil {
		return errLeft
	}
	if st.conn.Flush() != nil {
		return errLeft
	}
	_ = st.conn.SetWriteDeadline(time.Time{}) // in HTTP/2 it would end the stream although there is nothing to write
	return nil
}

// run sends e and then what changes, until there is no more or nobody to send it to.
func (st *stream[T]) run(changes <-chan pawl.Change[T], e event) error {
	e.text = append(fmt.Appendf(nil, "retry: %d\n\n", st.retry.Milliseconds()), e.text...)
	beat := time.NewTicker(st.heartbeat)
	defer beat.Stop()
	defer st.limit() // for what the server still has to write
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
				_ = st.send(fmt.Appendf(nil, "event: failed\ndata: {\"code\":%q}\n\n", pawl.Code(err)))
				return err
			}
			beat.Reset(st.heartbeat)
		case <-beat.C:
			e.text = []byte(":\n\n")
		}
	}
}
