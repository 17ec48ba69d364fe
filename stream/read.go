package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pawl-go/pawl"
)

// pageSize is the number of events that are read at a time.
const pageSize = 500

// Head is the state of a stream.
type Head struct {
	// Last is the version of the last event that was appended, -1 if there was none.
	Last int64
	// First is the version of the first event that is kept; see Trim and CloseStream.
	First int64
	// Closed says that appends are refused.
	Closed bool
}

// Head returns the state of a stream. A stream that does not exist has no events. It returns the
// errors of pawl.Scope.Snapshot.
func (l *Log) Head(ctx context.Context, stream string) (Head, error) {
	h, err := l.head(ctx, stream)
	return Head{Last: h.Next - 1, First: h.First, Closed: h.Closing != nil}, err
}

// head returns the document of a stream, the zero head if there is none.
func (l *Log) head(ctx context.Context, stream string) (head, error) {
	snap, err := l.heads.Scope(l.owner, stream).Snapshot(ctx)
	if err != nil && !pawl.IsAbsent(err) || !snap.Exists() {
		if pawl.IsAbsent(err) {
			err = nil
		}
		return head{}, err
	}
	return *snap.ReadOnly(), nil
}

// Query selects events of one stream; the zero value selects all, in the order of their versions.
type Query struct {
	From     int64    // the lowest version
	Before   int64    // above the highest version; 0: no bound
	Types    []string // stored names; none: all types
	Backward bool     // from the last to the first
	Limit    int      // 0: no limit
}

// Read yields events of a stream. It reads page by page, and shows no event that is appended after
// it has begun. Inside a transaction, see In, it sees the events that were there before the
// transaction, and the commit tests that no other was appended meanwhile.
//
// For an event that does not decode it yields the Event without Data, and *EventError, and goes on.
// Every other error is in the last pair: *pawl.ArgumentError for a negative number, and the errors
// of pawl.Scope.Snapshot and pawl.Scope.ReadLog.
func (l *Log) Read(ctx context.Context, stream string, q Query) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if q.From < 0 || q.Before < 0 || q.Limit < 0 {
			yield(Event{}, &pawl.ArgumentError{Argument: "Query", Reason: "negative version or limit"})
			return
		}
		h, err := l.head(ctx, stream)
		if err != nil {
			yield(Event{}, err)
			return
		}
		if q.Before == 0 || q.Before > h.Next {
			q.Before = h.Next
		}
		left, hint := q.Limit, q.Limit
		if len(q.Types) > 0 {
			hint = 0 // events of other types are read too
		}
		for e, err := range l.entries(ctx, stream, h.Life, max(q.From, h.First), q.Before, q.Backward, hint) {
			if err != nil && e.ID == "" {
				yield(Event{}, err)
				return
			}
			if len(q.Types) > 0 && !slices.Contains(q.Types, e.Type) {
				continue
			}
			if !yield(e, err) {
				return
			}
			if left--; left == 0 {
				return
			}
		}
	}
}

// Last returns the last n events of a stream, in the order of their versions. It returns the errors
// of Read; an event that does not decode comes without Data, and *EventError with all events.
func (l *Log) Last(ctx context.Context, stream string, n int) ([]Event, error) {
	if n <= 0 {
		return nil, &pawl.ArgumentError{Argument: "n", Reason: "not positive"}
	}
	var events []Event
	var undecoded error
	for e, err := range l.Read(ctx, stream, Query{Backward: true, Limit: n}) {
		if err != nil && e.ID == "" {
			return nil, err
		}
		undecoded = errors.Join(undecoded, err)
		events = append(events, e)
	}
	slices.Reverse(events)
	return events, undecoded
}

// errGone ends a reading of events that were removed meanwhile.
var errGone = fmt.Errorf("%w: stream: events were removed while they were read", pawl.ErrConflict)

// whole is entries forward. Its last pair is errGone if an event is missing.
func (l *Log) whole(ctx context.Context, stream, life string, from, before int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		next := from
		for e, err := range l.entries(ctx, stream, life, from, before, false, 0) {
			if err == nil && e.Version != next {
				break
			}
			if !yield(e, err) {
				return
			}
			if err != nil && e.ID == "" {
				return
			}
			next = e.Version + 1
		}
		if next < before {
			yield(Event{}, errGone)
		}
	}
}

// entries yields the events of one life of a stream in a range of versions, without those that were
// removed meanwhile. It ends early if the stream was deleted. An error without an event is the last
// pair.
func (l *Log) entries(ctx context.Context, stream, life string, from, before int64, backward bool, hint int) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		size := pageSize
		if hint > 0 {
			size = min(size, hint)
		}
		scope := l.heads.Scope(l.owner, stream)
		for from < before {
			q := pawl.LogQuery{From: uint64(from), Before: uint64(before), Reverse: backward, Limit: size}
			page, err := scope.ReadLog(ctx, q)
			if err != nil {
				yield(Event{}, err)
				return
			}
			for _, raw := range page {
				e, of, err := l.decode(raw)
				if of == "" { // no event, but in this place
					e.ID = eventID(life, e.Version)
				} else if of != life {
					return
				}
				if !yield(e, err) {
					return
				}
				if backward {
					before = e.Version
				} else {
					from = e.Version + 1
				}
			}
			if len(page) < size {
				return
			}
		}
	}
}

