package stream

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/pawl-go/pawl"
)

// Fold says how a state S comes out of the events of a stream.
type Fold[S any] struct {
	// Name and Version name the snapshots of the fold. Raise Version when Apply or S changes, so that
	// old snapshots are not used. An empty name keeps no snapshots: each load reads all events. A name
	// has at most MaxFold bytes.
	Name    string
	Version int
	// Apply changes the state by one event. It must depend on nothing else.
	Apply func(s *S, e Event) error
}

// MaxFold is the length of the name of a fold in bytes.
const MaxFold = 64

// snapshot is the state of a fold after an event. It only saves work: it is not part of the commit
// of its event, and may be lost.
type snapshot struct {
	Life    string          `json:"life"`
	Version int64           `json:"version"` // of the last event in State
	First   int64           `json:"first"`   // of the stream: the events before it are not in State
	Fold    int             `json:"fold"`
	State   json.RawMessage `json:"state"`
	Stream  string          `json:"stream"` // its name: the id may have a hash in its place
}

// Load returns the state of a stream, and the version of its last event, -1 for a stream without
// events. It reads the last snapshot and the events after it. It returns *pawl.ArgumentError for a
// missing argument, a name of the fold above MaxFold, and in a transaction that has appended to the
// stream. It returns an error that matches pawl.ErrConflict if events are removed while it reads, ten
// times in a row, *EventError for an event that does not decode, the errors of fold.Apply, and those
// of Read.
func Load[S any](ctx context.Context, l *Log, stream string, fold Fold[S]) (state S, version int64, err error) {
	if ctx == nil || fold.Apply == nil {
		return state, -1, &pawl.ArgumentError{Argument: "Load", Reason: "ctx and fold.Apply are required"}
	}
	state, h, applied, err := loadAgain(ctx, l, stream, fold)
	if err != nil {
		return state, -1, err
	}
	if l.snaps(fold.Name, applied) {
		keepSnapshot(ctx, l, stream, fold, h, state)
	}
	return state, h.Next - 1, nil
}

// snaps reports whether to keep a snapshot of a fold that has applied so many events.
func (l *Log) snaps(fold string, applied int) bool {
	return fold != "" && applied >= l.config.SnapshotEvery && l.owner == pawl.Owner(l.rt)
}

// load is Load. It also returns the head, and how many events it has applied.
func load[S any](ctx context.Context, l *Log, stream string, fold Fold[S]) (state S, h head, applied int, err error) {
	if len(fold.Name) > MaxFold {
		return state, h, 0, &pawl.ArgumentError{Argument: "Fold.Name", Reason: "longer than MaxFold"}
	}
	if h, err = l.head(ctx, stream); err != nil {
		return state, h, 0, err
	}
	from := h.First
	if fold.Name != "" && h.Next-h.First >= int64(l.config.SnapshotEvery) {
		from = loadSnapshot(ctx, l, stream, fold, h, &state)
	}
	for e, err := range l.whole(ctx, stream, h.Life, from, h.Next) {
		if err == nil {
			err = fold.Apply(&state, e)
		}
		if err != nil {
			var none S
			return none, h, applied, err
		}
		applied++
	}
	return state, h, applied, nil
}

// loadAgain is load, which starts again when events were removed meanwhile.
func loadAgain[S any](ctx context.Context, l *Log, stream string, fold Fold[S]) (state S, h head, applied int, err error) {
	for range 10 {
		state, h, applied, err = load(ctx, l, stream, fold)
		if !errors.Is(err, errGone) || l.owner != pawl.Owner(l.rt) {
			break
		}
	}
	if errors.Is(err, errGone) && l.owner != pawl.Owner(l.rt) {
		err = &pawl.ArgumentError{Argument: "tx", Reason: "has appended to the stream, and cannot read these events before its commit"}
	}
	return state, h, applied, err
}

// loadSnapshot fills state with the last snapshot that belongs to h, and returns the version of the
// first event that is not in it.
func loadSnapshot[S any](ctx context.Context, l *Log, stream string, fold Fold[S], h head, state *S) (from int64) {
	snap, err := l.snapshots.Scope(l.rt, snapshotID(stream, fold.Name)).Snapshot(pawl.Detach(ctx))
	if err != nil || !snap.Exists() {
		return h.First
	}
	// A snapshot with another First has events that were removed, or lacks the seed after them.
	s := snap.ReadOnly()
	if s.Life != h.Life || s.Fold != fold.Version || s.First != h.First || s.Version >= h.Next || s.Version < h.First {
		return h.First
	}
	if err := json.Unmarshal(s.State, state); err != nil {
		var none S
		*state = none
		return h.First
	}
	return s.Version + 1
}

