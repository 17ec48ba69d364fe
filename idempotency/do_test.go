package idempotency_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

type receipt struct {
	Number int64
	Lines  []string
}

// A function runs once per key, and every call gets its result. An error frees the key unless it is
// final, and another input is refused. Proves IDEM-2, IDEM-4.
func TestDo(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		one, two := keysOn(t, runtimeOn(t, store), idempotency.Config{}), keysOn(t, runtimeOn(t, store), idempotency.Config{})
		ctx := t.Context()
		op := idempotency.Op{Principal: "shop", Name: "charge", Key: "message-7", Input: map[string]int{"cents": 7}}
		runs := int64(0)
		charge := func(context.Context) (receipt, error) {
			runs++
			return receipt{runs, []string{"a", "ü\x00"}}, nil
		}
		want := receipt{1, []string{"a", "ü\x00"}}
		got, replayed, err := idempotency.Do(ctx, one, op, charge)
		require.NoError(t, err)
		require.False(t, replayed)
		require.Equal(t, want, got)
		for _, keys := range []*idempotency.Keys{one, two} {
			got, replayed, err = idempotency.Do(ctx, keys, op, charge)
			require.NoError(t, err)
			require.True(t, replayed)
			require.Equal(t, want, got)
		}
		other := op
		other.Input = map[string]int{"cents": 8}
		var reused *idempotency.ReusedError
		_, _, err = idempotency.Do(ctx, two, other, charge)
		require.ErrorAs(t, err, &reused)
		require.Equal(t, 422, pawl.HTTPStatus(err))
		for i, elsewhere := range []idempotency.Op{{"bank", "charge", "message-7", nil}, {"shop", "refund", "message-7", nil}, {"shop", "charge", "message-8", nil}} {
			got, _, err = idempotency.Do(ctx, two, elsewhere, charge)
			require.NoError(t, err)
			require.EqualValues(t, i+2, got.Number)
		}

		op.Key = "fails"
		boom := errors.New("boom")
		fail := func(err error) func(context.Context) (int, error) {
			return func(context.Context) (int, error) { return 3, err }
		}
		_, replayed, err = idempotency.Do(ctx, one, op, fail(boom))
		require.Equal(t, boom, err)
		require.False(t, replayed)
		require.Panics(t, func() {
			_, _, _ = idempotency.Do(ctx, one, op, func(context.Context) (int, error) { panic("boom") })
		})
		final := pawl.NonRetryable(pawl.ErrNotFound)
		_, replayed, err = idempotency.Do(ctx, two, op, fail(final)) // the key was free
		require.Equal(t, final, err)
		require.False(t, replayed)
		n, replayed, err := idempotency.Do(ctx, one, op, fail(nil))
		var stored *idempotency.StoredError
		require.ErrorAs(t, err, &stored)
		require.True(t, replayed)
		require.Zero(t, n)
		require.Equal(t, pawl.ErrNotFound.Error(), err.Error())
		require.Equal(t, "NOT_FOUND", pawl.Code(err))
		require.Equal(t, 404, pawl.HTTPStatus(err))
		require.True(t, pawl.IsNonRetryable(err), "on every repeat")
	})
}

// A final error of a run that lost its lease is not stored, and another run may succeed.
// Proves IDEM-6.
func TestDoFinalErrorAfterLostLease(t *testing.T) {
	store := memory.New()
	keys, other := keysOn(t, runtimeOn(t, store), idempotency.Config{Lease: time.Hour}), runtimeOn(t, store)
	op := idempotency.Op{Name: "n", Key: "k"}
	_, replayed, err := idempotency.Do(t.Context(), keys, op, func(context.Context) (int, error) {
		forget(t, other)
		return 0, pawl.NonRetryable(errors.New("declined"))
	})
	require.ErrorIs(t, err, pawl.ErrLeaseLost)
	require.ErrorContains(t, err, "declined")
	require.False(t, pawl.IsNonRetryable(err))
	require.False(t, replayed)
	n, replayed, err := idempotency.Do(t.Context(), keys, op, func(context.Context) (int, error) { return 1, nil })
	require.NoError(t, err)
	require.False(t, replayed)
	require.Equal(t, 1, n)
}

