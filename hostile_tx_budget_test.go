package pawl_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
)

// Nobody writes during the call, so it does not conflict, however much had been guessed.
//
// Proves CAS-3.
func TestEveryGuessIsForgivenOnce(t *testing.T) {
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

// A renewal that goes on after its caller left is not called withdrawn.
//
// Proves CAS-9.
func TestRenewalThatGoesOnIsNotWithdrawn(t *testing.T) {
	store := &tap{Store: memory.New()}
	rt := openOn(t, store)
	a := purses.Scope(rt, "a")
	_, err := a.SetState(t.Context(), purse{Balance: 1}, pawl.WithTTL(time.Hour))
	require.NoError(t, err)
	entered, release := store.hold()
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
	require.Greater(t, r.Expires.Sub(r.Now), 2*time.Hour, "it has landed")
	requireLeft(t, err, pawl.PhaseCommitting, context.Canceled)
}

// A read that hangs in a goroutine of its own does not keep Transact from returning.
func TestLeakedReadDoesNotHoldTransact(t *testing.T) {
	store := &tap{Store: memory.New()}
	rt := openOn(t, store)
	hang := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		_ = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
			loading := make(chan struct{})
			store.onLoad(func(context.Context) error { close(loading); <-hang; return nil })
			go func() { _, _ = purses.Scope(tx, "a").State(context.Background()) }()
			<-loading
			cancel()
			return nil
		})
	}()
	select {
	case <-returned:
	case <-time.After(2 * time.Second):
		assert.Fail(t, "its context has ended and its function has returned, but it has not")
	}
	close(hang)
	<-returned
}