// AllQuery selects events of all streams; the zero value selects all.
type AllQuery struct {
	After  uint64         // the position of the last event that was read; 0: from the first
	Stream *regexp.Regexp // the names of the streams; nil: all
	Types  []string       // stored names; none: all types
	Limit  int            // 0: no limit
}

// ReadAll yields events of all streams, in the order of their positions, up to the last one that is
// committed now. A reader that goes on after the last position misses no event; see
// persist.Logger for the order. On PostgreSQL the positions are given by readers: see docs/streams.md
// for what that costs.
//
// Errors are those of Read and of pawl.Runtime.ReadLogs. ReadAll is not part of a transaction.
func (l *Log) ReadAll(ctx context.Context, q AllQuery) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if q.Limit < 0 {
			yield(Event{}, &pawl.ArgumentError{Argument: "AllQuery.Limit", Reason: "negative"})
			return
		}
		left := q.Limit
		for {
			page, err := l.rt.ReadLogs(ctx, q.After, pageSize, l.config.Name)
			if err != nil {
				yield(Event{}, err)
				return
			}
			for _, raw := range page {
				q.After = raw.Position
				e, _, err := l.decode(raw)
				if q.Stream != nil && !q.Stream.MatchString(e.Stream) || len(q.Types) > 0 && !slices.Contains(q.Types, e.Type) {
					continue
				}
				if !yield(e, err) {
					return
				}
				if left--; left == 0 {
					return
				}
			}
			if len(page) < pageSize {
				return
			}
		}
	}
}

// Watch yields the events of a stream with versions above after, and goes on with new events, of all
// processes, until ctx ends. Use -1 to begin with the first event. If the stream is deleted and
// appended to again, it goes on with the first event of the new stream; Event.ID tells the two
// apart. An event that was removed before it could be read is left out.
//
// Errors are those of Read and of pawl.Scope.Watch.
func (l *Log) Watch(ctx context.Context, stream string, after int64) iter.Seq2[Event, error] {
	if after < -1 {
		return func(yield func(Event, error) bool) {
			yield(Event{}, &pawl.ArgumentError{Argument: "after", Reason: "below -1"})
		}
	}
	return l.watch(ctx, stream, "", min(after, math.MaxInt64-1)+1)
}

// WatchAfter is Watch for a reader that knows the ID of the last event that it has seen, such as a
// browser that reconnects. It begins with the first event if id is empty or no ID, and if the stream
// was deleted and appended to again since. Errors are those of Watch.
func (l *Log) WatchAfter(ctx context.Context, stream, id string) iter.Seq2[Event, error] {
	if dash := strings.LastIndexByte(id, '-'); dash > 0 {
		if version, err := strconv.ParseUint(id[dash+1:], 10, 62); err == nil {
			return l.watch(ctx, stream, id[:dash], int64(version)+1)
		}
	}
	return l.watch(ctx, stream, "", 0)
}

// watch yields the events of a stream from a version on. Knows is the life of the stream that the
// version counts in; empty: any.
func (l *Log) watch(ctx context.Context, stream, knows string, from int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		life, next := knows, from
		for change, err := range l.heads.Scope(l.owner, stream).Watch(ctx) {
			if err != nil {
				yield(Event{}, err)
				return
			}
			if !change.Exists() {
				continue
			}
			h := change.ReadOnly()
			if life != "" && life != h.Life {
				next = 0
			}
			life = h.Life
			for e, err := range l.entries(ctx, stream, life, max(next, h.First), h.Next, false, 0) {
				if err != nil && e.ID == "" {
					if ctx.Err() == nil {
						yield(Event{}, err)
					}
					return
				}
				if !yield(e, err) {
					return
				}
				next = e.Version + 1
			}
			next = max(next, h.First)
		}
	}
}

// decode returns an entry as an event, and the life of its stream. An event of a type that is not
// registered has no Data, and no error. The life of an entry that is no event is empty.
func (s *shared) decode(raw pawl.LogEntry) (e Event, life string, err error) {
	e = Event{Stream: raw.ID, Version: int64(raw.Number), Position: raw.Position, At: raw.At}
	var stored entry
	if err = json.Unmarshal(raw.Data, &stored); err == nil && stored.Life == "" {
		err = errors.New("not an event")
	}
	if err != nil {
		e.ID = eventID("unreadable", e.Version)
		return e, "", &EventError{Stream: e.Stream, Version: e.Version, Err: err}
	}
	e.ID, e.Type, e.Raw = eventID(stored.Life, e.Version), stored.Type, stored.Data
	if stored.Meta != nil {
		e.Meta = *stored.Meta
	}
	if t, ok := s.types[stored.Type]; ok {
		if e.Data, err = t.decode(stored.Data); err != nil {
			e.Data, err = nil, &EventError{Stream: e.Stream, Version: e.Version, Type: e.Type, Err: err}
		}
	}
	return e, stored.Life, err
}
