package pawl

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/worker"
	"github.com/pawl-go/pawl/persist"
)

// Defaults of SweeperConfig.
const (
	DefaultSweepInterval = time.Minute
	DefaultSweepBatch    = 100
	DefaultTombstones    = 7 * 24 * time.Hour
)

// KeepTombstones as SweeperConfig.Tombstones keeps tombstones for ever.
const KeepTombstones time.Duration = -1

// SweeperConfig configures a Sweeper. Its zero value is the default.
type SweeperConfig struct {
	// Interval is the time between two rounds over all kinds. 0 means DefaultSweepInterval.
	Interval time.Duration
	// Batch is the number of scopes cleared in one commit. 0 means DefaultSweepBatch.
	Batch int
	// Tombstones is how long tombstones are kept. 0 means DefaultTombstones, KeepTombstones for
	// ever.
	Tombstones time.Duration
	// Kinds are the names of the kinds to sweep. Nil means all that the runtime knows.
	Kinds []string
}

// Sweeper clears the content of persisted scopes that have expired and removes old tombstones, of
// the kinds that its runtime knows. It only saves space: an expired scope reads as absent at once.
// Several processes may sweep the same store.
//
// Clearing is a commit that tests the version and the expiry, so a scope that was renewed or leased
// in time stays. It leaves a tombstone with the version and the fact that the scope expired, so
// that a write starts a new record; see docs/state.md.
type Sweeper struct {
	rt     *Runtime
	config SweeperConfig
	loop   *worker.Loop[string] // its jobs are names of kinds

	mu      sync.Mutex // protects the fields below
	left    []string   // kinds still to be swept in this round
	round   time.Time  // when this round began
	done    int        // documents cleared or purged
	failure error      // of the last kind
}

// Swept is the result of a sweep.
type Swept struct {
	Cleared int // scopes that had expired
	Purged  int // tombstones removed
}

// NewSweeper returns a sweeper that is not started yet. It returns ErrNoStore, *ArgumentError, or
// *LimitError for a bad name in Kinds.
func NewSweeper(rt *Runtime, c SweeperConfig) (*Sweeper, error) {
	switch {
	case rt == nil:
		return nil, &ArgumentError{Argument: "runtime", Reason: "nil"}
	case rt.store == nil:
		return nil, ErrNoStore
	case c.Interval < 0:
		return nil, &ArgumentError{Argument: "SweeperConfig.Interval", Reason: "negative"}
	case c.Batch < 0:
		return nil, &ArgumentError{Argument: "SweeperConfig.Batch", Reason: "negative"}
	case c.Tombstones < 0 && c.Tombstones != KeepTombstones:
		return nil, &ArgumentError{Argument: "SweeperConfig.Tombstones", Reason: "negative"}
	}
	for _, name := range c.Kinds { // a store takes an empty name for all kinds
		if err := checkName(Key{Kind: name}, "kind", name, MaxKind); err != nil {
			return nil, err
		}
	}
	if c.Interval == 0 {
		c.Interval = DefaultSweepInterval
	}
	if c.Batch == 0 {
		c.Batch = DefaultSweepBatch
	}
	if c.Tombstones == 0 {
		c.Tombstones = DefaultTombstones
	}
	s := &Sweeper{rt: rt, config: c}
	s.loop = worker.New(worker.Config[string]{
		Name: "sweeper", Take: s.take, Run: s.run, Poll: c.Interval, Logger: rt.env.logger(),
	})
	return s, nil
}

