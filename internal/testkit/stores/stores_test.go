package stores_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

func init() {
	testkit.Child("write", func() error {
		store, err := stores.OpenGiven()
		if err != nil {
			return err
		}
		_, err = store.Commit(context.Background(), put(1))
		return errors.Join(err, store.Close())
	})
}

var key = persist.Key{Kind: "thing", ID: "1"}

// put returns the commit of a version of the key.
func put(version uint64) persist.Commit {
	return persist.Commit{ID: fmt.Sprint("test.", version), Writes: []persist.Write{
		{Key: key, Expected: version - 1, Version: version, Doc: []byte(`{"n":1}`)},
	}}
}

// Each handle sees the commits of the others, and outlives them.
func TestHandles(t *testing.T) {
	seen := map[string]bool{}
	stores.Each(t, func(t *testing.T, location string) {
		require.Equal(t, "TestHandles/"+stores.Name(location), t.Name())
		seen[stores.Name(location)] = true
		first, second := stores.OpenFor(t, location), stores.OpenFor(t, location)
		_, err := first.Load(t.Context(), key)
		require.ErrorIs(t, err, persist.ErrNotFound)
		_, err = first.Commit(t.Context(), put(1))
		require.NoError(t, err)
		require.NoError(t, first.Close())
		r, err := second.Load(t.Context(), key)
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Version)
	})
	require.True(t, seen["memory"])
	require.Len(t, seen, 1+len(stores.Shared))
}

func TestChildProcess(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		testkit.Start(t, "write", stores.Env(location)).Wait()
		r, err := stores.OpenFor(t, location).Load(t.Context(), key)
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Version)
	})
}

func TestOpenNothing(t *testing.T) {
	for _, location := range []string{"", "tape:1", "memory:0"} {
		_, err := stores.Open(location)
		require.ErrorContains(t, err, "no store at")
	}
}

func TestNeed(t *testing.T) {
	t.Setenv(stores.Only, "")
	stores.Need(t, "fs")
	t.Setenv(stores.Only, "fs")
	stores.Need(t, "fs")
	t.Run("skipped", func(t *testing.T) {
		stores.Need(t, "sqlite")
		t.Fatal("the test was not skipped")
	})
}

func TestTap(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		tap := &stores.Tap{Store: store}
		refused := errors.New("refused")
		tap.OnCommit(func(context.Context, persist.Commit) error { return refused })
		_, err := tap.Commit(t.Context(), put(1))
		require.ErrorIs(t, err, refused)
		tap.RefuseAll()
		_, err = tap.Commit(t.Context(), put(1))
		require.ErrorIs(t, err, persist.ErrUnavailable)
		tap.Refuse(nil)

		entered, release := tap.Hold()
		answer := make(chan error, 1)
		go func() {
			_, err := tap.Commit(t.Context(), put(1))
			answer <- err
		}()
		<-entered
		_, err = tap.Load(t.Context(), key)
		require.ErrorIs(t, err, persist.ErrNotFound)
		release()
		require.NoError(t, testkit.Receive(t, answer))

		tap.OnCommitted(func(c persist.Commit, at time.Time, err error) (time.Time, error) {
			require.Equal(t, put(2), c)
			require.NoError(t, err)
			require.NotZero(t, at)
			return time.Time{}, refused
		})
		_, err = tap.Commit(t.Context(), put(2))
		require.ErrorIs(t, err, refused)
		r, err := tap.Load(t.Context(), key)
		require.NoError(t, err)
		require.EqualValues(t, 2, r.Version)

		tap.OnCommitted(nil)
		tap.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			require.Equal(t, put(3), c)
			at, err := commit()
			require.NoError(t, err)
			return at, refused
		})
		_, err = tap.Commit(t.Context(), put(3))
		require.ErrorIs(t, err, refused)
		tap.Around(nil)

		tap.OnLoad(func(_ context.Context, keys ...persist.Key) error {
			require.Equal(t, []persist.Key{key}, keys)
			return refused
		})
		_, err = tap.Load(t.Context(), key)
		require.ErrorIs(t, err, refused)
		_, err = tap.LoadAll(t.Context(), []persist.Key{key})
		require.ErrorIs(t, err, refused)
		versions, err := tap.Versions(t.Context(), []persist.Key{key, {Kind: "thing", ID: "2"}})
		require.NoError(t, err)
		require.Equal(t, []uint64{3, 0}, versions)
		require.EqualValues(t, 5, tap.Commits.Load())
		require.EqualValues(t, 4, tap.Loads.Load())
	})
}

// Unlocked changes no record of the store.
func TestUnlocked(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		require.NoError(t, stores.Unlocked(store)(t.Context()), "an empty store")
		_, err := store.Commit(t.Context(), put(1))
		require.NoError(t, err)
		before, err := store.Load(t.Context(), key)
		require.NoError(t, err)
		require.NoError(t, stores.Unlocked(store)(t.Context()))
		after, err := store.Load(t.Context(), key)
		require.NoError(t, err)
		before.Now, after.Now = time.Time{}, time.Time{}
		require.Equal(t, before, after)
	})
}
