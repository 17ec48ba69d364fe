package pawl

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/queue"
	"github.com/pawl-go/pawl/persist"
)

// NoTimeout turns off the time budget of a mutation.
const NoTimeout time.Duration = -1

// Defaults of Config.
const (
	DefaultTimeout  = 30 * time.Second
	DefaultMaxDoc   = 1 << 20 // bytes
	DefaultMaxQueue = 100_000 // mutations waiting for one scope
)

// DefaultRetry is the default budget of a persisted mutation.
var DefaultRetry = Retry{Attempts: 16, First: 5 * time.Millisecond, Max: 500 * time.Millisecond, Within: 30 * time.Second}

// Retry is a budget of attempts with full-jitter exponential backoff. A zero field takes the
// default of the place where it is used. With Attempts 1 there is no second attempt.
type Retry struct {
	Attempts int           // commits that may lose before *ConcurrentModificationError
	First    time.Duration // upper bound of the first delay
	Max      time.Duration // upper bound of any delay
	Within   time.Duration // time for the whole call
}

// Or returns r with its zero fields taken from d.
func (r Retry) Or(d Retry) Retry {
	return Retry{Attempts: cmp.Or(r.Attempts, d.Attempts), First: cmp.Or(r.First, d.First), Max: cmp.Or(r.Max, d.Max), Within: cmp.Or(r.Within, d.Within)}
}

// Delay returns how long to wait after attempt n has failed; the first attempt is 1. The delay is
// random, below a bound that doubles from First to Max.
func (r Retry) Delay(n int) time.Duration { return rand.N(max(backoff(r, n), 1)) }

func (r Retry) backoff() commit.Backoff { return commit.Backoff{First: r.First, Max: r.Max} }

// backoff returns the upper bound of the delay before the next attempt.
func backoff(r Retry, attempts int) time.Duration { return r.backoff().Bound(attempts) }

// check returns an error if a field is negative.
func (r Retry) check() error {
	if r.Attempts < 0 || r.First < 0 || r.Max < 0 || r.Within < 0 {
		return fmt.Errorf("negative field in Retry %+v", r)
	}
	return nil
}

// CallOption changes one call.
type CallOption func(*terms)

// IfVersion lets the call commit only if v is the current version. Otherwise the call returns,
// without a retry, *ConcurrencyError, *DeletedError if the scope is deleted, or ErrExpired if it
// has expired. Version 0 is IfAbsent.
func IfVersion(v uint64) CallOption {
	if v == 0 {
		return IfAbsent()
	}
	return func(t *terms) { t.pinned, t.version = true, v }
}

// IfAbsent lets the call commit only if the scope has no state; otherwise the call returns
// ErrExists. It also creates a deleted scope anew.
func IfAbsent() CallOption { return func(t *terms) { t.absent = true } }

// IfExists lets the call commit only if the scope has state; otherwise the call returns
// ErrNotFound, or *DeletedError if the scope is deleted.
func IfExists() CallOption { return func(t *terms) { t.exists = true } }

// WithTimeout sets the time budget of an in-memory mutation; NoTimeout turns it off, and 0 keeps
// the default. Persisted scopes ignore it.
func WithTimeout(d time.Duration) CallOption {
	return func(t *terms) {
		if d != 0 {
			t.timeout = d
		}
	}
}

// WithRetry sets the budget of a persisted mutation; zero fields keep their default. In-memory
// scopes ignore it.
func WithRetry(r Retry) CallOption { return func(t *terms) { t.retry = r.Or(t.retry) } }

// WithTTL lets the scope expire d after this commit, instead of after the TTL of its kind.
func WithTTL(d time.Duration) CallOption { return func(t *terms) { t.ttl = d } }

// WithDueIn makes the scope due d after this commit, by the store's clock, instead of at the time
// in the kind's Due field. 0 means at once. The kind need not have that field. The call counts as a
// change, so it moves the version. The due time stays until the next change, which sets it from the
// field again, or to never without one. Acquiring a lease without a mutation keeps it. A scope in
// memory has no due time: the call returns ErrNotPersisted.
func WithDueIn(d time.Duration) CallOption {
	if d == 0 {
		d = time.Microsecond
	}
	return func(t *terms) { t.dueIn = d }
}

// CommitThrough commits a transaction through s instead of the runtime's store. s is joined to a
// database transaction of the caller, as returned by sqlite.Store.Join and postgres.Store.Join.
// Only Transact accepts this option; see there.
func CommitThrough(s persist.Store) CallOption { return func(t *terms) { t.via, t.joined = s, true } }