// keepSnapshot stores state as a snapshot of the stream whose head is h. A failure is ignored: the
// next load reads more events.
func keepSnapshot[S any](ctx context.Context, l *Log, stream string, fold Fold[S], h head, state S) {
	raw, err := json.Marshal(state)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(pawl.WithoutLeases(context.WithoutCancel(ctx)), 5*time.Second)
	defer cancel()
	set := func(_ context.Context, s *snapshot) error {
		if s.Life != h.Life || s.Fold != fold.Version || s.Version < h.Next-1 {
			*s = snapshot{h.Life, h.Next - 1, h.First, fold.Version, raw, stream}
		}
		return nil
	}
	scope := l.snapshots.Scope(l.rt, snapshotID(stream, fold.Name))
	if _, err := scope.AtomicState(ctx, set); errors.Is(err, pawl.ErrDeleted) {
		_, _ = scope.AtomicState(ctx, set, pawl.IfAbsent())
	}
}

// Act loads the state of a stream, lets decide choose events, and appends them after the events that
// the state was made of. If another append came first, it starts again, within Config.Retry. It
// returns the state after the new events. Decide runs again on a conflict, so it must have no
// effects; it may return no events.
//
// With At or Absent the stream must be at that version, and Act does not start again. In a handler of
// a reaction, with its context, the events are appended without a version test, and once; see Append.
// If an earlier attempt has appended them, decide is not called. In a transaction (Log.In), the
// transaction decides about conflicts.
//
// It returns *ConcurrencyError, which is retryable, when the expected version is not the last one,
// when the budget is spent, or when ctx ends between two attempts. If fold.Apply fails on the new
// events, Act returns its error although the events are committed: do not call Act again. It returns
// *pawl.ArgumentError for a missing argument, the error of decide unchanged, and the errors of Load
// and Append.
func Act[S any](ctx context.Context, l *Log, stream string, e Expect, fold Fold[S], decide func(ctx context.Context, s S) ([]any, error)) (S, error) {
	var none S
	if ctx == nil || fold.Apply == nil || decide == nil {
		return none, &pawl.ArgumentError{Argument: "Act", Reason: "ctx, fold.Apply and decide are required"}
	}
	if e < Any {
		return none, &pawl.ArgumentError{Argument: "Expect", Reason: "negative version"}
	}
	began := time.Now()
	d := deliveryOf(ctx, l.shared)
	place := d.place(stream) // no type: an append has one
	for attempt := 1; ; attempt++ {
		state, h, applied, err := loadAgain(ctx, l, stream, fold)
		if err != nil {
			return none, err
		}
		if done, err := d.made(ctx, place); done || err != nil {
			return state, err // an earlier attempt has decided
		}
		if last := h.Next - 1; e != Any && int64(e) != last {
			return none, &ConcurrencyError{Stream: stream, Expected: int64(e), Last: last}
		}
		events, err := decide(ctx, state)
		if err != nil {
			return none, err
		}
		fresh, err := l.encode(ctx, events)
		if err != nil {
			return none, err
		}
		var made []Event
		switch {
		case len(fresh) == 0:
		case d != nil:
			made, err = d.append(ctx, l, place, stream, fresh)
		default:
			made, err = l.appendTo(ctx, stream, At(h.Next-1), h.Life, fresh)
		}
		if err == nil {
			return actDone(ctx, l, stream, fold, state, h, applied, made)
		}
		_, lost := errors.AsType[*ConcurrencyError](err)
		retry := l.config.Retry
		wait := retry.Delay(attempt)
		if !lost || e != Any || l.owner != pawl.Owner(l.rt) || attempt >= retry.Attempts || time.Since(began)+wait > retry.Within {
			return none, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return none, err
		}
	}
}

// actDone returns the state after the events that Act has made, and keeps a snapshot if enough
// events were read without one.
func actDone[S any](ctx context.Context, l *Log, stream string, fold Fold[S], state S, h head, applied int, made []Event) (S, error) {
	follows := true // false: in a reaction, other events may be between
	for i, e := range made {
		if err := fold.Apply(&state, e); err != nil {
			return state, err // the events are committed
		}
		follows = follows && e.Stream == stream && e.Version == h.Next+int64(i)
	}
	if len(made) > 0 {
		h.Life, h.Next = lifeOf(made[0]), h.Next+int64(len(made))
	}
	if follows && l.snaps(fold.Name, applied+len(made)) {
		keepSnapshot(ctx, l, stream, fold, h, state)
	}
	return state, nil
}
