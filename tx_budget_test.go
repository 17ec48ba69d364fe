package pawl_test

import (
	"context"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A transaction that keeps losing to other processes returns an error once its budget is spent, and
// commits nothing.
//
// Proves CAS-2, TX-2.
func TestTransactSpendsItsBudget(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		a, other := purses.Scope(p.rt, "a"), purses.Scope(p.another(t), "a")
		seed(t, a, purse{})
		runs := 0
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			runs++
			if _, err := a.In(tx).State(ctx); err != nil {
				return err
			}
			if _, err := other.IncState(context.Background(), "balance", 1); err != nil {
				return err
			}
			_, err := a.In(tx).IncState(ctx, "balance", 100)
			return err
		}, pawl.WithRetry(pawl.Retry{Attempts: 3, First: time.Millisecond}))
		var spent *pawl.ConcurrentModificationError
		require.ErrorAs(t, err, &spent)
		require.Equal(t, 3, spent.Attempts)
		require.Equal(t, a.Key(), spent.Scope)
		require.EqualValues(t, spent.Expected+1, spent.Actual)
		require.Equal(t, 4, runs, "a conflict with a version cached before the call does not count")
		s, err := a.State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, runs, s.Balance)
	})
}

// A conflict that is found before a commit is sent does not count as an attempt.
//
// Proves CAS-3.
func TestConflictBeforeTheCommitIsNoAttempt(t *testing.T) {
	store := newTap()
	seed(t, purses.Scope(openOn(t, store), "a"), purse{})
	rt := openOn(t, store) // has cached nothing
	a := purses.Scope(rt, "a")
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := a.In(tx).IncState(ctx, "balance", 1); err != nil {
			return err
		}
		_, err := a.IncState(context.Background(), "balance", 1) // another caller in this process
		return err
	}, pawl.WithRetry(pawl.Retry{Attempts: 1}))
	require.NoError(t, err, "no commit conflicted")
}

// A transaction that starts from stale cached versions does not conflict if no other writer commits
// during the call.
//
// Proves CAS-3.
func TestStaleCacheIsNoAttempt(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
	seed(t, a, purse{})
	seed(t, b, purse{})
	for _, id := range []string{"a", "b"} {
		_, err := purses.Scope(other, id).IncState(t.Context(), "balance", 1)
		require.NoError(t, err)
	}
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		s, err := a.In(tx).State(ctx)
		if err != nil || s.Balance == 0 {
			return err
		}
		_, err = b.In(tx).State(ctx)
		return err
	}, pawl.WithRetry(pawl.Retry{Attempts: 1}))
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
	require.NoError(t, err)
}

// The longest possible budget does not overflow.
func TestTransactWithTheLongestBudget(t *testing.T) {
	store := newTap()
	rt := openOn(t, store)
	store.OnCommit(func(context.Context, persist.Commit) error { time.Sleep(50 * time.Millisecond); return nil })
	longest := pawl.WithRetry(pawl.Retry{Within: math.MaxInt64})
	_, err := purses.Scope(rt, "a").IncState(t.Context(), "balance", 1, longest)
	require.NoError(t, err)
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
		return err
	}, longest)
	require.NoError(t, err)
}

// A load that hangs inside a transaction fails when the budget is spent.
func TestLoadThatHangsInATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		rt := openOn(t, store)
		store.OnLoad(func(ctx context.Context, _ ...persist.Key) error { <-ctx.Done(); return ctx.Err() })
		_, err := purses.Scope(rt, "a").IncState(t.Context(), "balance", 1, pawl.WithRetry(pawl.Retry{Within: time.Second}))
		require.ErrorIs(t, err, pawl.ErrUnavailable)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		err = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
			return err
		}, pawl.WithRetry(pawl.Retry{Within: time.Second}))
		assert.ErrorIs(t, err, pawl.ErrUnavailable)
		assert.Less(t, time.Since(began), 10*time.Second)
	})
}

// Transact returns although a goroutine started by its function still hangs in a read.
func TestLeakedReadDoesNotHoldTransact(t *testing.T) {
	store := newTap()
	rt := openOn(t, store)
	hang := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		_ = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
			loading := make(chan struct{})
			store.OnLoad(func(context.Context, ...persist.Key) error { close(loading); <-hang; return nil })
			go func() { _, _ = purses.Scope(tx, "a").State(context.Background()) }()
			<-loading
			cancel()
			return nil
		})
	}()
	select {
	case <-returned:
	case <-time.After(2 * time.Second):
		assert.Fail(t, "Transact did not return after its context ended and its function returned")
	}
	close(hang)
	<-returned
}
