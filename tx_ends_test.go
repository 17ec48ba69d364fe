package pawl_test

import (
	"context"
	"errors"
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

// Callbacks run once what they tell of is durable, in order, once, and not for runs that lost.
//
// Proves TX-5.
func TestAfterCommit(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		a := purses.Scope(p.rt, "a")
		seed(t, a, purse{Balance: 1})
		var ran []string
		note := func(tx *pawl.Tx, what string) {
			tx.AfterCommit(func() {
				r, err := p.store.Store.Load(t.Context(), a.Key())
				assert.NoError(t, err)
				ran = append(ran, what)
				assert.EqualValues(t, 3, r.Version, "it is there when the callback runs")
				_, err = purses.Scope(p.rt, "b").IncState(t.Context(), "balance", 1)
				assert.NoError(t, err, "no queue is held any more")
			})
		}
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			s, err := a.In(tx).State(ctx)
			require.NoError(t, err)
			if tx.Attempt() == 1 {
				note(tx, "of the run that lost")
				_, err := purses.Scope(p.another(t), "a").IncState(context.Background(), "balance", 1)
				require.NoError(t, err)
			}
			note(tx, "first")
			note(tx, "second")
			tx.AfterCommit(nil)
			s.Balance++
			if _, err := purses.Scope(tx, "b").IncState(ctx, "balance", 1); err != nil {
				return err
			}
			_, err = a.In(tx).SetState(ctx, s)
			return err
		})
		require.NoError(t, err)
		require.Equal(t, []string{"first", "second"}, ran)

		ran = nil
		err = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			note(tx, "of one that failed")
			return errPoor
		})
		require.ErrorIs(t, err, errPoor)
		p.store.onCommit(func(context.Context, persist.Commit) error {
			return errors.Join(persist.ErrNotApplied, persist.ErrUnavailable)
		})
		err = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			note(tx, "of one that was not committed")
			_, err := a.In(tx).IncState(ctx, "balance", 1)
			return err
		})
		require.ErrorIs(t, err, pawl.ErrUnavailable)
		require.Empty(t, ran)
		p.store.onCommit(nil)

		require.PanicsWithError(t, "in a callback", func() {
			defer func() { panic(recover().(*pawl.PanicError).Value) }()
			_ = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				tx.AfterCommit(func() { panic(errors.New("in a callback")) })
				tx.AfterCommit(func() { ran = append(ran, "after one that panicked") })
				_, err := a.In(tx).IncState(ctx, "balance", 1)
				return err
			})
		})
		require.Equal(t, []string{"after one that panicked"}, ran)
		_, err = a.IncState(t.Context(), "balance", 1)
		require.NoError(t, err, "the queue is free")
	})
}

// errLost stands for an answer that never came.
var errLost = errors.New("connection lost")

