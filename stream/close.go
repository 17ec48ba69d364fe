package stream

import (
	"context"
	"errors"
	"iter"
	"maps"

	"github.com/pawl-go/pawl"
)

// Closing the books, phase by phase. The head says which phase was reached, so CloseStream can be
// called again after a crash at any moment:
//
//	open ─► guarded: an event says that the stream is closed; appends are refused
//	     ─► the positions of all reactions are tested: none is behind or leased
//	     ─► archived: the archive has returned nil, and that is recorded
//	     ─► the events are removed, and the seed is appended: open again; without a seed: closed
//
// Races, and what decides each:
//   - An append beside the guard: both are version-checked writes of the head. The append comes before
//     the guard and is archived, or is refused.
//   - Two calls of CloseStream: both go through the phases, and the last commit of one of them finds
//     the phase gone and does nothing. The archive may be called by both.
//   - A crash between the archive and its record: the archive is called again.
//   - A reaction that claims the stream after the test: there is nothing left for it but the event of
//     the guard, which no reaction handles.

// closing is the phase of CloseStream.
type closing struct {
	// Before is the version of the event of the guard: the events before it are archived.
	Before   int64 `json:"before"`
	Archived bool  `json:"archived,omitempty"`
	// Done says that the stream stays closed.
	Done bool `json:"done,omitempty"`
}

// CloseStream closes the books of a stream: it refuses further appends, makes sure that no reaction is
// behind or at work, passes all events to archive, and removes them. With seed events the stream is
// open again and starts with them; their versions go on without a gap. Without, it stays closed, and
// appends return *ClosedError until DeleteStream.
//
// Call it again after an error or a crash: it goes on where it stopped. Archive may be called more
// than once, with the same events; nil archives nothing. The archive of a stream that is closed
// already is not called.
//
// It returns *PendingError while a reaction has not handled all events; let it catch up, or unblock
// it, and call again. It returns the error of archive unchanged, *EventError for a seed that cannot
// be stored, and the errors of pawl.Scope.AtomicState. A stream without events is not closed:
// pawl.ErrNotFound.
func (l *Log) CloseStream(ctx context.Context, stream string, archive func(ctx context.Context, events iter.Seq2[Event, error]) error, seed ...any) error {
	fresh, err := l.encode(ctx, seed)
	if err != nil {
		return err
	}
	h, err := l.guard(ctx, stream)
	if err != nil {
		return err
	}
	l.hook(pointGuarded, stream)
	if h.Closing.Done {
		return l.end(ctx, stream, h, fresh)
	}
	if !h.Closing.Archived {
		if err := l.caughtUp(ctx, stream, h, h.Closing.Before); err != nil {
			return err
		}
		if archive != nil {
			if err := archive(ctx, l.entries(ctx, stream, h.Life, h.First, h.Closing.Before, false, 0)); err != nil {
				return err
			}
		}
		l.hook(pointArchived, stream)
		err := l.changeClosing(ctx, stream, h, func(_ context.Context, now *head) error {
			now.Closing.Archived = true
			return nil
		})
		if err != nil {
			return err
		}
		l.hook(pointRecorded, stream)
	}
	return l.end(ctx, stream, h, fresh)
}

// guard closes a stream to appends and returns its head.
func (l *Log) guard(ctx context.Context, stream string) (h head, err error) {
	scope := l.heads.Scope(l.owner, stream)
	_, err = scope.AtomicState(ctx, func(ctx context.Context, now *head) error {
		if now.Closing == nil {
			now.Closing = &closing{Before: now.Next}
			fresh := []Event{{Type: closedType, Raw: []byte("null"), Meta: MetaOf(ctx)}}
			if _, err := now.add(ctx, scope, fresh); err != nil {
				return err
			}
		}
		h = *now
		guard := *now.Closing // the function's own copy ends with it
		h.Closing = &guard
		return nil
	}, pawl.IfExists())
	if errors.Is(err, pawl.ErrDeleted) {
		err = errors.Join(pawl.ErrNotFound, err)
	}
	return h, err
}

// end removes the events of a stream whose archive is done, and appends the seed.
func (l *Log) end(ctx context.Context, stream string, h head, fresh []Event) error {
	scope := l.heads.Scope(l.owner, stream)
	err := l.changeClosing(ctx, stream, h, func(ctx context.Context, now *head) error {
		if !now.Closing.Done {
			now.First = now.Next
			if err := scope.DropLog(ctx, uint64(now.First)); err != nil {
				return err
			}
		}
		now.Closing.Done = true
		if len(fresh) == 0 {
			return nil
		}
		now.Closing = nil
		_, err := now.add(ctx, scope, fresh)
		return err
	})
	if err == nil {
		l.hook(pointEnded, stream)
		l.loop.Wake()
	}
	return err
}

