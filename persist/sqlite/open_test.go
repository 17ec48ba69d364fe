package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// impatient gives up soon, for tests that do not release a lock.
var impatient = Config{BusyTimeout: 50 * time.Millisecond}

func openAt(t *testing.T, path string, config Config) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// database opens the file at path as an application would.
func database(t *testing.T, path, settings string) *sql.DB {
	t.Helper()
	_, err := prepareFile(path, false)
	require.NoError(t, err)
	db, err := sql.Open(driverName, dataSource(path, settings))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func dbPath(t *testing.T) string { return filepath.Join(t.TempDir(), "state.db") }

func put(id string, expected uint64) persist.Commit {
	return persist.Commit{ID: fmt.Sprintf("test-%s.%d", id, expected), Writes: []persist.Write{
		{Key: persist.Key{Kind: "thing", ID: id}, Expected: expected, Version: expected + 1, Doc: []byte(`{}`)},
	}}
}

// The connection that writes is durable, also after it was lost.
//
// Proves STORE-7.
func TestDurableByDefault(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "wal_autocheckpoint": "1000"} {
		var got string
		require.NoError(t, s.writer.conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got))
		require.Equal(t, want, got, pragma)
	}
	s.writer.discard()
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err, "a lost connection is opened again")
	var synchronous int
	require.NoError(t, s.writer.conn.QueryRowContext(t.Context(), "PRAGMA synchronous").Scan(&synchronous))
	require.Equal(t, 2, synchronous)
}

// Proves STORE-12.
func TestFilesArePrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no file modes")
	}
	path := filepath.Join(t.TempDir(), "with spaces, ? # and %41.db")
	s := openAt(t, path, Config{})
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(path + suffix)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), "state.db%s", suffix)
	}
}

// Proves STORE-12.
func TestPathsThatCannotBe(t *testing.T) {
	folder := t.TempDir()
	for _, path := range []string{"", ":memory:", "file::memory:?cache=shared", "file:x.db?_auth_pass=secret", folder, filepath.Join(folder, "no", "x.db")} {
		_, err := Open(t.Context(), path, Config{})
		require.Error(t, err, path)
		require.NotContains(t, err.Error(), "secret")
	}
	broken := filepath.Join(folder, "text.db")
	require.NoError(t, os.WriteFile(broken, []byte("this text is not a database, and long enough for a header"), 0o600))
	_, err := Open(t.Context(), broken, Config{})
	require.Error(t, err)
}

// In UTF-16 SQLite would sort names by another order.
//
// Proves STORE-1.
func TestUTF16IsRefused(t *testing.T) {
	path := dbPath(t)
	db := database(t, path, "_journal_mode=WAL&_synchronous=FULL")
	_, err := db.Exec("PRAGMA encoding = 'UTF-16le'; CREATE TABLE one (name TEXT)")
	require.NoError(t, err)
	for _, open := range []func() (*Store, error){
		func() (*Store, error) { return New(t.Context(), db, Config{}) },
		func() (*Store, error) { return Open(t.Context(), path, Config{}) },
	} {
		_, err = open()
		require.ErrorContains(t, err, "UTF-16le")
	}
}

// Proves STORE-9.
func TestNewerSchemaIsRefused(t *testing.T) {
	path := dbPath(t)
	require.NoError(t, openAt(t, path, Config{}).Close())
	db := database(t, path, "")
	_, err := db.Exec(`UPDATE pawl_meta SET value = 99 WHERE name = 'schema'`)
	require.NoError(t, err)
	_, err = Open(t.Context(), path, Config{})
	require.ErrorIs(t, err, persist.ErrNewerSchema)
	require.ErrorContains(t, err, "99")
	var version int
	require.NoError(t, db.QueryRow(`SELECT value FROM pawl_meta WHERE name = 'schema'`).Scan(&version))
	require.Equal(t, 99, version)
}

// A failed migration leaves nothing behind.
//
// Proves STORE-9.
func TestFailedMigration(t *testing.T) {
	path := dbPath(t)
	db := database(t, path, "_journal_mode=WAL")
	_, err := db.Exec(`CREATE TABLE pawl_records (something TEXT)`)
	require.NoError(t, err)
	_, err = Open(t.Context(), path, Config{})
	require.ErrorContains(t, err, "0001_records.sql")
	var tables int
	require.NoError(t, db.QueryRow(`SELECT count(*) FROM sqlite_master WHERE type = 'table'`).Scan(&tables))
	require.Equal(t, 1, tables)
}

func TestOwnDatabase(t *testing.T) {
	db := database(t, dbPath(t), "_journal_mode=WAL&_synchronous=FULL&_busy_timeout=1234")
	s, err := New(t.Context(), db, Config{TablePrefix: "app_state_"})
	require.NoError(t, err)
	_, err = s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	var count int
	require.NoError(t, db.QueryRow(`SELECT count(*) FROM app_state_records`).Scan(&count), "the database stays open")
	require.Equal(t, 1, count)
	var timeout int
	require.NoError(t, db.QueryRow(`PRAGMA busy_timeout`).Scan(&timeout))
	require.Equal(t, 1234, timeout, "the connection is given back as it was")
}

