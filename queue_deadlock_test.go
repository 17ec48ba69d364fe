package pawl_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// When functions wait for each other in a cycle, only the call that closes the cycle fails, and it
// fails at once. Proves LOCK-10.
func TestCycleOfFunctionsIsReported(t *testing.T) {
	for _, length := range []int{2, 3, 5} {
		bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
			scopes := make([]pawl.Scope[counts], length)
			for i := range scopes {
				scopes[i] = pawl.Memory[counts](rt, string(rune('a'+i)))
			}
			start := time.Now()
			errs := make(chan error, length)
			var inside sync.WaitGroup
			inside.Add(length)
			for i, s := range scopes {
				go func() {
					_, err := s.AtomicState(context.Background(), func(ctx context.Context, b *counts) error {
						inside.Done()
						inside.Wait() // now each holds its own scope
						_, err := scopes[(i+1)%length].IncState(ctx, "n", 1)
						return err
					})
					errs <- err
				}()
			}
			var deadlocks int
			for range scopes {
				err := <-errs
				var deadlock *pawl.DeadlockError
				if errors.As(err, &deadlock) {
					deadlocks++
					assert.Len(t, deadlock.Cycle, length+1)
					assert.Equal(t, deadlock.Cycle[0], deadlock.Cycle[length])
				} else {
					assert.NoError(t, err)
				}
			}
			assert.Equal(t, 1, deadlocks, "only the call that closed the cycle fails, the others continue")
			assert.Zero(t, time.Since(start), "at once, not at the deadline")
		})
	}
}

// Functions that wait for each other without a cycle all finish. Proves LOCK-10.
func TestChainOfFunctionsIsNoDeadlock(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		a, b, c := pawl.Memory[counts](rt, "a"), pawl.Memory[counts](rt, "b"), pawl.Memory[counts](rt, "c")
		release, _ := block(c)
		results := make(chan error, 2)
		for _, s := range []pawl.Scope[counts]{a, b} { // both wait for c, and b also for a
			go func() {
				_, err := s.AtomicState(context.Background(), func(ctx context.Context, _ *counts) error {
					if s == b {
						if _, err := a.IncState(ctx, "n", 1); err != nil {
							return err
						}
					}
					_, err := c.IncState(ctx, "n", 1)
					return err
				})
				results <- err
			}()
			synctest.Wait()
		}
		release()
		require.NoError(t, <-results)
		require.NoError(t, <-results)
	})
}

// A cycle through a function on a persisted scope is found, and the error names its scopes.
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
					_, err := b.IncState(ctx, "n", 1) // a waits for p's function, which waits for b
					return err
				})
				return err
			})
			fromA <- err
		}()
		synctest.Wait()
		close(turn) // now b waits for a
		var deadlock *pawl.DeadlockError
		require.ErrorAs(t, <-fromB, &deadlock)
		assert.Equal(t, []pawl.Key{b.Key(), a.Key(), p.Key(), b.Key()}, deadlock.Cycle)
		assert.NoError(t, <-fromA, "the others continue")
		assert.Zero(t, time.Since(start))
	})
}

// A call that gave up at its deadline waits no longer and is part of no cycle. Proves LOCK-10.
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
					_, err := c.IncState(context.WithoutCancel(ctx), "n", 1) // ctx ended with the budget
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
				_, err := a.IncState(ctx, "n", 1) // waits for a, which waits for no scope
				return err
			})
			fromC <- err
		}()
		synctest.Wait()
		close(goB)
		synctest.Wait()
		close(endA)
		assert.NoError(t, <-inner, "there is no cycle")
		require.NoError(t, <-outer)
		require.NoError(t, <-fromC)
	})
}

// When Abandon comes between the start of a turn and its function, a cycle of the next turn is
// still found. Proves LOCK-10.
func TestAbandonBeforeTheFunctionStarts(t *testing.T) {
	var s pawl.Scope[counts]
	var once atomic.Bool
	obs := pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		if e.Type == pawl.EventStarted && e.Key.ID == "a" && once.CompareAndSwap(false, true) {
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
			t.Fatal("no mutation of a has started")
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

// A cycle through the context of a transaction that has ended is found. Proves LOCK-10.
func TestCycleThroughACallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := openOn(t, memory.New())
		m1, m2 := pawl.Memory[board](rt, "1"), pawl.Memory[board](rt, "2")
		in1, in2 := make(chan struct{}), make(chan struct{})
		errs := make(chan error, 2)
		began := time.Now()
		go func() {
			_, err := m1.AtomicState(t.Context(), func(ctx context.Context, b *board) (err error) {
				close(in1)
				<-in2
				terr := pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
					tx.AfterCommit(func() { _, err = m2.IncState(ctx, "count", 1) })
					_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
					return err
				})
				if terr != nil {
					return terr
				}
				return err
			})
			errs <- err
		}()
		go func() {
			_, err := m2.AtomicState(t.Context(), func(ctx context.Context, b *board) error {
				close(in2)
				<-in1
				_, err := m1.IncState(ctx, "count", 1)
				return err
			})
			errs <- err
		}()
		var deadlock *pawl.DeadlockError
		assert.ErrorAs(t, errors.Join(<-errs, <-errs), &deadlock)
		assert.Less(t, time.Since(began), time.Second)
	})
}

// A call with the context of a function that has returned finds a cycle and names that function's
// scope. Proves LOCK-10.
func TestCycleThroughAReturnedFunction(t *testing.T) {
	rt := openRuntime(t, pawl.Config{Store: memory.New()})
	outer, inner := pawl.Memory[counts](rt, "outer"), pawl.Memory[counts](rt, "inner")
	kept, third := pawl.Session[counts](rt, "kept"), pawl.Session[counts](rt, "third")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()

	var cycle *pawl.DeadlockError
	held, outerHeld, other := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := inner.AtomicState(ctx, func(ctx context.Context, _ *counts) error {
			close(held)
			<-outerHeld
			_, err := outer.IncState(ctx, "n", 1)
			return err
		})
		other <- err
	}()
	<-held
	_, err := outer.AtomicState(ctx, func(ctx context.Context, _ *counts) error {
		var stale context.Context
		if _, err := kept.AtomicState(ctx, func(ctx context.Context, c *counts) error { stale = context.WithoutCancel(ctx); c.N++; return nil }); err != nil {
			return err
		}
		close(outerHeld)
		_, err := third.AtomicState(ctx, func(context.Context, *counts) error { // its call reuses the waiter of the first one
			_, err := kept.AtomicState(ctx, func(context.Context, *counts) error {
				for cycle == nil && ctx.Err() == nil { // there is no cycle until the other goroutine waits
					brief, cancel := context.WithTimeout(stale, 50*time.Millisecond)
					_, err := inner.IncState(brief, "n", 1)
					cancel()
					errors.As(err, &cycle)
				}
				return nil
			})
			return err
		})
		return err
	})
	require.NoError(t, err)
	require.NoError(t, <-other)
	require.NotNil(t, cycle)
	require.Equal(t, []pawl.Key{kept.Key(), inner.Key(), outer.Key()}, cycle.Cycle)
}