// A commit of several scopes whose answer was lost is sent again until the store shows what became of it, whatever others wrote meanwhile.
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
		"executed":                            {true, nothing, 1},
		"not executed":                        {false, nothing, 1},
		"executed, then overwritten":          {true, inc("a"), 1},
		"not executed, and another came":      {false, inc("a"), 1},
		"not executed, what it read changed":  {false, inc("read"), 2},
		"executed, then what it read changed": {true, inc("read"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			onStores(t, func(t *testing.T, p path) {
				other := p.another(t)
				for _, id := range []string{"a", "b", "read"} {
					seed(t, purses.Scope(p.rt, id), purse{Balance: 100})
				}
				lost := false
				p.store.onCommit(func(ctx context.Context, c persist.Commit) error {
					if lost || len(c.Writes) < 2 {
						return nil
					}
					lost = true
					if r.landed {
						_, err := p.store.Store.Commit(ctx, c)
						assert.NoError(t, err)
					}
					r.then(t, other)
					return errLost
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
				p.store.onCommit(nil)
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

// Where the budget ends before the store can be made to speak, the caller learns that nobody knows; where only a reading was confirmed, that
// nothing was written.
//
// Proves CAS-7, TX-5.
func TestTransactUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: memory.New()}
		rt, err := pawl.Open(pawl.Config{Store: store, Retry: pawl.Retry{Within: 3 * time.Second}})
		require.NoError(t, err)
		for _, id := range []string{"a", "b"} {
			_, err := purses.Scope(rt, id).IncState(t.Context(), "balance", 1)
			require.NoError(t, err)
		}
		a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
		store.onCommit(func(context.Context, persist.Commit) error { return errLost })
		write := func(ctx context.Context, tx *pawl.Tx) error {
			tx.AfterCommit(func() { t.Error("nothing was committed") })
			_, err := a.In(tx).IncState(ctx, "balance", 1)
			return err
		}
		began := time.Now()
		err = pawl.Transact(t.Context(), rt, write)
		var unknown *pawl.UnknownOutcomeError
		require.ErrorAs(t, err, &unknown)
		require.ErrorIs(t, err, errLost)
		require.NotEmpty(t, unknown.Commit)
		require.GreaterOrEqual(t, time.Since(began), 3*time.Second, "not before its budget has ended")
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

		// A store that does not even come back.
		gone, back := make(chan struct{}), make(chan struct{})
		store.onCommit(nil)
		store.onCommitted(func(at time.Time, err error) (time.Time, error) { close(gone); <-back; return at, err })
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
		store.onCommitted(nil)
		close(back)
		require.NoError(t, rt.Close(t.Context()), "Close waits for it")
		require.EqualValues(t, 1, ran.Load(), "it was durable in the end, and nobody else would tell")
	})
}

// A caller that leaves before the commit has withdrawn everything; one that leaves during it may have landed.
//
// Proves CAS-9, TX-5.
func TestTransactCallerLeaves(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		a := purses.Scope(p.rt, "a")
		seed(t, a, purse{Balance: 1})
		cause := errors.New("changed my mind")

		t.Run("in the function", func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			err := pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := a.In(tx).IncState(ctx, "balance", 1)
				cancel(cause)
				return err
			})
			requireLeft(t, err, pawl.PhaseQueued, cause)
			requireState(t, p, a, 1, purse{Balance: 1})
		})
		t.Run("in the queue", func(t *testing.T) {
			entered, release := p.store.hold()
			first := make(chan error)
			go func() {
				_, err := a.SetStateRecord(context.Background(), "notes", "k", "v")
				first <- err
			}()
			<-entered
			ctx, cancel := context.WithCancelCause(t.Context())
			err := pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := a.In(tx).IncState(ctx, "balance", 1)
				time.AfterFunc(time.Millisecond, func() { cancel(cause) })
				return err
			})
			requireLeft(t, err, pawl.PhaseQueued, cause)
			release()
			require.NoError(t, <-first)
			p.store.onCommit(nil)
			requireState(t, p, a, 2, purse{Balance: 1, Notes: map[string]string{"k": "v"}})
		})
		t.Run("in the commit", func(t *testing.T) {
			entered, release := p.store.hold()
			ctx, cancel := context.WithCancelCause(t.Context())
			told := make(chan struct{})
			go func() {
				<-entered
				cancel(cause)
			}()
			err := pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				tx.AfterCommit(func() { close(told) })
				_, err := a.In(tx).IncState(ctx, "balance", 1)
				return err
			})
			requireLeft(t, err, pawl.PhaseCommitting, cause)
			require.True(t, pawl.OutcomeUnknown(err))
			release()
			<-told
			p.store.onCommit(nil)
			requireState(t, p, a, 3, purse{Balance: 2, Notes: map[string]string{"k": "v"}})
			_, err = a.IncState(t.Context(), "balance", 1)
			require.NoError(t, err, "its queue is free again")
		})
		t.Run("before it began", func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(cause)
			err := pawl.Transact(ctx, p.rt, func(context.Context, *pawl.Tx) error { t.Error("it ran"); return nil })
			requireLeft(t, err, pawl.PhaseQueued, cause)
		})
	})
}

