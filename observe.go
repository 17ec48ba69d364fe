package pawl

import (
	"context"
	"log/slog"
	"time"
)

// Observer hears what happens to mutations. It is called inline, never under a lock of Pawl's: return quickly.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// ObserverFunc is a function as an Observer.
type ObserverFunc func(ctx context.Context, e Event)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e Event) { f(ctx, e) }

// Event is one thing that happened to one mutation. Fields that do not apply are zero.
type Event struct {
	Type     EventType
	Key      Key
	Path     string        // "lock", "cas" or "tx"
	Verb     string        // "Patch", "Inc", "Atomic", ..., "Transact"
	Version  uint64        // Committed, Unchanged: the version now; Conflicted: the version that won
	Attempts int           // commits tried so far
	Batch    int           // mutations in the shared commit
	Waited   time.Duration // in the queue
	Took     time.Duration // from submission to answer
	Err      error
	Stack    []byte // Panicked
}

// EventType says what happened.
type EventType uint8

// The events of a mutation, roughly in their order.
const (
	Queued     EventType = iota + 1 // has its place in the queue
	Started                         // its turn has come
	Committed                       // durable (or, in memory, visible) under Version
	Unchanged                       // it changed nothing, so nothing was written
	Failed                          // its answer was Err; nothing of it was committed
	Conflicted                      // a commit lost to another writer; it runs again unless its budget is spent
	TimedOut                        // its caller got *ScopeMutationTimeoutError
	Withdrawn                       // its caller left
	Panicked                        // its function panicked or called runtime.Goexit
	Stuck                           // its function has outlived a caller's budget and holds up the queue
	Detached                        // its function is slow: the queue moves on, and it commits on its own
	Abandoned                       // Abandon gave it up
)

// The events of a lease; Version is its token.
const (
	LeaseAcquired EventType = iota + Abandoned + 1 // taken
	LeaseReleased                                  // given back
	LeaseLost                                      // run out, or ended by somebody else; Err says more
)

var eventNames = [...]string{
	Queued: "queued", Started: "started", Committed: "committed", Unchanged: "unchanged", Failed: "failed",
	Conflicted: "conflicted", TimedOut: "timed out", Withdrawn: "withdrawn", Panicked: "panicked", Stuck: "stuck",
	Detached: "detached", Abandoned: "abandoned", LeaseAcquired: "lease acquired", LeaseReleased: "lease released", LeaseLost: "lease lost",
}

// String returns the event's name in lower case.
func (t EventType) String() string {
	if int(t) < len(eventNames) && eventNames[t] != "" {
		return eventNames[t]
	}
	return "unknown"
}

// LogObserver writes events to l: what goes well and conflicts at debug level, the rest at warn.
func LogObserver(l *slog.Logger) Observer {
	return ObserverFunc(func(ctx context.Context, e Event) {
		level := slog.LevelWarn
		switch e.Type {
		case Queued, Started, Committed, Unchanged, Failed, Conflicted, Detached, Withdrawn, LeaseAcquired, LeaseReleased:
			level = slog.LevelDebug
		}
		if !l.Enabled(ctx, level) {
			return
		}
		attrs := []slog.Attr{slog.String("scope", e.Key.String()), slog.String("path", e.Path), slog.String("verb", e.Verb)}
		if e.Version != 0 {
			attrs = append(attrs, slog.Uint64("version", e.Version))
		}
		if e.Attempts != 0 {
			attrs = append(attrs, slog.Int("attempts", e.Attempts))
		}
		if e.Batch != 0 {
			attrs = append(attrs, slog.Int("batch", e.Batch))
		}
		if e.Waited != 0 {
			attrs = append(attrs, slog.Duration("waited", e.Waited))
		}
		if e.Took != 0 {
			attrs = append(attrs, slog.Duration("took", e.Took))
		}
		if e.Err != nil {
			attrs = append(attrs, slog.Any("err", e.Err))
		}
		if e.Stack != nil {
			attrs = append(attrs, slog.String("stack", string(e.Stack)))
		}
		l.LogAttrs(ctx, level, "pawl: mutation "+e.Type.String(), attrs...)
	})
}
