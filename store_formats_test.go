package pawl_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// storedFormats is the folder with one store of each kind, as an earlier commit left it. The README
// there says how it was made.
const storedFormats = "testdata/formats/283d669"

// storedTask is the state of the kind "task" in the stored formats.
type storedTask struct {
	Title  string         `json:"title"`
	Status string         `json:"status"`
	Due    time.Time      `json:"due,omitzero"`
	Steps  []string       `json:"steps"`
	Counts map[string]int `json:"counts"`
	Big    uint64         `json:"big"`
}

// storedVisit is the state of the kind "visit" in the stored formats.
type storedVisit struct {
	N int `json:"n"`
}

var (
	storedTasks = pawl.Kind[storedTask]{Name: "task", Label: "status", Due: "due", Upgrades: []pawl.Upgrade{
		func(d pawl.Doc) error {
			d["title"] = d["name"]
			delete(d, "name")
			return nil
		},
	}}
	storedVisits = pawl.Kind[storedVisit]{Name: "visit", TTL: time.Hour}

	storedPlain = "plain/with a slash, ümlaut and 日本"
	storedDue   = time.Date(2020, 2, 3, 4, 5, 6, 789000, time.UTC)
)

// restore returns the location of a copy of the stored format of a store.
func restore(t *testing.T, s stores.Store) (location string) {
	t.Helper()
	location = s.New(t)
	read := func(name string) []byte {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(storedFormats, name))
		require.NoError(t, err)
		return data
	}
	switch s.Name {
	case "sqlite":
		require.NoError(t, os.WriteFile(location[len("sqlite:"):], read("state.sqlite"), 0o600))
	case "fs":
		unpack(t, read("fs.tar.gz"), filepath.Dir(location[len("fs:"):]))
		require.NoError(t, os.Rename(filepath.Join(filepath.Dir(location[len("fs:"):]), "fs"), location[len("fs:"):]))
	case "postgres":
		commands := regexp.MustCompile(`(?m)^\\.*$`).ReplaceAll(read("postgres.sql"), nil) // commands of psql
		_, err := pgtest.Connect(t, location).PgConn().Exec(t.Context(), string(commands)).ReadAll()
		require.NoError(t, err)
	}
	return location
}

// unpack writes the files and folders of a compressed archive into a folder.
func unpack(t *testing.T, archive []byte, folder string) {
	t.Helper()
	text, err := gzip.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	for files := tar.NewReader(text); ; {
		file, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		path := filepath.Join(folder, filepath.FromSlash(file.Name))
		if file.Typeflag == tar.TypeDir {
			require.NoError(t, os.MkdirAll(path, 0o700))
			continue
		}
		data, err := io.ReadAll(files)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, data, 0o600))
	}
}

// storedRecords returns the records of a stored format, as read by the commit that wrote them.
func storedRecords(t *testing.T, name string) []persist.Record {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(storedFormats, name+".jsonl"))
	require.NoError(t, err)
	var records []persist.Record
	for lines := json.NewDecoder(bytes.NewReader(data)); lines.More(); {
		var r persist.Record
		require.NoError(t, lines.Decode(&r))
		records = append(records, r)
	}
	require.Len(t, records, 10)
	return records
}

// onStoredFormats runs test with a copy of the stored format of each store.
func onStoredFormats(t *testing.T, test func(t *testing.T, name string, store persist.Store, rt *pawl.Runtime)) {
	for _, s := range stores.Shared {
		t.Run(s.Name, func(t *testing.T) {
			store := stores.OpenFor(t, restore(t, s))
			test(t, s.Name, store, openRuntime(t, pawl.Config{Store: store, Kinds: []pawl.AnyKind{storedTasks, storedVisits}}))
		})
	}
}

// Every field of every record in a store of an earlier commit reads as that commit read it.
func TestStoredFormatsAreRead(t *testing.T) {
	onStoredFormats(t, func(t *testing.T, name string, store persist.Store, rt *pawl.Runtime) {
		ctx := t.Context()
		for _, want := range storedRecords(t, name) {
			got, err := store.Load(ctx, want.Key)
			require.NoError(t, err)
			require.NotZero(t, got.Now)
			got.Now = time.Time{}
			require.Equal(t, string(want.Doc), string(got.Doc))
			require.Equal(t, want, got)
		}
		r, err := store.Load(ctx, storedTasks.Scope(rt, "purged").Key())
		require.ErrorIs(t, err, persist.ErrNotFound)
		require.EqualValues(t, 6, r.Version, "the version floor")

		snap, err := storedTasks.Scope(rt, storedPlain).Snapshot(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 9, snap.Version)
		require.Equal(t, storedTask{
			Title: "a \"title\" <b> \u2028 ü", Status: "open", Due: storedDue, Steps: []string{"one", "two"},
			Counts: map[string]int{"a": -1, "b.c": 2}, Big: 18446744073709551615,
		}, snap.State())

		for _, id := range []string{"deleted", "purged"} {
			snap, err := storedTasks.Scope(rt, id).Snapshot(ctx)
			require.NoError(t, err)
			require.False(t, snap.Exists(), id)
		}
		for _, id := range []string{"expired", "swept"} {
			snap, err := storedVisits.Scope(rt, id).Snapshot(ctx)
			require.NoError(t, err)
			require.False(t, snap.Exists(), id)
		}

		list := func(q pawl.Query) (ids []string) {
			for snap, err := range storedTasks.List(ctx, rt, q) {
				require.NoError(t, err)
				ids = append(ids, snap.ID)
			}
			slices.Sort(ids)
			return ids
		}
		require.Equal(t, []string{"closed", "held", storedPlain, "released", "schema-0", "tx-1", "tx-2"}, list(pawl.Query{}))
		require.Equal(t, []string{"closed"}, list(pawl.Query{Labels: []string{"closed"}}))
		require.Equal(t, []string{"held", storedPlain, "released"}, list(pawl.Query{Due: true}))

		_, err = storedTasks.Scope(rt, "held").Acquire(ctx)
		var held *pawl.HeldError
		require.ErrorAs(t, err, &held)
		require.Equal(t, "holder of the fixture", held.Holder)
		require.EqualValues(t, 8, held.Token)
		require.Greater(t, held.Left, 24*time.Hour)
	})
}

