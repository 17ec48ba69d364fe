package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// Histories that broke an earlier state of the library, found by reading it with hostile eyes.

// Proves CAS-7.
func TestCommitInDoubtWhoseRecordWasPurged(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			h.onCommit = nil
			_, err := commit() // lands as version 2
			require.NoError(t, err)
			_, err = h.Store.Commit(t.Context(), persist.Commit{ID: "foreign.1", Writes: []persist.Write{{Key: s.Key(), Expected: 2, Version: 3, Deleted: true}}})
			require.NoError(t, err)
			_, err = h.Store.Purge(t.Context(), persist.Query{Kind: s.Key().Kind})
			require.NoError(t, err)
			return time.Time{}, errors.New("connection lost")
		}
		_, err = s.IncState(t.Context(), "n", 1)
		assert.True(t, pawl.OutcomeUnknown(err), "it was applied, and nobody can tell any more")
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		assert.False(t, snap.Exists(), "it must not be applied again")
	})
}

// Proves CAS-7.
func TestCommitInDoubtWhoseWriterWasForgotten(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		foreign := func(id string) {
			r, err := h.Store.Load(t.Context(), s.Key())
			require.NoError(t, err)
			b := decode[counts](t, r)
			b.N += 1000
			_, err = h.Store.Commit(t.Context(), persist.Commit{ID: id,
				Writes: []persist.Write{{Key: s.Key(), Expected: r.Version, Version: r.Version + 1, Doc: encode(t, b)}}})
			require.NoError(t, err)
		}
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		foreign("foreign1.0")
		_, err = s.Snapshot(t.Context()) // what follows continues a record that this runtime has seen
		require.NoError(t, err)
		var lost atomic.Bool
		h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			at, err := commit()
			if err != nil || !lost.CompareAndSwap(false, true) {
				return at, err
			}
			for i := range persist.KeptWriters { // so many that the record forgets this runtime
				foreign(fmt.Sprintf("foreign%d.1", i))
			}
			_, err = s.IncState(t.Context(), "n", 100) // and learns of it again, by a later commit
			require.NoError(t, err)
			return time.Time{}, errors.New("connection lost")
		}
		began := make(chan struct{})
		company := make(chan error, 1)
		go func() {
			<-began
			_, err := s.IncState(t.Context(), "n", 0)
			company <- err
		}()
		_, err = s.AtomicState(t.Context(), func(_ context.Context, b *counts) error {
			close(began)
			require.NoError(t, <-company) // it went solo, so that the queue is free
			b.N += 10
			return nil
		})
		assert.True(t, pawl.OutcomeUnknown(err))
		b, err := s.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 17111, b.N, "it was applied once")
	})
}

// Proves CAS-3.
func TestBudgetIsEachCallersOwn(t *testing.T) {
	t.Run("a short one does not cut the others", func(t *testing.T) {
		persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
			open, entered := h.gate()
			first := push(s, "first")
			<-entered
			lead := push(s, "lead", pawl.WithRetry(pawl.Retry{Within: 20 * time.Millisecond}))
			patient := push(s, "patient")
			h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				time.Sleep(time.Second)
				return commit()
			}
			open()
			require.NoError(t, <-first)
			assert.True(t, pawl.OutcomeUnknown(<-lead), "its budget ended while the store was at work")
			assert.NoError(t, <-patient)
			b, err := s.State(t.Context())
			require.NoError(t, err)
			assert.Equal(t, []string{"first", "lead", "patient"}, b.Done)
		})
	})
	t.Run("a long one does not hold the others", func(t *testing.T) {
		persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
			h.onCommit = func(persist.Commit, func() (time.Time, error)) (time.Time, error) {
				return time.Time{}, errors.New("connection lost")
			}
			lead := push(s, "lead")
			start := time.Now()
			_, err := s.IncState(t.Context(), "n", 1, pawl.WithRetry(pawl.Retry{Within: 200 * time.Millisecond}))
			assert.ErrorIs(t, err, pawl.ErrUnavailable)
			assert.True(t, pawl.IsRetryable(err), "it was withdrawn from the queue")
			assert.LessOrEqual(t, time.Since(start), 300*time.Millisecond)
			assert.ErrorIs(t, <-lead, pawl.ErrUnknownOutcome)
		})
	})
}

