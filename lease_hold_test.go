package pawl_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

type ship struct {
	Captain string `json:"captain"`
	Miles   int    `json:"miles"`
}

var ships = pawl.Kind[ship]{Name: "ship"}

// While Hold runs, other callers can write but not acquire the lease. Afterwards, commits with its
// context are refused.
//
// Proves STORE-13.
func TestHold(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := ships.Scope(p.rt, "argo")
		var lost context.Context
		err := s.Hold(ctx, func(ctx context.Context, l *pawl.Lease) error {
			require.EqualValues(t, 1, l.Token())
			lost = ctx
			_, err := s.Acquire(ctx, pawl.HeldBy("second"))
			var held *pawl.HeldError
			require.ErrorAs(t, err, &held)
			require.Equal(t, "first", held.Holder)
			require.EqualValues(t, 1, held.Token)
			require.Positive(t, held.Left)
			require.ErrorIs(t, err, pawl.ErrHeld)
			require.True(t, pawl.IsRetryable(err))
			_, err = s.PatchState(context.WithoutCancel(t.Context()), pawl.Patch{"captain": "jason"})
			require.NoError(t, err, "callers without the lease may write")
			_, err = s.IncState(ctx, "miles", 3)
			return err
		}, pawl.HeldBy("first"), pawl.LeaseFor(time.Minute))
		require.NoError(t, err)
		requireState(t, p, s, 3, ship{"jason", 3})
		_, err = s.IncState(lost, "miles", 1)
		var over *pawl.LeaseLostError
		require.ErrorAs(t, err, &over)
		require.True(t, over.Released)
		_, err = s.IncState(context.WithoutCancel(lost), "miles", 1)
		require.ErrorAs(t, err, &over)
		requireState(t, p, s, 3, ship{"jason", 3})
		require.Zero(t, p.record(t, s.Key()).Lease)
	})
}

// Waiting for a lease under that same lease would never end, so it fails with a HeldError.
func TestNestedHoldOfTheSameScope(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		s := ships.Scope(p.rt, "argo")
		require.NoError(t, s.Hold(ctx, func(ctx context.Context, l *pawl.Lease) error {
			err := s.Hold(ctx, func(context.Context, *pawl.Lease) error { return nil }, pawl.WaitForLease())
			var held *pawl.HeldError
			require.ErrorAs(t, err, &held)
			require.Equal(t, l.Token(), held.Token)
			return nil
		}))
	})
}

// A panic or Goexit in the function of Hold or WithMutation leaves no lease behind, and continues
// in the caller's goroutine.
//
// Proves STORE-13.
func TestPanicAndGoexitLeaveNoLease(t *testing.T) {
	ends := func(fn func() error) (raised any, returned bool) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { raised = recover() }()
			_ = fn()
			returned = true
		}()
		<-done
		return raised, returned
	}
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		ctx := context.Background()
		var inside context.Context
		hold := func(end func(), opts ...pawl.LeaseOption) func() error {
			return func() error {
				return s.Hold(ctx, func(ctx context.Context, _ *pawl.Lease) error { inside = ctx; end(); return nil }, opts...)
			}
		}
		atomic := func(end func()) pawl.LeaseOption {
			return pawl.WithMutation(pawl.Atomic(func(context.Context, *counts) error { end(); return nil }))
		}
		boom, never := func() { panic("boom") }, func() { t.Error("the function of Hold ran without a lease") }
		for name, c := range map[string]struct {
			fn     func() error
			raised any
			behind bool // another call has the lease first
		}{
			"panic in Hold":                   {hold(boom), "boom", false},
			"Goexit in Hold":                  {hold(runtime.Goexit), nil, false},
			"panic in WithMutation":           {hold(never, atomic(boom)), "mutation", false},
			"Goexit in WithMutation":          {hold(never, atomic(runtime.Goexit)), nil, false},
			"panic in WithMutation, waiting":  {hold(never, atomic(boom), pawl.WaitForLease()), "mutation", true},
			"Goexit in WithMutation, waiting": {hold(never, atomic(runtime.Goexit), pawl.WaitForLease()), nil, true},
			"panic in Hold, after waiting":    {hold(boom, pawl.WaitForLease()), "boom", true},
		} {
			if c.behind {
				held, err := s.Acquire(ctx)
				require.NoError(t, err)
				time.AfterFunc(time.Second, func() { _ = held.Release(ctx) })
			}
			raised, returned := ends(c.fn)
			if c.behind {
				time.Sleep(2 * time.Second) // the function may have run before the lease was free
			}
			require.False(t, returned, name)
			if c.raised == "mutation" {
				p, ok := raised.(*pawl.PanicError)
				require.True(t, ok, name)
				require.Equal(t, "boom", p.Value, name)
			} else {
				require.Equal(t, c.raised, raised, name)
			}
			l, err := s.Acquire(ctx)
			require.NoError(t, err, name)
			require.NoError(t, l.Release(ctx))
		}
		require.ErrorIs(t, context.Cause(inside), pawl.ErrLeaseLost)
		// The next waiter gets the lease after a Goexit.
		held, err := s.Acquire(ctx)
		require.NoError(t, err)
		lost := make(chan struct{})
		go func() { defer close(lost); _, _ = ends(hold(never, atomic(runtime.Goexit), pawl.WaitForLease())) }()
		synctest.Wait()
		next := acquire(s, pawl.WaitForLease())
		require.NoError(t, held.Release(ctx))
		<-lost
		got := <-next
		require.NoError(t, got.err)
		require.NoError(t, got.lease.Release(ctx))
	})
}

