package sqlite

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// TestLoadWhileOthersWrite: who loads while somebody has the connection that writes has one of its own, and if
// those are all in use waits for one, no longer than its context lasts.
//
// Proves STORE-7.
func TestLoadWhileOthersWrite(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	require.True(t, s.queue.tryLead())
	require.False(t, s.queue.tryLead())
	for range 2 {
		r, err := s.Load(t.Context(), thing("a"))
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Version)
		_, err = s.Load(t.Context(), thing("b"))
		require.ErrorIs(t, err, persist.ErrNotFound)
	}
	require.EqualValues(t, 1, s.lanes.opened.Load(), "one after the other")

	var taken []*lane
	for range cap(s.lanes.free) {
		l, err := s.lanes.take(t.Context())
		require.NoError(t, err)
		taken = append(taken, l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		_, err := s.Load(ctx, thing("a"))
		require.ErrorIs(t, err, context.Canceled)
	})
	group.Go(func() {
		_, err := s.Load(t.Context(), thing("a"))
		require.NoError(t, err)
	})
	cancel()
	for _, l := range taken {
		s.lanes.free <- l
	}
	group.Wait()
	require.EqualValues(t, cap(s.lanes.free), s.lanes.opened.Load())

	s.queue.resign(nil, 0)
	require.NoError(t, s.Close())
	require.Zero(t, s.lanes.opened.Load())
	_, err = s.Load(t.Context(), thing("a"))
	require.ErrorIs(t, err, persist.ErrClosed)
}
