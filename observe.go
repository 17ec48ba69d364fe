package pawl

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

// Observer is told of the events in docs/observability.md. Observe is called inline, on the goroutine
// that the event happened on and without any of Pawl's locks: it must return quickly, and must not
// call runtime.Goexit. Calls may be concurrent. A panic of Observe is logged with its stack, and
// the mutation goes on.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// ObserverFunc is a function as an Observer.
type ObserverFunc func(ctx context.Context, e Event)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e Event) { f(ctx, e) }

// Observers returns an Observer that passes each event to all of o, in their order. It skips nil
// observers, and returns nil if there are no others.
func Observers(o ...Observer) Observer {
	kept := slices.DeleteFunc(slices.Clone(o), func(o Observer) bool { return o == nil })
	switch len(kept) {
	case 0:
		return nil
	case 1:
		return kept[0]
	}
	return ObserverFunc(func(ctx context.Context, e Event) {
		for _, o := range kept {
			o.Observe(ctx, e)
		}
	})
}

// Observe passes an event of a layer above to the observer of the runtime, if there is one. The
// packages of Pawl use it, with EventNoted; others may.
func (rt *Runtime) Observe(ctx context.Context, e Event) { rt.env.observe(ctx, e) }

// Event is one event of a mutation, a transaction, a lease, the store, a watch, a sweep or a layer
// above. Fields that do not apply are zero.
type Event struct {
	Type EventType
	Key  Key
	// Path is "lock", "cas" or "tx", or the name of a layer (EventNoted); empty for the other events
	// that are not of a mutation or a transaction.
	Path string
	// Verb is "Patch", "Inc", "Atomic", ..., "Transact", "Acquire", "Lease" or "Watch", the method
	// of the store (EventStoreCalled), "Clear" or "Purge" (EventSwept), or a verb of a layer.
	Verb string
	// Version is the current version (EventCommitted, EventUnchanged), the version that won
	// (EventConflicted), or the token of a lease.
	Version uint64
	// Attempts is the number of commits tried so far; 0 in memory.
	Attempts int
	// Batch is the number of mutations in the shared commit (EventCommitted), of records that a commit
	// writes (EventStoreCalled), of versions that a watcher skipped (EventWatchMissed), or of scopes
	// (EventSwept). A layer counts with it (EventNoted).
	Batch int
	// Queue is the number of mutations that waited in the queue already (EventQueued).
	Queue int
	// Waited is the time from submission to the first start of the mutation (EventStarted,
	// EventCommitted, EventUnchanged, EventFailed); 0 for a data verb that found its in-memory
	// scope idle, and for transactions. For a layer it is the time for which the work was due
	// (EventNoted).
	Waited time.Duration
	// Took is the time from submission to the event (EventCommitted, EventUnchanged, EventFailed,
	// EventTimedOut, EventStuck, EventTransacted); 0 for a data verb that found its in-memory scope
	// idle. It is the duration of the call (EventStoreCalled), of the sweep (EventSwept), or of the
	// work of a layer (EventNoted).
	Took time.Duration
	// Err is the error of the call (EventFailed, EventTimedOut, EventPanicked), the cause of the
	// context's end (EventWithdrawn), the reason a lease ended with, or the error of the store
	// (EventStoreCalled, EventSwept).
	Err error
	// Stack is the stack of the panic (EventPanicked); nil after runtime.Goexit.
	Stack []byte
}

// EventType says what happened.
type EventType uint8

// The events of a mutation, roughly in their order.
const (
	EventQueued     EventType = iota + 1 // submitted to the queue, which may still refuse it
	EventStarted                         // its turn has come
	EventCommitted                       // durable (or, in memory, visible) under Version
	EventUnchanged                       // changed nothing, so nothing was written
	EventFailed                          // ended with Err; not committed unless OutcomeUnknown(Err)
	EventConflicted                      // its commit lost; it runs again unless its budget is spent
	EventTimedOut                        // its caller left at the end of its budget, with Err
	EventWithdrawn                       // its caller left because its context ended
	EventPanicked                        // its function panicked or called runtime.Goexit; logged if its caller has left and there is no Observer
	EventStuck                           // it outlived a caller's budget; logged if there is no Observer
	EventDetached                        // its function is slow or calls another scope: it leaves the queue and commits alone
	EventAbandoned                       // discarded by Abandon
)

// The events of a lease; Version is its token. A lease that was acquired ends with one of the others,
// once.
const (
	EventLeaseAcquired EventType = iota + EventAbandoned + 1 // the lease is held
	EventLeaseReleased                                       // its holder released it
	EventLeaseLost                                           // it expired or another process ended it; see Err
)

// EventTransacted says that Transact has returned without an error. EventCommitted came before it for
// each scope that was written. A transaction that failed has EventFailed or EventPanicked instead, and
// one that joined another one has no event.
const EventTransacted EventType = EventLeaseLost + 1

