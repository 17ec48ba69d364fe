package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// purse is the state of an account in these tests.
type purse struct {
	Balance int64             `json:"balance"`
	Log     []string          `json:"log,omitempty"`
	Notes   map[string]string `json:"notes,omitempty"`
}

var purses = pawl.Kind[purse]{Name: "purse"}

var errPoor = errors.New("not enough")

// pay moves an amount if there is enough, having looked.
func pay(ctx context.Context, tx *pawl.Tx, from, to string, amount int64) error {
	has, err := purses.Scope(tx, from).State(ctx)
	if err != nil {
		return err
	}
	if has.Balance < amount {
		return errPoor
	}
	if _, err := purses.Scope(tx, from).IncState(ctx, "balance", -amount); err != nil {
		return err
	}
	_, err = purses.Scope(tx, to).IncState(ctx, "balance", amount)
	return err
}

// Several kinds and types change together, by every verb, each mutation with a version of its own.
//
// Proves TX-1.
func TestTransactCommitsTogether(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		seed(t, purses.Scope(p.rt, "a"), purse{Balance: 10})
		seed(t, pawl.User[board](p.rt, "gone"), board{Title: "old"})
		before := p.store.commits.Load()
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			require.Equal(t, 1, tx.Attempt())
			a := purses.Scope(tx, "a")
			must := func(_ pawl.Snapshot[purse], err error) { t.Helper(); require.NoError(t, err) }
			must(a.IncState(ctx, "balance", -3))
			must(a.PushState(ctx, "log", "paid"))
			must(a.SetStateRecord(ctx, "notes", "k", "v"))
			must(a.SetStateRecord(ctx, "notes", "l", "w"))
			must(a.DeleteStateRecord(ctx, "notes", "l"))
			must(purses.Scope(p.rt, "b").In(tx).SetState(ctx, purse{Balance: 3}, pawl.IfAbsent()))
			_, err := pawl.Session[pawl.Doc](tx, "s").PatchState(ctx, pawl.Patch{"paid": true})
			require.NoError(t, err)
			_, err = pawl.Org[board](tx, "o").AtomicState(ctx, func(ctx context.Context, b *board) error {
				b.Title = "org"
				_, err := pawl.Request[board](tx, "r").PatchState(ctx, pawl.Patch{"count": 7})
				return err
			})
			require.NoError(t, err)
			return pawl.User[board](tx, "gone").Delete(ctx)
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, p.store.commits.Load()-before, "one commit of the store")
		requireState(t, p, purses.Scope(p.rt, "a"), 6, purse{Balance: 7, Log: []string{"paid"}, Notes: map[string]string{"k": "v"}})
		requireState(t, p, purses.Scope(p.rt, "b"), 1, purse{Balance: 3})
		requireState(t, p, pawl.Session[pawl.Doc](p.rt, "s"), 1, pawl.Doc{"paid": true})
		requireState(t, p, pawl.Org[board](p.rt, "o"), 1, board{Title: "org"})
		requireState(t, p, pawl.Request[board](p.rt, "r"), 1, board{Count: 7})
		_, err = pawl.User[board](p.rt, "gone").IncState(t.Context(), "count", 1)
		require.ErrorIs(t, err, pawl.ErrDeleted)
	})
}

