package pawl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// crowd is a set of transactions that wait for the commit of another one, between the same two
// scopes. When that commit is let through, they share one.
type crowd struct {
	t     *testing.T
	store *stores.Tap
	rt    *pawl.Runtime
	open  func() // lets the commit through
	wg    sync.WaitGroup
}

// begin starts the transaction that the others wait for. It pays 1 from a to b.
func (c *crowd) begin() {
	entered, release := c.store.Hold()
	c.open = release
	c.add(func() { assert.NoError(c.t, c.pay(c.t.Context(), 1)) })
	<-entered
}

// pay moves amount from a to b.
func (c *crowd) pay(ctx context.Context, amount int64) error {
	return pawl.Transact(ctx, c.rt, func(ctx context.Context, tx *pawl.Tx) error { return pay(ctx, tx, "a", "b", amount) })
}

// add starts call, which makes a transaction, and waits until it waits.
func (c *crowd) add(call func()) {
	c.wg.Go(call)
	synctest.Wait()
}

// requirePaid asserts that amount was moved in all.
func (c *crowd) requirePaid(amount int64) {
	c.t.Helper()
	for id, want := range map[string]int64{"a": 1000 - amount, "b": 1000 + amount} {
		s, err := purses.Scope(c.rt, id).State(c.t.Context())
		require.NoError(c.t, err)
		require.Equal(c.t, want, s.Balance, id)
	}
}

// inCrowd runs test in a bubble, with a runtime on a store in memory that has 1,000 in each of the
// scopes a, b and c.
func inCrowd(t *testing.T, test func(t *testing.T, c *crowd)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		for _, id := range []string{"a", "b", "c"} {
			seed(t, purses.Scope(rt, id), purse{Balance: 1000})
		}
		test(t, &crowd{t: t, store: store, rt: rt})
		require.NoError(t, rt.Close(context.Background()))
	})
}

// Transactions that wait for the same scopes share a commit. Each runs on what those before it wrote,
// has versions of its own, and runs its callbacks.
//
// Proves TX-1, TX-2, CAS-5.
func TestWaitingTransactionsShareACommit(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		var (
			mu       sync.Mutex // protects the rest
			versions []uint64
		)
		for range 10 {
			c.add(func() {
				assert.NoError(t, pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
					snap, err := purses.Scope(tx, "a").Snapshot(ctx)
					if err != nil {
						return err
					}
					tx.AfterCommit(func() {
						mu.Lock()
						defer mu.Unlock()
						versions = append(versions, snap.Version)
					})
					return pay(ctx, tx, "a", "b", 1)
				}))
			})
		}
		before := c.store.Commits.Load()
		c.open()
		c.wg.Wait()
		require.LessOrEqual(t, c.store.Commits.Load()-before, int64(2))
		require.ElementsMatch(t, []uint64{2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, versions)
		c.requirePaid(11)
	})
}

// On every store, transfers between two scopes that all goroutines want are as many commits as there
// are groups, and none is lost.
//
// Proves TX-2, TX-7.
func TestHotTransfersShareCommits(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for _, id := range []string{"a", "b"} {
			seed(t, purses.Scope(p.rt, id), purse{Balance: 1000})
		}
		const writers, each = 16, 10
		p.store.OnCommit(func(context.Context, persist.Commit) error {
			time.Sleep(time.Millisecond) // the store in memory is faster than its callers
			return nil
		})
		before := p.store.Commits.Load()
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				from, to := "a", "b"
				if i%2 == 0 {
					from, to = to, from
				}
				for range each {
					assert.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error { return pay(ctx, tx, from, to, 1) }))
				}
			})
		}
		wg.Wait()
		require.Less(t, p.store.Commits.Load()-before, int64(writers*each/2))
		for _, id := range []string{"a", "b"} {
			snap, err := purses.Scope(p.rt, id).Snapshot(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 1000, snap.State().Balance, id)
			require.EqualValues(t, 1+writers*each, snap.Version, id)
		}
	})
}

// A function that fails, panics or exits in its turn writes nothing, and the others commit. Its error
// is returned once what it saw is committed.
//
// Proves TX-1, TX-2.
func TestFunctionThatFailsInAGroup(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		var errs [2]error
		c.add(func() { assert.NoError(t, c.pay(t.Context(), 900)) })
		c.add(func() { errs[0] = c.pay(t.Context(), 100) }) // the balance is 99 in its turn
		var recovered any
		c.add(func() {
			defer func() { recovered = recover() }()
			_ = pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if err := pay(ctx, tx, "a", "b", 1); err != nil {
					return err
				}
				if s, _ := purses.Scope(tx, "a").State(ctx); s.Balance < 500 {
					panic("in its turn")
				}
				return nil
			})
		})
		exited := true
		c.add(func() {
			_ = pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
				s, err := purses.Scope(tx, "a").State(ctx)
				if s.Balance < 500 {
					runtime.Goexit()
				}
				return errors.Join(err, pay(ctx, tx, "a", "b", 1))
			})
			exited = false
		})
		c.add(func() { errs[1] = c.pay(t.Context(), 9) })
		c.open()
		c.wg.Wait()
		require.ErrorIs(t, errs[0], errPoor)
		require.NoError(t, errs[1])
		require.IsType(t, &pawl.PanicError{}, recovered)
		require.True(t, exited)
		c.requirePaid(910)
	})
}