// A function that gives its lease back itself has not lost it, and Hold and Run return the
// function's own error.
func TestFunctionReleasesItsLease(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		for name, release := range map[string]func(ctx context.Context, l *pawl.Lease) error{
			"Release": func(ctx context.Context, l *pawl.Lease) error { return l.Release(ctx) },
			"ReleaseIn": func(ctx context.Context, l *pawl.Lease) error {
				return pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
					if _, err := s.In(tx).IncState(ctx, "miles", 1); err != nil {
						return err
					}
					return l.ReleaseIn(tx)
				})
			},
		} {
			for _, own := range []error{nil, errPoor} {
				fn := func(ctx context.Context, l *pawl.Lease) error {
					require.NoError(t, release(ctx, l), name)
					return own
				}
				require.Equal(t, own, s.Hold(t.Context(), fn), name)
				l, err := s.Acquire(t.Context())
				require.NoError(t, err, name)
				require.Equal(t, own, l.Run(fn), name)
				require.Zero(t, p.record(t, s.Key()).Lease, name)
			}
		}
		// Run reports a lease that was released before Run as lost.
		l, err := s.Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))
		require.ErrorIs(t, l.Run(func(context.Context, *pawl.Lease) error { return nil }), pawl.ErrLeaseLost)
		// Hold reports a lease that was lost while its function ran.
		elsewhere := ships.Scope(p.another(t), "argo")
		require.ErrorIs(t, s.Hold(t.Context(), func(ctx context.Context, l *pawl.Lease) error {
			require.NoError(t, elsewhere.Delete(t.Context()))
			_, err := s.IncState(ctx, "miles", 1)
			require.ErrorIs(t, err, pawl.ErrLeaseLost)
			return nil
		}), pawl.ErrLeaseLost)
	})
}

// A commit gives the lease back, and a renewal is refused before the commit's answer arrives. The
// lease counts as released, not as lost.
func TestRenewalRefusedAfterReleaseIn(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		err := s.Hold(t.Context(), func(ctx context.Context, l *pawl.Lease) error {
			h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				at, err := commit()
				if len(c.Writes) > 0 {
					<-l.Context().Done() // ended by a renewal
				}
				return at, err
			})
			err := pawl.Transact(context.WithoutCancel(ctx), rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := s.In(tx).IncState(ctx, "n", 1); err != nil {
					return err
				}
				return l.ReleaseIn(tx)
			})
			h.Around(nil)
			return err
		}, pawl.LeaseFor(3*time.Second))
		require.NoError(t, err)
	})
}