// Whatever makes it fail, nothing of it is there afterwards, and what this process believes is what the store has.
//
// Proves TX-1.
func TestTransactCommitsNothingWhenItFails(t *testing.T) {
	failures := map[string]func(ctx context.Context, tx *pawl.Tx) error{
		"error": func(context.Context, *pawl.Tx) error { return errPoor },
		"field": func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "b").PushState(ctx, "balance", 1)
			return err
		},
		"condition": func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "b").IncState(ctx, "balance", 1, pawl.IfExists())
			return err
		},
		"limit": func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "b").PushState(ctx, "log", string(make([]byte, 0))+fmt.Sprintf("%2000000d", 1))
			return err
		},
	}
	onStores(t, func(t *testing.T, p path) {
		for name, fail := range failures {
			t.Run(name, func(t *testing.T) {
				a := purses.Scope(p.rt, "a of "+name)
				seed(t, a, purse{Balance: 10})
				err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
					if _, err := a.In(tx).IncState(ctx, "balance", -1); err != nil {
						return err
					}
					if _, err := purses.Scope(tx, "c").IncState(ctx, "balance", 1); err != nil {
						return err
					}
					return fail(ctx, tx)
				})
				require.Error(t, err)
				requireState(t, p, a, 1, purse{Balance: 10})
				requireAbsent(t, p, purses.Scope(p.rt, "b"))
				requireAbsent(t, p, purses.Scope(p.rt, "c"))
			})
		}
		t.Run("panic", func(t *testing.T) {
			require.PanicsWithError(t, "boom", func() {
				defer func() {
					var p *pawl.PanicError
					err, _ := recover().(error)
					require.ErrorAs(t, err, &p)
					require.Contains(t, string(p.Stack), "tx_test.go")
					panic(p.Value)
				}()
				_ = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
					_, err := purses.Scope(tx, "c").IncState(ctx, "balance", 1)
					require.NoError(t, err)
					panic(errors.New("boom"))
				})
			})
			requireAbsent(t, p, purses.Scope(p.rt, "c"))
		})
		t.Run("Goexit", func(t *testing.T) {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
					_, _ = purses.Scope(tx, "c").IncState(ctx, "balance", 1)
					runtime.Goexit()
					return nil
				})
			}()
			<-ended
			requireAbsent(t, p, purses.Scope(p.rt, "c"))
		})
	})
}

// The function sees what it wrote, and only the function does.
//
// Proves TX-1.
func TestTransactReadsItsOwnWrites(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		seed(t, purses.Scope(p.rt, "a"), purse{Balance: 10})
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			a := purses.Scope(tx, "a")
			snap, err := a.Snapshot(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 1, snap.Version)
			state := snap.State()
			state.Balance = 99 // a copy
			_, err = a.IncState(ctx, "balance", 5)
			require.NoError(t, err)
			snap, err = a.Snapshot(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 15, snap.ReadOnly().Balance)
			require.EqualValues(t, 2, snap.Version, "it is in the read set, so that its next version is certain")
			doc, err := pawl.Kind[pawl.Doc]{Name: "purse"}.Scope(tx, "a").State(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 15, doc["balance"], "another type sees the same document")

			outside, err := purses.Scope(p.rt, "a").Snapshot(pawl.Detach(ctx))
			require.NoError(t, err)
			require.EqualValues(t, 10, outside.ReadOnly().Balance)

			require.NoError(t, a.Delete(ctx))
			snap, err = a.Snapshot(ctx)
			require.NoError(t, err)
			require.False(t, snap.Exists())
			_, err = a.IncState(ctx, "balance", 1)
			require.ErrorIs(t, err, pawl.ErrDeleted)
			_, err = a.SetState(ctx, purse{Balance: 1}, pawl.IfAbsent())
			return err
		})
		require.NoError(t, err)
		requireState(t, p, purses.Scope(p.rt, "a"), 4, purse{Balance: 1})
	})
}

