package pawl_test

import (
	"context"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// receive returns the next change of c, within a deadline.
func receive[T any](t testing.TB, c <-chan pawl.Change[T]) pawl.Change[T] {
	t.Helper()
	select {
	case change, ok := <-c:
		require.True(t, ok, "the watch has ended")
		require.NoError(t, change.Err)
		return change
	case <-time.After(30 * time.Second):
		t.Fatal("no change arrived")
		panic("not reached")
	}
}

// A watch delivers the current snapshot, then newer ones in order. It counts skipped versions and
// always delivers the newest.
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

// A loop over a watch can be left and started again. It ends without an error when its context
// ends.
//
// Proves SCOPE-13.
func TestWatchIterator(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		defer leavesNothing(t)()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := scopeOf[ship](p, "argo")
		watch := s.Watch(ctx)
		for range 3 { // the same iterator, again
			for change, err := range watch {
				require.NoError(t, err)
				if change.Version%5 == 4 {
					break
				}
				_, err := s.IncState(ctx, "miles", 1)
				require.NoError(t, err)
				require.Less(t, change.Version, uint64(5))
			}
			snap, err := s.Snapshot(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 4, snap.Version)
		}
		got := 0
		for change, err := range watch {
			require.NoError(t, err)
			require.EqualValues(t, 4, change.Version)
			require.Zero(t, change.Missed, "the first change misses nothing")
			got++
			cancel()
		}
		require.Equal(t, 1, got)
		for _, err := range watch { // its context has ended
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Panics(t, func() {
			for range s.Watch(t.Context()) {
				panic("panic of the loop body")
			}
		})
	})
}

// A channel without a receiver does not block writers. A later receiver gets the newest version,
// and the channel closes with its context.
//
// Proves SCOPE-13.
func TestWatchWithoutAReceiver(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		defer leavesNothing(t)()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := scopeOf[ship](p, "argo")
		var all []<-chan pawl.Change[ship]
		for range 20 {
			all = append(all, s.Changes(ctx))
			receive(t, all[len(all)-1])
		}
		for range 30 {
			_, err := s.IncState(ctx, "miles", 1)
			require.NoError(t, err)
		}
		for _, c := range all[10:] {
			for missed := 0; ; {
				change := receive(t, c)
				if missed += 1 + change.Missed; change.Version == 30 {
					require.Equal(t, 30, missed)
					break
				}
			}
		}
		cancel()
		for _, c := range all {
			for range c {
			}
		}
	})
}

// One scope can be watched as two types, and each watch sees its own fields.
//
// Proves SCOPE-13.
func TestWatchTwoTypes(t *testing.T) {
	type log struct {
		Miles int64 `json:"miles"`
	}
	onStores(t, func(t *testing.T, p path) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		boats, logs := pawl.Session[ship](p.rt, "argo"), pawl.Session[log](p.another(t), "argo")
		here := pawl.Session[log](p.rt, "argo")
		seed(t, boats, ship{"jason", 1})
		a, b, c := boats.Changes(ctx), logs.Changes(ctx), here.Changes(ctx)
		for miles := 1; miles < 5; miles++ {
			if miles > 1 {
				_, err := boats.IncState(ctx, "miles", 1)
				require.NoError(t, err)
			}
			require.Equal(t, ship{"jason", miles}, receive(t, a).State())
			require.EqualValues(t, miles, receive(t, b).State().Miles)
			require.EqualValues(t, miles, receive(t, c).State().Miles)
		}
		cancel()
	})
}

// Deletion and re-creation of a scope are changes in one sequence of versions.
//
// Proves SCOPE-13.
func TestWatchDeleteAndRecreate(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := scopeOf[ship](p, "argo")
		changes := s.Changes(ctx)
		receive(t, changes)
		for version := uint64(1); version < 9; version += 2 {
			_, err := s.SetState(ctx, ship{Miles: int(version)}, pawl.IfAbsent())
			require.NoError(t, err)
			change := receive(t, changes)
			require.Equal(t, version, change.Version)
			require.Equal(t, int(version), change.State().Miles)
			require.NoError(t, s.Delete(ctx))
			change = receive(t, changes)
			require.Equal(t, version+1, change.Version)
			require.False(t, change.Exists())
			require.Equal(t, "argo", change.ID)
		}
		cancel()
		for range changes {
		}
	})
}

// Versions in memory start above the versions of forgotten scopes. A watcher of a new scope has
// missed none of them.
//
// Proves SCOPE-13.
func TestWatchAboveTheFloor(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	local := pawl.NewLocal(rt)
	s := pawl.Memory[ship](local, "argo")
	changes := s.Changes(t.Context())
	require.False(t, receive(t, changes).Exists())
	old := pawl.Memory[ship](local, "old")
	for range 9 {
		_, err := old.IncState(t.Context(), "miles", 1, pawl.WithTTL(time.Nanosecond))
		require.NoError(t, err)
	}
	testkit.Eventually(t, func() bool { // old is forgotten when other scopes are opened
		snap, err := pawl.Memory[ship](local, time.Now().String()).IncState(t.Context(), "miles", 1)
		return err == nil && snap.Version > 1
	})
	snap, err := s.IncState(t.Context(), "miles", 1)
	require.NoError(t, err)
	require.Greater(t, snap.Version, uint64(1))
	change := receive(t, changes)
	require.Equal(t, snap.Version, change.Version)
	require.Zero(t, change.Missed)
}

// leavesNothing returns a function that checks that no goroutine of a watch is left. The goroutines
// that all watches share end some seconds after the last one.
func leavesNothing(t *testing.T) (check func()) {
	options := []goleak.Option{goleak.IgnoreCurrent()}
	for _, shared := range []string{
		"internal/hints.(*Hub).hear", "internal/hints.(*Hub).check",
		"persist/fs.(*notifier).run", "persist/sqlite.(*Store).poll", "persist/postgres.(*Store).listen",
	} {
		options = append(options, goleak.IgnoreAnyFunction("github.com/pawl-go/pawl/"+shared))
	}
	return func() { goleak.VerifyNone(t, options...) }
}
