package pawl_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// Taking a lease, and giving up.

// TestApplying: the mutation and the lease come in one commit, or neither does.
//
// Proves STORE-13.
func TestApplying(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := ships.Scope(p.rt, "argo")
		l, err := s.Acquire(ctx, pawl.Applying(pawl.Patch{"captain": "jason"}, pawl.IfAbsent()))
		require.NoError(t, err)
		requireState(t, p, s, 1, ship{Captain: "jason"})
		require.EqualValues(t, 1, l.Token())
		require.EqualValues(t, 1, p.record(t, s.Key()).Lease.Token)
		require.EqualValues(t, 1, p.store.commits.Load(), "one commit for both")
		require.NoError(t, l.Release(ctx))

		refused := errors.New("refused")
		for name, c := range map[string]struct {
			id   string
			m    pawl.Mutation
			opts []pawl.Option
			want error
		}{
			"the mutation fails":          {"argo", pawl.Atomic(func(_ context.Context, s *ship) error { s.Miles = 99; return refused }), nil, refused},
			"it fits no field":            {"argo", pawl.Inc{Field: "captain", By: 1}, nil, nil},
			"there is one":                {"argo", pawl.Patch{"miles": 99}, []pawl.Option{pawl.IfAbsent()}, pawl.ErrExists},
			"there is none":               {"none", pawl.Patch{"miles": 99}, []pawl.Option{pawl.IfExists()}, pawl.ErrNotFound},
			"it has another version":      {"argo", pawl.Patch{"miles": 99}, []pawl.Option{pawl.IfVersion(7)}, pawl.ErrConflict},
			"no mutation, but conditions": {"none", pawl.All{}, []pawl.Option{pawl.IfExists()}, pawl.ErrNotFound},
		} {
			for _, wait := range []bool{false, true} {
				opts := []pawl.LeaseOption{pawl.Applying(c.m, c.opts...)}
				if wait {
					opts = append(opts, pawl.Wait())
				}
				other := ships.Scope(p.rt, c.id)
				before := p.record(t, other.Key())
				_, err := other.Acquire(ctx, opts...)
				require.Error(t, err, name)
				if c.want != nil {
					require.ErrorIs(t, err, c.want, name)
				}
				after := p.record(t, other.Key())
				require.Equal(t, before.Version, after.Version, name)
				require.Zero(t, after.Lease, name)
			}
		}
		l, err = s.Acquire(ctx, pawl.Applying(pawl.Inc{Field: "miles", By: 2}, pawl.IfVersion(1)))
		require.NoError(t, err)
		requireState(t, p, s, 2, ship{Captain: "jason", Miles: 2})
		_, err = s.Acquire(ctx, pawl.Applying(pawl.Inc{Field: "miles", By: 2}))
		require.ErrorIs(t, err, pawl.ErrHeld)
		requireState(t, p, s, 2, ship{Captain: "jason", Miles: 2})
		require.NoError(t, l.Release(ctx))
	})
}

// TestAcquireAbsentDeletedExpired: an absent or expired scope comes into being with its lease, a deleted one only if that is asked for; tokens
// grow over all of that.
//
// Proves STORE-13.
func TestAcquireAbsentDeletedExpired(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := ships.Scope(p.rt, "argo")
		first, err := s.Acquire(ctx)
		require.NoError(t, err)
		requireState(t, p, s, 1, ship{})
		require.NoError(t, s.Delete(first.Context()), "a holder may delete; that ends its lease")
		_, err = s.IncState(first.Context(), "miles", 1)
		require.ErrorIs(t, err, pawl.ErrDeleted)
		_, err = s.Acquire(ctx)
		require.ErrorIs(t, err, pawl.ErrDeleted)
		second, err := s.Acquire(ctx, pawl.Applying(pawl.All{}, pawl.IfAbsent()))
		require.NoError(t, err)
		require.EqualValues(t, 3, second.Token())
		_, err = s.IncState(first.Context(), "miles", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		require.NoError(t, second.Release(ctx))
		_, err = s.PatchState(ctx, pawl.Patch{"captain": "jason"}, pawl.WithTTL(20*time.Millisecond))
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			snap, err := s.Snapshot(context.Background())
			return err == nil && !snap.Exists()
		}, waitLong, waitStep)
		third, err := s.Acquire(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 5, third.Token())
		requireState(t, p, s, 5, ship{})
		require.NoError(t, third.Release(ctx))
	})
}

