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

// NoTimeout turns a mutation's time budget off.
const NoTimeout time.Duration = -1

// Defaults of Config.
const (
	DefaultTimeout  = 30 * time.Second
	DefaultMaxDoc   = 1 << 20 // bytes
	DefaultMaxQueue = 100_000 // mutations waiting for one scope
)

// DefaultRetry is the budget of a persisted mutation.
var DefaultRetry = Retry{Attempts: 16, First: 5 * time.Millisecond, Max: 500 * time.Millisecond, Within: 30 * time.Second}

// Retry is a budget of attempts with full-jitter exponential backoff. Zero fields take the default
// of the place where it is used; Attempts 1 means no second try.
type Retry struct {
	Attempts int           // commits that may lose before *ConcurrentModificationError
	First    time.Duration // upper bound of the first delay
	Max      time.Duration // upper bound of any delay
	Within   time.Duration // overall
}

// Or returns r with its zero fields taken from d.
func (r Retry) Or(d Retry) Retry {
	return Retry{Attempts: cmp.Or(r.Attempts, d.Attempts), First: cmp.Or(r.First, d.First), Max: cmp.Or(r.Max, d.Max), Within: cmp.Or(r.Within, d.Within)}
}

// Delay returns how long to wait after attempt n, the first being 1, has failed: a random part of a bound that doubles from First to Max.
func (r Retry) Delay(n int) time.Duration { return rand.N(max(backoff(r, n), 1)) }

func (r Retry) backoff() commit.Backoff { return commit.Backoff{First: r.First, Max: r.Max} }

// backoff is the upper bound of the delay before the next attempt.
func backoff(r Retry, attempts int) time.Duration { return r.backoff().Bound(attempts) }

func (r Retry) check() error {
	if r.Attempts < 0 || r.First < 0 || r.Max < 0 || r.Within < 0 {
		return fmt.Errorf("negative field in Retry %+v", r)
	}
	return nil
}

// Option changes one call.
type Option func(*terms)

// IfVersion commits only onto this version, without a retry; otherwise *ConcurrencyError, *DeletedError when the scope was
// deleted since, or ErrExpired. Version 0 is IfAbsent.
func IfVersion(v uint64) Option {
	if v == 0 {
		return IfAbsent()
	}
	return func(t *terms) { t.pinned, t.version = true, v }
}

// IfAbsent commits only when the scope has no state; otherwise ErrExists. It also creates a deleted scope anew.
func IfAbsent() Option { return func(t *terms) { t.absent = true } }

// IfExists commits only when the scope has state; otherwise ErrNotFound.
func IfExists() Option { return func(t *terms) { t.exists = true } }

// WithTimeout sets the budget of an in-memory mutation; NoTimeout turns it off, 0 keeps the default. Persisted scopes ignore it.
func WithTimeout(d time.Duration) Option {
	return func(t *terms) {
		if d != 0 {
			t.timeout = d
		}
	}
}

// WithRetry sets the budget of a persisted mutation; zero fields keep their default. In-memory scopes ignore it.
func WithRetry(r Retry) Option { return func(t *terms) { t.retry = r.Or(t.retry) } }

// WithTTL lets the scope expire d after this commit, instead of its kind's TTL.
func WithTTL(d time.Duration) Option { return func(t *terms) { t.ttl = d } }

// Via commits a transaction through s instead of the runtime's store: a store that is joined to the caller's own database transaction, as
// sqlite.Store.Join and postgres.Store.Join return it. It is for Transact only. See there.
func Via(s persist.Store) Option { return func(t *terms) { t.via, t.joined = s, true } }

// env is what all containers of a runtime share, or one container of the caller's own has to itself.
type env struct {
	observer Observer
	log      *slog.Logger // nil: slog.Default()
	maxDoc   int
	maxQueue int
	writer   string        // starts the id of every commit
	commits  atomic.Uint64 // how many ids were given out
	bells    sync.Pool     // of *queue.Bell
}

func newEnv() *env {
	return &env{maxDoc: DefaultMaxDoc, maxQueue: DefaultMaxQueue, writer: newWriter(), bells: sync.Pool{New: func() any { return queue.NewBell() }}}
}

func (e *env) logger() *slog.Logger {
	if e.log != nil {
		return e.log
	}
	return slog.Default()
}

func (e *env) newCommitID() string { return e.writer + "." + strconv.FormatUint(e.commits.Add(1), 10) }

// call is one call of a verb. It is copied on its way, and what it asks for is not.
type call struct {
	*terms
	key   Key
	lease *Lease // the innermost of its context; nil: none
}

// terms are what a call asks for, with the defaults of its place filled in. Those of a place are shared, so they never change.
type terms struct {
	env     *env
	timeout time.Duration
	retry   Retry
	ttl     time.Duration
	via     persist.Store
	joined  bool // Via

	pinned  bool // IfVersion
	version uint64
	absent  bool // IfAbsent
	exists  bool // IfExists
}

// with returns t changed by opts, t itself if there are none.
func (t *terms) with(opts []Option) (*terms, error) {
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
		return nil, &ArgumentError{Argument: "WithTimeout", Reason: "negative"}
	}
	if own.ttl < 0 {
		return nil, &ArgumentError{Argument: "WithTTL", Reason: "negative"}
	}
	return own, nil
}

// life is whether a scope has state, and if not, why.
type life = document.Life

const (
	absent  = document.Absent
	alive   = document.Alive
	deleted = document.Deleted
	expired = document.Expired
)

// admit tests the call's preconditions against a version of the scope.
func (c *call) admit(ch *change, l life, version uint64) error {
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

// wrapKey returns a sentinel with the scope it is about.
func wrapKey(sentinel error, key Key) error { return fmt.Errorf("%w: %s", sentinel, key) }