// Proves LOCK-10.
func TestCycleThroughAPersistedScope(t *testing.T) {
	bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
		a, b, p := pawl.Memory[counts](rt, "a"), pawl.Memory[counts](rt, "b"), pawl.Session[counts](rt, "p")
		start := time.Now()
		turn := make(chan struct{})
		fromB, fromA := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := b.AtomicState(context.Background(), func(ctx context.Context, _ *counts) error {
				<-turn
				_, err := a.IncState(ctx, "n", 1)
				return err
			})
			fromB <- err
		}()
		synctest.Wait()
		go func() {
			_, err := a.AtomicState(context.Background(), func(ctx context.Context, _ *counts) error {
				_, err := p.AtomicState(ctx, func(ctx context.Context, _ *counts) error {
					_, err := b.IncState(ctx, "n", 1) // a waits for p's mutator, which waits for b
					return err
				})
				return err
			})
			fromA <- err
		}()
		synctest.Wait()
		close(turn) // and b for a
		var deadlock *pawl.DeadlockError
		require.ErrorAs(t, <-fromB, &deadlock)
		assert.Equal(t, []pawl.Key{b.Key(), a.Key(), p.Key(), b.Key()}, deadlock.Cycle)
		assert.NoError(t, <-fromA, "the others go on")
		assert.Zero(t, time.Since(start))
	})
}

// badStore panics, or ends the goroutine that calls it, once.
type badStore struct {
	*memory.Store
	fail func()
}

func (s *badStore) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if f := s.fail; f != nil {
		s.fail = nil
		f()
	}
	return s.Store.Commit(ctx, c)
}

func TestStoreThatPanicsOrExits(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("driver") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			store := &badStore{memory.New(), fail}
			bubble(t, pawl.Config{Store: store}, func(t *testing.T, rt *pawl.Runtime) {
				s := pawl.Session[counts](rt, "a")
				_, err := s.IncState(t.Context(), "n", 1)
				assert.ErrorIs(t, err, pawl.ErrUnknownOutcome)
				snap, err := s.IncState(t.Context(), "n", 1)
				require.NoError(t, err, "work goes on")
				assert.Equal(t, 1, snap.ReadOnly().N)
			})
		})
	}
}

// Proves LOCK-5, SCOPE-11.
func TestCyclicValueIsRefusedAtOnce(t *testing.T) {
	list := []any{nil, nil}
	list[0], list[1] = list, list // looking at all of it would take 2^100 steps
	type node struct {
		Kids []*node `json:"kids"`
		Any  any     `json:"any"`
	}
	tree := &node{}
	tree.Kids = []*node{tree, tree}
	bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
		var limit *pawl.LimitError
		_, err := pawl.Memory[pawl.Doc](rt, "a").PatchState(t.Context(), pawl.Patch{"list": list})
		assert.ErrorAs(t, err, &limit)
		_, err = pawl.Memory[node](rt, "b").SetState(t.Context(), *tree)
		assert.ErrorAs(t, err, &limit)
		_, err = pawl.Session[node](rt, "b").AtomicState(t.Context(), func(_ context.Context, n *node) error { *n = *tree; return nil })
		assert.ErrorAs(t, err, &limit)
	})
}

