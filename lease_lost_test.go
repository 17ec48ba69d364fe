package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// The context of a holder that cannot renew ends before another holder gets the lease. The old
// holder commits nothing afterwards.
//
// Proves STORE-13.
func TestLeaseRunsOut(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := ships.Scope(p.rt, "argo")
		l, err := s.Acquire(ctx, pawl.LeaseFor(time.Second)) // a slow disk must not end it
		require.NoError(t, err)
		down := errors.New("the network is down")
		p.store.OnCommit(func(context.Context, persist.Commit) error { return down })
		<-l.Context().Done()
		require.ErrorIs(t, context.Cause(l.Context()), pawl.ErrLeaseLost)
		p.store.OnCommit(nil)
		other, err := ships.Scope(p.another(t), "argo").Acquire(ctx, pawl.WaitForLease())
		require.NoError(t, err)
		require.Greater(t, other.Token(), l.Token())
		_, err = s.PatchState(context.WithoutCancel(l.Context()), pawl.Patch{"captain": "late"})
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		require.NoError(t, l.Release(ctx), "releasing a lost lease must not fail")
		require.Equal(t, other.Token(), p.record(t, s.Key()).Lease.Token)
		require.NoError(t, other.Release(ctx))
	})
}

// The context of a lease that cannot be renewed ends shortly before the lease ends in the store. A
// commit that arrives after that is refused.
//
// Proves STORE-13.
func TestLeaseContextEndsInTime(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		const length = time.Minute
		elsewhere := openAnother(t, h)
		var mu sync.Mutex
		renewed, down, cut := 0, false, true
		var late func() (time.Time, error)
		var r persist.Record
		h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			mu.Lock()
			renewal := len(c.Writes) == 0 && c.Guards[0].Extend > 0
			defer func() {
				mu.Unlock()
				if renewal {
					time.Sleep(3 * time.Second) // the answer is slow
				}
			}()
			switch {
			case renewal:
				if down {
					return time.Time{}, errors.New("the network is down")
				}
				if renewed++; renewed == 5 {
					down = true
				}
			case len(c.Writes)+len(c.Guards) == 2 && cut: // the write
				if late == nil {
					late = commit
				}
				return time.Time{}, errAnswerLost
			}
			at, err := commit()
			if err == nil {
				r, _ = h.Store.Load(context.Background(), s.Key())
			}
			return at, err
		})
		l, err := s.Acquire(t.Context(), pawl.LeaseFor(length))
		require.NoError(t, err)
		next := acquire(pawl.Session[counts](elsewhere, "a"), pawl.WaitForLease())
		<-l.Context().Done()
		ended := time.Now()
		mu.Lock()
		require.Equal(t, 5, renewed)
		require.False(t, ended.After(r.Lease.Until), "%v, %v", ended, r.Lease.Until)
		require.Less(t, r.Lease.Until.Sub(ended), length/10, "the context ended too early")
		require.Positive(t, r.Lease.Until.Sub(ended), "the context ended too late")
		mu.Unlock()
		require.ErrorIs(t, context.Cause(l.Context()), pawl.ErrLeaseLost)
		got := <-next
		require.NoError(t, got.err)
		require.False(t, time.Now().Before(ended))
		require.NoError(t, got.lease.Release(t.Context()))
		require.NoError(t, elsewhere.Close(t.Context()))

		// The lease ends while a commit is in flight.
		again, err := s.Acquire(t.Context(), pawl.LeaseFor(length))
		require.NoError(t, err)
		write := make(chan error, 1)
		go func() {
			_, err := s.IncState(context.WithoutCancel(again.Context()), "n", 1, pawl.WithRetry(pawl.Retry{Within: time.Hour}))
			write <- err
		}()
		<-again.Context().Done()
		time.Sleep(length / 10) // after this the lease has ended in the store, too
		mu.Lock()
		_, err = late()
		cut = false
		mu.Unlock()
		require.ErrorAs(t, err, new(*persist.Fenced))
		require.ErrorIs(t, <-write, pawl.ErrLeaseLost)
		n, err := s.State(t.Context())
		require.NoError(t, err)
		require.Zero(t, n.N)
		time.Sleep(length) // the answer to the last renewal is slow
	})
}

