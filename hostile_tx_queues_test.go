package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// Looking at a Snapshot while the commit is under way races with nobody.
func TestLookWhileCommitting(t *testing.T) {
	rt := openOn(t, memory.New())
	a := purses.Scope(rt, "a")
	seed(t, a, purse{Balance: 1})
	done := make(chan struct{})
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		snap, err := a.In(tx).IncState(ctx, "balance", 0)
		go func() { defer close(done); time.Sleep(20 * time.Millisecond); snap.Exists() }()
		return err
	})
	require.NoError(t, err)
	<-done
}

// ownAmount has a JSON form of its own.
type ownAmount struct {
	cents  *int64
	before func()
}

func (m ownAmount) MarshalJSON() ([]byte, error) {
	if m.before != nil {
		m.before()
	}
	if m.cents == nil {
		return []byte("0"), nil
	}
	return []byte(fmt.Sprint(*m.cents)), nil
}

func (m *ownAmount) UnmarshalJSON(b []byte) error {
	m.cents = new(int64)
	_, err := fmt.Sscan(string(b), m.cents)
	return err
}

type ownAccount struct {
	Amount ownAmount         `json:"amount"`
	Notes  map[string]string `json:"notes,omitempty"`
}

var ownAccounts = pawl.Kind[ownAccount]{Name: "account"}

// staleAccount returns a runtime that has seen an account which another has changed since.
func staleAccount(t *testing.T) (*pawl.Runtime, pawl.Scope[ownAccount]) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	a := ownAccounts.Scope(rt, "a")
	_, err := a.SetStateRecord(t.Context(), "notes", "k", "v")
	require.NoError(t, err)
	_, err = ownAccounts.Scope(other, "a").SetStateRecord(t.Context(), "notes", "k", "w")
	require.NoError(t, err)
	return rt, a
}

// Values with JSON code of their own are read when the verb is called, and not again after a conflict.
//
// Proves SCOPE-6.
func TestValuesOfATransactionAreReadOnce(t *testing.T) {
	rt, a := staleAccount(t)
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		cents := int64(42)
		_, err := a.In(tx).PatchState(ctx, pawl.Patch{"amount": ownAmount{cents: &cents}})
		cents = 666 // the verb has returned: its argument is the caller's again
		return err
	})
	require.NoError(t, err)
	s, err := a.State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 42, *s.Amount.cents)
}

// Nor does their code run while queues are held.
//
// Proves TX-7.
func TestValueThatWouldHangLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, a := staleAccount(t)
		hang, over, done, cents := make(chan struct{}), false, make(chan error), int64(5)
		go func() {
			done <- pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := a.In(tx).PatchState(ctx, pawl.Patch{"amount": ownAmount{cents: &cents, before: func() {
					if over {
						<-hang
					}
				}}})
				over = true
				return err
			})
		}()
		synctest.Wait()
		began := time.Now()
		_, err := a.SetStateRecord(t.Context(), "notes", "x", "y")
		assert.NoError(t, err)
		assert.Less(t, time.Since(began), 2*time.Second)
		close(hang)
		<-done
	})
}

// A transaction that waits for one queue does not keep another for as long as that takes.
//
// Proves TX-7.
func TestHoldingOneQueueWhileWaitingForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: memory.New()}
		rt := openOn(t, store)
		a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
		seed(t, a, purse{})
		seed(t, b, purse{})
		store.onCommit(func(ctx context.Context, c persist.Commit) error {
			if len(c.Writes) == 1 && c.Writes[0].ID == "b" {
				time.Sleep(20 * time.Second) // somebody has a lock on the row of b
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
		_, err := a.IncState(t.Context(), "balance", 1) // has nothing to do with b
		assert.NoError(t, err)
		assert.Less(t, time.Since(began), 2*time.Second, "a writer of a was held up by a transaction that waits for b")
		wg.Wait()
	})
}

// Nor while it gives way to another process.
//
// Proves TX-7.
func TestNoQueueIsHeldDuringABackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: memory.New()}
		rt, other := openOn(t, store), openOn(t, store.Store)
		a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
		seed(t, a, purse{})
		seed(t, b, purse{})
		store.onCommit(func(ctx context.Context, c persist.Commit) error {
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
		assert.Less(t, time.Since(began), 2*time.Second, "a writer of a was held up because others write to b")
		wg.Wait()
	})
}

// A run that reads only what was read at one moment cannot lose, whatever others of this process see meanwhile.
//
// Proves TX-2.
func TestReadersOfOneMomentDoNotLose(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
	seed(t, a, purse{Balance: 100})
	seed(t, b, purse{})
	move := func() {
		require.NoError(t, pawl.Transact(context.Background(), other, func(ctx context.Context, tx *pawl.Tx) error { return pay(ctx, tx, "a", "b", 1) }))
	}
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		x, err := a.In(tx).State(ctx)
		require.NoError(t, err)
		y, err := b.In(tx).State(ctx)
		require.NoError(t, err)
		move() // another process writes
		if tx.Attempt() > 2 {
			require.EqualValues(t, 100, x.Balance+y.Balance)
			_, err = a.State(context.Background()) // and somebody else in this one reads
		}
		return err
	})
	require.NoError(t, err, "it saw all as it was at one moment")
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
}