// Proves CAS-8.
func TestSlowMutatorAfterAnExclusiveRun(t *testing.T) {
	persisted(t, pawl.Config{Retry: pawl.Retry{Attempts: 2}}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		loses := true
		h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if loses {
				loses = false
				h.foreign(t, s.Key(), 1)
			}
			return commit()
		}
		_, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error {
			time.Sleep(50 * time.Millisecond) // solo, loses, and then has the queue to itself, for up to a second
			b.N++
			return nil
		})
		require.NoError(t, err)
		slow := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(context.Background(), func(context.Context, *counts) error { time.Sleep(500 * time.Millisecond); return nil })
			slow <- err
		}()
		synctest.Wait()
		start := time.Now()
		_, err = s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		assert.LessOrEqual(t, time.Since(start), 20*time.Millisecond, "patience is short again")
		require.NoError(t, <-slow)
	})
}

// Proves LOCK-11.
func TestAbandonedOnlyOnce(t *testing.T) {
	for name, scope := range map[string]func(pawl.Owner, string) pawl.Scope[counts]{"in memory": pawl.Memory[counts], "persisted": pawl.Session[counts]} {
		t.Run(name, func(t *testing.T) {
			for range 50 {
				bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
					s := scope(rt, "a")
					release, result := block(s)
					var given atomic.Int32
					var wg sync.WaitGroup
					for range 4 {
						wg.Go(func() {
							if s.Abandon() {
								given.Add(1)
							}
						})
					}
					wg.Wait()
					assert.EqualValues(t, 1, given.Load())
					assert.ErrorIs(t, <-result, pawl.ErrAbandoned)
					assert.NoError(t, rt.Close(t.Context()), "nobody waits for it")
					release()
				})
			}
		})
	}
}

// Proves LOCK-14.
func TestRefusedCallsAreLetGo(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{MaxQueue: 1})
	require.NoError(t, err)
	s := pawl.Memory[counts](rt, "a")
	started, stop := make(chan struct{}), make(chan struct{})
	go s.AtomicState(context.Background(), func(context.Context, *counts) error { close(started); <-stop; return nil })
	<-started
	ctx, cancel := context.WithCancel(context.Background())
	var made, freed atomic.Int32
	call := func() error {
		payload := new([1 << 16]byte)
		made.Add(1)
		runtime.AddCleanup(payload, func(int) { freed.Add(1) }, 0)
		_, err := s.AtomicState(ctx, func(context.Context, *counts) error { payload[0] = 1; return nil })
		return err
	}
	left := make(chan error, 2)
	for range 2 { // one of them fills the queue, the other is refused until it is full no more
		go func() {
			for {
				err := call()
				if !errors.Is(err, pawl.ErrOverloaded) || ctx.Err() != nil {
					left <- err
					return
				}
				runtime.Gosched()
			}
		}()
	}
	require.Eventually(t, func() bool { return made.Load() > 20 }, 10*time.Second, time.Millisecond)
	cancel()
	<-left
	<-left
	require.Eventually(t, func() bool { runtime.GC(); return freed.Load() == made.Load() }, 10*time.Second, time.Millisecond,
		"what was refused or withdrawn must not wait for its deadline")
	close(stop)
	require.NoError(t, rt.Close(context.Background()))
}

// Proves SCOPE-5.
func TestPanicWhileItsCallerLeaves(t *testing.T) {
	t.Run("in memory", func(t *testing.T) {
		slow := pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
			if e.Type == pawl.Panicked {
				time.Sleep(time.Minute)
			}
		})
		bubble(t, pawl.Config{Observer: slow}, func(t *testing.T, rt *pawl.Runtime) {
			assert.Panics(t, func() {
				pawl.Memory[counts](rt, "a").AtomicState(t.Context(), func(context.Context, *counts) error { panic("boom") })
			}, "the deadline came after the panic")
		})
	})
	t.Run("persisted", func(t *testing.T) {
		var log bytes.Buffer
		persisted(t, pawl.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
			open, entered := h.gate()
			first := push(s, "first")
			<-entered
			second := push(s, "second")
			ctx, leave := context.WithCancel(context.Background())
			left := make(chan error, 1)
			go func() {
				_, err := s.AtomicState(ctx, func(context.Context, *counts) error { panic("boom") })
				left <- err
			}()
			synctest.Wait()
			h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				h.onCommit = nil
				leave() // its answer is in a commit that is about to lose
				require.ErrorIs(t, <-left, context.Canceled)
				h.foreign(t, s.Key(), 1)
				return commit()
			}
			open()
			require.NoError(t, <-first)
			require.NoError(t, <-second)
			assert.Contains(t, log.String(), "boom")
		})
	})
}

