package persisttest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) lifecycle() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"a closed store returns ErrClosed":     s.closed,
		"closing during writes loses no ack":   s.closeWhileWriting,
		"an ended context stops a call":        s.endedContext,
		"an opened store has all commits":      s.reopened,
		"two handles see each other's commits": s.twoHandles,
	}
}

// Proves STORE-1.
func (s suite) closed(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	require.NoError(t, f.store.Close())
	require.NoError(t, f.store.Close(), "closing twice")
	_, err := f.store.Load(f.Context(), thing)
	require.ErrorIs(t, err, persist.ErrClosed)
	_, err = f.store.List(f.Context(), persist.Query{})
	require.ErrorIs(t, err, persist.ErrClosed)
	_, err = f.write(update(thing, 1))
	require.ErrorIs(t, err, persist.ErrClosed)
	if leaser, ok := f.store.(persist.Leaser); ok {
		_, err = leaser.Take(f.Context(), persist.Query{}, persist.Acquire{For: time.Hour}, nil)
		require.ErrorIs(t, err, persist.ErrClosed)
	}
	if purger, ok := f.store.(persist.Purger); ok {
		_, err = purger.Purge(f.Context(), persist.Query{})
		require.ErrorIs(t, err, persist.ErrClosed)
	}
}

// closeWhileWriting: an acknowledged write is in the store, and a write with ErrClosed is not.
//
// Proves STORE-1.
func (s suite) closeWhileWriting(t *testing.T) {
	location := s.location(t)
	f := s.at(t, location)
	const writers = 8
	acked := make([]uint64, writers)
	errs := make([]error, writers)
	begun := make(chan struct{}, writers)
	go func() {
		for range writers {
			<-begun
		}
		_ = f.store.Close()
	}()
	together(writers, func(i int) {
		k := key(string(rune('a' + i)))
		for version := uint64(0); errs[i] == nil; version++ {
			if _, errs[i] = f.write(update(k, version)); errs[i] == nil {
				acked[i] = version + 1
			}
			if version == 0 {
				begun <- struct{}{}
			}
		}
	})
	for i, err := range errs {
		require.ErrorIs(t, err, persist.ErrClosed, "writer %d", i)
	}
	if s.options.Volatile {
		return
	}
	again := s.at(t, location)
	for i, version := range acked {
		require.Equal(t, version, again.load(key(string(rune('a'+i)))).Version)
	}
}

// Proves STORE-1.
func (s suite) endedContext(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	ended, cancel := context.WithCancel(f.Context())
	cancel()
	_, err := f.store.Load(ended, thing)
	require.ErrorIs(t, err, context.Canceled)
	_, err = f.store.List(ended, persist.Query{})
	require.ErrorIs(t, err, context.Canceled)
	_, err = f.store.Commit(ended, persist.Commit{ID: commitID(), Writes: []persist.Write{update(thing, 1)}})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.EqualValues(t, 1, f.load(thing).Version)
}

// Proves STORE-3.
func (s suite) reopened(t *testing.T) {
	s.needsSharing(t)
	location := s.location(t)
	first := s.at(t, location)
	w := acquire(thing, 0, "me", time.Hour)
	w.Label, w.DueIn, w.TTL, w.Schema = "open", time.Hour, time.Hour, 3
	first.must(w)
	before := first.load(thing)
	require.NoError(t, first.store.Close())
	second := s.at(t, location)
	same(t, before, second.load(thing))
	if _, ok := second.store.(persist.Purger); !ok {
		return
	}
	second.must(remove(thing, 1))
	_, err := second.purger().Purge(t.Context(), persist.Query{})
	require.NoError(t, err)
	floor := second.floor(thing)
	require.NoError(t, second.store.Close())
	require.Equal(t, floor, s.at(t, location).floor(thing), "the floor is durable")
}

// Proves STORE-3, STORE-5.
func (s suite) twoHandles(t *testing.T) {
	s.needsSharing(t)
	location := s.location(t)
	one, two := s.at(t, location), s.at(t, location)
	for version := uint64(0); version < 20; version += 2 {
		one.must(update(thing, version))
		require.Equal(t, version+1, two.load(thing).Version)
		two.must(update(thing, version+1))
		_, err := one.write(update(thing, version+1))
		same(t, two.load(thing), lost(t, err)[0])
	}
}