// If the commit of a group is lost, a function that failed on what was never committed runs again.
//
// Proves TX-2.
func TestFailureOnDraftsThatWereLost(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		other := openAnother(t, c.store)
		defer other.Close(context.Background())
		var err error
		c.add(func() { assert.NoError(t, c.pay(t.Context(), 900)) })
		c.add(func() { err = c.pay(t.Context(), 100) })
		once := true
		c.store.OnCommit(func(ctx context.Context, commit persist.Commit) error {
			if once && len(commit.Writes) == 2 && commit.Writes[0].Expected == 2 {
				once = false
				_, err := purses.Scope(other, "a").IncState(ctx, "balance", 50)
				return err
			}
			return nil
		})
		c.open()
		c.wg.Wait()
		require.False(t, once)
		require.NoError(t, err, "it failed because of a balance that was never committed")
		s, err := purses.Scope(c.rt, "a").State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1000+50-1-900-100, s.Balance)
	})
}

// While the commit of a group hangs, other writers of its scopes wait no longer than for a single
// transaction.
//
// Proves TX-7, CAS-11.
func TestHangingCommitOfAGroup(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		for range 3 {
			c.add(func() { assert.NoError(t, c.pay(t.Context(), 1)) })
		}
		hangs, resume := make(chan struct{}), make(chan struct{})
		once := true
		c.store.OnCommit(func(_ context.Context, commit persist.Commit) error {
			if once && len(commit.Writes) == 2 && commit.Writes[0].Expected == 2 {
				once = false
				close(hangs)
				<-resume
			}
			return nil
		})
		c.open()
		<-hangs
		began := time.Now()
		_, err := purses.Scope(c.rt, "a").IncState(t.Context(), "balance", 0, pawl.WithTTL(time.Hour))
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(began), 2*time.Second)
		close(resume)
		c.wg.Wait()
		c.requirePaid(4)
	})
}

// Data verbs are put on what the group has written, without running the function again.
//
// Proves TX-8.
func TestDataVerbsInAGroup(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		var runs [3]int
		for i := range runs {
			c.add(func() {
				assert.NoError(t, pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
					runs[i]++
					if _, err := purses.Scope(tx, "a").IncState(ctx, "balance", -1); err != nil {
						return err
					}
					_, err := purses.Scope(tx, "b").IncState(ctx, "balance", 1)
					return err
				}))
			})
		}
		before := c.store.Commits.Load()
		c.open()
		c.wg.Wait()
		require.Equal(t, int64(1), c.store.Commits.Load()-before)
		require.Equal(t, [3]int{1, 1, 1}, runs)
		c.requirePaid(4)
	})
}

// A transaction that reads a log is alone: it would miss entries of the others.
//
// Proves TX-2.
func TestLogsAreReadAlone(t *testing.T) {
	journals := pawl.Kind[purse]{Name: "journal", Log: true}
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		for range 4 {
			c.add(func() {
				assert.NoError(t, pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
					journal := journals.Scope(tx, "j")
					has, err := journal.State(ctx)
					if err != nil {
						return err
					}
					entries, err := journal.ReadLog(ctx, pawl.LogQuery{})
					if err != nil {
						return err
					}
					if len(entries) != int(has.Balance) {
						return fmt.Errorf("%d entries, and a document that says %d", len(entries), has.Balance)
					}
					_, err = journal.AtomicState(ctx, func(ctx context.Context, p *purse) error {
						p.Balance++
						return journal.AppendLog(ctx, uint64(has.Balance), json.RawMessage("1"))
					})
					return errors.Join(err, pay(ctx, tx, "a", "b", 1))
				}))
			})
		}
		c.open()
		c.wg.Wait()
		c.requirePaid(5)
	})
}

// If the outcome of a shared commit is unknown, it is for each member, under one commit id. If the
// store applied nothing, each member hears that.
//
// Proves CAS-7, TX-1.
func TestFailedCommitOfAGroup(t *testing.T) {
	for name, answer := range map[string]error{"unknown": errAnswerLost, "unavailable": errors.Join(persist.ErrNotApplied, persist.ErrUnavailable)} {
		t.Run(name, func(t *testing.T) {
			inCrowd(t, func(t *testing.T, c *crowd) {
				c.begin()
				errs := make([]error, 4)
				for i := range errs {
					c.add(func() { errs[i] = c.pay(t.Context(), 1) })
				}
				c.store.OnCommit(func(_ context.Context, commit persist.Commit) error {
					if commit.Writes[0].Expected == 1 {
						return nil
					}
					return answer
				})
				c.open()
				c.wg.Wait()
				c.store.OnCommit(nil)
				ids := map[string]bool{}
				for _, err := range errs {
					if answer != errAnswerLost {
						require.ErrorIs(t, err, pawl.ErrUnavailable)
						require.False(t, pawl.OutcomeUnknown(err))
						continue
					}
					var unknown *pawl.UnknownOutcomeError
					require.ErrorAs(t, err, &unknown)
					ids[unknown.Commit] = true
				}
				if answer == errAnswerLost {
					require.Len(t, ids, 1)
				}
				c.requirePaid(1)
			})
		})
	}
}