// TestLeasedScopeDoesNotExpire: its time to live runs on, but does not end it while somebody holds it; listing shows it. Taking the lease does not put
// the end off.
//
// Proves STORE-13.
func TestLeasedScopeDoesNotExpire(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		ctx := t.Context()
		_, err := s.SetState(ctx, counts{N: 1}, pawl.WithTTL(time.Minute))
		require.NoError(t, err)
		l, err := s.Acquire(ctx)
		require.NoError(t, err)
		listed := func() (n int) {
			for _, err := range (pawl.Kind[counts]{Name: pawl.KindSession}).List(ctx, rt, pawl.Query{}) {
				require.NoError(t, err)
				n++
			}
			return n
		}
		time.Sleep(time.Hour)
		snap, err := s.Snapshot(ctx)
		require.NoError(t, err)
		require.True(t, snap.Exists())
		require.Equal(t, 1, listed())
		_, err = s.IncState(l.Context(), "n", 1, pawl.IfExists(), pawl.WithTTL(time.Minute))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.NoError(t, l.Release(ctx))
		snap, err = s.Snapshot(ctx)
		require.NoError(t, err)
		require.False(t, snap.Exists())
		require.Zero(t, listed())
	})
}

// TestTakingKeepsAnExpiryThatWasPutOff: a verb that changes nothing but the expiry is not undone by an Acquire in the same commit.
//
// Proves STORE-13.
func TestTakingKeepsAnExpiryThatWasPutOff(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.SetState(t.Context(), counts{N: 1}, pawl.WithTTL(time.Hour))
		require.NoError(t, err)
		entered, free := make(chan struct{}), make(chan struct{})
		h.onLoad = func() { close(entered); <-free }
		loser := rt2(t, h)
		other := pawl.Session[counts](loser, "a")
		go func() { _, _ = other.PatchState(context.Background(), pawl.Patch{}) }()
		<-entered // the next ones share a round
		h.onLoad = nil
		put := make(chan error, 1)
		go func() {
			_, err := other.PatchState(context.Background(), pawl.Patch{"n": 1}, pawl.WithTTL(3*time.Hour))
			put <- err
		}()
		synctest.Wait()
		taken := acquire(other)
		close(free)
		require.NoError(t, <-put)
		l := <-taken
		require.NoError(t, l.err)
		r, err := h.Store.Load(t.Context(), s.Key())
		require.NoError(t, err)
		require.EqualValues(t, 2, r.Version)
		require.Greater(t, r.Expires.Sub(r.Now), 2*time.Hour)
		require.NoError(t, l.lease.Release(t.Context()))
		require.NoError(t, loser.Close(t.Context()))
	})
}

func newHooked() *hooked { return &hooked{Store: memory.New()} }

// rt2 returns another runtime on h, what another process would be. Whoever asks closes it.
func rt2(t *testing.T, h *hooked) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: h, Holder: "another"})
	require.NoError(t, err)
	return rt
}

type acquired struct {
	lease *pawl.Lease
	err   error
}

// acquire asks for the lease in the background and returns once nothing moves any more.
func acquire[T any](s pawl.Scope[T], opts ...pawl.LeaseOption) <-chan acquired {
	return acquireWith(context.Background(), s, opts...)
}

func acquireWith[T any](ctx context.Context, s pawl.Scope[T], opts ...pawl.LeaseOption) <-chan acquired {
	done := make(chan acquired, 1)
	go func() {
		l, err := s.Acquire(ctx, opts...)
		done <- acquired{l, err}
	}()
	synctest.Wait()
	return done
}

// TestWaitersLeaveTheLine: whoever stops waiting is withdrawn, wherever in the line, and the others are served in order of arrival.
//
// Proves STORE-13.
func TestWaitersLeaveTheLine(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		held, err := s.Acquire(t.Context())
		require.NoError(t, err)
		var waiting []<-chan acquired
		var leave []context.CancelFunc
		for range 6 {
			ctx, cancel := context.WithCancel(context.Background())
			leave, waiting = append(leave, cancel), append(waiting, acquireWith(ctx, s, pawl.Wait()))
		}
		_, err = s.Acquire(t.Context())
		var busy *pawl.HeldError
		require.ErrorAs(t, err, &busy, "nobody who does not wait gets ahead of those who do")
		for _, i := range []int{0, 3, 5} { // the head, one in the middle, the last
			leave[i]()
			var left *pawl.CanceledError
			require.ErrorAs(t, (<-waiting[i]).err, &left)
			require.Equal(t, pawl.PhaseQueued, left.Phase)
			synctest.Wait()
		}
		require.NoError(t, held.Release(t.Context()))
		for _, i := range []int{1, 2, 4} {
			got := <-waiting[i]
			require.NoError(t, got.err)
			require.Greater(t, got.lease.Token(), held.Token())
			synctest.Wait()
			for _, j := range []int{1, 2, 4} {
				require.Empty(t, waiting[j], "%d has it, %d too", i, j)
			}
			held = got.lease
			require.NoError(t, held.Release(t.Context()))
			leave[i]()
		}
		l, err := s.Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))
	})
}

