package pawl_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// everyVerb has a mutation of each verb, and one that changes nothing.
var everyVerb = map[string]pawl.Mutation{
	"Patch":        pawl.Patch{"title": "again"},
	"Set":          pawl.Set{State: board{Title: "again"}},
	"Push":         pawl.Push{Field: "tags", Values: []any{"x"}},
	"Inc":          pawl.Inc{Field: "count", By: 1},
	"SetRecord":    pawl.SetRecord{Field: "notes", Key: "again", Value: "x"},
	"DeleteRecord": pawl.DeleteRecord{Field: "notes", Key: "k"},
	"Atomic":       pawl.Atomic(func(_ context.Context, b *board) error { b.Count++; return nil }),
	"All":          pawl.All{pawl.Inc{Field: "count", By: 1}},
	"no-op":        pawl.Patch{},
}

// requireDeleted asserts that every verb on s gives *DeletedError and that s stays absent.
func requireDeleted(t *testing.T, s pawl.Scope[board], tombstone uint64) {
	t.Helper()
	for name, m := range everyVerb {
		for _, opts := range [][]pawl.CallOption{nil, {pawl.IfExists()}, {pawl.IfVersion(tombstone)}, {pawl.IfVersion(tombstone - 1)}} {
			snap, err := s.Apply(t.Context(), m, opts...)
			var e *pawl.DeletedError
			require.ErrorAs(t, err, &e, name)
			require.Equal(t, &pawl.DeletedError{Scope: s.Key(), Version: tombstone}, e)
			require.False(t, snap.Exists())
			require.ErrorIs(t, err, pawl.ErrDeleted)
			require.Equal(t, 410, pawl.HTTPStatus(err))
		}
	}
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.False(t, snap.Exists())
}

// A deleted scope refuses every verb until it is created with IfAbsent, which continues its
// versions. Proves SCOPE-10.
func TestDelete(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		seed(t, s, fullBoard)
		require.NoError(t, s.Delete(t.Context()))
		requireDeleted(t, s, 2)
		require.NoError(t, s.Delete(t.Context()), "deleting again changes nothing")
		requireDeleted(t, s, 2)
		if p.store != nil {
			r := p.record(t, s.Key())
			require.True(t, r.Deleted)
			require.EqualValues(t, 2, r.Version)
			require.Nil(t, r.Doc, "the content is gone")
			require.EqualValues(t, 2, p.store.Commits.Load())
		}
		// Created again, it starts from the zero state.
		snap, err := s.IncState(t.Context(), "count", 5, pawl.IfAbsent())
		require.NoError(t, err)
		require.EqualValues(t, 3, snap.Version)
		requireState(t, p, s, 3, board{Count: 5})
		_, err = s.IncState(t.Context(), "count", 5, pawl.IfAbsent())
		require.ErrorIs(t, err, pawl.ErrExists)
		require.NoError(t, s.Delete(t.Context()))
		requireDeleted(t, s, 4)
		snap, err = s.SetState(t.Context(), board{}, pawl.IfVersion(0))
		require.NoError(t, err, "IfVersion(0) means IfAbsent")
		requireState(t, p, s, 5, board{})
		require.EqualValues(t, 5, snap.Version)
	})
}

// With IfAbsent every verb can create a deleted scope again, even one that changes nothing.
// Proves SCOPE-10.
func TestCreateAfterDelete(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		for name, m := range everyVerb {
			s := scopeOf[board](p, name)
			seed(t, s, fullBoard)
			require.NoError(t, s.Delete(t.Context()))
			snap, err := s.Apply(t.Context(), m, pawl.IfAbsent())
			require.NoError(t, err, name)
			require.EqualValues(t, 3, snap.Version, name)
			got, err := s.Snapshot(t.Context())
			require.NoError(t, err)
			require.True(t, got.Exists(), name)
			require.Empty(t, got.State().Notes["k"], "nothing of the old state is left")
		}
	})
}

