package pawl_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// fillStore writes records in every state and raises the version floor.
func fillStore(t *testing.T, store persist.Store) {
	commits := 0
	commit := func(c persist.Commit) {
		t.Helper()
		commits++
		c.ID = fmt.Sprintf("fill.%d", commits)
		_, err := store.Commit(t.Context(), c)
		require.NoError(t, err)
	}
	write := func(id string, change func(*persist.Write)) {
		t.Helper()
		w := persist.Write{Key: persist.Key{Kind: "copy", ID: id}, Version: 12, Doc: []byte(`{"n": 1e2, "a": [0.10, "ü"]}`)}
		change(&w)
		commit(persist.Commit{Writes: []persist.Write{w}})
	}
	remove := func(w *persist.Write) { w.Expected, w.Version, w.Doc, w.Deleted = w.Version, w.Version+1, nil, true }
	same := func(*persist.Write) {}
	soon := func(w *persist.Write) { w.TTL = time.Millisecond }
	lease := func(d time.Duration) *persist.Acquire { return &persist.Acquire{Holder: "me", For: d} }

	write("purged", func(w *persist.Write) { w.Version = 10 })
	write("purged", func(w *persist.Write) { w.Version = 10; remove(w) })
	_, err := store.(persist.Purger).Purge(t.Context(), persist.Query{})
	require.NoError(t, err)
	for i := range 30 {
		write(fmt.Sprint("alive ", i), same)
	}
	write("all fields", func(w *persist.Write) {
		w.Schema, w.Label, w.DueIn, w.TTL, w.Acquire = 3, "open", time.Hour, time.Hour, lease(time.Hour)
	})
	write("lease ran out", func(w *persist.Write) { w.Acquire = lease(time.Millisecond) })
	write("expired", soon)
	write("swept", soon)
	write("expired and leased", func(w *persist.Write) { soon(w); w.Acquire = lease(time.Hour) })
	write("deleted", same)
	write("deleted", remove)
	require.Eventually(t, func() bool {
		r, err := store.Load(t.Context(), persist.Key{Kind: "copy", ID: "expired and leased"})
		return err == nil && r.Now.After(r.Expires)
	}, 10*time.Second, time.Millisecond)
	write("swept", func(w *persist.Write) { remove(w); w.Gone, w.Swept = true, true })
}

// Copy keeps every record between any two stores. A second run writes nothing.
//
// Proves STORE-15.
func TestCopyBetweenStores(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, from persist.Store) {
		fillStore(t, from)
		stores.EachOpen(t, func(t *testing.T, to persist.Store) {
			const n = 36
			report, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{PageSize: 10})
			require.NoError(t, err)
			require.Equal(t, persist.CopyReport{Copied: n, Verified: n}, report)
			report, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{})
			require.NoError(t, err)
			require.Equal(t, persist.CopyReport{Unchanged: n, Verified: n}, report)

			r, err := to.Load(t.Context(), persist.Key{Kind: "copy", ID: "purged"})
			require.ErrorIs(t, err, persist.ErrNotFound)
			require.EqualValues(t, 11, r.Version, "the version floor")
			r, err = to.Load(t.Context(), persist.Key{Kind: "copy", ID: "expired and leased"})
			require.NoError(t, err)
			require.False(t, r.Gone(r.Now))
			r, err = to.Load(t.Context(), persist.Key{Kind: "copy", ID: "swept"})
			require.NoError(t, err)
			require.True(t, r.Deleted && !r.Expires.IsZero())
			r, err = to.Load(t.Context(), persist.Key{Kind: "copy", ID: "deleted"})
			require.NoError(t, err)
			require.True(t, r.Deleted && r.Expires.IsZero())
		})
	})
}