// Proves SCOPE-7.
func TestNoOpWithTTLOnOwnPersistIsConfirmed(t *testing.T) {
	o := &ownPersist{snap: pawl.NewSnapshot(counts{N: 1}, 1, time.Now())}
	var c pawl.Container[counts]
	opts := pawl.Options[counts]{Name: "own", Persist: o}
	_, err := pawl.ApplyMutation(t.Context(), &c, opts, pawl.Inc{Field: "n", By: 1})
	require.NoError(t, err)
	o.snap = pawl.NewSnapshot(counts{N: 7}, 3, time.Now()) // moved from outside
	snap, err := pawl.ApplyMutation(t.Context(), &c, opts, pawl.Patch{"n": 2}, pawl.WithTTL(time.Hour))
	require.NoError(t, err)
	assert.EqualValues(t, 4, snap.Version, "what this container remembered was not current")
}

// ownPersist is a Persist in a variable.
type ownPersist struct{ snap pawl.Snapshot[counts] }

func (o *ownPersist) Load(context.Context) (pawl.Snapshot[counts], error) { return o.snap, nil }

func (o *ownPersist) Commit(_ context.Context, expected uint64, next pawl.Snapshot[counts]) (pawl.Snapshot[counts], error) {
	if o.snap.Version != expected {
		return o.snap, pawl.ErrConflict
	}
	o.snap = next
	return next, nil
}

func TestFarAwayExpiry(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		_, err := s.IncState(t.Context(), "count", 1, pawl.WithTTL(math.MaxInt64))
		require.NoError(t, err)
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.True(t, snap.Exists())
	})
}

// Old zones have offsets with seconds, which RFC 3339 cannot write.
func TestTimeInAZoneWithSeconds(t *testing.T) {
	type timed struct {
		At time.Time `json:"at"`
	}
	at := time.Date(1890, 1, 1, 12, 0, 0, 0, time.FixedZone("LMT", 19*60+32))
	onPaths(t, func(t *testing.T, p path) {
		snap, err := scopeOf[timed](p, "a").SetState(t.Context(), timed{at})
		require.NoError(t, err)
		require.True(t, at.Equal(snap.ReadOnly().At))
		read, err := scopeOf[timed](p, "a").State(t.Context())
		require.NoError(t, err)
		require.True(t, at.Equal(read.At))
		if p.store != nil {
			other, err := pawl.Session[timed](p.another(t), "a").State(t.Context())
			require.NoError(t, err)
			require.True(t, at.Equal(other.At))
		}
	})
}

// Proves SCOPE-1.
func TestPatchesOfAllComeInOrder(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[pawl.Doc](p, "a")
		snap, err := s.Apply(t.Context(), pawl.All{pawl.Patch{"a": pawl.Doc{"b": 1, "c": 1}}, pawl.Patch{"a.b": 2}})
		require.NoError(t, err)
		require.Equal(t, pawl.Doc{"a": map[string]any{"b": int64(2), "c": int64(1)}}, snap.State())
		var field *pawl.FieldError
		_, err = s.PatchState(t.Context(), pawl.Patch{"a": pawl.Doc{}, "a.b": 2})
		require.ErrorAs(t, err, &field, "in one patch there is no order")
	})
}

// Proves SCOPE-6.
func TestNewSnapshotBringsValuesIntoForm(t *testing.T) {
	tags := []string{"a"}
	snap := pawl.NewSnapshot(pawl.Doc{"tags": tags, "n": 1}, 1, time.Now())
	tags[0] = "changed"
	require.Equal(t, pawl.Doc{"tags": []any{"a"}, "n": int64(1)}, snap.State())
}
