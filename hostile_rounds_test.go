package pawl_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
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

// Landed, deleted, purged, and created anew by somebody else before it is sent again.
//
// Proves CAS-7.
func TestCommitInDoubtWhoseRecordWasPurgedAndMadeAnew(t *testing.T) {
	for _, existed := range []bool{true, false} {
		persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
			v := uint64(1)
			if existed {
				_, err := s.IncState(t.Context(), "n", 1)
				require.NoError(t, err)
				v = 2
			}
			h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				h.onCommit = nil
				_, err := commit() // lands as version v
				require.NoError(t, err)
				_, err = h.Store.Commit(t.Context(), persist.Commit{ID: "foreign.1", Writes: []persist.Write{{Key: s.Key(), Expected: v, Version: v + 1, Deleted: true}}})
				require.NoError(t, err)
				_, err = h.Store.Purge(t.Context(), persist.Query{Kind: s.Key().Kind})
				require.NoError(t, err)
				_, err = h.Store.Commit(t.Context(), persist.Commit{ID: "foreign.2", Writes: []persist.Write{{Key: s.Key(), Version: v + 2, Doc: encode(t, counts{N: 100})}}})
				require.NoError(t, err)
				return time.Time{}, errors.New("connection lost")
			}
			_, err := s.IncState(t.Context(), "n", 1)
			assert.True(t, pawl.OutcomeUnknown(err), "existed %v: it was applied, and nobody can tell any more: %v", existed, err)
			b, err := s.State(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 100, b.N, "it must not be applied again")
		})
	}
}

// An alarm rings while a commit is under way that then loses.
func TestAlarmWhileACommitIsLost(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			h.onCommit = nil
			time.Sleep(time.Second) // the alarm of the short budget rings meanwhile
			h.foreign(t, s.Key(), 1)
			return commit()
		}
		long := push(s, "long")
		_, err := s.IncState(t.Context(), "n", 1, pawl.WithRetry(pawl.Retry{Within: 10 * time.Millisecond}))
		assert.ErrorIs(t, err, pawl.ErrUnavailable)
		require.NoError(t, <-long)
	})
}

// Budget ends while the function runs (not slow), then the commit hangs for a companion with a long budget. Proves CAS-3.
func TestBudgetThatEndsWhileTheFunctionRuns(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := h.gate()
		first := push(s, "first")
		<-entered
		patient := push(s, "patient")
		start := time.Now()
		short := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				time.Sleep(8 * time.Millisecond)
				b.N++
				return nil
			}, pawl.WithRetry(pawl.Retry{Within: 20 * time.Millisecond}))
			short <- err
		}()
		time.Sleep(115 * time.Millisecond) // its deadline is at 120 ms
		h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			time.Sleep(20 * time.Second)
			return commit()
		}
		open()
		require.NoError(t, <-first)
		err := <-short
		assert.LessOrEqual(t, time.Since(start), time.Second, "%v", err)
		assert.True(t, pawl.OutcomeUnknown(err), "%v", err)
		require.NoError(t, <-patient)
	})
}

// Nested All with a Set creates. Proves SCOPE-1.
func TestNestedAllCreates(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		snap, err := scopeOf[counts](p, "flat").Apply(t.Context(), pawl.All{pawl.Set{State: counts{}}})
		require.NoError(t, err)
		require.True(t, snap.Exists())
		snap, err = scopeOf[counts](p, "nested").Apply(t.Context(), pawl.All{pawl.All{pawl.Set{State: counts{}}}})
		require.NoError(t, err)
		assert.True(t, snap.Exists())
	})
}

// leaveThenChange gives s a value beside a function, leaves while the function runs, changes the value, and lets the function return.
func leaveThenChange[T any](t *testing.T, s pawl.Scope[T]) {
	t.Helper()
	tags := []string{"given"}
	free := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Apply(ctx, pawl.All{pawl.Atomic(func(context.Context, *T) error { <-free; return nil }), pawl.Patch{"done": tags}})
		done <- err
	}()
	synctest.Wait()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	tags[0] = "changed after the verb returned"
	close(free)
	synctest.Wait()
}