// changeClosing lets fn change the head of a stream while the closing that h has is under way. If it
// is over, fn is not called.
func (l *Log) changeClosing(ctx context.Context, stream string, h head, fn func(ctx context.Context, now *head) error) error {
	_, err := l.heads.Scope(l.owner, stream).AtomicState(ctx, func(ctx context.Context, now *head) error {
		if now.Life != h.Life || now.Closing == nil || now.Closing.Before != h.Closing.Before {
			return nil
		}
		return fn(ctx, now)
	})
	return err
}

// caughtUp returns *PendingError if a reaction has not handled all events before a version that it
// wants, or is at work on the stream.
func (l *Log) caughtUp(ctx context.Context, stream string, h head, before int64) error {
	records, all, err := l.positionsOf(ctx, stream)
	if err != nil {
		return err
	}
	next := map[string]int64{} // by reaction
	for i, p := range all {
		pending := &PendingError{Stream: stream, Reaction: p.Reaction, Next: p.Next}
		if r := records[i]; r.Held(r.Now) {
			pending.Holder = r.Lease.Holder
			return pending
		}
		if p.Life != h.Life {
			continue
		}
		next[p.Reaction] = p.Next
		switch {
		case p.Next >= before:
		case p.state() == blocked:
			pending.Blocked = p.Reason
			return pending
		case p.state() == ready && p.Next < p.Known:
			return pending
		}
	}
	return l.routed(ctx, stream, h, next, before)
}

// routed returns *PendingError if a reaction was not told of an event before a version. Next has the
// positions of the reactions that were told of one.
func (l *Log) routed(ctx context.Context, stream string, h head, next map[string]int64, before int64) error {
	snap, err := l.cursors.Scope(l.rt, cursorID).Snapshot(ctx)
	if err != nil {
		return err
	}
	var told cursor
	if snap.Exists() {
		told = *snap.ReadOnly()
	}
	l.mu.Lock()
	here := maps.Clone(l.reactions)
	l.mu.Unlock()
	for name := range told.At {
		if _, ok := here[name]; !ok {
			here[name] = nil // of another process: what it wants is not known
		}
	}
	for name, r := range here {
		if r != nil && !r.matches(stream) {
			continue
		}
		for e, err := range l.ReadAll(ctx, AllQuery{After: told.At[name]}) {
			if err != nil && e.ID == "" {
				return err
			}
			if e.Stream == stream && lifeOf(e) == h.Life && e.Version >= next[name] && e.Version < before && (r == nil || r.wants(stream, e.Type)) {
				return &PendingError{Stream: stream, Reaction: name, Next: e.Version}
			}
		}
	}
	return nil
}

// Trim removes the events of a stream with versions below before. The versions of the others stay. It
// returns *PendingError if a reaction has not handled them, *pawl.ArgumentError for a negative
// version, and the errors of pawl.Scope.AtomicState. A version above the last one removes all events;
// a stream that does not exist has none.
func (l *Log) Trim(ctx context.Context, stream string, before int64) error {
	if before < 0 {
		return &pawl.ArgumentError{Argument: "before", Reason: "negative"}
	}
	h, err := l.head(ctx, stream)
	if err != nil || h.Life == "" {
		return err
	}
	if before = min(before, h.Next); before <= h.First {
		return nil
	}
	if err := l.caughtUp(ctx, stream, h, before); err != nil {
		return err
	}
	scope := l.heads.Scope(l.owner, stream)
	_, err = scope.AtomicState(ctx, func(ctx context.Context, now *head) error {
		if now.Life != h.Life || now.First >= before {
			return nil
		}
		now.First = before
		return scope.DropLog(ctx, uint64(before))
	})
	return err
}

// DeleteStream deletes a stream with its events, the positions of reactions on it and its snapshots.
// Handlers in progress lose their leases. An append to it makes a new stream, whose events start at
// version 0; Event.ID tells the two apart. Deleting a stream that does not exist does nothing. It
// returns the errors of pawl.Transact and Positions.
func (l *Log) DeleteStream(ctx context.Context, stream string) error {
	records, _, err := l.positionsOf(ctx, stream)
	if err != nil {
		return err
	}
	err = pawl.Transact(ctx, l.owner, func(ctx context.Context, tx *pawl.Tx) error {
		for _, r := range records {
			if err := l.positions.Scope(tx, r.ID).Delete(ctx); err != nil {
				return err
			}
		}
		return l.heads.Scope(tx, stream).Delete(ctx)
	})
	if err != nil {
		return err
	}
	// Snapshots only save work: one that is left belongs to another life, and is not used.
	_, err = l.snapshots.DeletePrefix(ctx, l.rt, snapshotID(stream, ""))
	return err
}