// A renewal that gets no answer is given up in time for another one.
//
// Proves STORE-13.
func TestRenewalWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		var renewals, silences atomic.Int64
		store.OnCommit(func(ctx context.Context, c persist.Commit) error {
			if len(c.Writes) > 0 || c.Guards[0].Extend <= 0 {
				return nil
			}
			if renewals.Add(1)%2 == 0 {
				return nil
			}
			silences.Add(1) // every other renewal gets no answer
			<-ctx.Done()
			return ctx.Err()
		})
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		l, err := pawl.Session[counts](rt, "a").Acquire(t.Context())
		require.NoError(t, err)
		time.Sleep(10 * pawl.DefaultLease)
		require.NoError(t, l.Context().Err())
		require.Positive(t, silences.Load())
		require.NoError(t, l.Release(t.Context()))
		require.NoError(t, rt.Close(t.Context()))
	})
}

// A lease that runs out before the answer reaches its caller is lost: its caller does not get it, and
// the next waiter does.
//
// Proves STORE-13, CLAIM-19.
func TestLeaseExpiresBeforeItsAnswer(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		var slow atomic.Bool
		h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			at, err := commit()
			if err == nil && len(c.Writes) > 0 && c.Writes[0].Acquire != nil && slow.CompareAndSwap(true, false) {
				time.Sleep(time.Second)
			}
			return at, err
		})
		for i := range 20 { // the caller and the next waiter race; either may be first
			var held *pawl.Lease
			if i%2 == 0 { // else the first of them asks alone
				var err error
				held, err = s.Acquire(t.Context())
				require.NoError(t, err)
			}
			slow.Store(true)
			first, second := acquire(s, pawl.WaitForLease(), pawl.LeaseFor(time.Second)), acquire(s, pawl.WaitForLease())
			if held != nil {
				require.NoError(t, held.Release(t.Context()))
			}
			var late *pawl.LeaseLostError
			require.ErrorAs(t, (<-first).err, &late)
			got := <-second
			require.NoError(t, got.err)
			require.Greater(t, got.lease.Token(), late.Token)
			require.NoError(t, got.lease.Release(t.Context()))
		}
	})
}

// A lease whose answer arrives after the caller's budget is spent is given back.
func TestLeaseGrantedAfterTheBudget(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		answer := make(chan struct{})
		p.store.OnCommitted(func(_ persist.Commit, at time.Time, err error) (time.Time, error) {
			<-answer
			return at, err
		})
		_, err := s.Acquire(t.Context(), pawl.LeaseFor(time.Hour))
		require.ErrorIs(t, err, pawl.ErrUnknownOutcome)
		testkit.Eventually(t, func() bool { return p.record(t, s.Key()).Lease.Token != 0 }) // the disk may be slow
		close(answer)
		testkit.Eventually(t, func() bool { return p.record(t, s.Key()).Lease.Token == 0 })
	}, func(c *pawl.Config) { c.Retry.Within = 200 * time.Millisecond })
}

// When a lease is granted again because its scope was deleted, the old holder's context ends before
// the new holder gets the lease.
//
// Proves STORE-13.
func TestNewHolderEndsTheOldContext(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		for _, take := range []bool{false, true} {
			id := map[bool]string{false: "acquired", true: "taken"}[take]
			s, elsewhere := errands.Scope(p.rt, id), errands.Scope(p.another(t), id)
			first, err := s.Acquire(ctx)
			require.NoError(t, err)
			require.NoError(t, elsewhere.Delete(ctx))
			_, err = elsewhere.SetState(ctx, errand{}, pawl.IfAbsent())
			require.NoError(t, err)
			var second *pawl.Lease
			if take {
				taken, err := errands.Take(ctx, p.rt, pawl.Query{Prefix: id})
				require.NoError(t, err)
				require.Len(t, taken, 1)
				second = taken[0].Lease
			} else {
				second, err = s.Acquire(ctx)
				require.NoError(t, err)
			}
			require.Greater(t, second.Token(), first.Token())
			require.ErrorIs(t, context.Cause(first.Context()), pawl.ErrLeaseLost)
			require.NoError(t, first.Release(ctx))
			require.NoError(t, second.Context().Err())
			require.NoError(t, second.Release(ctx))
		}
	})
}