// Values of All with a function are copied before the verb returns. Proves SCOPE-6.
func TestValuesBesideAFunctionAreCopied(t *testing.T) {
	bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
		kept, discarded := pawl.Memory[counts](rt, "a"), pawl.Session[counts](rt, "a")
		leaveThenChange(t, kept)
		b, err := kept.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"given"}, b.Done)
		leaveThenChange(t, discarded)
		snap, err := discarded.Snapshot(t.Context())
		require.NoError(t, err)
		assert.False(t, snap.Exists(), "a run that outlives its caller is discarded")
	})
}

// No cycle: the outer mutator has stopped waiting. Proves LOCK-10.
func TestNoDeadlockWhenTheOuterCallGaveUp(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		a, b, c := pawl.Memory[counts](rt, "a"), pawl.Memory[counts](rt, "b"), pawl.Memory[counts](rt, "c")
		gaveUp, endA := make(chan struct{}), make(chan struct{})
		goB := make(chan struct{})
		inner := make(chan error, 1)
		outer := make(chan error, 1)
		go func() {
			_, err := a.AtomicState(context.Background(), func(ctx context.Context, _ *counts) error {
				b.AtomicState(ctx, func(ctx context.Context, _ *counts) error {
					<-goB
					_, err := c.IncState(ctx, "n", 1)
					inner <- err
					return err
				}, pawl.WithTimeout(time.Second))
				close(gaveUp)
				<-endA
				return nil
			})
			outer <- err
		}()
		<-gaveUp
		fromC := make(chan error, 1)
		go func() {
			_, err := c.AtomicState(context.Background(), func(ctx context.Context, _ *counts) error {
				_, err := a.IncState(ctx, "n", 1) // waits for a, which waits for nobody
				return err
			})
			fromC <- err
		}()
		synctest.Wait()
		close(goB)
		synctest.Wait()
		close(endA)
		assert.NoError(t, <-inner, "nothing waits in a circle")
		require.NoError(t, <-outer)
		require.NoError(t, <-fromC)
	})
}

// Tombstones keep the lists of what was deleted.
func TestTombstonesLetGoOfLists(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range 200 {
		s := pawl.Memory[counts](rt, strings.Repeat("x", i+1))
		_, err := s.PushState(t.Context(), "done", strings.Repeat("y", 1<<18))
		require.NoError(t, err)
		require.NoError(t, s.Delete(t.Context()))
	}
	grew := int64(heap()) - int64(before)
	assert.Less(t, grew, int64(5<<20))
	runtime.KeepAlive(rt)
}

// An array cannot hold more than it has room for; lists of numbers stay exact. Proves SCOPE-9, SCOPE-16.
func TestConversionsLoseNothing(t *testing.T) {
	type st struct {
		Pair [2]int             `json:"pair"`
		F    float64            `json:"f"`
		Fs   []float64          `json:"fs"`
		F32  map[string]float32 `json:"f32"`
	}
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[st](p, "a")
		var field *pawl.FieldError
		snap, err := s.PatchState(t.Context(), pawl.Patch{"pair": []int{1, 2, 3}})
		assert.ErrorAs(t, err, &field, "%+v", snap.ReadOnly())
		_, err = s.PatchState(t.Context(), pawl.Patch{"f": int64(1<<53 + 1)})
		assert.ErrorAs(t, err, &field, "scalar")
		snap, err = s.PatchState(t.Context(), pawl.Patch{"fs": []int64{1<<53 + 1}})
		assert.ErrorAs(t, err, &field, "list %+v", snap.ReadOnly())
		snap, err = s.PatchState(t.Context(), pawl.Patch{"f32": map[string]int{"a": 1<<24 + 1}})
		assert.ErrorAs(t, err, &field, "map %+v", snap.ReadOnly())
	})
}

// A detached function whose result cannot count is not in a commit. Proves CAS-9.
func TestDetachedRunThatCannotCountIsNotInDoubt(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := h.gate()
		first := push(s, "first")
		<-entered
		push(s, "second")
		ctx, cancel := context.WithCancel(context.Background())
		runs := 0
		slow := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(ctx, func(_ context.Context, b *counts) error {
				runs++
				time.Sleep(50 * time.Millisecond)
				b.N++
				return nil
			})
			slow <- err
		}()
		synctest.Wait()
		h.onLoad = func() {
			cancel()
			time.Sleep(time.Millisecond)
		}
		open()
		require.NoError(t, <-first)
		err := <-slow
		synctest.Wait()
		assert.Equal(t, 1, runs)
		assert.False(t, pawl.OutcomeUnknown(err), "it was in no commit: %v", err)
		b, err := s.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 0, b.N)
	})
}

