package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// barrier makes the first runs of n functions wait for each other after their reads.
func barrier(n int) func(attempt int) {
	var all sync.WaitGroup
	all.Add(n)
	return func(attempt int) {
		if attempt == 1 {
			all.Done()
			all.Wait()
		}
	}
}

// Of two transactions that each read the scope that the other writes, one must see the other's
// write. This holds within a process and across processes, for present, absent and deleted scopes.
//
// Proves TX-2.
func TestNoWriteSkew(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for name, prepare := range map[string]func(t *testing.T, a, b pawl.Scope[purse]){
			"present": func(t *testing.T, a, b pawl.Scope[purse]) {
				seed(t, a, purse{Balance: 1})
				seed(t, b, purse{Balance: 1})
			},
			"absent": func(t *testing.T, a, b pawl.Scope[purse]) {},
			"deleted": func(t *testing.T, a, b pawl.Scope[purse]) {
				seed(t, a, purse{})
				require.NoError(t, a.Delete(t.Context()))
			},
		} {
			for _, second := range []string{"same process", "another process"} {
				t.Run(name+"/"+second, func(t *testing.T) {
					one, two := p.rt, p.rt
					if second == "another process" {
						two = p.another(t)
					}
					id := func(s string) string { return name + second + s }
					prepare(t, purses.Scope(one, id("a")), purses.Scope(one, id("b")))
					wait := barrier(2)
					// withdraw takes an amount from one purse if the sum of both is not negative.
					withdraw := func(rt *pawl.Runtime, from, with string) error {
						runs := 0
						return pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
							runs++
							mine, err := purses.Scope(tx, id(from)).Snapshot(ctx)
							if err != nil {
								return err
							}
							theirs, err := purses.Scope(tx, id(with)).Snapshot(ctx)
							if err != nil {
								return err
							}
							wait(runs)
							if mine.State().Balance+theirs.State().Balance < 0 {
								return errPoor
							}
							next := mine.State()
							next.Balance -= 3
							_, err = purses.Scope(tx, id(from)).SetState(ctx, next, createOption(mine.Exists())...)
							return err
						})
					}
					var g errgroup.Group
					var failed atomic.Int32
					for _, w := range []struct {
						rt         *pawl.Runtime
						from, with string
					}{{one, "a", "b"}, {two, "b", "a"}} {
						g.Go(func() error {
							err := withdraw(w.rt, w.from, w.with)
							if errors.Is(err, errPoor) {
								failed.Add(1)
								return nil
							}
							return err
						})
					}
					require.NoError(t, g.Wait())
					require.EqualValues(t, 1, failed.Load(), "exactly one withdrawal must be refused")
				})
			}
		}
	})
}

// createOption returns IfAbsent for a scope that does not exist.
func createOption(exists bool) []pawl.CallOption {
	if exists {
		return nil
	}
	return []pawl.CallOption{pawl.IfAbsent()}
}

// Transactions that all read before any of them writes do not overwrite each other.
//
// Proves TX-2.
func TestNoLostUpdate(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		runtimes := []*pawl.Runtime{p.rt, p.rt, p.another(t), p.another(t)}
		wait := barrier(len(runtimes))
		var g errgroup.Group
		for i, rt := range runtimes {
			g.Go(func() error {
				runs := 0
				return pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
					runs++
					a := purses.Scope(tx, "a")
					state, err := a.State(ctx)
					if err != nil {
						return err
					}
					wait(runs)
					state.Balance++
					state.Log = append(state.Log, fmt.Sprint(i))
					_, err = a.SetState(ctx, state)
					return err
				})
			})
		}
		require.NoError(t, g.Wait())
		got, err := purses.Scope(p.rt, "a").State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, len(runtimes), got.Balance)
		require.ElementsMatch(t, []string{"0", "1", "2", "3"}, got.Log)
	})
}

// A transaction that reads several scopes sees a constant total while others transfer between them.
//
// Proves TX-2.
func TestReadsAreConsistent(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		const accounts, readings = 4, 40
		runtimes := []*pawl.Runtime{p.rt, p.another(t)}
		for i := range accounts {
			seed(t, purses.Scope(p.rt, fmt.Sprint(i)), purse{Balance: 100})
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var g errgroup.Group
		for i, rt := range runtimes {
			g.Go(func() error {
				random := rand.New(rand.NewPCG(1, uint64(i)))
				for ctx.Err() == nil {
					from, to := random.IntN(accounts), random.IntN(accounts)
					err := pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
						return pay(ctx, tx, fmt.Sprint(from), fmt.Sprint(to), 1)
					})
					if err != nil && !errors.Is(err, errPoor) && ctx.Err() == nil {
						return err
					}
				}
				return nil
			})
		}
		for n := range readings {
			total := int64(0)
			err := pawl.Transact(t.Context(), runtimes[n%2], func(ctx context.Context, tx *pawl.Tx) error {
				total = 0
				for i := range accounts {
					s, err := purses.Scope(tx, fmt.Sprint(i)).State(ctx)
					if err != nil {
						return err
					}
					total += s.Balance
				}
				return nil
			})
			if !assert.NoError(t, err) || !assert.EqualValues(t, accounts*100, total) {
				break
			}
		}
		cancel()
		require.NoError(t, g.Wait())
	})
}