// What cannot be part of a transaction says so.
//
// Proves TX-4.
func TestTransactRefusesWhatIsOutside(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		var kept *pawl.Tx
		inside := func(fn func(ctx context.Context, tx *pawl.Tx)) {
			t.Helper()
			require.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				fn(ctx, tx)
				return nil
			}))
		}
		inside(func(ctx context.Context, tx *pawl.Tx) {
			kept = tx
			outside, memory := purses.Scope(p.rt, "a"), pawl.Memory[board](p.rt, "m")
			local := pawl.Sequencer[board](pawl.NewLocal(p.rt), "l")
			_, err := pawl.Memory[board](tx, "m").IncState(ctx, "count", 1)
			require.ErrorIs(t, err, pawl.ErrNotPersisted)
			_, err = pawl.Memory[board](tx, "m").State(ctx)
			require.ErrorIs(t, err, pawl.ErrNotPersisted)
			_, err = memory.In(tx).State(ctx)
			require.ErrorIs(t, err, pawl.ErrNotPersisted)
			for _, derived := range []context.Context{ctx, context.WithValue(ctx, tx, 1)} {
				_, err = outside.IncState(derived, "balance", 1)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				_, err = outside.State(derived)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				_, err = outside.AtomicState(derived, func(context.Context, *purse) error { return nil })
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				require.ErrorIs(t, outside.Delete(derived), pawl.ErrOutsideTx)
				_, err = memory.IncState(derived, "count", 1)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				_, err = memory.State(derived)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				_, err = local.AtomicState(derived, func(context.Context, *board) error { return nil })
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				var own pawl.Container[board]
				_, err = pawl.ApplyMutation(derived, &own, pawl.Options[board]{}, pawl.Inc{Field: "count", By: 1})
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
			}
			require.ErrorIs(t, pawl.Transact(ctx, p.rt, func(context.Context, *pawl.Tx) error { return nil }), pawl.ErrOutsideTx)
			for _, err := range purses.List(ctx, tx, pawl.Query{}) {
				require.ErrorIs(t, err, pawl.ErrInTx)
			}
			for _, err := range purses.List(ctx, p.rt, pawl.Query{}) {
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
			}
			inside(func(_ context.Context, other *pawl.Tx) { // an independent one, by the test's own context
				_, err = purses.Scope(other, "a").State(ctx)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
			})
			_, err = outside.IncState(pawl.Detach(ctx), "balance", 1)
			require.NoError(t, err, "Detach lifts it")
			_, err = outside.In(tx).AtomicState(ctx, func(ctx context.Context, _ *purse) error {
				_, err := outside.In(tx).IncState(ctx, "balance", 1)
				require.ErrorIs(t, err, pawl.ErrReentrant)
				_, err = outside.State(ctx)
				require.ErrorIs(t, err, pawl.ErrOutsideTx)
				return nil
			})
			require.NoError(t, err)
		})
		_, err := purses.Scope(kept, "a").IncState(t.Context(), "balance", 1)
		require.ErrorIs(t, err, pawl.ErrClosed)
		_, err = purses.Scope(kept, "a").State(t.Context())
		require.ErrorIs(t, err, pawl.ErrClosed)
		require.ErrorIs(t, pawl.Transact(t.Context(), kept, func(context.Context, *pawl.Tx) error { return nil }), pawl.ErrClosed)
		kept.AfterCommit(func() { t.Error("it is over") })
		requireState(t, p, purses.Scope(p.rt, "a"), 1, purse{Balance: 1})
	})
}

// Transact says what it cannot make sense of.
func TestTransactRefusesArguments(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		nothing := func(context.Context, *pawl.Tx) error { return nil }
		var argument *pawl.ArgumentError
		var none context.Context
		require.ErrorAs(t, pawl.Transact(none, p.rt, nothing), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), nil, nothing), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), (*pawl.Tx)(nil), nothing), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), p.rt, nil), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), p.rt, nothing, nil), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), p.rt, nothing, pawl.IfAbsent()), &argument)
		require.ErrorAs(t, pawl.Transact(t.Context(), p.rt, nothing, pawl.WithRetry(pawl.Retry{Attempts: -1})), &argument)
		_, err := purses.Scope(p.rt, "a").In(nil).State(t.Context())
		require.ErrorAs(t, err, &argument)
		other := p.another(t)
		require.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(other, "a").In(tx).State(ctx)
			require.ErrorAs(t, err, &argument)
			return nil
		}))
		memory := openRuntime(t, pawl.Config{})
		require.ErrorIs(t, pawl.Transact(t.Context(), memory, nothing), pawl.ErrNoStore)
	})
}

