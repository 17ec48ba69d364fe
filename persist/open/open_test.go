package open_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/open"
	"github.com/pawl-go/pawl/persist/sqlite"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

func TestBadLocations(t *testing.T) {
	for location, want := range map[string]string{
		"":                 "empty",
		"chat.db":          `write "sqlite:chat.db"`,
		`C:\chat.db`:       "has no scheme",
		"sqlite:":          "names no place",
		"tape:1":           `unknown scheme "tape", want one of dir, postgres, postgresql, sqlite`,
		"SQLITE:chat.db":   `unknown scheme "SQLITE"`,
		"mysql://u:p@h/db": `unknown scheme "mysql"`,
	} {
		store, err := open.Store(t.Context(), location, open.Options{})
		require.ErrorIs(t, err, open.ErrLocation, location)
		require.ErrorContains(t, err, want)
		require.Nil(t, store)
	}
}

// A store that cannot be opened is a nil interface, and no error shows the password.
func TestUnusableStores(t *testing.T) {
	folder := t.TempDir()
	for _, location := range []string{
		"sqlite:" + folder,
		"sqlite:" + filepath.Join(folder, "no", "such", "folder.db"),
		"dir:" + filepath.Join(folder, "file", "below"),
		"postgres://ann:sesame@127.0.0.1:1/none",
		"postgres://ann:sesame@127.0.0.1:port/none",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, "file"), []byte("x"), 0o600))
		store, err := open.Store(t.Context(), location, open.Options{})
		require.Error(t, err, location)
		require.True(t, store == nil, location)
		require.NotContains(t, err.Error(), "sesame")
	}
}

func TestRedacted(t *testing.T) {
	for location, want := range map[string]string{
		"sqlite:a b.db":                        "sqlite:a b.db",
		"sqlite:\x1b[2J":                       `"sqlite:\x1b[2J"`,
		"postgres://ann:sesame@h/db":           "postgres://ann:xxxxx@h/db",
		"postgres://h/db?password=sesame":      "postgres://h/db?password=xxxxx",
		"postgres://ann:sesame@h:port/db":      "postgres://...",
		"postgres://ann:ses\name@127.0.0.1/db": "postgres://...",
		"postgres:host=h password=sesame":      "postgres:...",
		"chat.db":                              "chat.db",
		`C:\chat.db`:                           `"C:\\chat.db"`,
	} {
		require.Equal(t, want, open.Redacted(location))
	}
}

// flag returns the location of a test store as this package takes it.
func flag(location string) string { return strings.Replace(location, "fs:", "dir:", 1) }

// openFor opens a store and closes it when t ends.
func openFor(t *testing.T, location string, opts open.Options) persist.Store {
	t.Helper()
	store, err := open.Store(t.Context(), location, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// Options.Scheme is that of a location without one, and of no other.
func TestScheme(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	openFor(t, path, open.Options{Scheme: "sqlite"})
	openFor(t, "sqlite:"+path, open.Options{Existing: true})
	openFor(t, "dir:"+t.TempDir(), open.Options{Scheme: "sqlite"})
	for _, location := range []string{"", "tape:1", "dir:"} {
		_, err := open.Store(t.Context(), location, open.Options{Scheme: "sqlite"})
		require.ErrorIs(t, err, open.ErrLocation, location)
	}
	_, err := open.Store(t.Context(), path, open.Options{Scheme: "tape"})
	require.ErrorIs(t, err, open.ErrLocation)
}

func TestExisting(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		location = flag(location)
		for range 2 { // the first attempt has created nothing
			store, err := open.Store(t.Context(), location, open.Options{Existing: true})
			require.ErrorIs(t, err, persist.ErrMissingStore)
			require.Nil(t, store)
		}
		if _, path, ok := strings.Cut(location, ":/"); ok && !strings.HasPrefix(location, "postgres") {
			_, err := os.Stat("/" + path)
			require.ErrorIs(t, err, os.ErrNotExist)
		}
		openFor(t, location, open.Options{})
		openFor(t, location, open.Options{Existing: true})
	})
}

// A file of another program is neither migrated nor brought into WAL mode.
func TestExistingForeignDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.db")
	db, err := sql.Open(sqlite.Driver, path)
	require.NoError(t, err)
	_, err = db.Exec("CREATE TABLE other (id)")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	before, err := os.ReadFile(path)
	require.NoError(t, err)

	_, err = open.Store(t.Context(), "sqlite:"+path, open.Options{Existing: true})
	require.ErrorIs(t, err, persist.ErrMissingStore)
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestExistingOlderSchema(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		stores.Need(t, "sqlite")
		path := filepath.Join(t.TempDir(), "state.db")
		openFor(t, "sqlite:"+path, open.Options{})
		db, err := sql.Open(sqlite.Driver, path)
		require.NoError(t, err)
		defer db.Close()
		_, err = db.Exec("UPDATE pawl_meta SET value = 1 WHERE name = 'schema'")
		require.NoError(t, err)
		_, err = open.Store(t.Context(), "sqlite:"+path, open.Options{Existing: true})
		require.ErrorIs(t, err, persist.ErrOlderSchema)
	})
	t.Run("postgres", func(t *testing.T) {
		stores.Need(t, "postgres")
		url := pgtest.URL(t)
		openFor(t, url, open.Options{})
		_, err := pgtest.Connect(t, url).Exec(t.Context(), "UPDATE pawl_meta SET value = 1 WHERE name = 'schema'")
		require.NoError(t, err)
		_, err = open.Store(t.Context(), url, open.Options{Existing: true})
		require.ErrorIs(t, err, persist.ErrOlderSchema)
	})
}

func TestDescribe(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		store := openFor(t, flag(location), open.Options{})
		describer := store.(persist.Describer)
		d, err := describer.Describe(t.Context())
		require.NoError(t, err)
		require.Empty(t, d.Kinds)
		require.Positive(t, d.Schema)
		for i, w := range []persist.Write{
			{Key: persist.Key{Kind: "b", ID: "1"}, Version: 1, Doc: []byte(`{}`)},
			{Key: persist.Key{Kind: "a", ID: "1"}, Version: 1, Doc: []byte(`{}`)},
			{Key: persist.Key{Kind: "a", ID: "2"}, Version: 1, Doc: []byte(`{}`)},
			{Key: persist.Key{Kind: "a", ID: "2"}, Expected: 1, Version: 2, Deleted: true},
		} {
			_, err := store.Commit(t.Context(), persist.Commit{ID: "w." + string(rune('0'+i)), Writes: []persist.Write{w}})
			require.NoError(t, err)
		}
		d, err = describer.Describe(t.Context())
		require.NoError(t, err)
		tombstones := []int{1, 0}
		if stores.Name(location) == "fs" {
			tombstones = []int{-1, -1}
		}
		require.Equal(t, []persist.KindCount{{Kind: "a", Records: 2, Tombstones: tombstones[0]}, {Kind: "b", Records: 1, Tombstones: tombstones[1]}}, d.Kinds)
		require.Positive(t, d.Size)
		for _, s := range d.Settings {
			require.NotEmpty(t, s.Value, s.Name)
			require.Empty(t, s.Advice, s.Name)
		}

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = describer.Describe(ended)
		require.ErrorIs(t, err, context.Canceled)
	})
}
