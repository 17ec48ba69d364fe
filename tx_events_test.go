package pawl_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// failures returns the events of path "tx" that report a Transact without a commit.
func failures(l *eventLog) (out []pawl.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Path == "tx" && (e.Type == pawl.EventFailed || e.Type == pawl.EventPanicked) {
			out = append(out, e)
		}
	}
	return out
}

// A Transact that returns an error is reported once, whatever the cause.
func TestFailedTransactIsObserved(t *testing.T) {
	down := errors.New("down")
	spend := pawl.WithRetry(pawl.Retry{Attempts: 3, First: time.Millisecond})
	type runner func(context.Context, func(context.Context, *pawl.Tx) error, ...pawl.CallOption) error
	for name, test := range map[string]struct {
		attempts int
		touched  string // the first scope touched; empty: a
		// run calls its runner once. Scope a exists.
		run func(t *testing.T, p path, run runner) error
	}{
		"business error": {attempts: 1, run: func(t *testing.T, p path, run runner) error {
			return run(t.Context(), func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := purses.Scope(tx, "a").State(ctx); err != nil {
					return err
				}
				if _, err := purses.Scope(tx, "b").IncState(ctx, "balance", 1); err != nil {
					return err
				}
				return errPoor
			})
		}},
		"business error after a conflict": {attempts: 2, run: func(t *testing.T, p path, run runner) error {
			other, runs := purses.Scope(p.another(t), "a"), 0
			return run(t.Context(), func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := purses.Scope(tx, "a").State(ctx); err != nil {
					return err
				}
				if _, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1); err != nil {
					return err
				}
				if runs++; runs <= 2 { // the first conflict is with a version seen before the call
					_, err := other.IncState(context.Background(), "balance", 1)
					require.NoError(t, err)
				}
				return errPoor
			})
		}},
		"budget spent": {attempts: 3, run: func(t *testing.T, p path, run runner) error {
			other := purses.Scope(p.another(t), "a")
			return run(t.Context(), func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := purses.Scope(tx, "a").State(ctx); err != nil {
					return err
				}
				_, err := other.IncState(context.Background(), "balance", 1)
				require.NoError(t, err)
				_, err = purses.Scope(tx, "a").IncState(ctx, "balance", 100)
				return err
			}, spend)
		}},
		"store down": {attempts: 1, touched: "unseen", run: func(t *testing.T, p path, run runner) error {
			p.store.OnLoad(func(context.Context, ...persist.Key) error { return down })
			defer p.store.OnLoad(nil)
			return run(t.Context(), func(ctx context.Context, tx *pawl.Tx) error {
				_, err := purses.Scope(tx, "unseen").State(ctx)
				return err
			}, pawl.WithRetry(pawl.Retry{Attempts: 1, Within: 50 * time.Millisecond}))
		}},
		"caller left": {attempts: 1, run: func(t *testing.T, p path, run runner) error {
			ctx, cancel := context.WithCancel(t.Context())
			return run(ctx, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
				cancel()
				return err
			})
		}},
		"refused option": {attempts: 1, touched: "none", run: func(t *testing.T, p path, run runner) error {
			return run(t.Context(), func(context.Context, *pawl.Tx) error { return nil }, pawl.IfAbsent())
		}},
		"nil function": {attempts: 1, touched: "none", run: func(t *testing.T, p path, run runner) error {
			return run(t.Context(), nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			log := new(eventLog)
			onStores(t, func(t *testing.T, p path) {
				seed(t, purses.Scope(p.rt, "a"), purse{Balance: 1})
				log.mu.Lock()
				log.events = nil
				log.mu.Unlock()
				err := test.run(t, p, func(
					ctx context.Context, fn func(context.Context, *pawl.Tx) error, opts ...pawl.CallOption,
				) error {
					return pawl.Transact(ctx, p.rt, fn, opts...)
				})
				require.Error(t, err)
				got := failures(log)
				require.Len(t, got, 1)
				e := got[0]
				assert.Equal(t, pawl.EventFailed, e.Type)
				assert.Equal(t, "Transact", e.Verb)
				assert.Equal(t, err, e.Err)
				assert.Equal(t, test.attempts, e.Attempts)
				assert.Positive(t, e.Took)
				switch test.touched {
				case "none":
					assert.Zero(t, e.Key)
				case "":
					assert.Equal(t, purses.Scope(p.rt, "a").Key(), e.Key)
				default:
					assert.Equal(t, purses.Scope(p.rt, test.touched).Key(), e.Key)
				}
			}, func(c *pawl.Config) { c.Observer = log })
		})
	}
}