// Proves STORE-7.
func TestUnsafeDatabaseIsRefused(t *testing.T) {
	for settings, complaint := range map[string]string{
		"_journal_mode=WAL&_synchronous=NORMAL":  "synchronous",
		"_journal_mode=WAL&_synchronous=OFF":     "synchronous",
		"_journal_mode=DELETE&_synchronous=FULL": "journal_mode",
	} {
		_, err := New(t.Context(), database(t, dbPath(t), settings), Config{})
		require.ErrorContains(t, err, complaint)
	}
	db := database(t, dbPath(t), "_journal_mode=WAL&_synchronous=FULL")
	db.SetMaxOpenConns(1)
	_, err := New(t.Context(), db, Config{})
	require.ErrorContains(t, err, "SetMaxOpenConns")
}

// New fails in time when the application uses every connection of the pool.
func TestUsedUpPool(t *testing.T) {
	db := database(t, dbPath(t), "_journal_mode=WAL&_synchronous=FULL")
	db.SetMaxOpenConns(2)
	for range 2 {
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()
	}
	_, err := New(context.Background(), db, impatient)
	require.ErrorIs(t, err, persist.ErrUnavailable)
}

func TestTablePrefix(t *testing.T) {
	for _, prefix := range []string{`"; DROP TABLE x; --`, "a b", "1a", "é", "a-b", `a"b`, "a_very_long_prefix_that_nobody_needs"} {
		_, err := Open(t.Context(), dbPath(t), Config{TablePrefix: prefix})
		require.ErrorContains(t, err, "table prefix", prefix)
	}
	path := dbPath(t)
	one, two := openAt(t, path, Config{TablePrefix: "one_"}), openAt(t, path, Config{TablePrefix: "select"})
	_, err := one.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	_, err = two.Load(t.Context(), persist.Key{Kind: "thing", ID: "a"})
	require.ErrorIs(t, err, persist.ErrNotFound)
	_, err = two.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
}

// A list does not read the records that do not match.
//
// Proves STORE-1.
func TestIndices(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	for index, q := range map[string]persist.Query{
		"pawl_label (kind=? AND label=?)": {Kind: "k", Labels: []string{"open"}},
		"pawl_label":                      {Kind: "k", Labels: []string{"open", "closed"}},
		"pawl_due":                        {Kind: "k", Due: true, Unheld: true},
		"pawl_due (kind=?":                {Kind: "k", Due: true, Unheld: true, Labels: []string{"open", "closed"}},
		"pawl_expires":                    {Kind: "k", Expired: true},
		"pawl_deleted":                    {Kind: "k", Deleted: true, Age: time.Hour},
		"pawl_deleted (kind=?)":           {Kind: "k", Deleted: true},
		"pawl_expires (kind=?":            {Kind: "k", Expired: true, Unheld: true},
		"sqlite_autoindex_pawl_records_1": {Kind: "k", Prefix: "a"},
	} {
		text, args, err := s.sql.list(q, hostTime(), 100)
		require.NoError(t, err)
		rows, err := s.reader.Query("EXPLAIN QUERY PLAN "+text, args...)
		require.NoError(t, err)
		var steps []string
		for rows.Next() {
			var id, parent, unused int
			var step string
			require.NoError(t, rows.Scan(&id, &parent, &unused, &step))
			steps = append(steps, step)
		}
		require.NoError(t, rows.Err())
		require.Contains(t, steps[0], index, "%+v", q)
		if q.Due {
			require.Len(t, steps, 1, "a second step sorts: %+v", q)
		}
	}
}

// Config.CheckIntegrity finds damage that no statement of Open reads, and Open changes nothing.
//
// Proves STORE-7.
func TestCheckIntegrity(t *testing.T) {
	path := dbPath(t)
	config := Config{CheckIntegrity: true}
	s := openAt(t, path, config) // an empty file is sound
	for i := range 200 {
		c := put(fmt.Sprint(i), 0)
		c.Writes[0].Doc, c.Writes[0].Label = fmt.Appendf(nil, "%q", strings.Repeat("x", 1000)), fmt.Sprintf("label%03d", i)
		_, err := s.Commit(t.Context(), c)
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	require.NoError(t, openAt(t, path, config).Close())
	sound, err := os.ReadFile(path)
	require.NoError(t, err)
	page := int(sound[16])<<8 | int(sound[17])
	for name, damage := range map[string]func(content []byte) []byte{
		"overwritten page": func(c []byte) []byte { return append(append(c[:20*page], make([]byte, page)...), c[21*page:]...) },
		"row unlike index": func(c []byte) []byte { return bytes.ReplaceAll(c, []byte(`x"label123`), []byte(`x"labelled`)) },
		"cut":              func(c []byte) []byte { return c[:20*page] },
		"not a database":   func(c []byte) []byte { return append([]byte("something else"), c[14:]...) },
	} {
		damaged := damage(slices.Clone(sound))
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		_, err = Open(t.Context(), path, config)
		var found *DamagedError
		require.ErrorAs(t, err, &found, name)
		require.Equal(t, path, found.Path)
		require.NotEmpty(t, found.Reason)
		now, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, damaged, now, name)
		if name == "overwritten page" {
			require.NoError(t, openAt(t, path, Config{}).Close(), "without the option Open does not read that page")
		}
	}
}
