package stream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"

	"github.com/pawl-go/pawl"
)

// Closing the books, phase by phase. The head says which phase was reached, so CloseStream can be
// called again after a crash at any moment:
//
//	open ─► the positions of all reactions are tested: none is behind or leased
//	     ─► guarded: appends are refused; the positions are tested again
//	     ─► archived: the archive has returned nil, and that is recorded
//	     ─► the events are removed, and the seed is appended: open again; without a seed: closed
//
// Races, and what decides each:
//   - An append beside the guard: both are version-checked writes of the head. The append comes before
//     the guard and is archived, or is refused. If the caller expected a version, the guard tests it.
//   - A reaction gets an event between the first test and the guard: the second test sees it, and the
//     guard is taken back, because its handler may have to append to the stream.
//   - An event is routed during a test: routing writes the position before the cursor, and the test
//     reads the cursor before the positions. So it sees the position, or an event after the cursor.
//   - Two calls of CloseStream: both go through the phases, and the last commit of one of them finds
//     the books closed and does nothing. The archive may be called by both. A call whose events are
//     removed while its archive reads them does not record the archive.
//   - A call takes the guard back while another, for which the reaction has caught up meanwhile, reads
//     the archive: the other one finds no guard, and returns a conflict.
//   - A crash between the archive and its record: the archive is called again.
//   - A crash after the last commit: with an expected version, the next call sees that the books up to
//     it are closed, and does nothing.

// closing is the phase of CloseStream.
type closing struct {
	// Before is above the last event that is archived.
	Before   int64 `json:"before"`
	Archived bool  `json:"archived,omitempty"`
	// Done says that the stream stays closed.
	Done bool `json:"done,omitempty"`
}

// CloseStream closes the books of a stream: it makes sure that no reaction is behind or at work,
// refuses further appends, passes all events to archive, and removes them. With seed events the
// stream is open again and starts with them; their versions go on without a gap. Without, it stays
// closed: appends return *ClosedError until DeleteStream, or until CloseStream with a seed.
//
// Expect is the last version that the seed was made of. If events were appended after it, CloseStream
// returns *ConcurrencyError and closes nothing. With it, CloseStream can be called again after a
// crash at any moment: if the books up to that version are closed already, it does nothing. With Any
// a repeated call may close a stream that was opened again.
//
// Archive may be called more than once, with the same events, and has to read all of them; nil
// archives nothing. If another process closes the stream meanwhile, its last pair is an error. It is
// not called for a stream that is closed already.
//
// CloseStream returns *PendingError while a reaction has not handled all events; let it catch up, or
// unblock it, and call again. It returns the error of archive unchanged, an error that matches
// pawl.ErrConflict if archive has returned nil without reading the last event, or if meanwhile another
// call has returned *PendingError or the stream was deleted and appended to again, *EventError or
// *pawl.LimitError for a seed that cannot be stored, *pawl.ArgumentError, pawl.ErrInTx for a log of
// In, pawl.ErrNotFound for a stream that does not exist, and the errors of pawl.Scope.AtomicState.
func (l *Log) CloseStream(ctx context.Context, stream string, e Expect, archive func(ctx context.Context, events iter.Seq2[Event, error]) error, seed ...any) error {
	fresh, err := l.closable(ctx, e, seed)
	if err != nil {
		return err
	}
	h, err := l.head(ctx, stream)
	switch {
	case err != nil:
		return err
	case h.Life == "":
		return fmt.Errorf("%w: stream %.80q", pawl.ErrNotFound, stream)
	case h.Closing == nil && e >= 0 && int64(e) < h.Closed:
		return nil
	case h.Closing == nil:
		if err := l.caughtUp(ctx, stream, h, h.Next); err != nil {
			return err
		}
	}
	if h, err = l.guard(ctx, stream, e); err != nil || h.Closing == nil {
		return err
	}
	l.hook(pointGuarded, stream)
	if !h.Closing.Archived && !h.Closing.Done {
		if err := l.archive(ctx, stream, h, archive); err != nil {
			return err
		}
	}
	return l.end(ctx, stream, h, fresh)
}