// A transaction inside another is a part of it: its writes go with the outer one, and are undone by themselves when it fails.
//
// Proves TX-1.
func TestTransactJoins(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		seed(t, purses.Scope(p.rt, "a"), purse{Balance: 10})
		before := p.store.commits.Load()
		var ran []string
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
			require.NoError(t, err)
			err = pawl.Transact(ctx, tx, func(ctx context.Context, inner *pawl.Tx) error {
				inner.AfterCommit(func() { ran = append(ran, "undone") })
				_, err := purses.Scope(inner, "a").IncState(ctx, "balance", 100)
				require.NoError(t, err)
				_, err = purses.Scope(inner, "b").IncState(ctx, "balance", 100)
				require.NoError(t, err)
				return errPoor
			})
			require.ErrorIs(t, err, errPoor)
			require.Panics(t, func() {
				_ = pawl.Transact(t.Context(), tx, func(ctx context.Context, inner *pawl.Tx) error {
					_, err := purses.Scope(p.rt, "a").State(ctx)
					assert.ErrorIs(t, err, pawl.ErrOutsideTx, "also when it was not given the context of the outer one")
					_, err = purses.Scope(inner, "c").IncState(ctx, "balance", 100)
					assert.NoError(t, err)
					panic("no")
				})
			})
			return pawl.Transact(ctx, tx, func(ctx context.Context, inner *pawl.Tx) error {
				inner.AfterCommit(func() { ran = append(ran, "kept") })
				_, err := purses.Scope(inner, "d").IncState(ctx, "balance", 1)
				return err
			}, pawl.WithRetry(pawl.Retry{Attempts: 1}))
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, p.store.commits.Load()-before)
		requireState(t, p, purses.Scope(p.rt, "a"), 2, purse{Balance: 11})
		requireAbsent(t, p, purses.Scope(p.rt, "b"))
		requireAbsent(t, p, purses.Scope(p.rt, "c"))
		requireState(t, p, purses.Scope(p.rt, "d"), 1, purse{Balance: 1})
		require.Equal(t, []string{"kept"}, ran)
	})
}

// What changes nothing writes nothing, and what was read last is asked for once more only where that says more.
func TestTransactThatChangesNothing(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		a := purses.Scope(p.rt, "a")
		seed(t, a, purse{Balance: 10})
		require.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := a.In(tx).PatchState(ctx, pawl.Patch{"balance": 10})
			return err
		}))
		requireState(t, p, a, 1, purse{Balance: 10})

		other := p.another(t) // has seen nothing
		before := p.store.commits.Load()
		require.NoError(t, pawl.Transact(t.Context(), other, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "a").State(ctx)
			return err
		}))
		require.Zero(t, p.store.commits.Load()-before)
		require.NoError(t, pawl.Transact(t.Context(), other, func(ctx context.Context, tx *pawl.Tx) error { return nil }))
		require.Zero(t, p.store.commits.Load()-before)

		// On what has been overwritten since, a verb that would change nothing does change something.
		p.put(t, a.Key(), `{"balance":11}`, 0)
		require.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := a.In(tx).PatchState(ctx, pawl.Patch{"balance": 10})
			return err
		}))
		requireState(t, p, a, 3, purse{Balance: 10})
	})
}

// A store that commits one key at a time cannot do it, and says so.
func TestTransactOnAStoreOfSingleKeys(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		p.store.onCommit(func(_ context.Context, c persist.Commit) error {
			if len(c.Writes)+len(c.Guards) > 1 {
				return persist.ErrUnsupported
			}
			return nil
		})
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
			require.NoError(t, err)
			_, err = purses.Scope(tx, "b").IncState(ctx, "balance", 1)
			return err
		})
		require.ErrorIs(t, err, persist.ErrUnsupported)
		require.False(t, pawl.IsRetryable(err))
		requireAbsent(t, p, purses.Scope(p.rt, "a"))
	})
}