// Start begins to sweep in the background, until Stop or until ctx ends. A second Start does
// nothing. It returns an error after Stop, and the cause of a ctx that has ended.
func (s *Sweeper) Start(ctx context.Context) error {
	if ctx == nil {
		return &ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	return s.loop.Start(ctx)
}

// Stop ends the sweeper and waits for running commits. If ctx ends first, it returns an error that
// says so. Stopping twice is safe.
func (s *Sweeper) Stop(ctx context.Context) error {
	if ctx == nil {
		return &ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	return s.loop.Stop(ctx)
}

// Sweep sweeps every kind once, now, whether the sweeper was started or not. It returns its result
// also with an error: *UnavailableError, *CanceledError, ErrClosed.
func (s *Sweeper) Sweep(ctx context.Context) (total Swept, err error) {
	if ctx == nil {
		return total, &ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	for _, kind := range s.kinds() {
		did, failed := s.sweep(ctx, kind)
		total.Cleared += did.Cleared
		total.Purged += did.Purged
		err = errors.Join(err, failed)
	}
	return total, err
}

// take returns at most limit kinds that are still to be swept in this round. It begins a new round
// when the interval has passed.
func (s *Sweeper) take(_ context.Context, limit int) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); len(s.left) == 0 && now.Sub(s.round) >= s.config.Interval {
		s.left, s.round = s.kinds(), now
	}
	n := min(limit, len(s.left))
	kinds := s.left[:n]
	s.left = s.left[n:]
	return kinds, nil
}

// run sweeps one kind and logs a failure.
func (s *Sweeper) run(ctx context.Context, kind string) {
	if _, err := s.sweep(ctx, kind); err != nil && ctx.Err() == nil && !errors.Is(err, ErrClosed) {
		s.rt.env.logger().WarnContext(ctx, "pawl: sweep failed, will be repeated", "kind", kind, "err", err)
	}
}

// Workers returns the state of the sweeper, as one worker.
func (s *Sweeper) Workers() []WorkerStats {
	running, jobs := s.loop.State()
	s.mu.Lock()
	defer s.mu.Unlock()
	return []WorkerStats{{Name: "sweeper", Running: running, Working: jobs > 0, Interval: s.config.Interval,
		Round: s.round, Done: s.done, Failure: s.failure}}
}

// sweep clears the expired scopes of one kind, removes what is left of their logs, and purges old
// tombstones.
func (s *Sweeper) sweep(ctx context.Context, kind string) (did Swept, err error) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.done, s.failure = s.done+did.Cleared+did.Purged, err
	}()
	size, began := s.config.Batch, time.Now()
	for more := true; more && err == nil; {
		var n int
		n, more, err = s.clear(ctx, kind, &size)
		did.Cleared += n
	}
	s.observe(ctx, kind, "Clear", did.Cleared, began, err)
	if cleaner, ok := s.rt.logs.(persist.LogCleaner); ok && err == nil && s.rt.cleared(kind) != nil {
		err = cleaner.CleanLogs(ctx, kind) // before the purge: an erasure finds a log by its record
	}
	if purger, ok := s.rt.store.(persist.Purger); ok && err == nil && s.config.Tombstones != KeepTombstones {
		began = time.Now()
		did.Purged, err = observeCall(ctx, s.rt.env, "Purge", Key{Kind: kind}, func() (int, error) {
			return purger.Purge(ctx, persist.Query{Kind: kind, Age: s.config.Tombstones})
		})
		s.observe(ctx, kind, "Purge", did.Purged, began, err)
	}
	if err != nil {
		err = storeError(ctx, Key{Kind: kind}, err)
	}
	return did, err
}

// observe reports that a kind was swept.
func (s *Sweeper) observe(ctx context.Context, kind, verb string, n int, began time.Time, err error) {
	s.rt.env.observe(ctx, Event{Type: EventSwept, Key: Key{Kind: kind}, Verb: verb, Batch: n, Took: time.Since(began), Err: err})
}

// clear clears one batch of at most size expired scopes and reports whether there may be more. It
// halves size if the store refuses that many.
func (s *Sweeper) clear(ctx context.Context, kind string, size *int) (cleared int, more bool, err error) {
	if s.rt.closed.Load() {
		return 0, false, persist.ErrClosed
	}
	page, err := s.rt.list(ctx, persist.Query{Kind: kind, Expired: true, Limit: *size})
	if err != nil || len(page.Records) == 0 {
		return 0, false, err
	}
	c, log := persist.Commit{}, s.rt.cleared(kind)
	for _, r := range page.Records {
		c.Writes = append(c.Writes, persist.Write{Key: r.Key,
			Expected: r.Version, Gone: true, Version: r.Version + 1, Deleted: true, Swept: true, Log: log})
	}
	return s.rt.commitCurrent(ctx, c, size)
}

// commitCurrent commits the writes of c whose records are still current, and returns their number.
// The others were renewed, leased, written or removed meanwhile: they are left out, and the rest is
// committed again. More reports whether there may be more to do. It halves size if the store
// refuses that many.
func (rt *Runtime) commitCurrent(ctx context.Context, c persist.Commit, size *int) (n int, more bool, err error) {
	for len(c.Writes) > 0 {
		c.ID = rt.env.newCommitID()
		_, err := rt.env.observed(rt.route()).Store.Commit(ctx, c)
		var conflict *persist.Conflict
		if err == nil {
			return len(c.Writes), true, nil
		}
		if n := len(c.Writes); n > 1 && ctx.Err() == nil && refusesSize(err) {
			*size, c.Writes = n/2, c.Writes[:n/2]
			continue
		}
		if !errors.As(err, &conflict) {
			return 0, false, err
		}
		before := len(c.Writes)
		c.Writes = without(c.Writes, conflict.Winners)
		if len(c.Writes) == before {
			return 0, false, err // the conflict names none of the writes
		}
	}
	return 0, true, nil
}

// refusesSize reports whether a smaller commit may succeed after err: the store is there, and
// refused the whole commit.
func refusesSize(err error) bool {
	return commit.NotApplied(err) && !errors.Is(err, persist.ErrUnavailable) &&
		!errors.Is(err, persist.ErrClosed)
}

// without returns the writes whose keys are not among records.
func without(writes []persist.Write, records []persist.Record) (rest []persist.Write) {
	won := make(map[Key]bool, len(records))
	for _, r := range records {
		won[r.Key] = true
	}
	for _, w := range writes {
		if !won[w.Key] {
			rest = append(rest, w)
		}
	}
	return rest
}

// kinds returns the names of the kinds to sweep: by default all persisted ones that the runtime knows.
func (s *Sweeper) kinds() (names []string) {
	if s.config.Kinds != nil {
		return slices.Clone(s.config.Kinds)
	}
	for _, k := range s.rt.Kinds() {
		if !k.InMemory {
			names = append(names, k.Name)
		}
	}
	return names
}
