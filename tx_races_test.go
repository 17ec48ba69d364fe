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
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// meeting lets the first runs of n functions wait for each other once they have read.
func meeting(n int) func(attempt int) {
	var met sync.WaitGroup
	met.Add(n)
	return func(attempt int) {
		if attempt == 1 {
			met.Done()
			met.Wait()
		}
	}
}

// Two transactions each read what the other writes. One of them must see the other's write, whichever process it is in. The scopes are
// there, or absent, or have been seen before.
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
			for _, second := range []string{"same process", "another"} {
				t.Run(name+"/"+second, func(t *testing.T) {
					one, two := p.rt, p.rt
					if second == "another" {
						two = p.another(t)
					}
					id := func(s string) string { return name + second + s }
					prepare(t, purses.Scope(one, id("a")), purses.Scope(one, id("b")))
					meet := meeting(2)
					var sawMine atomic.Int32
					// withdraw takes from one purse what both together allow.
					withdraw := func(rt *pawl.Runtime, from, with string) error {
						return pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
							mine, err := purses.Scope(tx, id(from)).Snapshot(ctx)
							if err != nil {
								return err
							}
							theirs, err := purses.Scope(tx, id(with)).Snapshot(ctx)
							if err != nil {
								return err
							}
							meet(tx.Attempt())
							if mine.State().Balance+theirs.State().Balance < 0 {
								sawMine.Add(1)
								return errPoor
							}
							next := mine.State()
							next.Balance -= 3
							_, err = purses.Scope(tx, id(from)).SetState(ctx, next, opts(mine.Exists())...)
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
					require.EqualValues(t, 1, failed.Load(), "exactly one may withdraw")
				})
			}
		}
	})
}

func opts(exists bool) []pawl.Option {
	if exists {
		return nil
	}
	return []pawl.Option{pawl.IfAbsent()}
}

// Two transactions that both read before either writes do not overwrite each other.
//
// Proves TX-2.
func TestNoLostUpdate(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		runtimes := []*pawl.Runtime{p.rt, p.rt, p.another(t), p.another(t)}
		meet := meeting(len(runtimes))
		var g errgroup.Group
		for i, rt := range runtimes {
			g.Go(func() error {
				return pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
					a := purses.Scope(tx, "a")
					state, err := a.State(ctx)
					if err != nil {
						return err
					}
					meet(tx.Attempt())
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

// A function that read one scope before and one after somebody else's commit has seen a state that never was. What it makes of that, an
// error or a panic or a result, is no answer.
//
// Proves TX-2.
func TestTornReadsAreNoAnswer(t *testing.T) {
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
					if tx.Attempt() == 1 {
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
						panic("it cannot be")
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

// An error that rests on one state which is current is an answer at once; on one that has been overwritten, the function runs again.
//
// Proves TX-2.
func TestErrorsRestOnCurrentState(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		a, c := purses.Scope(p.rt, "a"), purses.Scope(p.rt, "c")
		defer func() { runtime.KeepAlive(a); runtime.KeepAlive(c) }() // and with them what was seen of them
		seed(t, a, purse{Balance: 1})
		_, err := purses.Scope(p.another(t), "a").IncState(t.Context(), "balance", 9)
		require.NoError(t, err)
		runs := 0
		err = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			runs++
			return pay(ctx, tx, "a", "b", 10) // p.rt believes that there is 1
		})
		require.NoError(t, err)
		require.Equal(t, 2, runs)
		err = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error { return pay(ctx, tx, "a", "b", 10) })
		require.ErrorIs(t, err, errPoor)

		// A refusal by a verb is a look at the state, too.
		_, err = purses.Scope(p.another(t), "c").IncState(t.Context(), "balance", 1)
		require.NoError(t, err)
		_, err = c.State(t.Context())
		require.NoError(t, err)
		require.NoError(t, purses.Scope(p.another(t), "c").Delete(t.Context()))
		err = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "c").IncState(ctx, "balance", 1, pawl.IfAbsent()) // p.rt believes that it is there
			return err
		})
		require.NoError(t, err)
	})
}

