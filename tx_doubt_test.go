package pawl_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A transaction whose answer was lost sends its commit again until the outcome is known, whatever
// other writers commit meanwhile.
//
// Proves CAS-7, TX-1.
func TestTransactSettlesLostAnswers(t *testing.T) {
	type race struct {
		landed bool // the commit whose answer is lost was executed
		then   func(t *testing.T, other *pawl.Runtime)
		runs   int
	}
	inc := func(id string) func(t *testing.T, other *pawl.Runtime) {
		return func(t *testing.T, other *pawl.Runtime) {
			_, err := purses.Scope(other, id).IncState(context.Background(), "balance", 1000)
			assert.NoError(t, err)
		}
	}
	nothing := func(*testing.T, *pawl.Runtime) {}
	for name, r := range map[string]race{
		"executed":                        {true, nothing, 1},
		"not executed":                    {false, nothing, 1},
		"executed, then overwritten":      {true, inc("a"), 1},
		"not executed, write set changed": {false, inc("a"), 1},
		"not executed, read set changed":  {false, inc("read"), 2},
		"executed, then read set changed": {true, inc("read"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			onStores(t, func(t *testing.T, p path) {
				other := p.another(t)
				for _, id := range []string{"a", "b", "read"} {
					seed(t, purses.Scope(p.rt, id), purse{Balance: 100})
				}
				lost := false
				p.store.OnCommit(func(ctx context.Context, c persist.Commit) error {
					if lost || len(c.Writes) < 2 {
						return nil
					}
					lost = true
					if r.landed {
						_, err := p.store.Store.Commit(ctx, c)
						assert.NoError(t, err)
					}
					r.then(t, other)
					return errAnswerLost
				})
				runs, after := 0, 0
				err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
					runs++
					tx.AfterCommit(func() { after++ })
					if _, err := purses.Scope(tx, "read").State(ctx); err != nil {
						return err
					}
					if _, err := purses.Scope(tx, "a").IncState(ctx, "balance", -5); err != nil {
						return err
					}
					_, err := purses.Scope(tx, "b").IncState(ctx, "balance", 5)
					return err
				})
				p.store.OnCommit(nil)
				require.NoError(t, err)
				require.True(t, lost)
				require.Equal(t, r.runs, runs)
				require.Equal(t, 1, after)
				for id, want := range map[string]int64{"a": 95, "b": 105} {
					s, err := purses.Scope(p.rt, id).State(t.Context())
					require.NoError(t, err)
					require.Equal(t, want, s.Balance%1000, id)
					seen, ok := purses.Scope(p.rt, id).LastSeen()
					if ok {
						require.Equal(t, p.record(t, purses.Scope(p.rt, id).Key()).Version, seen.Version)
					}
				}
			})
		})
	}
}

// If the budget ends before the outcome of a write is known, the caller gets UnknownOutcomeError. A
// transaction that only read gets ErrUnavailable.
//
// Proves CAS-7, TX-5.
func TestTransactUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		rt, err := pawl.Open(pawl.Config{Store: store, Retry: pawl.Retry{Within: 3 * time.Second}})
		require.NoError(t, err)
		for _, id := range []string{"a", "b"} {
			_, err := purses.Scope(rt, id).IncState(t.Context(), "balance", 1)
			require.NoError(t, err)
		}
		a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
		store.OnCommit(func(context.Context, persist.Commit) error { return errAnswerLost })
		write := func(ctx context.Context, tx *pawl.Tx) error {
			tx.AfterCommit(func() { t.Error("nothing was committed") })
			_, err := a.In(tx).IncState(ctx, "balance", 1)
			return err
		}
		began := time.Now()
		err = pawl.Transact(t.Context(), rt, write)
		var unknown *pawl.UnknownOutcomeError
		require.ErrorAs(t, err, &unknown)
		require.ErrorIs(t, err, errAnswerLost)
		require.NotEmpty(t, unknown.Commit)
		require.GreaterOrEqual(t, time.Since(began), 3*time.Second, "the outcome was reported before the budget ended")
		require.Less(t, time.Since(began), 4*time.Second)

		err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			if _, err := a.In(tx).State(ctx); err != nil {
				return err
			}
			_, err := b.In(tx).State(ctx)
			return err
		})
		require.ErrorIs(t, err, pawl.ErrUnavailable)
		require.False(t, pawl.OutcomeUnknown(err))

		// A store whose commit does not return.
		gone, back := make(chan struct{}), make(chan struct{})
		store.OnCommit(nil)
		store.OnCommitted(func(_ persist.Commit, at time.Time, err error) (time.Time, error) {
			close(gone)
			<-back
			return at, err
		})
		_, _ = a.State(t.Context())
		began = time.Now()
		var ran atomic.Int32
		err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			tx.AfterCommit(func() { ran.Add(1) })
			_, err := a.In(tx).IncState(ctx, "balance", 1)
			return err
		})
		<-gone
		require.ErrorAs(t, err, &unknown)
		require.Less(t, time.Since(began), 4*time.Second)
		require.Zero(t, ran.Load())
		store.OnCommitted(nil)
		close(back)
		require.NoError(t, rt.Close(t.Context()), "Close must wait for the commit")
		require.EqualValues(t, 1, ran.Load(), "the callback must run once the commit is durable")
	})
}

// A commit in doubt was not applied if the version of one of its writes is unchanged, whatever
// happened to the others.
//
// Proves CAS-7.
func TestUnchangedVersionSettlesDoubt(t *testing.T) {
	store := newTap()
	rt, other := openOn(t, store), openOn(t, store.Store)
	a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
	seed(t, a, purse{})
	seed(t, b, purse{})
	var once sync.Once
	store.OnCommit(func(ctx context.Context, c persist.Commit) (err error) {
		if len(c.Writes) == 2 {
			once.Do(func() { // the commit is dropped; another process deletes and purges a
				assert.NoError(t, purses.Scope(other, "a").Delete(ctx))
				purge(t, store)
				err = errAnswerLost
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
	require.NoError(t, err, "b is unchanged, so the commit was not applied")
}
