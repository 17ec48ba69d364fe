package pawl

import (
	"context"
	"encoding/json"
	"sync"
	"unicode/utf8"

	"github.com/pawl-go/pawl/persist"
)

// The log of a scope, for kinds with Kind.Log. It is beside the document, so a commit does not
// rewrite it, and it may grow without bound. Package stream makes event streams of it.
//
// A function of AtomicState adds to the log while it runs: AppendLog finds the logChange of that run
// in the context of the function, and evaluate (outcome.go) puts it into the draft. From there on the
// entries are part of the write, of a batch (cas.go) and of a transaction (tx_part.go).

// LogEntry is one entry of the log of a scope.
type LogEntry = persist.LogEntry

// MaxEntries is the number of entries that one mutation can add to a log.
const MaxEntries = 10_000

// LogQuery selects entries of the log of a scope; the zero value selects all.
type LogQuery struct {
	From    uint64 // the lowest number
	Before  uint64 // above the highest number; 0: no bound
	Reverse bool   // from the last to the first
	Limit   int    // 0: persist.DefaultLimit
}

// logChange is what one run of a function does to the log of its scope.
type logChange struct {
	key    Key
	maxDoc int

	mu      sync.Mutex // protects the fields below
	over    bool       // the function has returned
	drop    uint64
	first   uint64
	entries []json.RawMessage
}

type logKey struct{}

// AppendLog adds entries, which are JSON values, to the log of s. It is called by a function of
// AtomicState on s, with the context of that function, and is part of its mutation: entries and
// state are committed together or not at all. First is the number of the first entry. The state has
// to say which number comes next, because a number that is taken is a conflict. Entries of one
// commit have to follow each other without gaps.
//
// It returns *ArgumentError outside such a function, for a kind without Kind.Log, and for an entry
// that is not JSON or does not follow the last one. It returns *LimitError for more than MaxEntries
// entries or one above Config.MaxDoc, and ErrClosed once the function has returned.
func (s Scope[T]) AppendLog(ctx context.Context, first uint64, entries ...json.RawMessage) error {
	return s.appendLog(ctx, first, entries)
}

// appendLog is Scope.AppendLog.
func (s *handle) appendLog(ctx context.Context, first uint64, entries []json.RawMessage) error {
	l, err := s.logOf(ctx, "AppendLog")
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over:
		return wrapKey(ErrClosed, l.key)
	case len(l.entries)+len(entries) > MaxEntries:
		return &LimitError{Scope: l.key, What: "entries", Limit: MaxEntries, Got: len(l.entries) + len(entries), Reason: "in one mutation"}
	case len(l.entries) > 0 && first != l.first+uint64(len(l.entries)):
		return &ArgumentError{Argument: "first", Reason: "does not follow the last entry"}
	}
	for _, e := range entries {
		if len(e) > l.maxDoc {
			return &LimitError{Scope: l.key, What: "entry", Limit: l.maxDoc, Got: len(e)}
		}
		if !json.Valid(e) || !utf8.Valid(e) {
			return &ArgumentError{Argument: "entries", Reason: "not JSON in UTF-8"}
		}
	}
	if len(l.entries) == 0 {
		l.first = first
	}
	l.entries = append(l.entries, entries...)
	return nil
}

// DropLog removes the entries with numbers below before from the log of s, in the same way as
// AppendLog adds some. It returns *ArgumentError and ErrClosed as AppendLog does.
func (s Scope[T]) DropLog(ctx context.Context, before uint64) error { return s.dropLog(ctx, before) }

// dropLog is Scope.DropLog.
func (s *handle) dropLog(ctx context.Context, before uint64) error {
	l, err := s.logOf(ctx, "DropLog")
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return wrapKey(ErrClosed, l.key)
	}
	l.drop = max(l.drop, before)
	return nil
}

// logOf returns the log of s as the function that ctx belongs to changes it.
func (s *handle) logOf(ctx context.Context, verb string) (*logChange, error) {
	switch {
	case ctx == nil:
		return nil, &ArgumentError{Argument: "ctx", Reason: "nil"}
	case s.fault() != nil:
		return nil, s.fault()
	}
	l, _ := ctx.Value(logKey{}).(*logChange)
	if l == nil || l.key != s.key {
		return nil, &ArgumentError{Argument: "ctx", Reason: verb + " needs the context of a function on " + s.key.String() + ", and Kind.Log"}
	}
	return l, nil
}