// Data verbs are operations: a commit that others were faster than applies them to what won, and the function does not run again.
//
// Proves TX-8.
func TestDataVerbsAreAppliedToTheWinner(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		other := p.another(t)
		seed(t, purses.Scope(p.rt, "a"), purse{Balance: 10})
		seed(t, purses.Scope(p.rt, "b"), purse{Balance: 10})
		runs := 0
		var stolen atomic.Int32
		p.store.onCommit(func(ctx context.Context, c persist.Commit) error {
			if len(c.Writes) == 2 && stolen.Add(1) <= 3 { // just before our commit arrives
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
		p.store.onCommit(nil)
		require.NoError(t, err)
		require.Equal(t, 1, runs)
		requireState(t, p, purses.Scope(p.rt, "a"), 6, purse{Balance: 309, Log: []string{"paid"}})
		requireState(t, p, purses.Scope(p.rt, "b"), 5, purse{Balance: 311})
	})
}

// Looking at what a data verb returned is reading, and so is an operation that the winner refuses: the function has to run again.
//
// Proves TX-8, TX-2.
func TestLookingAtAnOperationIsReading(t *testing.T) {
	looks := map[string]func(s pawl.Snapshot[purse]){
		"State":    func(s pawl.Snapshot[purse]) { _ = s.State() },
		"ReadOnly": func(s pawl.Snapshot[purse]) { _ = s.ReadOnly().Balance },
		"Exists":   func(s pawl.Snapshot[purse]) { _ = s.Exists() },
		"nothing":  func(s pawl.Snapshot[purse]) {},
	}
	onStores(t, func(t *testing.T, p path) {
		other := p.another(t)
		race := func(id string, steal func(ctx context.Context)) {
			var once sync.Once
			p.store.onCommit(func(ctx context.Context, c persist.Commit) error {
				if c.Keys()[0].ID == id && len(c.Keys()) == 2 {
					once.Do(func() { steal(ctx) })
				}
				return nil
			})
		}
		defer p.store.onCommit(nil)
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
					require.Zero(t, snap.Version, "nobody knows it yet")
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
		t.Run("refused by the winner", func(t *testing.T) {
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

// Scopes that this process writes to all the time do not starve a transaction that reads them: it runs twice, at most once more where
// somebody's commit came in between, and never fails.
//
// Proves TX-7.
func TestHotScopesDoNotStarveATransaction(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		const writers, transfers = 8, 30
		seed(t, purses.Scope(p.rt, "a"), purse{Balance: 1000})
		seed(t, purses.Scope(p.rt, "b"), purse{})
		stop := make(chan struct{})
		var g errgroup.Group
		var written atomic.Int64
		for i := range writers {
			g.Go(func() error {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return nil
					default:
					}
					_, err := purses.Scope(p.rt, []string{"a", "b"}[(n+i)%2]).SetStateRecord(context.Background(), "notes", fmt.Sprint(i), fmt.Sprint(n))
					if err != nil {
						return err
					}
					written.Add(1)
				}
			})
		}
		require.Eventually(t, func() bool { return written.Load() > writers }, waitLong, waitStep)
		runs := 0
		for range transfers {
			err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				runs++
				return pay(ctx, tx, "a", "b", 1)
			}, pawl.WithRetry(pawl.Retry{Attempts: 2}))
			assert.NoError(t, err)
		}
		close(stop)
		require.NoError(t, g.Wait())
		require.LessOrEqual(t, runs, 2*transfers)
		b, err := purses.Scope(p.rt, "b").State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, transfers, b.Balance)
	})
}

// Transactions over the same scopes in opposite orders, mutators that call others, and plain verbs, all at once: nobody waits in a circle,
// nothing is lost.
//
// Proves TX-7, TX-2.
func TestTransactionsAndMutatorsDoNotDeadlock(t *testing.T) {
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
					case 3: // a transaction inside a mutator of another scope
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

// A transaction inside the mutator of a scope that it touches would wait for itself.
//
// Proves TX-7.
func TestTransactInsideAMutator(t *testing.T) {
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

// A function that hangs while its transaction holds queues does not hold up their writers for long, and commits in the end if what it read
// still holds.
//
// Proves TX-7, CAS-8.
func TestAFunctionThatHangsLetsItsQueuesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := pawl.Open(pawl.Config{Store: memory.New()})
		require.NoError(t, err)
		a := purses.Scope(rt, "a")
		_, err = a.IncState(t.Context(), "balance", 1)
		require.NoError(t, err)
		held, resume := make(chan struct{}), make(chan struct{})
		done := make(chan error)
		go func() {
			done <- pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				s, err := a.In(tx).State(ctx)
				if err != nil {
					return err
				}
				switch tx.Attempt() {
				case 1: // make it lose
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
		require.GreaterOrEqual(t, time.Since(began), 500*time.Millisecond, "its queue was held meanwhile")
		close(resume)
		require.NoError(t, <-done)
		s, err := a.State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 103, s.Balance)
		require.NoError(t, rt.Close(t.Context()))
	})
}

// Readers see the total at every moment, whoever moves what.
//
// Proves TX-2.
func TestReadersSeeOneMoment(t *testing.T) {
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