// TestArrivalOrder: those who wait in one process get the lease in the order in which they came.
//
// Proves STORE-13.
func TestArrivalOrder(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		var got []int
		done := make(chan error, 50)
		for i := range 50 {
			go func() {
				done <- s.Hold(context.Background(), func(ctx context.Context, l *pawl.Lease) error {
					got = append(got, i)
					_, err := s.IncState(ctx, "n", 1)
					return err
				}, pawl.Wait())
			}()
			synctest.Wait()
		}
		for range 50 {
			require.NoError(t, <-done)
		}
		for i, who := range got {
			require.Equal(t, i, who)
		}
	})
}

// TestLeavingDuringTheCommit: a caller who leaves while the commit that takes its lease is under way keeps nobody from it: the lease is given back.
//
// Proves STORE-13.
func TestLeavingDuringTheCommit(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := h.gate()
		ctx, cancel := context.WithCancel(context.Background())
		mine := acquireWith(ctx, s, pawl.Wait())
		<-entered
		next := acquire(s, pawl.Wait())
		cancel()
		var left *pawl.CanceledError
		require.ErrorAs(t, (<-mine).err, &left)
		require.Equal(t, pawl.PhaseCommitting, left.Phase)
		began := time.Now()
		open()
		got := <-next
		require.NoError(t, got.err)
		require.EqualValues(t, 2, got.lease.Token(), "the first was taken, and given back")
		require.Less(t, time.Since(began), pawl.DefaultLease/2)
		require.NoError(t, got.lease.Release(t.Context()))
	})
}

// TestAcquireAnswersLost: an Acquire whose answer is lost takes the lease once, and with it applies its mutation once.
//
// Proves STORE-13.
func TestAcquireAnswersLost(t *testing.T) {
	for _, landed := range []bool{true, false} {
		persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
			sent := 0
			h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				if sent++; sent > 2 {
					return commit()
				}
				if landed {
					_, _ = commit()
				}
				return time.Time{}, errAnswerLost
			}
			l, err := s.Acquire(t.Context(), pawl.Applying(pawl.Inc{Field: "n", By: 1}))
			require.NoError(t, err)
			require.EqualValues(t, 1, l.Token())
			r, err := h.Store.Load(t.Context(), s.Key())
			require.NoError(t, err)
			require.EqualValues(t, 1, r.Lease.Token)
			require.Equal(t, 1, decode[counts](t, r).N)
			_, err = s.IncState(l.Context(), "n", 1)
			require.NoError(t, err)
			require.NoError(t, l.Release(t.Context()))
		})
	}
	onStores(t, func(t *testing.T, p path) {
		rt := openRuntime(t, pawl.Config{Store: flaky{p.store.Store, 0.4}})
		s := ships.Scope(rt, "argo")
		for i := range 5 {
			err := s.Hold(t.Context(), func(ctx context.Context, l *pawl.Lease) error {
				_, err := s.IncState(ctx, "miles", 1)
				return err
			}, pawl.Wait(), pawl.Applying(pawl.Inc{Field: "miles", By: 100}))
			require.NoError(t, err)
			require.Zero(t, p.record(t, s.Key()).Lease)
			state, err := s.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, 101*(i+1), state.Miles)
		}
	})
}