// Deleting an absent scope changes nothing. A deletion whose condition does not hold is refused.
// Proves SCOPE-10, SCOPE-12.
func TestDeleteWithConditions(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		require.NoError(t, s.Delete(t.Context()))
		requireAbsent(t, p, s)
		require.ErrorIs(t, s.Delete(t.Context(), pawl.IfExists()), pawl.ErrNotFound)
		seed(t, s, fullBoard)
		var moved *pawl.ConcurrencyError
		require.ErrorAs(t, s.Delete(t.Context(), pawl.IfVersion(7)), &moved)
		require.Equal(t, &pawl.ConcurrencyError{Scope: s.Key(), Expected: 7, Actual: 1}, moved)
		require.ErrorIs(t, s.Delete(t.Context(), pawl.IfAbsent()), pawl.ErrExists)
		requireState(t, p, s, 1, fullBoard)
		require.NoError(t, s.Delete(t.Context(), pawl.IfVersion(1), pawl.IfExists()))
		requireDeleted(t, s, 2)
		require.ErrorIs(t, s.Delete(t.Context(), pawl.IfExists()), pawl.ErrDeleted)
		require.ErrorIs(t, s.Delete(t.Context(), pawl.IfVersion(1)), pawl.ErrDeleted)
	})
}

// A scope that another process has deleted is deleted here too, whatever is cached.
// Proves SCOPE-10.
func TestDeleteByAnotherProcess(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for name, m := range everyVerb {
			here, there := scopeOf[board](p, name), pawl.Session[board](p.another(t), name)
			seed(t, here, fullBoard)
			require.NoError(t, there.Delete(t.Context()))
			_, err := here.Apply(t.Context(), m) // here has version 1 cached
			require.Equal(t, &pawl.DeletedError{Scope: here.Key(), Version: 2}, err, name)
			// The reverse: the scope exists again, and the cached tombstone is out of date.
			_, err = there.SetState(t.Context(), board{}, pawl.IfAbsent())
			require.NoError(t, err)
			snap, err := here.IncState(t.Context(), "count", 1)
			require.NoError(t, err)
			require.EqualValues(t, 4, snap.Version)
			require.Equal(t, board{Count: 1}, snap.State())
		}
	})
}

// A purge of tombstones makes no version available again: new scopes start above the purged
// versions. Proves SCOPE-10.
func TestPurge(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		long, short := scopeOf[board](p, "long"), scopeOf[board](p, "short")
		for range 9 {
			_, err := long.IncState(t.Context(), "count", 1)
			require.NoError(t, err)
		}
		seed(t, short, fullBoard)
		require.NoError(t, long.Delete(t.Context()))  // version 10
		require.NoError(t, short.Delete(t.Context())) // version 2
		require.Equal(t, 2, purge(t, p.store))
		requireAbsent(t, p, pawl.Session[board](p.another(t), "long"))
		for i, s := range []pawl.Scope[board]{
			long, short, // with their tombstones cached
			scopeOf[board](p, "new"), pawl.Session[board](p.another(t), "elsewhere"),
		} {
			snap, err := s.IncState(t.Context(), "count", 1)
			require.NoError(t, err, i)
			require.EqualValues(t, 11, snap.Version, s.Key())
			requireState(t, p, s, 11, board{Count: 1})
			_, err = s.IncState(t.Context(), "count", 1, pawl.IfVersion(11))
			require.NoError(t, err)
		}
	})
}

// A runtime that has a purged scope in its cache creates a new state and does not continue the old
// one. Proves SCOPE-10.
func TestPurgeOfACachedScope(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		here, there := scopeOf[board](p, "a"), pawl.Session[board](p.another(t), "a")
		seed(t, here, fullBoard)
		require.NoError(t, there.Delete(t.Context()))
		require.Equal(t, 1, purge(t, p.store))
		_, err := here.IncState(t.Context(), "count", 1, pawl.IfVersion(1))
		require.Equal(t, &pawl.ConcurrencyError{Scope: here.Key(), Expected: 1}, err)
		snap, err := here.IncState(t.Context(), "count", 5)
		require.NoError(t, err)
		require.EqualValues(t, 3, snap.Version)
		requireState(t, p, here, 3, board{Count: 5})
	})
}

