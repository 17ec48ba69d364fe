package adk

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl/stream"
	"google.golang.org/adk/v2/session"
)

// afterPage is the number of entries that are read at a time when a time ends the reading.
const afterPage = 100

// readEvents returns the events of a session in their order: the last recent ones (0: all) that are
// not before after (zero: all). It reports false if entries are missing, as they are while the session
// is deleted.
func (s *Service) readEvents(ctx context.Context, hd *head, recent int, after time.Time) ([]*session.Event, bool, error) {
	if recent <= 0 && after.IsZero() {
		return s.readAll(ctx, hd)
	}
	// Entries come from the last to the first, so the last entry of an event comes before its pieces.
	r := backward{recent: recent, after: after}
	for before := hd.Entries; before > 0 && !r.done; {
		page := afterPage
		if recent > 0 {
			page = recent - r.count + r.wanted
		}
		n := int64(0)
		for e, err := range s.log.Read(ctx, hd.Stream, stream.Query{Before: before, Backward: true, Limit: page}) {
			if err != nil {
				return nil, false, err
			}
			if e.Version != before-1-n {
				return nil, false, nil
			}
			n++
			if err := r.take(e); err != nil {
				return nil, false, eventError(hd, e, err)
			}
			if r.done {
				break
			}
		}
		if n == 0 {
			return nil, false, nil
		}
		before -= n
	}
	if r.wanted > 0 {
		return nil, false, errPieces
	}
	slices.Reverse(r.events)
	return r.events, true, nil
}

// readAll returns all events of a session.
func (s *Service) readAll(ctx context.Context, hd *head) ([]*session.Event, bool, error) {
	if hd.Entries == 0 {
		return nil, true, nil
	}
	all := make([]*session.Event, 0, hd.Events)
	var pieces []json.RawMessage
	next := int64(0)
	for e, err := range s.log.Read(ctx, hd.Stream, stream.Query{Before: hd.Entries}) {
		if err != nil {
			return nil, false, err
		}
		if e.Version != next {
			return nil, false, nil
		}
		next++
		if e.Type == typePiece {
			pieces = append(pieces, e.Raw)
			continue
		}
		event, _, err := decodeEntry(e, pieces)
		if err != nil {
			return nil, false, eventError(hd, e, err)
		}
		all, pieces = append(all, event), nil
	}
	return all, next == hd.Entries, nil
}

// backward collects events from the last to the first.
type backward struct {
	recent int
	after  time.Time
	events []*session.Event
	count  int // of the events so far, also of those before after
	done   bool

	last   stream.Event      // of an event in pieces; see wanted
	wanted int               // pieces of it that are still to come
	pieces []json.RawMessage // those that came, from the last to the first
}

// take adds the next entry.
func (b *backward) take(e stream.Event) error {
	switch {
	case b.wanted > 0:
		if e.Type != typePiece {
			return errPieces
		}
		b.pieces = append(b.pieces, e.Raw)
		if b.wanted--; b.wanted > 0 {
			return nil
		}
		slices.Reverse(b.pieces)
		e = b.last
	case e.Type == typeLast:
		var l lastPiece
		if err := json.Unmarshal(e.Raw, &l); err != nil {
			return err
		}
		if b.last, b.wanted, b.pieces = e, l.Pieces, nil; b.wanted > 0 {
			return nil
		}
	}
	event, latest, err := decodeEntry(e, b.pieces)
	if err != nil {
		return err
	}
	b.pieces = nil
	if !b.after.IsZero() && latest.Before(b.after) {
		b.done = true // so are all events before it
		return nil
	}
	if !event.Timestamp.Before(b.after) {
		b.events = append(b.events, event)
	}
	b.count++
	b.done = b.recent > 0 && b.count == b.recent
	return nil
}

// decodeEntry returns the event that ends with the entry e, and the latest time up to it.
func decodeEntry(e stream.Event, pieces []json.RawMessage) (*session.Event, time.Time, error) {
	switch e.Type {
	case typeEvent:
		if len(pieces) > 0 {
			return nil, time.Time{}, errPieces
		}
		return decodeEvent(e.Raw)
	case typeLast:
		text, err := join(pieces, e.Raw)
		if err != nil {
			return nil, time.Time{}, err
		}
		return decodeEvent(text)
	}
	return nil, time.Time{}, fmt.Errorf("entry of unknown type %q", e.Type)
}

func eventError(hd *head, e stream.Event, err error) error {
	return fmt.Errorf("entry %d of session %s: %w", e.Version, hd.ID, err)
}