// A lease is renewed beyond its length, and renewals leave the version and the update time
// unchanged.
//
// Proves STORE-13.
func TestRenewalMovesNoVersion(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		const length = 2 * time.Second
		l, err := s.Acquire(t.Context(), pawl.LeaseFor(length))
		require.NoError(t, err)
		first := p.record(t, s.Key())
		testkit.Eventually(t, func() bool {
			return p.record(t, s.Key()).Lease.Until.After(first.Lease.Until.Add(length / 4))
		})
		require.Equal(t, first.Version, p.record(t, s.Key()).Version)
		require.Equal(t, first.Updated, p.record(t, s.Key()).Updated)
		require.NoError(t, l.Context().Err())
		require.NoError(t, l.Release(t.Context()))
	})
}

// Release accepts a context derived from the lease's own context, which ends during the call.
func TestReleaseWithLeaseContext(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		l, err := s.Acquire(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(l.Context(), time.Minute)
		defer cancel()
		require.NoError(t, l.Release(ctx))
		require.Zero(t, p.record(t, s.Key()).Lease)
	})
}

// An observer gets an event with the token for every lease that is acquired, released or lost.
//
// Proves STORE-13.
func TestLeaseEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTap()
		var mu sync.Mutex
		var events []pawl.Event
		rt, err := pawl.Open(pawl.Config{Store: h, Observer: pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Type >= pawl.EventLeaseAcquired && e.Type <= pawl.EventLeaseLost {
				events = append(events, e)
			}
		})})
		require.NoError(t, err)
		s := pawl.Session[counts](rt, "a")
		require.NoError(t, s.Hold(t.Context(), func(context.Context, *pawl.Lease) error { return nil }))
		l, err := s.Acquire(t.Context())
		require.NoError(t, err)
		elsewhere := openAnother(t, h)
		other := replaceHolder(t, elsewhere, "a")
		<-l.Context().Done() // ended by the next renewal
		synctest.Wait()      // the observer is called after the context has ended
		var lost *pawl.LeaseLostError
		require.ErrorAs(t, context.Cause(l.Context()), &lost)
		require.Equal(t, "another", lost.Holder)
		require.NoError(t, l.Release(t.Context()))
		_, err = s.Acquire(t.Context())
		var held *pawl.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, "another", held.Holder)
		require.Equal(t, other.Token(), held.Token)
		require.NoError(t, other.Release(t.Context()))
		down := errors.New("the network is down")
		l, err = s.Acquire(t.Context())
		require.NoError(t, err)
		h.Around(func(persist.Commit, func() (time.Time, error)) (time.Time, error) { return time.Time{}, down })
		err = l.Release(t.Context())
		require.ErrorIs(t, err, pawl.ErrUnavailable)
		require.ErrorIs(t, err, down)
		h.Around(nil)
		mu.Lock()
		defer mu.Unlock()
		want := []pawl.Event{
			{Type: pawl.EventLeaseAcquired, Version: 1}, {Type: pawl.EventLeaseReleased, Version: 1},
			{Type: pawl.EventLeaseAcquired, Version: 2}, {Type: pawl.EventLeaseLost, Version: 2},
			{Type: pawl.EventLeaseAcquired, Version: 5}, {Type: pawl.EventLeaseReleased, Version: 5},
		}
		require.Len(t, events, len(want))
		for i, e := range events {
			require.Equal(t, want[i].Type, e.Type, i)
			require.Equal(t, want[i].Version, e.Version, i)
			require.Equal(t, s.Key(), e.Key)
			require.Equal(t, i == 3 || i == 5, e.Err != nil, i)
		}
		require.NoError(t, elsewhere.Close(t.Context()))
		require.NoError(t, rt.Close(t.Context()))
	})
}

// An abandoned lease has ended for its own process, and is kept from others until it runs out.
//
// Proves STORE-13.
func TestAbandon(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := ships.Scope(p.rt, "argo")
		var held context.Context
		err := s.Hold(ctx, func(ctx context.Context, l *pawl.Lease) error {
			held = ctx
			l.Abandon()
			l.Abandon()
			return nil
		}, pawl.LeaseFor(time.Minute))
		require.NoError(t, err, "an abandoned lease is not lost")
		_, err = s.IncState(context.WithoutCancel(held), "miles", 1)
		var over *pawl.LeaseLostError
		require.ErrorAs(t, err, &over)
		require.True(t, over.Released)
		_, err = s.Acquire(ctx)
		require.ErrorIs(t, err, pawl.ErrHeld)
		require.EqualValues(t, 1, p.record(t, s.Key()).Lease.Token)
	})
}
