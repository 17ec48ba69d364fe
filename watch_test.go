package pawl_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// receive returns the next change of c, within a deadline.
func receive[T any](t testing.TB, c <-chan pawl.Change[T]) pawl.Change[T] {
	t.Helper()
	select {
	case change, ok := <-c:
		require.True(t, ok, "the watch is over")
		require.NoError(t, change.Err)
		return change
	case <-time.After(30 * time.Second):
		t.Fatal("no change arrived")
		panic("not reached")
	}
}

// TestWatch: the current snapshot first, then newer ones in order; skipped versions are counted, and the newest arrives.
//
// Proves SCOPE-13.
func TestWatch(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := scopeOf[ship](p, "argo")
		changes := s.Changes(ctx)
		first := receive(t, changes)
		require.False(t, first.Exists())
		require.Zero(t, first.Version)
		_, err := s.IncState(ctx, "miles", 1)
		require.NoError(t, err)
		second := receive(t, changes)
		require.EqualValues(t, 1, second.Version)
		require.Equal(t, 1, second.ReadOnly().Miles)
		for range 100 {
			_, err := s.IncState(ctx, "miles", 1)
			require.NoError(t, err)
		}
		missed, got := 0, 0
		for at := second.Version; at < 101; {
			change := receive(t, changes)
			require.Greater(t, change.Version, at)
			require.Equal(t, int(change.Version), change.ReadOnly().Miles)
			require.EqualValues(t, change.Version-at-1, change.Missed)
			at, missed, got = change.Version, missed+change.Missed, got+1
		}
		require.Equal(t, 100, missed+got)
		require.NoError(t, s.Delete(ctx))
		last := receive(t, changes)
		require.False(t, last.Exists())
		require.EqualValues(t, 102, last.Version)
		cancel()
		for range changes {
		}
	})
}