// Old tombstones are purged, those of expired scopes too. A scope created afterwards gets a higher
// version than theirs. Proves SCOPE-10.
func TestPurgedTombstonesReuseNoVersion(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		deleted, expired := visits.Scope(p.rt, "deleted"), visits.Scope(p.rt, "expired")
		for range 5 {
			_, err := deleted.IncState(ctx, "n", 1)
			require.NoError(t, err)
		}
		require.NoError(t, deleted.Delete(ctx))
		_, err := expired.IncState(ctx, "n", 1, pawl.WithTTL(time.Millisecond))
		require.NoError(t, err)
		keeps, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{})
		require.NoError(t, err)
		testkit.Eventually(t, func() bool { swept, err := keeps.Sweep(ctx); return err == nil && swept.Cleared == 1 })
		require.True(t, p.record(t, deleted.Key()).Deleted, "seven days have not passed")
		purges, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{Tombstones: time.Microsecond})
		require.NoError(t, err)
		total := 0
		testkit.Eventually(t, func() bool {
			swept, err := purges.Sweep(ctx)
			require.NoError(t, err)
			total += swept.Purged
			return total == 2
		})
		_, err = p.store.Load(ctx, deleted.Key())
		require.ErrorIs(t, err, persist.ErrNotFound)
		for i, s := range []pawl.Scope[visit]{deleted, expired, visits.Scope(p.another(t), "new")} {
			snap, err := s.IncState(ctx, "n", 1)
			require.NoError(t, err, i)
			require.Greater(t, snap.Version, uint64(6), i)
		}
	})
}

// In memory, the oldest tombstones beyond 10,000 are dropped, and new scopes start above a version
// floor. Proves SCOPE-10.
func TestTombstonesInMemoryAreBounded(t *testing.T) {
	const kept, more = 10_000, 200
	rt := openRuntime(t, pawl.Config{})
	ctx := t.Context()
	first := pawl.Memory[board](rt, "first")
	for range 5 {
		_, err := first.IncState(ctx, "count", 1)
		require.NoError(t, err)
	}
	require.NoError(t, first.Delete(ctx)) // version 6, the oldest tombstone
	alive := pawl.Memory[board](rt, "alive")
	_, err := alive.IncState(ctx, "count", 1)
	require.NoError(t, err)
	for i := range kept + more {
		s := pawl.Memory[board](rt, fmt.Sprint(i))
		_, err := s.IncState(ctx, "count", 1)
		require.NoError(t, err)
		require.NoError(t, s.Delete(ctx))
	}
	requireDeleted(t, first, 6) // a handle still finds its tombstone
	testkit.Eventually(t, func() bool {
		collect()
		snap, err := pawl.Memory[board](rt, "first").IncState(ctx, "count", 1)
		if err != nil {
			require.ErrorIs(t, err, pawl.ErrDeleted)
			return false
		}
		return assert.Greater(t, snap.Version, uint64(6))
	}, "the oldest tombstone is dropped, and its versions are not used again")
	_, err = pawl.Memory[board](rt, fmt.Sprint(kept+more-1)).IncState(ctx, "count", 1)
	require.ErrorIs(t, err, pawl.ErrDeleted, "a recent tombstone is kept")
	snap, err := alive.IncState(ctx, "count", 1)
	require.NoError(t, err)
	require.EqualValues(t, 2, snap.Version, "existing scopes are not affected")
	fresh, err := pawl.Memory[board](rt, "never seen").IncState(ctx, "count", 1)
	require.NoError(t, err)
	require.Greater(t, fresh.Version, uint64(6), "an absent scope is created above the floor")
}

// An in-memory tombstone does not keep the lists of the deleted state.
func TestTombstonesFreeTheState(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	heap := func() uint64 {
		collect()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range 200 {
		s := pawl.Memory[counts](rt, strings.Repeat("x", i+1))
		_, err := s.PushState(t.Context(), "done", strings.Repeat("y", 1<<18))
		require.NoError(t, err)
		require.NoError(t, s.Delete(t.Context()))
	}
	grew := int64(heap()) - int64(before)
	assert.Less(t, grew, int64(5<<20))
	runtime.KeepAlive(rt)
}