// A transaction that read its scopes in one consistent read does not conflict, whatever other
// callers of the process read meanwhile.
//
// Proves TX-2.
func TestConsistentReadsDoNotConflict(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
	seed(t, a, purse{Balance: 100})
	seed(t, b, purse{})
	move := func() {
		require.NoError(t, pawl.Transact(context.Background(), other, func(ctx context.Context, tx *pawl.Tx) error { return pay(ctx, tx, "a", "b", 1) }))
	}
	runs := 0
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		runs++
		x, err := a.In(tx).State(ctx)
		require.NoError(t, err)
		y, err := b.In(tx).State(ctx)
		require.NoError(t, err)
		move() // another process writes
		if runs > 2 {
			require.EqualValues(t, 100, x.Balance+y.Balance)
			_, err = a.State(context.Background()) // another caller in this process reads
		}
		return err
	})
	require.NoError(t, err, "the reads were consistent")
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
}

// A function that reads one scope before and one after another commit saw no consistent state. Its
// error, panic or result is discarded, and the function runs again.
//
// Proves TX-2.
func TestTornReadsAreDiscarded(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for _, kind := range []string{"error", "panic", "result"} {
			t.Run(kind, func(t *testing.T) {
				other := p.another(t)
				seed(t, purses.Scope(other, kind+"a"), purse{Balance: 50})
				seed(t, purses.Scope(other, kind+"b"), purse{Balance: 50})
				var seen int64
				runs := 0
				err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
					runs++
					a, err := purses.Scope(tx, kind+"a").State(ctx)
					require.NoError(t, err)
					if runs == 1 {
						require.NoError(t, pawl.Transact(context.Background(), other, func(ctx context.Context, tx *pawl.Tx) error {
							return pay(ctx, tx, kind+"a", kind+"b", 20)
						}))
					}
					b, err := purses.Scope(tx, kind+"b").State(ctx)
					require.NoError(t, err)
					seen = a.Balance + b.Balance
					if seen != 100 && kind == "error" {
						return errPoor
					}
					if seen != 100 && kind == "panic" {
						panic("inconsistent read")
					}
					return nil
				})
				require.NoError(t, err)
				require.EqualValues(t, 100, seen)
				require.Equal(t, 2, runs)
			})
		}
	})
}

// An error from a function that read the current state is returned at once. After a stale read the
// function runs again.
//
// Proves TX-2.
func TestErrorsRestOnCurrentState(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		a, c := purses.Scope(p.rt, "a"), purses.Scope(p.rt, "c")
		defer func() { runtime.KeepAlive(a); runtime.KeepAlive(c) }() // keeps their cached versions
		seed(t, a, purse{Balance: 1})
		_, err := purses.Scope(p.another(t), "a").IncState(t.Context(), "balance", 9)
		require.NoError(t, err)
		runs := 0
		err = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			runs++
			return pay(ctx, tx, "a", "b", 10) // p.rt has cached a balance of 1
		})
		require.NoError(t, err)
		require.Equal(t, 2, runs)
		err = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error { return pay(ctx, tx, "a", "b", 10) })
		require.ErrorIs(t, err, errPoor)

		// A verb that is refused has read the state.
		_, err = purses.Scope(p.another(t), "c").IncState(t.Context(), "balance", 1)
		require.NoError(t, err)
		_, err = c.State(t.Context())
		require.NoError(t, err)
		require.NoError(t, purses.Scope(p.another(t), "c").Delete(t.Context()))
		err = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "c").IncState(ctx, "balance", 1, pawl.IfAbsent()) // p.rt has cached that it exists
			return err
		})
		require.NoError(t, err)
	})
}

// A conditional verb that succeeds has read the state. An error returned after it is confirmed
// against the current state.
//
// Proves TX-2.
func TestErrorAfterAConditionalVerbIsConfirmed(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	name := purses.Scope(rt, "name")
	_, err := name.State(t.Context()) // this process has cached that it is absent
	require.NoError(t, err)
	seed(t, purses.Scope(other, "name"), purse{Balance: 1}) // another process creates it
	free := errors.New("the name is free")
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := name.In(tx).SetState(ctx, purse{}, pawl.IfAbsent()); err != nil {
			return err
		}
		return free // a dry run
	})
	runtime.KeepAlive(name)
	require.ErrorIs(t, err, pawl.ErrExists)
}

// A store that reports a conflict on an unrelated key causes no panic.
func TestConflictOnAnUnrelatedKey(t *testing.T) {
	store := newTap()
	rt := openOn(t, store)
	a := purses.Scope(rt, "a")
	seed(t, a, purse{})
	store.OnCommit(func(context.Context, persist.Commit) error {
		return &persist.Conflict{Winners: []persist.Record{{Key: persist.Key{Kind: "x", ID: "y"}, Version: 9, Updated: time.Now()}}}
	})
	require.NotPanics(t, func() {
		_ = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := a.In(tx).IncState(ctx, "balance", 1)
			return err
		})
	})
}