// Abandon between the turn and the function: the next one's cycle must still be found. Proves LOCK-10.
func TestAbandonBeforeTheFunctionStarts(t *testing.T) {
	var s pawl.Scope[counts]
	var once atomic.Bool
	obs := pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		if e.Type == pawl.Started && e.Key.ID == "a" && once.CompareAndSwap(false, true) {
			s.Abandon()
			time.Sleep(time.Millisecond)
		}
	})
	bubble(t, pawl.Config{Observer: obs}, func(t *testing.T, rt *pawl.Runtime) {
		s = pawl.Memory[counts](rt, "a")
		b := pawl.Memory[counts](rt, "b")
		stop := make(chan struct{})
		go s.AtomicState(context.Background(), func(context.Context, *counts) error { <-stop; return nil })
		inA, res := make(chan struct{}), make(chan error, 2)
		go func() {
			_, err := b.AtomicState(context.Background(), func(ctx context.Context, _ *counts) error {
				<-inA
				time.Sleep(10 * time.Millisecond)
				_, err := s.IncState(ctx, "n", 1)
				return err
			})
			res <- err
		}()
		synctest.Wait()
		start := time.Now()
		go func() {
			_, err := s.AtomicState(context.Background(), func(ctx context.Context, _ *counts) error {
				close(inA)
				_, err := b.IncState(ctx, "n", 1)
				return err
			})
			res <- err
		}()
		time.Sleep(5 * time.Millisecond)
		if !once.Load() {
			t.Fatal()
		}
		select {
		case <-inA:
		default:
			close(stop) // the first was not abandoned
		}
		one, two := <-res, <-res
		assert.LessOrEqual(t, time.Since(start), time.Second)
		var dead *pawl.DeadlockError
		assert.True(t, errors.As(one, &dead) || errors.As(two, &dead), "%v %v", one, two)
		select {
		case <-stop:
		default:
			close(stop)
		}
	})
}

// A budget without an end.
func TestEndlessBudget(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		_, err := scopeOf[counts](p, "a").AtomicState(t.Context(), func(_ context.Context, b *counts) error { b.N++; return nil },
			pawl.WithRetry(pawl.Retry{Within: math.MaxInt64}), pawl.WithTimeout(math.MaxInt64))
		require.NoError(t, err)
	})
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			time.Sleep(time.Second)
			return commit()
		}
		_, err := s.IncState(t.Context(), "n", 1, pawl.WithRetry(pawl.Retry{Within: math.MaxInt64}))
		require.NoError(t, err)
	})
}

// The store gets its time for a slow function's commit, whoever else's alarm rings.
func TestSlowFunctionIsNotCutByTheAlarmOfAnother(t *testing.T) {
	for _, company := range []bool{false, true} {
		persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
			h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				time.Sleep(time.Second)
				return commit()
			}
			slow := make(chan error, 1)
			go func() {
				_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
					time.Sleep(500 * time.Millisecond)
					b.N++
					return nil
				}, pawl.WithRetry(pawl.Retry{Within: 50 * time.Millisecond}))
				slow <- err
			}()
			time.Sleep(400 * time.Millisecond)
			if company {
				push(s, "company", pawl.WithRetry(pawl.Retry{Within: 200 * time.Millisecond})) // its alarm rings at 700 ms
			}
			err := <-slow
			var conflict *pawl.ConcurrentModificationError
			assert.True(t, err == nil || errors.As(err, &conflict), "company %v: %v", company, err)
		})
	}
}

// A function that is alone in the queue leaves it when it is slow and somebody comes. Proves CAS-8.
func TestSlowFunctionHoldsUpNobodyWhoComesLater(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		for _, later := range []time.Duration{time.Millisecond, time.Second} {
			began, over := make(chan struct{}), make(chan struct{})
			slow := make(chan error, 1)
			runs := 0
			go func() {
				_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
					if runs++; runs == 1 {
						close(began)
						<-over
					}
					b.N++
					return nil
				})
				slow <- err
			}()
			<-began
			time.Sleep(later)
			start := time.Now()
			require.NoError(t, <-push(s, "other"))
			assert.Less(t, time.Since(start), 50*time.Millisecond)
			close(over)
			require.NoError(t, <-slow)
		}
	})
}

