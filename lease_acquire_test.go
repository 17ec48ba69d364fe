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

// Taking a lease, and giving up.

// TestApplying: the mutation and the lease come in one commit, or neither does.
//
// Proves STORE-13.
func TestApplying(t *testing.T) {
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
			"it fits no field":            {"argo", pawl.Inc{Field: "captain", By: 1}, nil, nil},
			"there is one":                {"argo", pawl.Patch{"miles": 99}, []pawl.CallOption{pawl.IfAbsent()}, pawl.ErrExists},
			"there is none":               {"none", pawl.Patch{"miles": 99}, []pawl.CallOption{pawl.IfExists()}, pawl.ErrNotFound},
			"it has another version":      {"argo", pawl.Patch{"miles": 99}, []pawl.CallOption{pawl.IfVersion(7)}, pawl.ErrConflict},
			"no mutation, but conditions": {"none", pawl.All{}, []pawl.CallOption{pawl.IfExists()}, pawl.ErrNotFound},
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

// TestAcquireApplyingAFunctionThatWaits: a function that is applied with a lease hears that its caller has left, and whoever comes next gets the lease.
func TestAcquireApplyingAFunctionThatWaits(t *testing.T) {
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
		testkit.Receive(t, ended, "the function does not hear of it")
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		l, err := s.Acquire(ctx, pawl.WaitForLease())
		require.NoError(t, err)
		require.EqualValues(t, 1, l.Token(), "nothing came of the first")
		require.NoError(t, l.Release(ctx))
	})
}

// TestLeavingDuringTheCommit: a caller who leaves while the commit that takes its lease is under way keeps nobody from it: the lease is given back.
//
// Proves STORE-13.
func TestLeavingDuringTheCommit(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := gate(h)
		ctx, cancel := context.WithCancel(context.Background())
		mine := acquireWith(ctx, s, pawl.WaitForLease())
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
		require.EqualValues(t, 2, got.lease.Token(), "the first was taken, and given back")
		require.Less(t, time.Since(began), pawl.DefaultLease/2)
		require.NoError(t, got.lease.Release(t.Context()))
	})
}

// TestAcquireOfACallerThatLeft: a caller that leaves while its commit is under way leaves no lease behind.
func TestAcquireOfACallerThatLeft(t *testing.T) {
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