// While the function runs elsewhere, Do returns *pawl.HeldError, or waits for the result with Wait.
// A run that lost its lease stores nothing. Proves IDEM-2, IDEM-4.
func TestDoHeld(t *testing.T) {
	rt, keys := onMemory(t, idempotency.Config{})
	short := keysOn(t, rt, idempotency.Config{Lease: 300 * time.Millisecond})
	patient := keysOn(t, rt, idempotency.Config{Wait: testkit.Patience})
	op := idempotency.Op{Name: "n", Key: "k"}
	entered, leave := make(chan context.Context), make(chan struct{})
	slow := func(ctx context.Context) (int, error) {
		entered <- ctx
		<-leave
		return 1, nil
	}
	type result struct {
		n        int
		replayed bool
		err      error
	}
	first, second := make(chan result, 1), make(chan result, 1)
	run := func(out chan result, keys *idempotency.Keys) {
		n, replayed, err := idempotency.Do(context.Background(), keys, op, slow)
		out <- result{n, replayed, err}
	}
	go run(first, keys)
	<-entered
	_, _, err := idempotency.Do(t.Context(), keys, op, slow)
	var held *pawl.HeldError
	require.ErrorAs(t, err, &held)
	require.True(t, pawl.IsRetryable(err))
	require.Equal(t, 409, pawl.HTTPStatus(err))
	require.ErrorContains(t, err, `idempotency: n: key "k": held by `)
	require.NotContains(t, err.Error(), held.Scope.ID, "a hash tells the caller nothing")
	go run(second, patient)
	leave <- struct{}{}
	require.Equal(t, result{n: 1}, <-first)
	require.Equal(t, result{n: 1, replayed: true}, <-second)

	op.Key = "lost"
	go run(first, short)
	ctx := <-entered
	forget(t, rt)
	<-ctx.Done()
	leave <- struct{}{}
	r := <-first
	require.ErrorIs(t, r.err, pawl.ErrLeaseLost)
	n, replayed, err := idempotency.Do(t.Context(), keys, op, func(context.Context) (int, error) { return 2, nil })
	require.NoError(t, err)
	require.False(t, replayed)
	require.Equal(t, 2, n)
}