// What was seen before anything was sent is no lost attempt.
//
// Proves CAS-3.
func TestOneAttemptOfDataVerbs(t *testing.T) {
	store := &tap{Store: memory.New()}
	seed(t, purses.Scope(openOn(t, store), "a"), purse{})
	rt := openOn(t, store) // has seen nothing
	a := purses.Scope(rt, "a")
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := a.In(tx).IncState(ctx, "balance", 1); err != nil {
			return err
		}
		_, err := a.IncState(context.Background(), "balance", 1) // somebody else in this process
		return err
	}, pawl.WithRetry(pawl.Retry{Attempts: 1}))
	require.NoError(t, err, "no commit has lost")
}

// Slow mutators that left their queue give way to a transaction that waited for it.
//
// Proves TX-7.
func TestSlowMutatorsDoNotStarveATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := openOn(t, memory.New())
		a := purses.Scope(rt, "a")
		seed(t, a, purse{Balance: 1000})
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		for i := range 24 {
			g.Go(func() error {
				for ctx.Err() == nil {
					_, _ = a.AtomicState(context.Background(), func(_ context.Context, p *purse) error {
						time.Sleep(time.Duration(15+i) * time.Millisecond)
						p.Balance++
						return nil
					})
				}
				return nil
			})
		}
		time.Sleep(time.Second)
		failed := 0
		for range 10 {
			err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				s, err := a.In(tx).State(ctx)
				if err != nil {
					return err
				}
				time.Sleep(40 * time.Millisecond)
				s.Balance--
				_, err = a.In(tx).SetState(ctx, s)
				return err
			})
			if err != nil {
				failed++
				t.Log(err)
			}
		}
		cancel()
		_ = g.Wait()
		assert.Zero(t, failed)
	})
}

// Where one of its writes has not moved, a commit in doubt has not landed, whatever became of the others.
//
// Proves CAS-7.
func TestEvidenceOfAnUnmovedWrite(t *testing.T) {
	store := &tap{Store: memory.New()}
	rt, other := openOn(t, store), openOn(t, store.Store)
	a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
	seed(t, a, purse{})
	seed(t, b, purse{})
	var once sync.Once
	store.onCommit(func(ctx context.Context, c persist.Commit) (err error) {
		if len(c.Writes) == 2 {
			once.Do(func() { // never executed; others delete a and purge it
				assert.NoError(t, purses.Scope(other, "a").Delete(ctx))
				store.purge(t)
				err = errLost
			})
		}
		return err
	})
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := a.In(tx).IncState(ctx, "balance", 1); err != nil {
			return err
		}
		_, err := b.In(tx).IncState(ctx, "balance", 1)
		return err
	})
	require.NoError(t, err, "b has not moved, so it never landed")
}

// A read inside a transaction has a budget, too.
func TestLoadThatHangsInATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: memory.New()}
		rt := openOn(t, store)
		store.onLoad(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		_, err := purses.Scope(rt, "a").IncState(t.Context(), "balance", 1, pawl.WithRetry(pawl.Retry{Within: time.Second}))
		require.ErrorIs(t, err, pawl.ErrUnavailable)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		err = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
			return err
		}, pawl.WithRetry(pawl.Retry{Within: time.Second}))
		assert.ErrorIs(t, err, pawl.ErrUnavailable)
		assert.Less(t, time.Since(began), 10*time.Second)
	})
}

// slowReader takes its time to read several records.
type slowReader struct {
	*tap
	all func()
}

func (s *slowReader) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	s.all()
	return s.tap.LoadAll(ctx, keys)
}

// Nor are queues kept while the store takes its time to read.
//
// Proves TX-7.
func TestNoQueueIsHeldForLongWhileReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loading := make(chan struct{})
		once := sync.OnceFunc(func() { close(loading); time.Sleep(20 * time.Second) })
		store := &slowReader{&tap{Store: memory.New()}, once}
		rt, other := openOn(t, store), openOn(t, store.Store)
		a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
		seed(t, a, purse{})
		seed(t, b, purse{})
		done := make(chan error)
		go func() {
			done <- pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := a.In(tx).State(ctx); err != nil {
					return err
				}
				s, err := b.In(tx).State(ctx)
				if err != nil {
					return err
				}
				if tx.Attempt() < 3 {
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

// A store that names winners nobody asked for breaks nothing.
func TestWinnerNobodyAskedFor(t *testing.T) {
	store := &tap{Store: memory.New()}
	rt := openOn(t, store)
	a := purses.Scope(rt, "a")
	seed(t, a, purse{})
	store.onCommit(func(context.Context, persist.Commit) error {
		return &persist.Conflict{Winners: []persist.Record{{Key: persist.Key{Kind: "x", ID: "y"}, Version: 9, Updated: time.Now()}}}
	})
	require.NotPanics(t, func() {
		_ = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := a.In(tx).IncState(ctx, "balance", 1)
			return err
		})
	})
}

// A function that touches other scopes in each run is not starved either.
//
// Proves TX-7.
func TestAlternatingScopes(t *testing.T) {
	rt := openOn(t, memory.New())
	for _, id := range []string{"a", "b"} {
		seed(t, purses.Scope(rt, id), purse{})
	}
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		s := purses.Scope(rt, []string{"a", "b"}[tx.Attempt()%2])
		v, err := s.In(tx).State(ctx)
		if err != nil {
			return err
		}
		wrote := make(chan struct{})
		go func() { defer close(wrote); _, _ = s.IncState(context.Background(), "balance", 1) }() // this process keeps writing
		select {
		case <-wrote:
		case <-time.After(20 * time.Millisecond):
		}
		v.Balance += 100
		_, err = s.In(tx).SetState(ctx, v)
		return err
	})
	require.NoError(t, err)
}

// A circle of mutators through the context of a transaction that is over is seen.
//
// Proves LOCK-10.
func TestCircleThroughACallback(t *testing.T) {
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
