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

// Copy keeps logs between any two stores: a second run copies new entries and removes those that the
// source has removed, and the destination continues with higher positions.
//
// Proves STORE-15.
func TestCopyLogsBetweenStores(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, from persist.Store) {
		source := persist.Logs(from)
		numbers := map[string]uint64{}
		write := func(store persist.Logger, id string, entries int, change func(*persist.LogWrite)) {
			t.Helper()
			key := persist.Key{Kind: "log", ID: id}
			r, err := store.Load(t.Context(), key)
			if err != nil {
				require.ErrorIs(t, err, persist.ErrNotFound)
			}
			w := persist.Write{Key: key, Version: r.Version + 1, Doc: []byte(`{}`), Log: &persist.LogWrite{First: numbers[id]}}
			if !r.Absent() {
				w.Expected = r.Version
			}
			if change != nil {
				change(w.Log)
			}
			for i := range entries {
				w.Log.Entries = append(w.Log.Entries, fmt.Appendf(nil, `{ "z": "\u0000", "a": 1.0e%d }`, i))
			}
			numbers[id] = w.Log.First + uint64(entries)
			_, err = store.Commit(t.Context(), persist.Commit{ID: fmt.Sprintf("log.%s-%d", id, w.Version), Writes: []persist.Write{w}})
			require.NoError(t, err)
		}
		order := func(store persist.Logger) (all []string) {
			t.Helper()
			entries, err := store.ReadOrder(t.Context(), persist.OrderQuery{Limit: 1000})
			require.NoError(t, err)
			for _, e := range entries {
				all = append(all, fmt.Sprintln(e.Key, e.Number, e.Position, e.At.UnixMicro(), string(e.Data)))
			}
			return all
		}
		for i := range 12 {
			write(source, fmt.Sprint(i%3), 3, nil)
		}
		stores.EachOpen(t, func(t *testing.T, to persist.Store) {
			destination := persist.Logs(to)
			n := len(order(source))
			report, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{PageSize: 10})
			require.NoError(t, err)
			require.Equal(t, persist.CopiedLogs{Copied: n, Verified: n}, report.Logs)
			require.Equal(t, order(source), order(destination))

			write(source, "0", 1, func(l *persist.LogWrite) { l.Drop = l.First - 2 })                  // all but two and the new one
			write(source, "1", 2, func(l *persist.LogWrite) { l.Clear, l.Drop, l.First = true, 0, 0 }) // starts over
			report, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{})
			require.NoError(t, err)
			require.Equal(t, 3, report.Logs.Copied)
			require.Equal(t, len(order(source)), report.Logs.Verified)
			require.Equal(t, order(source), order(destination))

			last, err := source.LastPosition(t.Context())
			require.NoError(t, err)
			next := numbers["2"]
			write(destination, "2", 1, nil)
			numbers["2"] = next // of the source
			entries, err := destination.ReadOrder(t.Context(), persist.OrderQuery{After: last})
			require.NoError(t, err)
			require.Len(t, entries, 1)
			require.Equal(t, next, entries[0].Number)
			log, err := destination.ReadLog(t.Context(), persist.LogQuery{Key: persist.Key{Kind: "log", ID: "1"}})
			require.NoError(t, err)
			require.Len(t, log, 2)
		})
	})
}
