package pawl_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A mutation cancelled in the queue never runs. One cancelled during its commit has an unknown
// outcome, and the commit continues. Proves CAS-9.
func TestCancelBeforeAndDuringACommit(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := gate(h)
		inCommit, leave := context.WithCancel(context.Background())
		committing := make(chan error, 1)
		go func() { _, err := s.PushState(inCommit, "done", "committing"); committing <- err }()
		<-entered
		waiting, leaveQueue := context.WithCancel(context.Background())
		queued := make(chan error, 1)
		go func() { _, err := s.PushState(waiting, "done", "queued"); queued <- err }()
		synctest.Wait()

		leaveQueue()
		var canceled *pawl.CanceledError
		require.ErrorAs(t, <-queued, &canceled)
		assert.Equal(t, pawl.PhaseQueued, canceled.Phase)
		leave()
		err := <-committing
		require.ErrorAs(t, err, &canceled)
		assert.Equal(t, pawl.PhaseCommitting, canceled.Phase)
		assert.True(t, pawl.OutcomeUnknown(err), "the commit may have landed")

		open()
		synctest.Wait()
		b, err := s.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"committing"}, b.Done, "the commit continues, the queued mutation never runs")
	})
}

// A mutation cancelled during a commit that conflicts is not retried. Proves CAS-9.
func TestCancelledMutationIsNotComputedAgain(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		ctx, leave := context.WithCancel(context.Background())
		left := make(chan struct{})
		h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			h.Around(nil)
			foreign(t, h, s.Key(), 100)
			leave()
			<-left
			return commit()
		})
		_, err := s.IncState(ctx, "n", 1)
		require.ErrorIs(t, err, context.Canceled)
		close(left)
		time.Sleep(time.Minute) // long enough for every backoff
		b, err := s.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 100, b.N)
	})
}

// A caller cancelled after its function left the queue knows that nothing was committed if the
// function's result is discarded. Proves CAS-9.
func TestDiscardedDetachedRunIsNotInDoubt(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := gate(h)
		first := push(s, "first")
		<-entered
		push(s, "second")
		ctx, cancel := context.WithCancel(context.Background())
		runs := 0
		slow := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(ctx, func(_ context.Context, b *counts) error {
				runs++
				time.Sleep(50 * time.Millisecond)
				b.N++
				return nil
			})
			slow <- err
		}()
		synctest.Wait()
		h.OnLoad(func(context.Context, ...persist.Key) error {
			cancel()
			time.Sleep(time.Millisecond)
			return nil
		})
		open()
		require.NoError(t, <-first)
		err := <-slow
		synctest.Wait()
		assert.Equal(t, 1, runs)
		assert.False(t, pawl.OutcomeUnknown(err), "the result was part of no commit: %v", err)
		b, err := s.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 0, b.N)
	})
}

// A caller cancelled during a commit that only renews an expiry is not told that the mutation was
// withdrawn. Proves CAS-9.
func TestCancelWhileAnExpiryIsRenewed(t *testing.T) {
	store := newTap()
	rt := openOn(t, store)
	a := purses.Scope(rt, "a")
	_, err := a.SetState(t.Context(), purse{Balance: 1}, pawl.WithTTL(time.Hour))
	require.NoError(t, err)
	entered, release := store.Hold()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	err = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := a.In(tx).PatchState(ctx, pawl.Patch{"balance": 1}, pawl.WithTTL(9*time.Hour))
		return err
	})
	release()
	require.NoError(t, rt.Close(t.Context()))
	r, lerr := store.Load(t.Context(), a.Key())
	require.NoError(t, lerr)
	t.Log(err, r.Expires.Sub(r.Now))
	require.Greater(t, r.Expires.Sub(r.Now), 2*time.Hour, "the renewal landed")
	requireLeft(t, err, pawl.PhaseCommitting, context.Canceled)
}

// The context that a store gets for a commit ends after the call, so goroutines that the store
// started can stop.
func TestCommitContextEndsWithTheCommit(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := visits.Scope(p.rt, "a")
		given := make(chan context.Context, 1)
		p.store.OnCommit(func(ctx context.Context, _ persist.Commit) error {
			given <- ctx
			return nil
		})
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		ctx := <-given
		testkit.Eventually(t, func() bool { return ctx.Err() == context.Canceled })
		<-ctx.Done()
		derived, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		require.ErrorIs(t, derived.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(ctx), context.Canceled)
	})
}