// A store of an earlier commit accepts new commits: versions continue, and the first write upgrades
// an older schema. Proves SCOPE-15.
func TestStoredFormatsAreWritten(t *testing.T) {
	onStoredFormats(t, func(t *testing.T, name string, store persist.Store, rt *pawl.Runtime) {
		ctx := t.Context()
		load := func(key pawl.Key) persist.Record {
			t.Helper()
			r, err := store.Load(ctx, key)
			require.NoError(t, err)
			return r
		}
		plain := storedTasks.Scope(rt, storedPlain)
		before := load(plain.Key())
		snap, err := plain.PushState(ctx, "steps", "three", pawl.IfVersion(9))
		require.NoError(t, err)
		require.EqualValues(t, 10, snap.Version)
		after := load(plain.Key())
		require.Equal(t, before.Commits, after.Commits[:3], "earlier commit ids are kept")
		require.Len(t, after.Commits, 4)
		require.Equal(t, before.Born, after.Born)
		require.Equal(t, before.Due, after.Due)
		require.Equal(t, uint64(18446744073709551615), decode[storedTask](t, after).Big)

		older := storedTasks.Scope(rt, "schema-0")
		snap, err = older.PatchState(ctx, pawl.Patch{"status": "open"})
		require.NoError(t, err)
		require.EqualValues(t, 2, snap.Version)
		require.Equal(t, "written under schema 0", snap.ReadOnly().Title)
		require.Equal(t, 1, load(older.Key()).Schema)
		require.Equal(t, "open", load(older.Key()).Label)

		for id, version := range map[string]uint64{"deleted": 9, "purged": 7} {
			snap, err := storedTasks.Scope(rt, id).SetState(ctx, storedTask{Title: "again"}, pawl.IfAbsent())
			require.NoError(t, err)
			require.Equal(t, version, snap.Version, id)
		}
		for id, version := range map[string]uint64{"expired": 8, "swept": 9} {
			snap, err := storedVisits.Scope(rt, id).IncState(ctx, "n", 1)
			require.NoError(t, err)
			require.Equal(t, version, snap.Version, id)
			require.Equal(t, 1, snap.ReadOnly().N, "an expired scope starts from zero")
		}

		require.NoError(t, pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
			for _, id := range []string{"tx-1", "tx-2"} {
				if _, err := storedTasks.Scope(tx, id).IncState(ctx, "big", 1); err != nil {
					return err
				}
			}
			return nil
		}))
		require.EqualValues(t, 8, load(storedTasks.Scope(rt, "tx-2").Key()).Version)

		held := storedTasks.Scope(rt, "held")
		lease := load(held.Key()).Lease
		_, err = held.PatchState(ctx, pawl.Patch{"title": "written beside the holder"})
		require.NoError(t, err)
		require.Equal(t, lease, load(held.Key()).Lease)

		taken, err := storedTasks.Take(ctx, rt, pawl.Query{Due: true, Limit: 10})
		require.NoError(t, err)
		var ids []string
		for _, w := range taken {
			ids = append(ids, w.ID)
			require.NoError(t, w.Lease.Release(ctx))
		}
		require.ElementsMatch(t, []string{storedPlain, "released"}, ids, "Take must skip the held scope")
	})
}

// The sweeper clears the expired record in a store of an earlier commit and purges its tombstones.
func TestStoredFormatsAreSwept(t *testing.T) {
	onStoredFormats(t, func(t *testing.T, name string, store persist.Store, rt *pawl.Runtime) {
		sweeper, err := pawl.NewSweeper(rt, pawl.SweeperConfig{})
		require.NoError(t, err)
		_, err = sweeper.Sweep(t.Context())
		require.NoError(t, err)
		r, err := store.Load(t.Context(), storedVisits.Scope(rt, "expired").Key())
		require.NoError(t, err)
		require.True(t, r.Deleted)
		require.EqualValues(t, 8, r.Version)
		require.False(t, r.Expires.IsZero())
		require.Equal(t, 3, purge(t, store.(persist.Purger)), "deleted, swept and expired")
		r, err = store.Load(t.Context(), r.Key)
		require.ErrorIs(t, err, persist.ErrNotFound)
		require.EqualValues(t, 8, r.Version, "the version floor must rise")
	})
}