// A losing function that comes back to have the queue to itself does not wait for one that is alone there, and hangs. Proves CAS-8.
func TestSlowFunctionHoldsUpNobodyWhoComesBack(t *testing.T) {
	persisted(t, pawl.Config{Retry: pawl.Retry{Attempts: 8, Within: time.Minute}}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		const losses = 5 // the first conflict is but a read; the next four make half its attempts
		var ran atomic.Int32
		h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if ran.Load() <= losses {
				h.foreign(t, s.Key(), 100)
			}
			return commit()
		}
		loser := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				ran.Add(1)
				time.Sleep(100 * time.Millisecond)
				b.N++
				return nil
			})
			loser <- err
		}()
		synctest.Wait()
		<-push(s, "company") // for which it has to leave the queue; whatever becomes of that
		for ran.Load() < losses {
			time.Sleep(time.Millisecond)
		}
		over, hung := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				<-over
				b.N++
				return nil
			})
			hung <- err
		}()
		start := time.Now()
		err = <-loser
		close(over)
		require.NoError(t, err)
		assert.Less(t, time.Since(start), 10*time.Second)
		require.NoError(t, <-hung)
	})
}

// A function that runs for longer than its caller's budget is waited for, and then the store for a while: not for ever. Proves CAS-3.
func TestStoreThatHangsAfterASlowFunction(t *testing.T) {
	for _, company := range []bool{false, true} {
		persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
			hangs := make(chan struct{})
			defer close(hangs)
			h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				<-hangs
				return commit()
			}
			began := time.Now()
			if company {
				time.AfterFunc(400*time.Millisecond, func() { push(s, "company") })
			}
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				time.Sleep(500 * time.Millisecond)
				b.N++
				return nil
			}, pawl.WithRetry(pawl.Retry{Within: 50 * time.Millisecond}))
			assert.True(t, pawl.OutcomeUnknown(err), "company %v: %v", company, err)
			assert.Less(t, time.Since(began), 10*time.Second)
		})
	}
}

// The queue is a losing function's own for one run. Proves CAS-8.
func TestTheQueueIsItsOwnForOneRun(t *testing.T) {
	persisted(t, pawl.Config{Retry: pawl.Retry{Attempts: 8, Within: time.Minute}}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		var losing atomic.Bool
		losing.Store(true)
		h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if losing.Load() {
				h.foreign(t, s.Key(), 100)
			}
			return commit()
		}
		slow := make(chan error, 1)
		runs := make(chan int, 100)
		go func() {
			n := 0
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				n++
				runs <- n
				time.Sleep(900 * time.Millisecond)
				b.N++
				return nil
			})
			slow <- err
		}()
		<-runs
		<-push(s, "company") // for which it has to leave the queue; whatever becomes of that
		for range 5 {        // the first conflict is but a read; the next four make half its attempts
			<-runs
		}
		start := time.Now()
		other := push(s, "other") // behind the run that has the queue to itself
		go func() { <-runs; losing.Store(false) }()
		require.NoError(t, <-other)
		assert.LessOrEqual(t, time.Since(start), 1500*time.Millisecond)
		<-slow
	})
}

// Writers who come back one after the other share a commit, and one who stays away holds up the others once. Proves CAS-4.
func TestRoundsWaitForThoseWhoComeBack(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		const (
			writers, each = 16, 20
			lasts         = 10 * time.Millisecond
		)
		commits := 0 // one at a time
		h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			commits++
			time.Sleep(lasts)
			return commit()
		}
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				for range each {
					_, err := s.IncState(t.Context(), "n", 1)
					assert.NoError(t, err)
					time.Sleep(time.Duration(w) * 10 * time.Microsecond)
				}
			})
		}
		all.Wait()
		assert.LessOrEqual(t, commits, each+1, "the first one begins alone")

		commits = 0
		start := time.Now()
		for range each {
			_, err := s.IncState(t.Context(), "n", 1)
			require.NoError(t, err)
		}
		assert.Equal(t, each, commits)
		assert.LessOrEqual(t, time.Since(start), each*lasts+2*time.Millisecond)
	})
}