// The effects and the result are one commit, even with many callers at once. An error commits
// nothing, and a final error commits only itself. Proves IDEM-2, IDEM-6.
func TestDoTx(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		runtimes := []*pawl.Runtime{runtimeOn(t, store), runtimeOn(t, store)}
		op := idempotency.Op{Name: "deposit", Key: "k"}
		add := func(fail error) func(context.Context, *pawl.Tx) (int64, error) {
			return func(ctx context.Context, tx *pawl.Tx) (int64, error) {
				a, err := accounts.Scope(tx, "ann").State(ctx)
				if err != nil {
					return 0, err
				}
				if _, err := accounts.Scope(tx, "ann").IncState(ctx, "balance", 1); err != nil {
					return 0, err
				}
				return a.Balance + 1, fail
			}
		}
		var all sync.WaitGroup
		var firsts atomic.Int64
		for i := range 8 {
			keys := keysOn(t, runtimes[i%2], idempotency.Config{})
			all.Go(func() {
				n, replayed, err := idempotency.DoTx(context.Background(), keys, op, add(nil))
				if err == nil && n == 1 && !replayed {
					firsts.Add(1)
				} else if err != nil || n != 1 {
					t.Error(n, err)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, firsts.Load())
		require.EqualValues(t, 1, balance(t, runtimes[0]))

		keys, boom := keysOn(t, runtimes[0], idempotency.Config{}), errors.New("boom")
		op.Key = "fails"
		_, _, err := idempotency.DoTx(t.Context(), keys, op, add(boom))
		require.Equal(t, boom, err)
		final := pawl.NonRetryable(boom)
		_, replayed, err := idempotency.DoTx(t.Context(), keys, op, add(final))
		require.Equal(t, final, err)
		require.False(t, replayed)
		_, replayed, err = idempotency.DoTx(t.Context(), keys, op, add(nil))
		var stored *idempotency.StoredError
		require.ErrorAs(t, err, &stored)
		require.True(t, replayed)
		require.Equal(t, "boom", stored.Text)
		op.Input = 1
		var reused *idempotency.ReusedError
		_, _, err = idempotency.DoTx(t.Context(), keys, op, add(nil))
		require.ErrorAs(t, err, &reused)
		require.EqualValues(t, 1, balance(t, runtimes[0]))

		forget(t, runtimes[1])
		n, replayed, err := idempotency.DoTx(t.Context(), keys, op, add(nil))
		require.NoError(t, err)
		require.False(t, replayed)
		require.EqualValues(t, 2, n)
	})
}

// A key has at most 255 characters, whatever their length in bytes. A longer key is the caller's
// fault. Proves IDEM-3.
func TestDoLongKey(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{})
	run := func(key string) (errs []error) {
		_, _, err := idempotency.Do(t.Context(), keys, idempotency.Op{Name: "do", Key: key}, func(context.Context) (int, error) { return 1, nil })
		_, _, errTx := idempotency.DoTx(t.Context(), keys, idempotency.Op{Name: "tx", Key: key}, func(context.Context, *pawl.Tx) (int, error) { return 1, nil })
		return []error{err, errTx}
	}
	for _, err := range run(strings.Repeat("ü", idempotency.MaxKey)) {
		require.NoError(t, err)
	}
	for _, err := range run(strings.Repeat("ü", idempotency.MaxKey+1)) {
		var limit *pawl.LimitError
		require.ErrorAs(t, err, &limit)
		require.Equal(t, []any{"key", idempotency.MaxKey, idempotency.MaxKey + 1}, []any{limit.What, limit.Limit, limit.Got})
		require.Equal(t, 400, pawl.HTTPStatus(err))
		require.Less(t, len(err.Error()), 100)
	}
}

// Do refuses invalid operations and results that cannot be stored.
func TestDoRefuses(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{})
	ctx := t.Context()
	fn := func(context.Context) (any, error) { return func() {}, nil }
	var argument *pawl.ArgumentError
	for _, op := range []idempotency.Op{{}, {Name: "n"}, {Key: "k"}, {Name: "n", Key: "k", Input: func() {}}} {
		_, _, err := idempotency.Do(ctx, keys, op, fn)
		require.ErrorAs(t, err, &argument)
		_, _, err = idempotency.DoTx(ctx, keys, op, func(context.Context, *pawl.Tx) (int, error) { return 0, nil })
		require.ErrorAs(t, err, &argument)
	}
	op := idempotency.Op{Name: "n", Key: strings.Repeat("ü", 255)}
	_, _, err := idempotency.Do[int](ctx, keys, op, nil)
	require.ErrorAs(t, err, &argument)
	_, _, err = idempotency.DoTx[int](ctx, keys, op, nil)
	require.ErrorAs(t, err, &argument)
	_, _, err = idempotency.Do(ctx, keys, op, fn)
	require.ErrorContains(t, err, "encode result")
	big, _, err := idempotency.Do(ctx, keys, op, func(context.Context) (string, error) { return strings.Repeat("x", 2<<20), nil })
	var limit *pawl.LimitError
	require.ErrorAs(t, err, &limit)
	require.Len(t, big, 2<<20)
	_, _, err = idempotency.Do(ctx, keys, op, func(context.Context) (string, error) { return "small", nil })
	require.NoError(t, err)
	_, replayed, err := idempotency.Do(ctx, keys, op, func(context.Context) (int, error) { return 1, nil })
	require.Error(t, err, "a stored string is not an int")
	require.True(t, replayed)
}