// No function starts under a lease that this process knows to be lost: because the answer of the
// store came too late, the lease ran out, it was released, or a lease around it is lost.
//
// Proves CLAIM-19.
func TestNoFunctionStartsUnderALostLease(t *testing.T) {
	const length = time.Minute
	never := func(context.Context, *pawl.Lease) error { return errors.New("the function ran") }
	refuseRenewals := func(h *stores.Tap) { h.Refuse(func(c persist.Commit) bool { return len(c.Writes) == 0 }) }
	for name, test := range map[string]func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]){
		"late answer to Hold": func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			h.OnCommitted(func(c persist.Commit, at time.Time, err error) (time.Time, error) {
				time.Sleep(length)
				return at, err
			})
			retry := pawl.WithRetry(pawl.Retry{Within: time.Hour})
			var lost *pawl.LeaseLostError
			require.ErrorAs(t, s.Hold(t.Context(), never, pawl.LeaseFor(length), pawl.WithMutation(pawl.Inc{Field: "n", By: 1}, retry)), &lost)
			require.False(t, pawl.IsRetryable(lost))
			n, err := s.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, n.N, "the mutation is committed")
		},
		"late answer to Take": func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			seed(t, s, counts{})
			slow, err := pawl.Open(pawl.Config{Store: &slowTake{h, length}})
			require.NoError(t, err)
			taken, err := (pawl.Kind[counts]{Name: pawl.KindSession}).Take(t.Context(), slow, pawl.Query{}, pawl.LeaseFor(length))
			require.ErrorIs(t, err, pawl.ErrLeaseLost)
			require.Empty(t, taken)
			require.NoError(t, slow.Close(t.Context()))
		},
		"Run after it ran out": func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			refuseRenewals(h)
			l, err := s.Acquire(t.Context(), pawl.LeaseFor(length))
			require.NoError(t, err)
			time.Sleep(length)
			require.ErrorIs(t, l.Run(never), pawl.ErrLeaseLost)
		},
		"Run after Release": func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			l, err := s.Acquire(t.Context())
			require.NoError(t, err)
			require.NoError(t, l.Release(t.Context()))
			var lost *pawl.LeaseLostError
			require.ErrorAs(t, l.Run(never), &lost)
			require.True(t, lost.Released)
		},
		"Run inside a lost lease": func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			outer, err := s.Acquire(t.Context(), pawl.LeaseFor(length))
			require.NoError(t, err)
			inner, err := pawl.Session[counts](rt, "inner").Acquire(context.WithoutCancel(outer.Context()), pawl.LeaseFor(time.Hour))
			require.NoError(t, err)
			require.NoError(t, outer.Release(t.Context()))
			var lost *pawl.LeaseLostError
			require.ErrorAs(t, inner.Run(never), &lost)
			require.Equal(t, s.Key(), lost.Scope)
		},
	} {
		t.Run(name, func(t *testing.T) { persisted(t, pawl.Config{}, test) })
	}
}

// slowTake is a store whose Take answers late.
type slowTake struct {
	*stores.Tap
	delay time.Duration
}

func (s *slowTake) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	records, err := s.Tap.Take(ctx, q, a, change)
	time.Sleep(s.delay)
	return records, err
}

// Context has ended at the moment at which the lease may have run out, although the timer that ends
// it may be late.
//
// Proves CLAIM-19.
func TestContextOfALeaseLooksAtTheClock(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		h.Refuse(func(c persist.Commit) bool { return len(c.Writes) == 0 })
		for i := range 100 { // the timer and this goroutine race
			l, err := pawl.Session[counts](rt, fmt.Sprint(i)).Acquire(t.Context(), pawl.LeaseFor(time.Minute))
			require.NoError(t, err)
			time.Sleep(57 * time.Second) // it is trusted for 19/20 of its length
			require.ErrorIs(t, context.Cause(l.Context()), pawl.ErrLeaseLost)
		}
	})
}

// A lease is lost when the machine was suspended for longer than it lives: the monotonic clock stood
// still and the wall clock did not. A wall clock that is set back makes no lease live longer.
//
// Proves CLAIM-19.
func TestLeaseAfterASuspend(t *testing.T) {
	for name, jump := range map[string]time.Duration{"suspended": time.Minute, "set back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
				var ahead atomic.Int64
				rt.SetWallClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())).Round(0) })
				l, err := s.Acquire(t.Context(), pawl.LeaseFor(time.Minute))
				require.NoError(t, err)
				require.NoError(t, l.Context().Err())
				h.Refuse(func(c persist.Commit) bool { return len(c.Writes) == 0 }) // renewals
				ahead.Store(int64(jump))
				if jump < 0 {
					require.NoError(t, l.Context().Err())
					time.Sleep(57 * time.Second)
				}
				err = l.Run(func(context.Context, *pawl.Lease) error {
					t.Error("the function ran under a lost lease")
					return nil
				})
				require.ErrorIs(t, err, pawl.ErrLeaseLost)
				require.ErrorIs(t, context.Cause(l.Context()), pawl.ErrLeaseLost)
			})
		})
	}
}