// A Transact on a closed runtime or on one without a store is reported too.
func TestRefusedTransactIsObserved(t *testing.T) {
	for name, store := range map[string]persist.Store{"no store": nil, "closed": memory.New()} {
		t.Run(name, func(t *testing.T) {
			log := new(eventLog)
			rt, err := pawl.Open(pawl.Config{Store: store, Observer: log})
			require.NoError(t, err)
			require.NoError(t, rt.Close(t.Context()))
			err = pawl.Transact(t.Context(), rt, func(context.Context, *pawl.Tx) error { return nil })
			require.Error(t, err)
			got := failures(log)
			require.Len(t, got, 1)
			assert.Equal(t, err, got[0].Err)
		})
	}
}

// A function that panics or calls runtime.Goexit is reported once, as Panicked. A panic after a
// stale read is not reported.
func TestPanickedTransactIsObserved(t *testing.T) {
	log := new(eventLog)
	store := memory.New()
	rt := openRuntime(t, pawl.Config{Store: store, Observer: log})
	a, other := purses.Scope(rt, "a"), purses.Scope(openOn(t, store), "a")
	seed(t, a, purse{Balance: 1})
	var raised any
	runs := 0
	func() {
		defer func() { raised = recover() }()
		_ = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := a.In(tx).State(ctx)
			require.NoError(t, err)
			if runs++; runs == 1 {
				_, err := other.IncState(context.Background(), "balance", 1)
				require.NoError(t, err)
			}
			panic("boom " + strconv.Itoa(runs))
		})
	}()
	got := failures(log)
	require.Len(t, got, 1)
	assert.Equal(t, pawl.EventPanicked, got[0].Type)
	assert.Equal(t, a.Key(), got[0].Key)
	assert.Same(t, raised, got[0].Err)
	assert.Equal(t, "boom 2", got[0].Err.(*pawl.PanicError).Value)
	assert.NotEmpty(t, got[0].Stack)

	var g sync.WaitGroup
	g.Go(func() {
		_ = pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, _ = a.In(tx).State(ctx)
			runtime.Goexit()
			return nil
		})
	})
	g.Wait()
	got = failures(log)
	require.Len(t, got, 2)
	assert.Equal(t, pawl.EventPanicked, got[1].Type)
	assert.NoError(t, got[1].Err)

	assert.Panics(t, func() { // a callback that panics after the commit is no failure
		_ = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			tx.AfterCommit(func() { panic("late") })
			_, err := a.In(tx).IncState(ctx, "balance", 1)
			return err
		})
	})
	require.Len(t, failures(log), 2)
}

// A Transact that joins another one reports nothing, because the outer one may still commit.
func TestJoinedTransactIsNotObserved(t *testing.T) {
	log := new(eventLog)
	rt := openRuntime(t, pawl.Config{Store: memory.New(), Observer: log})
	joined := func(ctx context.Context, tx *pawl.Tx) error {
		return pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) error {
			if _, err := purses.Scope(tx, "b").IncState(ctx, "balance", 1); err != nil {
				return err
			}
			return errPoor
		})
	}
	require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		require.ErrorIs(t, joined(ctx, tx), errPoor)
		_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
		return err
	}))
	require.Empty(t, failures(log))
	require.ErrorIs(t, pawl.Transact(t.Context(), rt, joined), errPoor)
	require.Len(t, failures(log), 1, "only the outer Transact is reported")
}

// readLog is a store that records the keys of each LoadAll.
type readLog struct {
	*memory.Store
	mu    sync.Mutex // protects reads
	reads [][]persist.Key
}

func (s *readLog) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	s.mu.Lock()
	s.reads = append(s.reads, slices.Clone(keys))
	s.mu.Unlock()
	return s.Store.LoadAll(ctx, keys)
}

// A transaction that runs again reads each scope that an earlier run touched, and each only once.
func TestRepeatedTransactReadsEachScopeOnce(t *testing.T) {
	const scopes = 2000
	store := &readLog{Store: memory.New()}
	rt, other := openOn(t, store), openOn(t, store.Store)
	runs := 0
	require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		runs++
		for i := range scopes {
			if _, err := purses.Scope(tx, strconv.Itoa(i+runs)).State(ctx); err != nil {
				return err
			}
		}
		if runs <= 3 {
			_, err := purses.Scope(other, strconv.Itoa(scopes)).IncState(context.Background(), "balance", 1)
			require.NoError(t, err)
		}
		_, err := purses.Scope(tx, "mine").IncState(ctx, "balance", 1)
		return err
	}))
	require.Equal(t, 4, runs)
	require.NotEmpty(t, store.reads)
	for _, keys := range store.reads {
		seen := map[persist.Key]bool{}
		for _, k := range keys {
			require.False(t, seen[k], "%v is read twice", k)
			seen[k] = true
		}
	}
	last := store.reads[len(store.reads)-1]
	require.Len(t, last, scopes+2+1, "the scopes of three runs, and mine")
}
