package pawl_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// Transactions over the same scopes in opposite orders, functions that change other scopes and
// plain verbs run together. They do not deadlock, and no change is lost.
//
// Proves TX-7, TX-2.
func TestTransactionsAndFunctionsDoNotDeadlock(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		const goroutines, rounds = 12, 15
		ids := []string{"a", "b", "c"}
		for _, id := range ids {
			seed(t, purses.Scope(p.rt, id), purse{Balance: 1000})
		}
		var g errgroup.Group
		var added atomic.Int64
		for i := range goroutines {
			g.Go(func() error {
				for n := range rounds {
					from, to := ids[(i+n)%3], ids[(i+n+1+i%2)%3]
					var err error
					switch i % 4 {
					case 0, 1:
						err = pawl.Transact(context.Background(), p.rt, func(ctx context.Context, tx *pawl.Tx) error { return pay(ctx, tx, from, to, 1) })
					case 2:
						_, err = purses.Scope(p.rt, from).AtomicState(context.Background(), func(ctx context.Context, s *purse) error {
							if _, err := purses.Scope(p.rt, to).IncState(ctx, "balance", 1); err != nil {
								return err
							}
							added.Add(1)
							return nil
						})
					case 3: // a transaction inside a function of another scope
						_, err = pawl.Memory[board](p.rt, fmt.Sprint("m", n%2)).AtomicState(context.Background(), func(ctx context.Context, b *board) error {
							b.Count++
							return pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error { return pay(ctx, tx, from, to, 1) })
						})
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		require.NoError(t, g.Wait())
		total := int64(0)
		for _, id := range ids {
			s, err := purses.Scope(p.rt, id).State(t.Context())
			require.NoError(t, err)
			total += s.Balance
		}
		require.EqualValues(t, 3000+added.Load(), total)
	})
}

// A transaction inside the function of a scope that it touches fails with ErrReentrant.
//
// Proves TX-7.
func TestTransactInsideAFunction(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		a := purses.Scope(p.rt, "a")
		runs := 0
		_, err := a.AtomicState(t.Context(), func(ctx context.Context, s *purse) error {
			s.Balance++
			if runs++; runs > 1 {
				return nil
			}
			require.ErrorIs(t, pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := a.In(tx).IncState(ctx, "balance", 1)
				return err
			}), pawl.ErrReentrant)
			return pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := purses.Scope(tx, "b").IncState(ctx, "balance", 1)
				return err
			})
		})
		require.NoError(t, err)
		requireState(t, p, a, 1, purse{Balance: 1})
		requireState(t, p, purses.Scope(p.rt, "b"), 1, purse{Balance: 1})
	})
}

// A transaction whose function hangs soon releases its queues to other writers. It still commits if
// the state that it read is unchanged.
//
// Proves TX-7, CAS-8.
func TestHangingFunctionReleasesItsQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := pawl.Open(pawl.Config{Store: memory.New()})
		require.NoError(t, err)
		a := purses.Scope(rt, "a")
		_, err = a.IncState(t.Context(), "balance", 1)
		require.NoError(t, err)
		held, resume := make(chan struct{}), make(chan struct{})
		done := make(chan error)
		go func() {
			runs := 0
			done <- pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				runs++
				s, err := a.In(tx).State(ctx)
				if err != nil {
					return err
				}
				switch runs {
				case 1: // cause a conflict
					_, err := a.IncState(context.Background(), "balance", 1)
					require.NoError(t, err)
				case 2:
					close(held)
					<-resume
				}
				s.Balance += 100
				_, err = a.In(tx).SetState(ctx, s)
				return err
			})
		}()
		<-held
		began := time.Now()
		_, err = a.IncState(t.Context(), "balance", 1)
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(began), 2*time.Second)
		require.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond, "the transaction did not hold the queue")
		close(resume)
		require.NoError(t, <-done)
		s, err := a.State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 103, s.Balance)
		require.NoError(t, rt.Close(t.Context()))
	})
}

// A transaction that waits long for one queue does not hold another queue meanwhile.
//
// Proves TX-7.
func TestNoQueueIsHeldWhileWaitingForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		rt := openOn(t, store)
		a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
		seed(t, a, purse{})
		seed(t, b, purse{})
		store.OnCommit(func(ctx context.Context, c persist.Commit) error {
			if len(c.Writes) == 1 && c.Writes[0].ID == "b" {
				time.Sleep(20 * time.Second) // another transaction has locked the row of b
			}
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() { _, err := b.IncState(t.Context(), "balance", 1); assert.NoError(t, err) })
		synctest.Wait()
		wg.Go(func() {
			assert.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := a.In(tx).IncState(ctx, "balance", 1); err != nil {
					return err
				}
				_, err := b.In(tx).IncState(ctx, "balance", 1)
				return err
			}))
		})
		synctest.Wait()
		began := time.Now()
		_, err := a.IncState(t.Context(), "balance", 1) // does not touch b
		assert.NoError(t, err)
		assert.Less(t, time.Since(began), 2*time.Second, "a writer of a waited for a transaction that waits for b")
		wg.Wait()
	})
}

// A transaction that backs off after a conflict holds no queue meanwhile.
//
// Proves TX-7.
func TestNoQueueIsHeldDuringABackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		rt, other := openOn(t, store), openOn(t, store.Store)
		a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
		seed(t, a, purse{})
		seed(t, b, purse{})
		store.OnCommit(func(ctx context.Context, c persist.Commit) error {
			if len(c.Writes) == 2 { // another process keeps writing to b
				_, err := purses.Scope(other, "b").IncState(ctx, "balance", 1)
				assert.NoError(t, err)
			}
			return nil
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := a.In(tx).IncState(ctx, "balance", 1); err != nil {
					return err
				}
				_, err := b.In(tx).IncState(ctx, "balance", 1)
				return err
			}, pawl.WithRetry(pawl.Retry{First: 500 * time.Millisecond, Max: 5 * time.Second, Attempts: 10}))
		})
		synctest.Wait()
		began := time.Now()
		_, err := a.IncState(t.Context(), "balance", 1)
		assert.NoError(t, err)
		t.Log(time.Since(began))
		assert.Less(t, time.Since(began), 2*time.Second, "a writer of a waited although the conflict is on b")
		wg.Wait()
	})
}

// A transaction does not hold its queues for the whole time of a slow read of the store.
//
// Proves TX-7.
func TestNoQueueIsHeldForLongWhileReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loading := make(chan struct{})
		once := sync.OnceFunc(func() { close(loading); time.Sleep(20 * time.Second) })
		store := &slowReader{newTap(), once}
		rt, other := openOn(t, store), openOn(t, store.Store)
		a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
		seed(t, a, purse{})
		seed(t, b, purse{})
		done := make(chan error)
		go func() {
			runs := 0
			done <- pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				runs++
				if _, err := a.In(tx).State(ctx); err != nil {
					return err
				}
				s, err := b.In(tx).State(ctx)
				if err != nil {
					return err
				}
				if runs < 3 {
					if _, err := purses.Scope(other, "b").IncState(context.Background(), "balance", 1); err != nil {
						return err
					}
				}
				s.Balance++
				_, err = b.In(tx).SetState(ctx, s)
				return err
			})
		}()
		<-loading
		began := time.Now()
		_, err := a.IncState(t.Context(), "balance", 1)
		assert.NoError(t, err)
		assert.Less(t, time.Since(began), 2*time.Second)
		assert.NoError(t, <-done)
	})
}