func requireLeft(t *testing.T, err error, phase pawl.Phase, cause error) {
	t.Helper()
	var canceled *pawl.CanceledError
	require.ErrorAs(t, err, &canceled)
	require.Equal(t, phase, canceled.Phase)
	require.ErrorIs(t, err, cause)
}

// A transaction that other processes keep overtaking gives up when its budget is spent, and nothing of it is there.
//
// Proves CAS-2, TX-2.
func TestTransactSpendsItsBudget(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		a, other := purses.Scope(p.rt, "a"), purses.Scope(p.another(t), "a")
		seed(t, a, purse{})
		runs := 0
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			runs++
			if _, err := a.In(tx).State(ctx); err != nil {
				return err
			}
			if _, err := other.IncState(context.Background(), "balance", 1); err != nil {
				return err
			}
			_, err := a.In(tx).IncState(ctx, "balance", 100)
			return err
		}, pawl.WithRetry(pawl.Retry{Attempts: 3, First: time.Millisecond}))
		var spent *pawl.ConcurrentModificationError
		require.ErrorAs(t, err, &spent)
		require.Equal(t, 3, spent.Attempts)
		require.Equal(t, a.Key(), spent.Scope)
		require.EqualValues(t, spent.Expected+1, spent.Actual)
		require.Equal(t, 4, runs, "the first was lost to what had been seen before, which does not count")
		s, err := a.State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, runs, s.Balance)
	})
}

// Close refuses new transactions and waits for those that run.
//
// Proves SCOPE-18.
func TestCloseWaitsForTransactions(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		rt, err := pawl.Open(p.config)
		require.NoError(t, err)
		inside, goOn := make(chan struct{}), make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := purses.Scope(tx, "a").State(ctx); err != nil {
					return err
				}
				close(inside)
				<-goOn
				return nil
			})
		}()
		<-inside
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var busy *pawl.BusyError
		require.ErrorAs(t, rt.Close(ctx), &busy)
		require.Equal(t, []pawl.Running{{Scope: purses.Scope(p.rt, "a").Key(), Verb: "Transact"}}, busy.Running)
		require.ErrorIs(t, pawl.Transact(t.Context(), rt, func(context.Context, *pawl.Tx) error { return nil }), pawl.ErrClosed)
		close(goOn)
		require.NoError(t, rt.Close(t.Context()))
		require.NoError(t, <-done)
	})
}

// What happens to a transaction is told, scope by scope.
func TestTransactIsObserved(t *testing.T) {
	var events []pawl.Event
	observe := func(c *pawl.Config) {
		c.Observer = pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
			if e.Path == "tx" {
				events = append(events, e)
			}
		})
	}
	onStores(t, func(t *testing.T, p path) {
		a := purses.Scope(p.rt, "a")
		seed(t, a, purse{})
		p.put(t, a.Key(), `{"balance":1}`, 0)
		events = nil
		require.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			if _, err := a.In(tx).IncState(ctx, "balance", 1); err != nil {
				return err
			}
			_, err := purses.Scope(tx, "b").IncState(ctx, "balance", 1)
			return err
		}))
		require.Len(t, events, 3)
		require.Equal(t, pawl.Conflicted, events[0].Type)
		require.EqualValues(t, 2, events[0].Version)
		for i, want := range []struct {
			id      string
			version uint64
		}{{"a", 3}, {"b", 1}} {
			e := events[i+1]
			require.Equal(t, pawl.Committed, e.Type)
			require.Equal(t, want.id, e.Key.ID)
			require.Equal(t, want.version, e.Version)
			require.Equal(t, 2, e.Batch)
			require.Equal(t, "Transact", e.Verb)
		}
	}, observe)
}