// ReadLog returns entries of the log of s, in the order of their numbers. It shows committed entries
// only, also inside a transaction; with CommitThrough it shows those of the caller's own transaction
// too. It does not look at the document: the log of a scope that has expired is there until the
// scope is swept or made anew. It returns *ArgumentError for a kind without Kind.Log and for a
// negative limit, ErrNotPersisted, and the errors of Scope.Snapshot. With CommitThrough it returns
// *UnavailableError, which wraps persist.ErrUnsupported, if the joined store keeps no logs.
func (s Scope[T]) ReadLog(ctx context.Context, q LogQuery) ([]LogEntry, error) {
	return s.readLog(ctx, q)
}

// readLog is Scope.ReadLog.
func (s *handle) readLog(ctx context.Context, q LogQuery) ([]LogEntry, error) {
	switch {
	case ctx == nil:
		return nil, &ArgumentError{Argument: "ctx", Reason: "nil"}
	case s.fault() != nil:
		return nil, s.fault()
	case s.stored == nil:
		return nil, wrapKey(ErrNotPersisted, s.key)
	case !s.bound.kind.Log:
		return nil, &ArgumentError{Argument: "scope", Reason: "kind " + s.key.Kind + " has no log; see Kind.Log"}
	case q.Limit < 0:
		return nil, &ArgumentError{Argument: "LogQuery.Limit", Reason: "negative"}
	}
	if err := s.bound.ready(ctx); err != nil {
		return nil, err
	}
	if s.tx != nil {
		s.tx.mu.Lock()
		s.tx.readsLog = true
		s.tx.mu.Unlock()
	}
	logs := s.bound.rt.logs
	if s.tx != nil && s.tx.of.joined() {
		var ok bool
		if logs, ok = s.tx.of.store.(persist.Logger); !ok {
			return nil, unavailable(s.key, persist.ErrUnsupported)
		}
	}
	entries, err := observeCall(ctx, s.bound.rt.env, "ReadLog", s.key, func() ([]LogEntry, error) {
		return logs.ReadLog(ctx, persist.LogQuery{Key: s.key, From: q.From, Before: q.Before, Reverse: q.Reverse, Limit: q.Limit})
	})
	if err != nil {
		return nil, storeError(ctx, s.key, err)
	}
	return entries, nil
}

// ReadLogs returns at most limit entries (0: persist.DefaultLimit) of the logs of all scopes of
// these kinds (none: all kinds), in the order of their positions. After is the position of the last
// entry that was read, 0 to start with the first. A reader that goes on in this way misses no entry:
// an entry that is committed later gets a higher position. See persist.Logger for the order.
//
// It returns *ArgumentError for a nil ctx or a negative limit, ErrNoStore, ErrClosed,
// *UnavailableError and *CanceledError.
func (rt *Runtime) ReadLogs(ctx context.Context, after uint64, limit int, kinds ...string) ([]LogEntry, error) {
	switch {
	case ctx == nil:
		return nil, &ArgumentError{Argument: "ctx", Reason: "nil"}
	case limit < 0:
		return nil, &ArgumentError{Argument: "limit", Reason: "negative"}
	case rt.store == nil:
		return nil, ErrNoStore
	case rt.closed.Load():
		return nil, ErrClosed
	}
	entries, err := observeCall(ctx, rt.env, "ReadOrder", Key{}, func() ([]LogEntry, error) {
		return rt.logs.ReadOrder(ctx, persist.OrderQuery{Kinds: kinds, After: after, Limit: limit})
	})
	if err != nil {
		return nil, storeError(ctx, Key{}, err)
	}
	return entries, nil
}

// logged returns the context of the function in ch, and what it will do to the log; nil if the kind
// has none.
func (c *call) logged(ctx context.Context, ch *change) (context.Context, *logChange) {
	if !c.log || !ch.hasFunction() {
		return ctx, nil
	}
	l := &logChange{key: c.key, maxDoc: c.env.maxDoc}
	return context.WithValue(ctx, logKey{}, l), l
}

// checkLogs returns *UnavailableError if b changes a log that its commit cannot write: a commit with
// CommitThrough or WithNative does not pass persist.Logs.
func (t *transaction) checkLogs(b *txCommit) error {
	if _, ok := t.store.(persist.Logger); ok || !t.joined() && len(b.native) == 0 {
		return nil
	}
	for _, w := range b.Writes {
		if w.Log != nil {
			return unavailable(w.Key, persist.ErrUnsupported)
		}
	}
	return nil
}

// end closes the log to the function and reports whether the function changed it.
func (l *logChange) end() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	return l.drop > 0 || len(l.entries) > 0
}

// cleared returns the log write of a document that ends or starts over; nil if its kind has no log. A
// kind that this process does not know may have one.
func (rt *Runtime) cleared(name string) *persist.LogWrite {
	if known, ok := rt.kinds.Load(name); ok && !known.(*kind).Log {
		return nil
	}
	return &persist.LogWrite{Clear: true}
}
