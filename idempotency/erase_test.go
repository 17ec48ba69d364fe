package idempotency_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist/memory"
)

// Erase makes the keys of one principal new, of requests and functions, and leaves those of others
// alone. Proves IDEM-3.
func TestErase(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		rt := runtimeOn(t, stores.OpenFor(t, location))
		keys := keysOn(t, rt, idempotency.Config{Principal: user})
		s := serve(t, keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })))
		do := func(principal string) (replayed bool) {
			op := idempotency.Op{Principal: principal, Name: "op", Key: "1"}
			_, replayed, err := idempotency.Do(t.Context(), keys, op, func(context.Context) (int, error) { return 1, nil })
			require.NoError(t, err)
			return replayed
		}
		ask := func(principal string) (replayed bool) {
			a := s.send("POST", "/orders", "k", `{}`, "User", principal)
			require.Equal(t, http.StatusCreated, a.status)
			return a.replayed()
		}
		for _, principal := range []string{"ann", "anna", "bob"} {
			require.False(t, do(principal))
			require.False(t, ask(principal))
		}
		erased, err := keys.Erase(t.Context(), "ann")
		require.NoError(t, err)
		require.Equal(t, 2, erased)
		erased, err = keys.Erase(t.Context(), "ann")
		require.NoError(t, err)
		require.Zero(t, erased)
		for _, other := range []string{"anna", "bob"} {
			require.True(t, do(other))
			require.True(t, ask(other))
		}
		require.False(t, do("ann"))
		require.False(t, ask("ann"))
		_, err = keys.Erase(t.Context(), "")
		require.ErrorAs(t, err, new(*pawl.ArgumentError))
	})
}

// A function that runs while its key is erased loses its lease: it commits nothing, and its result is
// not stored. Proves IDEM-3.
func TestEraseWhileRunning(t *testing.T) {
	rt := runtimeOn(t, stores.OpenFor(t, stores.Memory.New(t)))
	keys := keysOn(t, rt, idempotency.Config{})
	op := idempotency.Op{Principal: "ann", Name: "op", Key: "1"}
	_, _, err := idempotency.Do(t.Context(), keys, op, func(ctx context.Context) (int, error) {
		erased, err := keys.Erase(context.WithoutCancel(t.Context()), "ann")
		require.NoError(t, err)
		require.Equal(t, 1, erased)
		_, err = executions.Scope(rt, "a").IncState(ctx, "times", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		return 1, nil
	})
	require.ErrorIs(t, err, pawl.ErrLeaseLost)
	_, replayed, err := idempotency.Do(t.Context(), keys, op, func(context.Context) (int, error) { return 2, nil })
	require.NoError(t, err)
	require.False(t, replayed)
}

// After its key was erased elsewhere, and perhaps used again for another input, Do returns its result and
// the lost lease, also if this process has read the new record meanwhile. Proves IDEM-3.
func TestEraseElsewhere(t *testing.T) {
	for _, again := range []bool{false, true} {
		store := memory.New()
		here, there := runtimeOn(t, store), keysOn(t, runtimeOn(t, store), idempotency.Config{})
		keys := keysOn(t, here, idempotency.Config{})
		op := idempotency.Op{Principal: "ann", Name: "op", Key: "1", Input: 1}
		n, _, err := idempotency.Do(t.Context(), keys, op, func(context.Context) (int, error) {
			_, err := there.Erase(t.Context(), "ann")
			require.NoError(t, err)
			for _, keys := range []*idempotency.Keys{there, keys} {
				if again {
					two := op
					two.Input = 2
					n, _, err := idempotency.Do(t.Context(), keys, two, func(context.Context) (int, error) { return 2, nil })
					require.NoError(t, err)
					require.Equal(t, 2, n)
				}
			}
			return 1, nil
		})
		require.Equal(t, 1, n)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
	}
}
