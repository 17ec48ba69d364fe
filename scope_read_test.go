package pawl_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// State, Snapshot and LastSeen agree after a write, and LastSeen does no I/O. Proves SCOPE-1.
func TestReads(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		state, err := s.State(t.Context())
		require.NoError(t, err)
		require.Zero(t, state)
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.False(t, snap.Exists())
		require.Nil(t, snap.ReadOnly())
		require.Zero(t, snap.State())

		written, err := s.IncState(t.Context(), "count", 4)
		require.NoError(t, err)
		seen, ok := s.LastSeen()
		require.True(t, ok)
		require.Equal(t, written.Version, seen.Version)
		require.Equal(t, board{Count: 4}, seen.State())
		require.EqualValues(t, 4, seen.ReadOnly().Count)
		if p.store == nil {
			return
		}
		require.True(t, written.Time.Equal(p.record(t, s.Key()).Updated))
		loads := p.store.Loads.Load()
		_, _ = s.LastSeen()
		require.Equal(t, loads, p.store.Loads.Load(), "LastSeen does no I/O")
		unseen := pawl.Session[board](p.another(t), "a")
		_, ok = unseen.LastSeen()
		require.False(t, ok)
	})
}

// LastSeen returns the state of an existing scope, and none for an absent, expired or deleted one.
func TestLastSeen(t *testing.T) {
	type state struct{ N int }
	for name, inMemory := range map[string]bool{"in memory": true, "persisted": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				kind := pawl.Kind[state]{Name: "seen", InMemory: inMemory}
				rt, err := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{kind}})
				require.NoError(t, err)
				s := kind.Scope(rt, "1")
				seen := func() *state {
					snap, _ := s.LastSeen()
					return snap.ReadOnly()
				}
				require.Nil(t, seen())
				_, err = s.IncState(ctx, "N", 1, pawl.WithTTL(time.Minute))
				require.NoError(t, err)
				require.Equal(t, &state{1}, seen())
				if inMemory { // a store has its own clock
					time.Sleep(time.Minute)
					require.Nil(t, seen(), "expired")
				}
				_, err = s.SetState(ctx, state{3})
				require.NoError(t, err)
				require.Equal(t, &state{3}, seen())
				require.NoError(t, s.Delete(ctx))
				require.Nil(t, seen(), "deleted")
				require.NoError(t, rt.Close(ctx))
				require.Nil(t, seen())
			})
		})
	}
}

// A read that starts after a write was acknowledged sees that write or a later one. Two runtimes
// that open the store separately stand for two processes. Proves SCOPE-17.
func TestReadYourWrites(t *testing.T) { stores.EachShared(t, testReadYourWrites) }

func testReadYourWrites(t *testing.T, location string) {
	var scopes [2]pawl.Scope[board]
	for i := range scopes {
		scopes[i] = pawl.Session[board](openRuntime(t, pawl.Config{Store: stores.OpenFor(t, location)}), "a")
	}
	const writes = 60
	var acknowledged atomic.Uint64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		s := scopes[i%2]
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				least := acknowledged.Load()
				snap, err := s.Snapshot(t.Context())
				if !assert.NoError(t, err) || !assert.GreaterOrEqual(t, snap.Version, least) || !assert.EqualValues(t, snap.Version, snap.State().Count) {
					return
				}
				state, err := s.State(t.Context())
				if !assert.NoError(t, err) || !assert.GreaterOrEqual(t, uint64(state.Count), least) {
					return
				}
			}
		})
	}
	for i := range writes {
		snap, err := scopes[i%2].IncState(t.Context(), "count", 1)
		require.NoError(t, err)
		acknowledged.Store(snap.Version)
		for _, s := range scopes {
			got, err := s.State(t.Context())
			require.NoError(t, err)
			require.GreaterOrEqual(t, got.Count, int64(i+1))
		}
	}
	close(stop)
	wg.Wait()
}

// In memory, an acknowledged write is visible to every reader, and a read does not wait for a
// running function. Proves SCOPE-17.
func TestReadsInMemory(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	s := pawl.Memory[board](rt, "a")
	require.NoError(t, increment(s))
	running, leave := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() {
		_, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error {
			close(running)
			<-leave
			b.Count = 10
			return nil
		})
		done <- err
	}()
	<-running
	got, err := s.State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, got.Count)
	close(leave)
	require.NoError(t, <-done)
	got, err = pawl.Memory[board](rt, "a").State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 10, got.Count)
}