// TestAcquireInDoubtMeetsALease: the answer to an Acquire is lost, and sent again it is refused because somebody holds the lease. That says nothing of
// the first sending, which can still land once the lease is free; so it counts once, whenever that is.
//
// Proves STORE-13, CAS-7.
func TestAcquireInDoubtMeetsALease(t *testing.T) {
	persisted(t, pawl.Config{Retry: pawl.Retry{Within: 5 * time.Second}}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		elsewhere := rt2(t, h)
		held, err := pawl.Session[counts](elsewhere, "a").Acquire(t.Context())
		require.NoError(t, err)
		_, err = s.IncState(t.Context(), "n", 1) // from here on this process has seen the newest version, but not who holds it
		require.NoError(t, err)
		var late func() (time.Time, error)
		refused := make(chan struct{}, 100)
		h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if len(c.Writes) == 0 || c.Writes[0].Acquire == nil {
				return commit()
			}
			if late == nil {
				late = commit // it is on its way, and nobody knows where
				return time.Time{}, errAnswerLost
			}
			at, err := commit()
			if err != nil {
				refused <- struct{}{}
			}
			return at, err
		}
		mine := acquire(s, pawl.Applying(pawl.Inc{Field: "n", By: 10}))
		<-refused
		require.NoError(t, held.Release(t.Context()))
		_, err = late()
		if err != nil {
			require.ErrorAs(t, err, new(*persist.Conflict))
		}
		got := <-mine
		require.NoError(t, got.err)
		r, err := h.Store.Load(t.Context(), s.Key())
		require.NoError(t, err)
		require.Equal(t, 11, decode[counts](t, r).N)
		require.Equal(t, got.lease.Token(), r.Lease.Token)
		require.NoError(t, got.lease.Release(t.Context()))

		// Where the holder stays, it remains in doubt, and says so.
		held, err = pawl.Session[counts](elsewhere, "a").Acquire(t.Context())
		require.NoError(t, err)
		_, err = s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		late = nil
		_, err = s.Acquire(t.Context())
		require.True(t, pawl.OutcomeUnknown(err), err)
		require.NoError(t, held.Release(t.Context()))
		require.NoError(t, elsewhere.Close(t.Context()))
	})
}

// TestTakenTooLate: a lease that has run out before its caller could have it is lost, and those behind go on.
//
// Proves STORE-13.
func TestTakenTooLate(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		var slow atomic.Bool
		h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			at, err := commit()
			if len(c.Writes) > 0 && c.Writes[0].Acquire != nil && slow.CompareAndSwap(true, false) {
				time.Sleep(time.Second)
			}
			return at, err
		}
		for range 20 { // who is faster, the caller or the next in line, is not decided
			slow.Store(true)
			first, second := acquire(s, pawl.Wait(), pawl.LeaseFor(time.Second)), acquire(s, pawl.Wait())
			late := <-first
			require.NoError(t, late.err)
			got := <-second
			require.NoError(t, got.err)
			require.Greater(t, got.lease.Token(), late.lease.Token())
			require.ErrorIs(t, context.Cause(late.lease.Context()), pawl.ErrLeaseLost)
			require.NoError(t, got.lease.Release(t.Context()))
		}
	})
}

// TestFunctionsThatDoNotReturn: a panic or Goexit of Hold's function or of the mutation of Applying leaves no lease behind, and is the caller's own.
//
// Proves STORE-13.
func TestFunctionsThatDoNotReturn(t *testing.T) {
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
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		ctx := context.Background()
		var inside context.Context
		hold := func(end func(), opts ...pawl.LeaseOption) func() error {
			return func() error {
				return s.Hold(ctx, func(ctx context.Context, _ *pawl.Lease) error { inside = ctx; end(); return nil }, opts...)
			}
		}
		atomic := func(end func()) pawl.LeaseOption {
			return pawl.Applying(pawl.Atomic(func(context.Context, *counts) error { end(); return nil }))
		}
		boom, never := func() { panic("boom") }, func() { t.Error("it has no lease") }
		for name, c := range map[string]struct {
			fn     func() error
			raised any
		}{
			"panic in Hold":                {hold(boom), "boom"},
			"Goexit in Hold":               {hold(runtime.Goexit), nil},
			"panic in Applying":            {hold(never, atomic(boom)), "mutation"},
			"Goexit in Applying":           {hold(never, atomic(runtime.Goexit)), nil},
			"panic in Applying, waiting":   {hold(never, atomic(boom), pawl.Wait()), "mutation"},
			"Goexit in Applying, waiting":  {hold(never, atomic(runtime.Goexit), pawl.Wait()), nil},
			"panic in Hold, after waiting": {hold(boom, pawl.Wait()), "boom"},
		} {
			raised, returned := ends(c.fn)
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
		// Who waits behind one that does not return is served.
		held, err := s.Acquire(ctx)
		require.NoError(t, err)
		lost := make(chan struct{})
		go func() { defer close(lost); _, _ = ends(hold(never, atomic(runtime.Goexit), pawl.Wait())) }()
		synctest.Wait()
		next := acquire(s, pawl.Wait())
		require.NoError(t, held.Release(ctx))
		<-lost
		got := <-next
		require.NoError(t, got.err)
		require.NoError(t, got.lease.Release(ctx))
	})
}
