package sse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
)

// Event is one event that ServeEvents sends.
type Event struct {
	// ID is what a client that reconnects sends back. Empty: the client keeps the ID that it has.
	ID string
	// Name is the type of the event in EventSource. Empty: "message".
	Name string
	// Data is sent as JSON.
	Data any
}

// ServeEvents answers r with the events of a sequence, until the sequence ends, the client leaves, or
// r's context ends. It calls events with the ID of the last event that the client received, empty if
// there is none. The ID comes from the client, so it may be any text. An event stream is served with
// the method WatchAfter of package stream; see the example.
//
// No event is skipped: the sequence waits for a slow client, up to [WriteTimeout]. The header is sent
// before the first event. Heartbeats are sent while there is no event. The sequence runs in the
// goroutine of the handler, and its context ends when the client has left. [Until] and [View] are
// refused.
//
// ServeEvents returns nil when the client left, did not receive an event in time, or received the
// last one. It returns ErrMethod, *pawl.ArgumentError for an option, and an error that wraps
// [http.ErrNotSupported] if w cannot flush, and answers them as [Serve] does. An error of the
// sequence or of the JSON encoding, and *pawl.ArgumentError for an ID or a name with a line break,
// are returned and end the response with an event named "failed". After that, EventSource
// reconnects.
func ServeEvents(w http.ResponseWriter, r *http.Request, events func(ctx context.Context, after string) iter.Seq2[Event, error], opts ...Option) error {
	rs, err := newResponse(w, r, opts)
	switch {
	case err != nil:
		return err
	case events == nil:
		return rs.refuse(&pawl.ArgumentError{Argument: "events", Reason: "nil"})
	case rs.until != nil || rs.view != nil:
		return rs.refuse(&pawl.ArgumentError{Argument: "option", Reason: "Until and View are for Serve"})
	}
	switch err := rs.open(); {
	case errors.Is(err, errLeft):
		return nil
	case err != nil:
		return rs.refuse(err)
	case r.Method == http.MethodHead:
		return nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	f, err := newFeed(rs, cancel)
	defer f.end()
	if err != nil {
		return nil // the client has left
	}
	for e, err := range events(ctx, rs.last) {
		var text []byte
		if err == nil {
			text, err = e.encode()
		}
		switch {
		case ctx.Err() != nil:
			return nil // the client has left
		case err != nil:
			_ = f.send(failure(err))
			return err
		case f.send(text) != nil:
			return nil
		}
	}
	return nil
}

// encode returns the text of e.
func (e Event) encode() ([]byte, error) {
	if strings.ContainsAny(e.ID, "\r\n\x00") || strings.ContainsAny(e.Name, "\r\n") {
		return nil, &pawl.ArgumentError{Argument: "Event", Reason: fmt.Sprintf("ID %.80q or Name %.80q has a line break or U+0000", e.ID, e.Name)}
	}
	data, err := json.Marshal(e.Data) // one line
	if err != nil {
		return nil, fmt.Errorf("sse: %w", err)
	}
	var text []byte
	if e.Name != "" {
		text = fmt.Appendf(text, "event: %s\n", e.Name)
	}
	if e.ID != "" {
		text = fmt.Appendf(text, "id: %s\n", e.ID)
	}
	return fmt.Appendf(text, "data: %s\n\n", data), nil
}

// feed sends events, and a heartbeat when none was sent for a while.
type feed struct {
	leave func() // ends the sequence

	mu sync.Mutex // protects the fields below, and makes the writes of two goroutines one after another
	*response
	beat *time.Timer // calls heartbeat
	over bool        // the handler is about to return
}

// newFeed sends the preamble, and after it makes the timer of the first heartbeat. It returns errLeft if
// sending fails.
func newFeed(rs *response, leave func()) (*feed, error) {
	f := &feed{leave: leave, response: rs}
	f.mu.Lock()
	defer f.mu.Unlock()
	err := rs.send(rs.preamble())
	f.beat = time.AfterFunc(rs.heartbeat, f.sendHeartbeat)
	return f, err
}

// send writes text to the client. It returns errLeft if that fails.
func (f *feed) send(text []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beat.Reset(f.heartbeat)
	return f.response.send(text)
}

// sendHeartbeat sends a heartbeat, and ends the sequence if the client has left.
func (f *feed) sendHeartbeat() {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.over:
	case f.response.send(comment) != nil:
		f.leave()
	default:
		f.beat.Reset(f.heartbeat)
	}
}

// end ends the heartbeats. Nothing is written after it.
func (f *feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	f.beat.Stop()
	f.setDeadline() // for the end of the response, which the server writes
}