// env holds what all containers of a runtime share. A container of the caller's own has its own
// env.
type env struct {
	observer Observer     // nil: none
	log      *slog.Logger // nil: slog.Default()
	maxDoc   int
	maxQueue int
	writer   string        // starts the id of every commit
	commits  atomic.Uint64 // number of commit ids made so far

	waiters       sync.Pool // of *queue.Waiter[pending] that can be used again
	storedWaiters sync.Pool // of *storedWaiter that can be used again

	wallClock func() time.Time // without a monotonic reading; only tests replace it
}

func newEnv() *env {
	return &env{
		maxDoc: DefaultMaxDoc, maxQueue: DefaultMaxQueue, writer: newWriter(),
		waiters:       sync.Pool{New: func() any { return queue.NewWaiter[pending]() }},
		storedWaiters: sync.Pool{New: func() any { return queue.NewWaiter[storedCall]() }},
		wallClock:     func() time.Time { return time.Now().Round(0) },
	}
}

func (e *env) logger() *slog.Logger {
	if e.log != nil {
		return e.log
	}
	return slog.Default()
}

func (e *env) newCommitID() string { return e.writer + "." + strconv.FormatUint(e.commits.Add(1), 10) }

// call is one call of a verb. Copies of it share their terms.
type call struct {
	*terms
	key   Key
	lease *Lease // the innermost lease of its context; nil: none
}

// terms are the options of a call, with defaults filled in. Calls without options share the terms
// of their kind or container, so terms never change.
type terms struct {
	env     *env
	timeout time.Duration
	retry   Retry
	ttl     time.Duration
	dueIn   time.Duration // WithDueIn; 0: not given
	maxDoc  int           // of the kind, or of the runtime
	log     bool          // of the kind
	via     persist.Store // CommitThrough
	joined  bool          // CommitThrough was given; via may be nil

	pinned  bool // IfVersion
	version uint64
	absent  bool // IfAbsent
	exists  bool // IfExists
}

// with returns a copy of t with opts applied, or t itself if there are none. It returns
// *ArgumentError if an option is invalid.
func (t *terms) with(opts []CallOption) (*terms, error) {
	if len(opts) == 0 {
		return t, nil
	}
	own := new(terms)
	*own = *t
	for _, o := range opts {
		if o == nil {
			return nil, &ArgumentError{Argument: "option", Reason: "nil"}
		}
		o(own)
	}
	if err := own.retry.check(); err != nil {
		return nil, &ArgumentError{Argument: "WithRetry", Reason: err.Error()}
	}
	if own.timeout < 0 && own.timeout != NoTimeout {
		return nil, &ArgumentError{Argument: "WithTimeout", Reason: fmt.Sprintf("must not be negative, got %v", own.timeout)}
	}
	if own.ttl < 0 {
		return nil, &ArgumentError{Argument: "WithTTL", Reason: fmt.Sprintf("must not be negative, got %v", own.ttl)}
	}
	if own.dueIn < 0 {
		return nil, &ArgumentError{Argument: "WithDueIn", Reason: fmt.Sprintf("must not be negative, got %v", own.dueIn)}
	}
	return own, nil
}

// life says whether a scope has state, and if not, why.
type life = document.Life

const (
	absent  = document.Absent
	alive   = document.Alive
	deleted = document.Deleted
	expired = document.Expired
)

// checkConditions returns an error if the preconditions of the call do not hold for this version of the
// scope.
func (c *call) checkConditions(ch *change, l life, version uint64) error {
	switch l {
	case alive:
		if c.absent {
			return wrapKey(ErrExists, c.key)
		}
		if c.pinned && c.version != version {
			return &ConcurrencyError{Scope: c.key, Expected: c.version, Actual: version}
		}
		return nil
	case deleted:
		if (c.absent || ch.deletes) && !c.pinned && !c.exists {
			return nil
		}
		return &DeletedError{Scope: c.key, Version: version}
	}
	switch {
	case c.pinned && l == expired:
		return wrapKey(ErrExpired, c.key)
	case c.pinned:
		return &ConcurrencyError{Scope: c.key, Expected: c.version}
	case c.exists:
		return wrapKey(ErrNotFound, c.key)
	}
	return nil
}

// wrapKey returns an error that wraps sentinel and names the scope.
func wrapKey(sentinel error, key Key) error { return fmt.Errorf("%w: %s", sentinel, key) }