// closable returns the seed, or an error if CloseStream cannot be called with it.
func (l *Log) closable(ctx context.Context, e Expect, seed []any) ([]Event, error) {
	switch {
	case ctx == nil:
		return nil, &pawl.ArgumentError{Argument: "ctx", Reason: "nil"}
	case l.owner != pawl.Owner(l.rt):
		return nil, pawl.ErrInTx
	case e < Any || e == Absent:
		return nil, &pawl.ArgumentError{Argument: "Expect", Reason: "must be Any, or At a version"}
	case len(seed) > MaxEvents:
		return nil, &pawl.LimitError{Scope: pawl.Key{Kind: l.config.Name}, What: "events", Limit: MaxEvents, Got: len(seed), Reason: "in one append"}
	}
	fresh, err := l.encode(ctx, seed)
	if err != nil {
		return nil, err
	}
	// The seed is tested now: after the archive, a seed that cannot be stored would leave the stream
	// closed.
	for _, f := range fresh {
		if size := len(f.Raw) + entryRoom; size > l.rt.MaxDoc() {
			return nil, &pawl.LimitError{Scope: pawl.Key{Kind: l.config.Name}, What: "entry", Limit: l.rt.MaxDoc(), Got: size}
		}
	}
	return fresh, nil
}

// entryRoom is what an entry may have beside the data of its event.
const entryRoom = 4096

// guard closes a stream to appends and returns its head. The head has no Closing if the books up to
// the expected version are closed already.
func (l *Log) guard(ctx context.Context, stream string, e Expect) (head, error) {
	var h head
	_, err := l.heads.Scope(l.owner, stream).AtomicState(ctx, func(ctx context.Context, now *head) error {
		if now.Closing == nil && (e == Any || int64(e) == now.Next-1) {
			now.Closing = &closing{Before: now.Next}
		}
		h = *now
		if now.Closing != nil {
			guard := *now.Closing
			h.Closing = &guard
		}
		switch {
		case e == Any || now.Closing != nil && now.Closing.Before == int64(e)+1:
		case int64(e) < now.Closed:
			h.Closing = nil
		default:
			return &ConcurrencyError{Stream: stream, Expected: int64(e), Last: now.Next - 1}
		}
		return nil
	}, pawl.IfExists())
	if err != nil {
		return head{}, err
	}
	return h, nil
}

// archive passes the events of a guarded stream to the archive, and records that.
func (l *Log) archive(ctx context.Context, stream string, h head, archive func(ctx context.Context, events iter.Seq2[Event, error]) error) error {
	pending := l.caughtUp(ctx, stream, h, h.Closing.Before)
	if pending != nil {
		// A handler may have to append to the stream before it can go on.
		open := l.changeClosing(ctx, stream, h, func(_ context.Context, now *head) error {
			if !now.Closing.Archived {
				now.Closing = nil
			}
			return nil
		})
		if open != nil && !errors.Is(open, errUnguarded) {
			return errors.Join(pending, open)
		}
		return pending
	}
	if archive != nil {
		read := int64(-1) // the last event that the archive has read
		events := func(yield func(Event, error) bool) {
			for e, err := range l.whole(ctx, stream, h.Life, h.First, h.Closing.Before) {
				if !yield(e, err) {
					return
				}
				if e.ID != "" {
					read = e.Version
				}
			}
		}
		if err := archive(ctx, events); err != nil {
			return err
		}
		if h.First < h.Closing.Before && read != h.Closing.Before-1 {
			return fmt.Errorf("%w: stream: the archive of %.80q ended after event %d of %d", pawl.ErrConflict, stream, read, h.Closing.Before-1)
		}
	}
	l.hook(pointArchived, stream)
	err := l.changeClosing(ctx, stream, h, func(_ context.Context, now *head) error {
		now.Closing.Archived = true
		return nil
	})
	if err == nil {
		l.hook(pointRecorded, stream)
	}
	return err
}