// EventStoreCalled says that the runtime called its store. Key is the first one of the call, without
// an id for a list. A commit that many callers share has no context of theirs.
//
// Err is nil for a record that does not exist. If Err of a "Commit" with Batch above 0 is neither a
// *persist.Conflict nor a *persist.Fenced and wraps none of persist.ErrNotApplied, persist.ErrClosed
// and persist.ErrUnsupported, the commit is in doubt. Pawl sends it again, and each sending is an
// event.
const EventStoreCalled EventType = EventTransacted + 1

// The events of a watch.
const (
	EventWatchStarted EventType = iota + EventStoreCalled + 1 // it is registered, and its first snapshot was read
	EventWatchEnded                                           // it is over
	EventWatchMissed                                          // it skipped Batch versions; see Change.Missed
)

// EventSwept says that a Sweeper has gone through one kind: Verb "Clear" for scopes that have expired,
// "Purge" for old tombstones, and Batch for their number.
const EventSwept EventType = EventWatchMissed + 1

// EventNoted is an event of a layer above, such as package stream: Path names the layer, and Verb says
// what happened.
const EventNoted EventType = EventSwept + 1

var eventNames = [...]string{
	EventQueued: "queued", EventStarted: "started", EventCommitted: "committed", EventUnchanged: "unchanged", EventFailed: "failed",
	EventConflicted: "conflicted", EventTimedOut: "timed out", EventWithdrawn: "withdrawn", EventPanicked: "panicked", EventStuck: "stuck",
	EventDetached: "detached", EventAbandoned: "abandoned", EventLeaseAcquired: "lease acquired", EventLeaseReleased: "lease released", EventLeaseLost: "lease lost",
	EventTransacted: "transacted", EventStoreCalled: "store called", EventWatchStarted: "watch started", EventWatchEnded: "watch ended",
	EventWatchMissed: "watch missed versions", EventSwept: "swept", EventNoted: "noted",
}

// String returns the event's name in lower case.
func (t EventType) String() string {
	if int(t) < len(eventNames) && eventNames[t] != "" {
		return eventNames[t]
	}
	return "unknown"
}

// LogObserver returns an Observer that writes every event to l. EventTimedOut, EventPanicked,
// EventStuck, EventAbandoned and EventLeaseLost are logged at level warn, all other events at level
// debug. EventFailed and EventConflicted are among the latter: the caller gets the error of the
// one, and the other is normal.
func LogObserver(l *slog.Logger) Observer {
	return ObserverFunc(func(ctx context.Context, e Event) {
		level := slog.LevelDebug
		switch e.Type {
		case EventTimedOut, EventPanicked, EventStuck, EventAbandoned, EventLeaseLost:
			level = slog.LevelWarn
		}
		if !l.Enabled(ctx, level) {
			return
		}
		var attrs []slog.Attr
		add := func(given bool, a slog.Attr) {
			if given {
				attrs = append(attrs, a)
			}
		}
		add(true, slog.String("scope", e.Key.String()))
		add(e.Path != "", slog.String("path", e.Path))
		add(true, slog.String("verb", e.Verb))
		add(e.Version != 0, slog.Uint64("version", e.Version))
		add(e.Attempts != 0, slog.Int("attempts", e.Attempts))
		add(e.Batch != 0, slog.Int("batch", e.Batch))
		add(e.Queue != 0, slog.Int("queue", e.Queue))
		add(e.Waited != 0, slog.Duration("waited", e.Waited))
		add(e.Took != 0, slog.Duration("took", e.Took))
		add(e.Err != nil, slog.Any("err", e.Err))
		add(e.Stack != nil, slog.String("stack", string(e.Stack)))
		what := "mutation " + e.Type.String()
		switch {
		case e.Type == EventNoted:
			what = e.Path + " " + e.Verb
		case e.Type > EventAbandoned: // their names include the subject
			what = e.Type.String()
		}
		l.LogAttrs(ctx, level, "pawl: "+what, attrs...)
	})
}

// observe passes event to the observer, if there is one. It logs a panic of the observer, which
// must not reach the mutation.
func (e *env) observe(ctx context.Context, event Event) {
	if e.observer == nil {
		return
	}
	if p := caught(func() { e.observer.Observe(ctx, event) }); p != nil {
		e.logger().ErrorContext(ctx, "pawl: observer panicked", "event", event.Type.String(),
			"scope", event.Key.String(), "panic", p.Value, "stack", string(p.Stack))
	}
}

// observe passes e, an event of the call, to the observer.
func (c *call) observe(ctx context.Context, e Event) {
	e.Key = c.key
	c.env.observe(ctx, e)
}

// reportStuck passes EventStuck to the observer. Without an observer it logs a warning.
func (c *call) reportStuck(ctx context.Context, path, verb string, took time.Duration) {
	if c.env.observer == nil {
		c.env.logger().WarnContext(ctx, "pawl: function is stuck", "scope", c.key.String(), "path", path, "verb", verb, "took", took)
		return
	}
	c.observe(ctx, Event{Type: EventStuck, Path: path, Verb: verb, Took: took})
}