// A mutation that waits between transactions has its turn between them, and a transaction that wants
// another scope commits by itself.
//
// Proves TX-7, CAS-4.
func TestGroupEndsWhereAnotherCallIsNext(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		var versions [4]uint64 // of a, after each call
		transfer := func(i int, to string) {
			c.add(func() {
				assert.NoError(t, pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
					if err := pay(ctx, tx, "a", to, 1); err != nil {
						return err
					}
					snap, err := purses.Scope(tx, "a").Snapshot(ctx)
					versions[i] = snap.Version
					return err
				}))
			})
		}
		transfer(0, "b")
		transfer(1, "c")
		c.add(func() {
			snap, err := purses.Scope(c.rt, "a").IncState(t.Context(), "balance", 5)
			assert.NoError(t, err)
			versions[2] = snap.Version
		})
		transfer(3, "b")
		c.open()
		c.wg.Wait()
		require.Equal(t, [4]uint64{3, 4, 5, 6}, versions)
	})
}

// A transaction that touches a scope beyond the queues of its group only in its turn, and one under a
// lease, commit by themselves.
//
// Proves TX-1.
func TestTransactionsThatDoNotShare(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		lease, err := purses.Scope(c.rt, "leased").Acquire(t.Context())
		require.NoError(t, err)
		c.begin()
		runs := 0
		c.add(func() { assert.NoError(t, c.pay(t.Context(), 1)) })
		c.add(func() {
			assert.NoError(t, pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if runs++; runs > 1 {
					if _, err := purses.Scope(tx, "beyond").IncState(ctx, "balance", 1); err != nil {
						return err
					}
				}
				return pay(ctx, tx, "a", "b", 1)
			}))
		})
		c.add(func() { assert.NoError(t, c.pay(lease.Context(), 1)) })
		c.add(func() { assert.NoError(t, c.pay(t.Context(), 1)) })
		fenced := 0
		c.store.OnCommit(func(_ context.Context, commit persist.Commit) error {
			for _, g := range commit.Guards {
				if g.Token == lease.Token() {
					fenced++
				}
			}
			return nil
		})
		c.open()
		c.wg.Wait()
		require.Equal(t, 1, fenced)
		require.NoError(t, lease.Release(t.Context()))
		c.requirePaid(5)
		beyond, err := purses.Scope(c.rt, "beyond").State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, beyond.Balance)
	})
}

// A transaction that only puts off the expiry of a scope that another member changed is not shared, and
// its expiry holds.
//
// Proves TX-1.
func TestRenewalBehindAChangeInAGroup(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		keep := func(ttl time.Duration, balance int64) {
			c.add(func() {
				assert.NoError(t, pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
					_, err := purses.Scope(tx, "a").AtomicState(ctx, func(_ context.Context, p *purse) error {
						p.Balance = balance
						return nil
					}, pawl.WithTTL(ttl))
					return err
				}))
			})
		}
		keep(time.Hour, 7)
		keep(time.Hour, 8)
		keep(9*time.Hour, 8) // changes nothing
		c.open()
		c.wg.Wait()
		r, err := c.store.Store.Load(t.Context(), purses.Scope(c.rt, "a").Key())
		require.NoError(t, err)
		require.Equal(t, 9*time.Hour, time.Until(r.Expires).Round(time.Hour))
	})
}

// A document that the store refuses concerns its own transaction only.
//
// Proves TX-1, CAS-11.
func TestRefusedDocumentInAGroup(t *testing.T) {
	inCrowd(t, func(t *testing.T, c *crowd) {
		c.begin()
		const bad = "the store does not like this"
		c.store.OnCommit(func(_ context.Context, commit persist.Commit) error {
			for _, w := range commit.Writes {
				var state purse
				if err := json.Unmarshal(w.Doc, &state); err == nil && len(state.Log) > 0 {
					return fmt.Errorf("%w: %s", persist.ErrNotApplied, bad)
				}
			}
			return nil
		})
		var refused error
		c.add(func() { assert.NoError(t, c.pay(t.Context(), 1)) })
		c.add(func() {
			refused = pawl.Transact(t.Context(), c.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := purses.Scope(tx, "a").PushState(ctx, "log", bad); err != nil {
					return err
				}
				return pay(ctx, tx, "a", "b", 1)
			})
		})
		c.add(func() { assert.NoError(t, c.pay(t.Context(), 1)) })
		c.open()
		c.wg.Wait()
		require.ErrorContains(t, refused, bad)
		c.requirePaid(3)
	})
}
