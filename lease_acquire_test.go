package pawl_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/require"
)

type acquired struct {
	lease *pawl.Lease
	err   error
}

// acquire calls Acquire in the background and returns when all goroutines of the bubble are
// blocked.
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

// Acquire commits the lease and the mutation of WithMutation together, or neither of them.
//
// Proves STORE-13.
func TestAcquireWithMutation(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := ships.Scope(p.rt, "argo")
		l, err := s.Acquire(ctx, pawl.WithMutation(pawl.Patch{"captain": "jason"}, pawl.IfAbsent()))
		require.NoError(t, err)
		requireState(t, p, s, 1, ship{Captain: "jason"})
		require.EqualValues(t, 1, l.Token())
		require.EqualValues(t, 1, p.record(t, s.Key()).Lease.Token)
		require.EqualValues(t, 1, p.store.Commits.Load(), "one commit for both")
		require.NoError(t, l.Release(ctx))

		refused := errors.New("refused")
		for name, c := range map[string]struct {
			id   string
			m    pawl.Mutation
			opts []pawl.CallOption
			want error
		}{
			"the mutation fails":          {"argo", pawl.Atomic(func(_ context.Context, s *ship) error { s.Miles = 99; return refused }), nil, refused},
			"wrong type of field":         {"argo", pawl.Inc{Field: "captain", By: 1}, nil, nil},
			"scope exists":                {"argo", pawl.Patch{"miles": 99}, []pawl.CallOption{pawl.IfAbsent()}, pawl.ErrExists},
			"scope is absent":             {"none", pawl.Patch{"miles": 99}, []pawl.CallOption{pawl.IfExists()}, pawl.ErrNotFound},
			"version differs":             {"argo", pawl.Patch{"miles": 99}, []pawl.CallOption{pawl.IfVersion(7)}, pawl.ErrConflict},
			"conditions without mutation": {"none", pawl.All{}, []pawl.CallOption{pawl.IfExists()}, pawl.ErrNotFound},
		} {
			for _, wait := range []bool{false, true} {
				opts := []pawl.LeaseOption{pawl.WithMutation(c.m, c.opts...)}
				if wait {
					opts = append(opts, pawl.WaitForLease())
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
		l, err = s.Acquire(ctx, pawl.WithMutation(pawl.Inc{Field: "miles", By: 2}, pawl.IfVersion(1)))
		require.NoError(t, err)
		requireState(t, p, s, 2, ship{Captain: "jason", Miles: 2})
		_, err = s.Acquire(ctx, pawl.WithMutation(pawl.Inc{Field: "miles", By: 2}))
		require.ErrorIs(t, err, pawl.ErrHeld)
		requireState(t, p, s, 2, ship{Captain: "jason", Miles: 2})
		require.NoError(t, l.Release(ctx))
	})
}

// Acquire creates an absent or expired scope, and a deleted one only with IfAbsent. The tokens grow
// throughout.
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
		second, err := s.Acquire(ctx, pawl.WithMutation(pawl.All{}, pawl.IfAbsent()))
		require.NoError(t, err)
		require.EqualValues(t, 3, second.Token())
		_, err = s.IncState(first.Context(), "miles", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		require.NoError(t, second.Release(ctx))
		_, err = s.PatchState(ctx, pawl.Patch{"captain": "jason"}, pawl.WithTTL(20*time.Millisecond))
		require.NoError(t, err)
		testkit.Eventually(t, func() bool {
			snap, err := s.Snapshot(context.Background())
			return err == nil && !snap.Exists()
		})
		third, err := s.Acquire(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 5, third.Token())
		requireState(t, p, s, 5, ship{})
		require.NoError(t, third.Release(ctx))
	})
}

// The context of a function given to WithMutation ends when its caller leaves, and the next caller
// gets the lease.
func TestCancelWhileFunctionOfAcquireRuns(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		ended := make(chan struct{})
		_, err := s.Acquire(ctx, pawl.WithMutation(pawl.Atomic(func(ctx context.Context, _ *ship) error {
			leave()
			select {
			case <-ctx.Done():
				close(ended)
			case <-t.Context().Done():
			}
			return ctx.Err()
		})))
		require.ErrorIs(t, err, context.Canceled)
		testkit.Receive(t, ended, "the function's context did not end")
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		l, err := s.Acquire(ctx, pawl.WaitForLease())
		require.NoError(t, err)
		require.EqualValues(t, 1, l.Token(), "the first Acquire left a version behind")
		require.NoError(t, l.Release(ctx))
	})
}

// A lease whose caller left during the commit is given back, and the next waiter gets it.
//
// Proves STORE-13.
func TestCancelDuringCommitOfAcquire(t *testing.T) {
	t.Run("alone", func(t *testing.T) { cancelDuringCommit(t, false) })
	t.Run("in line", func(t *testing.T) { cancelDuringCommit(t, true) })
}

func cancelDuringCommit(t *testing.T, inLine bool) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		ctx, cancel := context.WithCancel(context.Background())
		var (
			mine  <-chan acquired
			first *pawl.Lease // of another process
		)
		if inLine {
			other, err := pawl.Open(pawl.Config{Store: h.Store, Holder: "another"}) // its commits pass the gate
			require.NoError(t, err)
			defer other.Close(context.Background())
			first, err = pawl.Session[counts](other, s.Key().ID).Acquire(t.Context())
			require.NoError(t, err)
			mine = acquireWith(ctx, s, pawl.WaitForLease())
			synctest.Wait()
		}
		open, entered := gate(h)
		if inLine {
			require.NoError(t, first.Release(t.Context()))
		} else {
			mine = acquireWith(ctx, s, pawl.WaitForLease())
		}
		<-entered
		next := acquire(s, pawl.WaitForLease())
		cancel()
		var left *pawl.CanceledError
		require.ErrorAs(t, (<-mine).err, &left)
		require.Equal(t, pawl.PhaseCommitting, left.Phase)
		began := time.Now()
		open()
		got := <-next
		require.NoError(t, got.err)
		if !inLine {
			require.EqualValues(t, 2, got.lease.Token(), "the first lease was committed, then given back")
		}
		require.Less(t, time.Since(began), pawl.DefaultLease/2)
		require.NoError(t, got.lease.Release(t.Context()))
	})
}

// A lease whose caller left during the commit is given back, even if no other caller waits for it.
func TestCancelledAcquireLeavesNoLease(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		ctx, leave := context.WithCancel(t.Context())
		entered, release := p.store.Hold()
		done := make(chan error)
		go func() {
			_, err := s.Acquire(ctx)
			done <- err
		}()
		<-entered
		leave()
		err := <-done
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, pawl.OutcomeUnknown(err))
		release()
		testkit.Eventually(t, func() bool { r := p.record(t, s.Key()); return r.Version == 1 && r.Lease.Token == 0 })
	})
}
