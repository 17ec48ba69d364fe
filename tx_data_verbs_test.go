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
)

// After a conflict, data verbs are applied to the newer state, and the function does not run again.
//
// Proves TX-8.
func TestDataVerbsAreAppliedToTheWinner(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		other := p.another(t)
		seed(t, purses.Scope(p.rt, "a"), purse{Balance: 10})
		seed(t, purses.Scope(p.rt, "b"), purse{Balance: 10})
		runs := 0
		var conflicts atomic.Int32
		p.store.OnCommit(func(ctx context.Context, c persist.Commit) error {
			if len(c.Writes) == 2 && conflicts.Add(1) <= 3 { // just before the commit arrives
				for _, id := range []string{"a", "b"} {
					_, err := purses.Scope(other, id).IncState(ctx, "balance", 100)
					assert.NoError(t, err)
				}
			}
			return nil
		})
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			runs++
			if _, err := purses.Scope(tx, "a").IncState(ctx, "balance", -1); err != nil {
				return err
			}
			if _, err := purses.Scope(tx, "a").PushState(ctx, "log", "paid"); err != nil {
				return err
			}
			_, err := purses.Scope(tx, "b").IncState(ctx, "balance", 1)
			return err
		})
		p.store.OnCommit(nil)
		require.NoError(t, err)
		require.Equal(t, 1, runs)
		requireState(t, p, purses.Scope(p.rt, "a"), 6, purse{Balance: 309, Log: []string{"paid"}})
		requireState(t, p, purses.Scope(p.rt, "b"), 5, purse{Balance: 311})
	})
}

// The function runs again after a conflict if it looked at the result of a data verb. It also runs
// again if the newer state refuses the verb.
//
// Proves TX-8, TX-2.
func TestLookingAtAResultIsARead(t *testing.T) {
	looks := map[string]func(s pawl.Snapshot[purse]){
		"State":    func(s pawl.Snapshot[purse]) { _ = s.State() },
		"ReadOnly": func(s pawl.Snapshot[purse]) { _ = s.ReadOnly().Balance },
		"Exists":   func(s pawl.Snapshot[purse]) { _ = s.Exists() },
		"nothing":  func(s pawl.Snapshot[purse]) {},
	}
	onStores(t, func(t *testing.T, p path) {
		other := p.another(t)
		race := func(id string, interfere func(ctx context.Context)) {
			var once sync.Once
			p.store.OnCommit(func(ctx context.Context, c persist.Commit) error {
				if c.Keys()[0].ID == id && len(c.Keys()) == 2 {
					once.Do(func() { interfere(ctx) })
				}
				return nil
			})
		}
		defer p.store.OnCommit(nil)
		for name, look := range looks {
			t.Run(name, func(t *testing.T) {
				race("a "+name, func(ctx context.Context) {
					_, err := purses.Scope(other, "a "+name).IncState(ctx, "balance", -8)
					assert.NoError(t, err)
				})
				seed(t, purses.Scope(p.rt, "a "+name), purse{Balance: 10})
				runs := 0
				require.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
					runs++
					snap, err := purses.Scope(tx, "a "+name).IncState(ctx, "balance", -5)
					require.NoError(t, err)
					require.Zero(t, snap.Version, "the version is not known before the commit")
					look(snap)
					_, err = purses.Scope(tx, "b").IncState(ctx, "balance", 5)
					return err
				}))
				if name == "nothing" {
					require.Equal(t, 1, runs)
				} else {
					require.Equal(t, 2, runs)
				}
			})
		}
		t.Run("refused by the newer state", func(t *testing.T) {
			seed(t, purses.Scope(p.rt, "c"), purse{Balance: 10})
			race("c", func(ctx context.Context) { assert.NoError(t, purses.Scope(other, "c").Delete(ctx)) })
			runs := 0
			err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				runs++
				if _, err := purses.Scope(tx, "c").IncState(ctx, "balance", -5); err != nil {
					return err
				}
				_, err := purses.Scope(tx, "d").IncState(ctx, "balance", 5)
				return err
			})
			require.ErrorIs(t, err, pawl.ErrDeleted)
			require.Equal(t, 2, runs)
			requireAbsent(t, p, purses.Scope(p.rt, "d"))
		})
	})
}

// Reading a Snapshot during the commit is not a data race.
func TestReadASnapshotDuringTheCommit(t *testing.T) {
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

// After the commit, the Snapshot of a data verb shows the committed state.
//
// Proves CAS-4.
func TestSnapshotOfADataVerbAfterTheCommit(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	a := purses.Scope(rt, "a")
	seed(t, a, purse{Balance: 1})
	_, err := purses.Scope(other, "a").IncState(t.Context(), "balance", 100) // rt keeps its older cached version
	require.NoError(t, err)
	var snap pawl.Snapshot[purse]
	var seen int64
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) (err error) {
		snap, err = a.In(tx).IncState(ctx, "balance", 1)
		tx.AfterCommit(func() { seen = snap.State().Balance })
		return err
	})
	require.NoError(t, err)
	now, err := a.State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 102, now.Balance)
	require.EqualValues(t, now.Balance, seen, "the callback saw a state that was never committed")
}

// ownAmount has its own MarshalJSON and UnmarshalJSON.
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

// staleAccount returns a runtime whose cached version of an account is stale.
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

// MarshalJSON of a value runs when the verb is called, and not again after a conflict.
//
// Proves SCOPE-6.
func TestValuesOfATransactionAreReadOnce(t *testing.T) {
	rt, a := staleAccount(t)
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		cents := int64(42)
		_, err := a.In(tx).PatchState(ctx, pawl.Patch{"amount": ownAmount{cents: &cents}})
		cents = 666 // the verb has returned, so the caller may change its argument
		return err
	})
	require.NoError(t, err)
	s, err := a.State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 42, *s.Amount.cents)
}

// MarshalJSON of a value does not run while the transaction holds queues.
//
// Proves TX-7.
func TestNoMarshalJSONWhileQueuesAreHeld(t *testing.T) {
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
