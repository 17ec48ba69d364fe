package idempotency_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// failures is an observer that collects the codes of failed mutations.
type failures struct {
	mu    sync.Mutex // protects codes
	codes []string
}

func (f *failures) Observe(_ context.Context, e pawl.Event) {
	if e.Type == pawl.EventFailed {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.codes = append(f.codes, pawl.Code(e.Err))
	}
}

// take returns the codes since the last call.
func (f *failures) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	codes := f.codes
	f.codes = nil
	return codes
}

// An observer gets no Failed event for a replay, nor for a reused key. A repeat while the first
// request runs fails with the code of the lease. Proves IDEM-1.
func TestNoFailedEventForReplay(t *testing.T) {
	var seen failures
	rt, err := pawl.Open(pawl.Config{Store: memory.New(), Observer: &seen})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	keys := keysOn(t, rt, idempotency.Config{})

	t.Run("Middleware", func(t *testing.T) {
		g := newGate()
		s := serve(t, keys.Middleware(g))
		first := s.async("k")
		g.in(t)
		require.Equal(t, 409, s.post("k").status)
		require.Equal(t, []string{"HELD"}, seen.take())
		g.next <- say(200, "done")
		require.Equal(t, "done", (<-first).body)
		require.True(t, s.post("k").replayed())
		require.Equal(t, 422, s.send("POST", "/orders", "k", "another").status)
		require.Empty(t, seen.take())
	})
	op := idempotency.Op{Name: "n", Key: "k"}
	t.Run("Do", func(t *testing.T) {
		for i := range 2 {
			_, replayed, err := idempotency.Do(t.Context(), keys, op, func(context.Context) (int, error) { return 1, nil })
			require.NoError(t, err)
			require.Equal(t, i > 0, replayed)
		}
		require.Empty(t, seen.take())
	})
	t.Run("DoTx", func(t *testing.T) {
		op.Key = "tx"
		for i := range 2 {
			_, replayed, err := idempotency.DoTx(t.Context(), keys, op, func(context.Context, *pawl.Tx) (int, error) { return 1, nil })
			require.NoError(t, err)
			require.Equal(t, i > 0, replayed)
		}
		require.Empty(t, seen.take())
	})
}

// lateStore answers the next Load with an absent record if late is set.
type lateStore struct {
	*memory.Store
	late atomic.Bool
}

func (s *lateStore) Load(ctx context.Context, k persist.Key) (persist.Record, error) {
	if s.late.CompareAndSwap(true, false) {
		return persist.Record{}, persist.ErrNotFound
	}
	return s.Store.Load(ctx, k)
}

// A response that is stored between the read and the claim is replayed. The failed claim has a code
// of its own. Proves IDEM-1.
func TestAnsweredDuringClaim(t *testing.T) {
	var seen failures
	store := &lateStore{Store: memory.New()}
	rt, err := pawl.Open(pawl.Config{Store: store, Observer: &seen})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	first, repeat := keysOn(t, runtimeOn(t, store.Store), idempotency.Config{}), keysOn(t, rt, idempotency.Config{})
	op := idempotency.Op{Name: "n", Key: "k"}
	one := func(context.Context) (int, error) { return 1, nil }
	_, _, err = idempotency.Do(t.Context(), first, op, one)
	require.NoError(t, err)
	store.late.Store(true)
	_, replayed, err := idempotency.Do(t.Context(), repeat, op, one)
	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, []string{"IDEMPOTENCY_ANSWERED"}, seen.take())
}
