package hints

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

func TestMain(m *testing.M) { testkit.Main(m.Run) }

func key(id string) persist.Key { return persist.Key{Kind: "k", ID: id} }

func hint(id string, version uint64) persist.Hint {
	return persist.Hint{Key: key(id), Version: version}
}

// Hints of one key are merged and keep the order of the keys. A merged hint has a version only if
// all its hints have one. Proves SCOPE-13.
func TestMerge(t *testing.T) {
	var hub Hub
	s := hub.Subscribe()
	defer s.End()
	require.Equal(t, []persist.Hint{{}}, s.take(), "the first hint is the zero hint")

	hub.Send(hint("a", 2), hint("b", 7), hint("c", 1))
	hub.Send(hint("b", 0), hint("a", 3), hint("a", 2))
	s.Send(hint("b", 9))
	require.Equal(t, []persist.Hint{hint("a", 3), hint("b", 0), hint("c", 1)}, s.take())
	require.Empty(t, s.take())

	hub.Send(hint("a", 4), persist.Hint{}, hint("b", 8))
	require.Equal(t, []persist.Hint{{}}, s.take(), "the zero hint replaces all others")
}

// A slow watcher needs bounded memory and delays no other watcher. Proves SCOPE-13.
func TestSlowWatcher(t *testing.T) {
	var hub Hub
	slow, quick := hub.Subscribe(), hub.Subscribe()
	defer slow.End()
	defer quick.End()
	slow.take()
	quick.take()
	for i := range Most {
		hub.Send(hint(fmt.Sprint(i), 1))
		require.Len(t, quick.take(), 1)
	}
	require.Len(t, slow.pending.order, Most)
	hub.Send(hint("0", 2))
	require.Len(t, slow.pending.order, Most, "a pending key needs no more memory")
	hub.Send(hint("one more", 1))
	hub.Send(hint("and one more", 1))
	require.Empty(t, slow.pending.order)
	require.Empty(t, slow.pending.versions)
	require.Equal(t, []persist.Hint{{}}, slow.take())
	hub.Send(hint("x", 1))
	require.Equal(t, []persist.Hint{hint("x", 1)}, slow.take(), "after the zero hint, hints have keys again")
}

// A hint that is sent while wake runs is not lost, and wake does not run after Watch returned.
// Proves SCOPE-13.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hub Hub
		ctx, cancel := context.WithCancel(t.Context())
		var got []persist.Hint
		var busy sync.Mutex
		ended := make(chan error, 1)
		go func() {
			ended <- hub.Watch(ctx, func(h persist.Hint) {
				busy.Lock()
				defer busy.Unlock()
				got = append(got, h)
			})
		}()
		synctest.Wait()
		require.Equal(t, []persist.Hint{{}}, got)
		require.True(t, hub.Watched())

		busy.Lock()
		hub.Send(hint("a", 1))
		hub.Send(hint("a", 2))
		hub.Send(hint("b", 1))
		busy.Unlock()
		synctest.Wait()
		require.Equal(t, hint("b", 1), got[len(got)-1])
		require.Contains(t, got, hint("a", 2))

		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.False(t, hub.Watched())
		count := len(got)
		hub.Send(hint("a", 3))
		synctest.Wait()
		require.Len(t, got, count)
	})
}

// Deliver returns between two hints when the context ends or the hub closes. Proves SCOPE-13.
func TestEndWhileDelivering(t *testing.T) {
	for name, end := range map[string]func(*Hub, context.CancelFunc){
		"ctx":   func(_ *Hub, cancel context.CancelFunc) { cancel() },
		"close": func(hub *Hub, _ context.CancelFunc) { hub.Close(); hub.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			var hub Hub
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := hub.Subscribe()
			defer s.End()
			s.take()
			for i := range 100 {
				s.Send(hint(fmt.Sprint(i), 1))
			}
			calls := 0
			err := s.Deliver(ctx, func(persist.Hint) {
				if calls++; calls == 3 {
					end(&hub, cancel)
				}
			})
			require.Error(t, err)
			require.Equal(t, 3, calls)
		})
	}
}

// Close ends a current Watch, and a later Watch without a call of wake.
func TestClosed(t *testing.T) {
	var hub Hub
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- hub.Watch(t.Context(), func(persist.Hint) { close(ready) }) }()
	<-ready
	hub.Close()
	require.ErrorIs(t, <-ended, persist.ErrClosed)
	require.False(t, hub.Watched())
	err := hub.Watch(t.Context(), func(persist.Hint) { t.Error("woken") })
	require.ErrorIs(t, err, persist.ErrClosed)
	hub.Send(hint("a", 1))
}

// With concurrent writers, the last change of each key is followed by a hint for it. Proves
// SCOPE-13.
func TestLastChangeIsHinted(t *testing.T) {
	const writers, rounds = 4, 500
	var hub Hub
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	seen, current := map[persist.Key]uint64{}, map[persist.Key]uint64{}
	complete := func() bool {
		for i := range writers {
			if seen[key(fmt.Sprint(i))] != rounds {
				return false
			}
		}
		return true
	}
	ended := make(chan error, 1)
	go func() {
		ended <- hub.Watch(ctx, func(h persist.Hint) {
			mu.Lock()
			defer mu.Unlock()
			for k, version := range current { // a watcher reads the current version
				if h == (persist.Hint{}) || h.Key == k {
					seen[k] = version
				}
			}
			if complete() {
				cancel()
			}
		})
	}()
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for version := range uint64(rounds) {
				k := key(fmt.Sprint(i))
				mu.Lock()
				current[k] = version + 1
				mu.Unlock()
				hub.Send(persist.Hint{Key: k, Version: version + 1})
			}
		})
	}
	all.Wait()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// A new version and a released lease have a hint, other changes have none. Proves SCOPE-13.
func TestOf(t *testing.T) {
	held := persist.Record{Key: key("a"), Version: 3}
	held.Lease.Token = 2
	released, moved := held, held
	released.Lease = persist.Lease{}
	moved.Version = 4

	got, ok := Of(held, moved)
	require.True(t, ok)
	require.Equal(t, hint("a", 4), got)
	got, ok = Of(held, released)
	require.True(t, ok)
	require.Equal(t, hint("a", 0), got, "the hint has no version, so a watcher at version 3 reads the record")
	_, ok = Of(held, held)
	require.False(t, ok)
	got, ok = Of(persist.Record{Key: key("a"), Version: 2}, held)
	require.True(t, ok)
	require.Equal(t, hint("a", 3), got)
}
