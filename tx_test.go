package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// purse is the state of an account in these tests.
type purse struct {
	Balance int64             `json:"balance"`
	Log     []string          `json:"log,omitempty"`
	Notes   map[string]string `json:"notes,omitempty"`
}

var purses = pawl.Kind[purse]{Name: "purse"}

var errPoor = errors.New("not enough")

// pay reads the balance of from and moves amount to to. It returns errPoor if the balance is lower.
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

// One transaction changes several kinds and types by every verb in one commit. Each mutation has
// its own version.
//
// Proves TX-1.
func TestTransactCommitsTogether(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		seed(t, purses.Scope(p.rt, "a"), purse{Balance: 10})
		seed(t, pawl.User[board](p.rt, "gone"), board{Title: "old"})
		before := p.store.Commits.Load()
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
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
		require.EqualValues(t, 1, p.store.Commits.Load()-before, "all writes must share one commit")
		requireState(t, p, purses.Scope(p.rt, "a"), 6, purse{Balance: 7, Log: []string{"paid"}, Notes: map[string]string{"k": "v"}})
		requireState(t, p, purses.Scope(p.rt, "b"), 1, purse{Balance: 3})
		requireState(t, p, pawl.Session[pawl.Doc](p.rt, "s"), 1, pawl.Doc{"paid": true})
		requireState(t, p, pawl.Org[board](p.rt, "o"), 1, board{Title: "org"})
		requireState(t, p, pawl.Request[board](p.rt, "r"), 1, board{Count: 7})
		_, err = pawl.User[board](p.rt, "gone").IncState(t.Context(), "count", 1)
		require.ErrorIs(t, err, pawl.ErrDeleted)
	})
}

// A transaction that fails for any reason leaves no change, and the cached state equals the stored
// one.
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

// A function that panics or calls Goexit inside a transaction leaves no change and no held queue.
//
// Proves TX-1.
func TestFunctionsThatFailInATransaction(t *testing.T) {
	rt := openOn(t, memory.New())
	a := purses.Scope(rt, "a")
	seed(t, a, purse{Balance: 1})
	runs := 0
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		runs++
		func() {
			defer func() { require.NotNil(t, recover()) }()
			_, _ = a.In(tx).AtomicState(ctx, func(_ context.Context, p *purse) error { p.Balance = 77; panic("x") })
		}()
		_, err := a.In(tx).IncState(ctx, "balance", 1)
		if runs == 1 {
			_, err := a.IncState(context.Background(), "balance", 1)
			require.NoError(t, err)
		}
		return err
	})
	require.NoError(t, err)
	s, _ := a.State(t.Context())
	require.EqualValues(t, 3, s.Balance)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runs := 0
		_ = pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			if runs++; runs == 1 {
				_, _ = a.In(tx).State(ctx)
				_, _ = a.IncState(context.Background(), "balance", 1)
				return errPoor
			}
			_, err := a.In(tx).AtomicState(ctx, func(_ context.Context, p *purse) error { runtime.Goexit(); return nil })
			return err
		})
	}()
	<-done
	_, err = a.IncState(t.Context(), "balance", 1)
	require.NoError(t, err)
	require.NoError(t, rt.Close(t.Context()))
}

// The function of a transaction sees its own writes, and callers outside do not.
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
			require.EqualValues(t, 2, snap.Version, "the scope is in the read set, so its next version is known")
			doc, err := pawl.Kind[pawl.Doc]{Name: "purse"}.Scope(tx, "a").State(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 15, doc["balance"], "another type must see the same document")

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

// A function may read its own scope, inside a transaction and outside.
func TestReadingInsideAtomicStateInATransaction(t *testing.T) {
	rt := openOn(t, memory.New())
	a := purses.Scope(rt, "a")
	seed(t, a, purse{Balance: 1})
	_, err := a.AtomicState(t.Context(), func(ctx context.Context, p *purse) error {
		_, err := a.State(ctx)
		return err
	})
	require.NoError(t, err, "reading inside a function is not a nested mutation")
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := a.In(tx).AtomicState(ctx, func(ctx context.Context, p *purse) error {
			_, err := a.In(tx).State(ctx)
			return err
		})
		return err
	})
	require.NoError(t, err)
}

// A transaction commits although the garbage collector frees the containers of its scopes
// meanwhile.
func TestGarbageCollectionInATransaction(t *testing.T) {
	rt := openOn(t, memory.New())
	runs := 0
	require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := purses.Scope(tx, "a").State(ctx)
		require.NoError(t, err)
		collect()
		if runs++; runs == 1 {
			_, err = purses.Scope(rt, "a").IncState(context.Background(), "balance", 1)
			require.NoError(t, err)
		}
		collect()
		_, err = purses.Scope(tx, "a").IncState(ctx, "balance", 1)
		return err
	}))
	s, err := purses.Scope(rt, "a").State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, s.Balance)
}

// A transaction that changes nothing writes nothing. It reads again only if its state was cached
// before the call.
func TestTransactThatChangesNothing(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		a := purses.Scope(p.rt, "a")
		seed(t, a, purse{Balance: 10})
		require.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := a.In(tx).PatchState(ctx, pawl.Patch{"balance": 10})
			return err
		}))
		requireState(t, p, a, 1, purse{Balance: 10})

		other := p.another(t) // has cached nothing
		before := p.store.Commits.Load()
		require.NoError(t, pawl.Transact(t.Context(), other, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "a").State(ctx)
			return err
		}))
		require.Zero(t, p.store.Commits.Load()-before)
		require.NoError(t, pawl.Transact(t.Context(), other, func(ctx context.Context, tx *pawl.Tx) error { return nil }))
		require.Zero(t, p.store.Commits.Load()-before)

		// The cached state is stale: the verb changes nothing on it, but changes the current state.
		p.put(t, a.Key(), `{"balance":11}`, 0)
		require.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := a.In(tx).PatchState(ctx, pawl.Patch{"balance": 10})
			return err
		}))
		requireState(t, p, a, 3, purse{Balance: 10})
	})
}

// The observer gets an event for each scope of a transaction, for a conflict, and for the end.
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
		require.Len(t, events, 4)
		require.Equal(t, pawl.EventTransacted, events[3].Type)
		require.Equal(t, pawl.EventConflicted, events[0].Type)
		require.EqualValues(t, 2, events[0].Version)
		for i, want := range []struct {
			id      string
			version uint64
		}{{"a", 3}, {"b", 1}} {
			e := events[i+1]
			require.Equal(t, pawl.EventCommitted, e.Type)
			require.Equal(t, want.id, e.Key.ID)
			require.Equal(t, want.version, e.Version)
			require.Equal(t, 2, e.Batch)
			require.Equal(t, "Transact", e.Verb)
		}
	}, observe)
}