// end removes the events of a stream whose archive is done, and appends the seed.
func (l *Log) end(ctx context.Context, stream string, h head, fresh []Event) error {
	scope := l.heads.Scope(l.owner, stream)
	err := l.changeClosing(ctx, stream, h, func(ctx context.Context, now *head) error {
		if !now.Closing.Done {
			now.First, now.Closed = now.Next, now.Next
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

// errUnguarded says that a closing is no longer under way, and has closed nothing.
var errUnguarded = fmt.Errorf("%w: stream: another call has opened the stream again", pawl.ErrConflict)

// changeClosing lets fn change the head of a stream while the closing that h has is under way. If the
// books are closed already, fn is not called.
func (l *Log) changeClosing(ctx context.Context, stream string, h head, fn func(ctx context.Context, now *head) error) error {
	_, err := l.heads.Scope(l.owner, stream).AtomicState(ctx, func(ctx context.Context, now *head) error {
		switch {
		case now.Life == h.Life && now.Closing != nil && now.Closing.Before == h.Closing.Before:
			return fn(ctx, now)
		case now.Life == h.Life && now.Closed >= h.Closing.Before:
			return nil
		}
		return errUnguarded
	}, pawl.IfExists())
	return err
}

// caughtUp returns *PendingError if a reaction has not handled all events before a version that it
// wants, or is at work on the stream. A reaction whose position cannot be read may have handled none.
func (l *Log) caughtUp(ctx context.Context, stream string, h head, before int64) error {
	// The cursor comes first: routing writes it last.
	snap, err := l.cursors.Scope(l.rt, cursorID).Snapshot(ctx)
	if err != nil {
		return err
	}
	var told cursor
	if snap.Exists() {
		told = *snap.ReadOnly()
	}
	all, err := l.standings(ctx, stream)
	if err != nil {
		return err
	}
	next := map[string]int64{} // by reaction
	for _, p := range all {
		pending := &PendingError{Stream: stream, Reaction: p.Reaction, Next: p.Next}
		if r := p.record; r.Held(r.Now) {
			pending.Holder = r.Lease.Holder
			return pending
		}
		if p.unreadable != nil {
			pending.Blocked = "its position cannot be read: " + p.unreadable.Error()
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
	return l.routed(ctx, stream, h, told, next, before)
}

// routed returns *PendingError if a reaction was not told of an event before a version. Next has the
// positions of the reactions that were told of one.
func (l *Log) routed(ctx context.Context, stream string, h head, told cursor, next map[string]int64, before int64) error {
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
		// Events that are read by version have no position: only the order shows those after the cursor.
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
// version, pawl.ErrInTx for a log of In, and the errors of pawl.Scope.AtomicState. A version above the
// last one removes all events; a stream that does not exist has none.
func (l *Log) Trim(ctx context.Context, stream string, before int64) error {
	switch {
	case before < 0:
		return &pawl.ArgumentError{Argument: "before", Reason: "negative"}
	case l.owner != pawl.Owner(l.rt):
		return pawl.ErrInTx
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

// Renew puts off the expiry of a stream by Config.TTL, as an append does. In the transaction that
// writes the document which the stream belongs to (Log.In), it lets both expire together. It returns
// pawl.ErrNotFound or *pawl.DeletedError for a stream that does not exist, and the errors of
// pawl.Scope.AtomicState.
func (l *Log) Renew(ctx context.Context, stream string) error {
	_, err := l.heads.Scope(l.owner, stream).AtomicState(ctx, func(context.Context, *head) error { return nil }, pawl.IfExists())
	return err
}

// DeleteStream deletes a stream with its events, the positions of reactions on it and its snapshots.
// Handlers in progress lose their leases. An append to it makes a new stream, whose events start at
// version 0; Event.ID tells the two apart. Deleting a stream that does not exist does nothing. It
// returns pawl.ErrInTx for a log of In, and the errors of pawl.Transact and Positions.
func (l *Log) DeleteStream(ctx context.Context, stream string) error {
	if l.owner != pawl.Owner(l.rt) {
		return pawl.ErrInTx
	}
	all, err := l.standings(ctx, stream)
	if err != nil {
		return err
	}
	err = pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
		for _, p := range all {
			if err := l.positions.Scope(tx, p.record.ID).Delete(ctx); err != nil {
				return err
			}
		}
		return l.heads.Scope(tx, stream).Delete(ctx)
	})
	if err != nil {
		return err
	}
	// Snapshots only save work. One that is left belongs to another life and is not used; one of a
	// stream whose name starts with this name and a slash is made again.
	_, err = l.snapshots.DeletePrefix(ctx, l.rt, snapshotID(stream, ""))
	return err
}
