package postgres

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
)

// Proves STORE-10.
func TestOwnPool(t *testing.T) {
	url := pgtest.URL(t)
	for _, n := range []int32{1, 2, 5} {
		pool := pooled(t, url, func(c *pgxpool.Config) { c.MaxConns = n })
		s, err := New(t.Context(), pool, Config{TablePrefix: fmt.Sprintf("app_%d_", n)})
		require.NoError(t, err)
		exercise(t, s)
		require.NoError(t, s.Close())
		_, err = s.Load(t.Context(), thing("a"))
		require.ErrorIs(t, err, persist.ErrClosed)
		var count int
		require.NoError(t, pool.QueryRow(t.Context(), fmt.Sprintf("SELECT count(*) FROM app_%d_state", n)).Scan(&count), "the pool stays open")
		require.Positive(t, count)
		require.Zero(t, pool.Stat().AcquiredConns(), "every connection is given back")
	}
}

// exercise does one of everything with an empty store, some of it at the same time.
func exercise(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	due := time.Date(2031, 2, 3, 4, 5, 6, 789_123_000, time.UTC)
	first := put("a", 0)
	first.Writes[0].Due, first.Writes[0].TTL, first.Writes[0].Label = due, 24*time.Hour, "open"
	first.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: time.Hour}
	at := must(t, s, first)
	r := load(t, s, "a")
	require.Equal(t, due, r.Due)
	require.Equal(t, at.Add(24*time.Hour), r.Expires)
	require.Equal(t, persist.Lease{Holder: "me", Token: 1, Until: at.Add(time.Hour)}, r.Lease)
	_, err := s.Commit(ctx, put("a", 0))
	require.EqualValues(t, 1, winner(t, err).Version)

	renewed, err := s.Commit(ctx, persist.Commit{ID: "w.2", Guards: []persist.Guard{{Key: thing("a"), Token: 1, Extend: 2 * time.Hour}}})
	require.NoError(t, err)
	require.Equal(t, renewed.Add(2*time.Hour), load(t, s, "a").Lease.Until)
	must(t, s, together(put("a", 1), put("b", 0), put("c", 0)))
	_, err = s.Commit(ctx, together(put("a", 1), put("d", 0)))
	require.Equal(t, "a", winner(t, err).ID)

	var writers sync.WaitGroup
	for i := range 40 {
		writers.Go(func() {
			for version := range uint64(3) {
				if _, err := s.Commit(ctx, put(fmt.Sprint("many-", i), version)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	exerciseLog(t, s)
	page, err := s.List(ctx, persist.Query{Kind: "thing", Prefix: "many-"})
	require.NoError(t, err)
	require.Len(t, page.Records, 40)
	for _, r := range page.Records {
		require.EqualValues(t, 3, r.Version)
		require.Len(t, r.Commits, 3)
	}
	old := page.Records[0]
	old.Version--
	require.EqualValues(t, 3, winner(t, s.Restore(ctx, []persist.Record{old}, 0)).Version)
	require.NoError(t, s.Restore(ctx, page.Records, 0))
	taken, err := s.Take(ctx, persist.Query{Kind: "thing", Prefix: "many-", Limit: 7}, persist.Acquire{Holder: "me", For: time.Hour}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 7)
	must(t, s, persist.Commit{ID: "w.3", Writes: []persist.Write{{Key: thing("b"), Expected: 1, Version: 2, Deleted: true}}})
	removed, err := s.Purge(ctx, persist.Query{})
	require.NoError(t, err)
	require.Equal(t, 1, removed)
	absent, err := s.Load(ctx, thing("b"))
	require.ErrorIs(t, err, persist.ErrNotFound)
	require.EqualValues(t, 2, absent.Version)
}

// exerciseLog does one of everything with logs, some of it at the same time.
func exerciseLog(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	const logs, entries = 20, 3
	var writers sync.WaitGroup
	for i := range logs {
		writers.Go(func() {
			for version := range uint64(entries) {
				if _, err := s.Commit(ctx, adding(put(fmt.Sprint("log-", i), version), version, fmt.Sprint(version))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	order := orderAfter(t, s, 0)
	require.Len(t, order, logs*entries)
	must(t, s, together(adding(put("log-0", entries), entries, ` {"spelled" : 1e2} `), put("beside", 0)))
	_, err := s.Commit(ctx, adding(put("log-0", entries+1), entries, `"taken"`))
	require.EqualValues(t, entries+1, winner(t, err).Version)
	cut := put("log-0", entries+1)
	cut.Writes[0].Log = &persist.LogWrite{Drop: entries}
	must(t, s, cut)
	require.Equal(t, []string{`log-0 3  {"spelled" : 1e2} `}, logOf(t, s, "log-0"))
	last, err := s.LastPosition(ctx)
	require.NoError(t, err)
	more, err := s.ReadOrder(ctx, persist.OrderQuery{Kinds: []string{"thing"}, After: order[len(order)-1].Position})
	require.NoError(t, err)
	require.Len(t, more, 1)
	require.Equal(t, last, more[0].Position)
	require.NoError(t, s.RestoreLog(ctx, more, last+1))
	require.Equal(t, more, orderAfter(t, s, last-1))
}

// TestAnySettings: what a session's defaults are, or how a pool runs its queries, changes nothing.
//
// Proves STORE-10.
func TestAnySettings(t *testing.T) {
	url := pgtest.URL(t)
	for name, value := range map[string]string{
		"default_transaction_isolation": "serializable",
		"synchronous_commit":            "off",
		"datestyle":                     "German",
		"timezone":                      "Asia/Kathmandu",
		"intervalstyle":                 "sql_standard",
		"bytea_output":                  "escape",
		"standard_conforming_strings":   "off",
		"jit_above_cost":                "0",
		"search_path":                   "pg_catalog, public",
	} {
		url = with(t, url, name, value)
	}
	for _, mode := range []string{"cache_statement", "simple_protocol"} {
		pool := pooled(t, with(t, url, "default_query_exec_mode", mode), nil)
		s, err := New(t.Context(), pool, Config{Schema: mode})
		require.NoError(t, err)
		exercise(t, s)
		require.NoError(t, s.Close())
	}
}

// hostileNames are names that need quotes, or more.
var hostileNames = []string{
	`with "quotes" and spaces`, `'; DROP TABLE x; --`, "Größe 🦫", "$body$", "$body_$ $body$", "a.b", `back\slash`, "select", "{records}", "%d", "new\nline",
}

// Proves STORE-10.
func TestNamesAreQuoted(t *testing.T) {
	url := pgtest.URL(t)
	for _, name := range hostileNames {
		s := openAt(t, url, Config{Schema: name, TablePrefix: name})
		exercise(t, s)
		conn := pgtest.Connect(t, url)
		require.True(t, value[bool](t, conn, "SELECT to_regclass($1) IS NOT NULL", quote(name)+"."+quote(name+"records")), name)
		again := openAt(t, url, Config{Schema: name, TablePrefix: name})
		require.EqualValues(t, 2, load(t, again, "a").Version)
	}
	longest := strings.Repeat("é", maxPrefix/2)
	exercise(t, openAt(t, url, Config{Schema: strings.Repeat("s", maxName), TablePrefix: longest}))
	exercise(t, openAt(t, url, Config{Schema: strings.Repeat("s", maxName), TablePrefix: longest[2:]}))
}

// Proves STORE-10.
func TestNamesThatCannotBe(t *testing.T) {
	url := pgtest.URL(t)
	for _, name := range []string{"a\x00b", "\xff", strings.Repeat("s", maxName+1)} {
		_, err := Open(t.Context(), url, Config{Schema: name})
		require.ErrorContains(t, err, "schema", "%q", name)
		_, err = Open(t.Context(), url, Config{TablePrefix: name})
		require.ErrorContains(t, err, "table prefix", "%q", name)
	}
	_, err := Open(t.Context(), with(t, url, "search_path", "nowhere"), Config{})
	require.ErrorContains(t, err, "Config.Schema")
}

// TestStoresInOneDatabase have nothing in common.
func TestStoresInOneDatabase(t *testing.T) {
	url := pgtest.URL(t)
	one, two := openAt(t, url, Config{}), openAt(t, url, Config{Schema: "other"})
	three := openAt(t, url, Config{TablePrefix: "other_"})
	must(t, one, put("a", 0))
	for _, s := range []*Store{two, three} {
		_, err := s.Load(t.Context(), thing("a"))
		require.ErrorIs(t, err, persist.ErrNotFound)
		must(t, s, put("a", 0))
	}
	require.EqualValues(t, 1, load(t, openAt(t, with(t, url, "search_path", "other"), Config{}), "a").Version)
}

// TestMigratedTogether: many open a database without tables, or a schema, at once.
//
// Proves STORE-9.
func TestMigratedTogether(t *testing.T) {
	address := pgtest.URL(t)
	url := connections(t, address, 2)
	const openers = 16
	stores, errs := make([]*Store, openers), make([]error, openers)
	var group sync.WaitGroup
	for i := range openers {
		group.Go(func() { stores[i], errs[i] = Open(t.Context(), url, Config{Schema: "fresh"}) })
	}
	group.Wait()
	for i, err := range errs {
		require.NoError(t, err)
		must(t, stores[i], put("a", uint64(i)))
		require.NoError(t, stores[i].Close())
	}
	require.EqualValues(t, 2, value[int64](t, pgtest.Connect(t, address), "SELECT count(*) FROM fresh.pawl_meta"))
}

// TestFunctionsAreReplaced: a database with the functions of an earlier commit gets those of this
// one.
//
// Proves STORE-9.
func TestFunctionsAreReplaced(t *testing.T) {
	url := pgtest.URL(t)
	must(t, openAt(t, url, Config{}), put("a", 0), put("b", 0))
	execute(t, url, "DROP TABLE pawl_log, pawl_last_position", "DROP FUNCTION pawl_taken_numbers, pawl_change_logs",
		`DO $$ BEGIN EXECUTE replace(pg_get_functiondef('pawl_write'::regproc), 'SKIP LOCKED', 'NOWAIT'); END $$`,
		"UPDATE pawl_meta SET value = 2 WHERE name = 'schema'")
	s, conn := openAt(t, url, Config{}), pgtest.Connect(t, url)
	require.NotContains(t, value[string](t, conn, "SELECT pg_get_functiondef('pawl_write'::regproc)"), "NOWAIT")
	sameTime(t, batched(t, s, put("a", 1), put("b", 1))...)
	must(t, s, adding(put("a", 2), 0, `0`))
	require.Len(t, orderAfter(t, s, 0), 1)
}

// TestNothingToMigrate takes no lock.
//
// Proves STORE-9.
func TestNothingToMigrate(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", s.names.migrationLock())
	require.NoError(t, err)
	openAt(t, url, Config{})
	openAt(t, url, Config{Schema: "new"}) // another store, another lock
	require.NoError(t, tx.Rollback(t.Context()))
}

// TestMigrationTakesTooLong gives up in time.
//
// Proves STORE-9, STORE-14.
func TestMigrationTakesTooLong(t *testing.T) {
	url := pgtest.URL(t)
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", names{schema: "public", prefix: "pawl_"}.migrationLock())
	require.NoError(t, err)
	_, err = Open(t.Context(), url, Config{CommitTimeout: 50 * time.Millisecond})
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.NoError(t, tx.Rollback(t.Context()))
	openAt(t, url, Config{})
}

// Proves STORE-9.
func TestNewerSchemaIsRefused(t *testing.T) {
	url := pgtest.URL(t)
	require.NoError(t, openAt(t, url, Config{}).Close())
	execute(t, url, `UPDATE pawl_meta SET value = 99 WHERE name = 'schema'`)
	_, err := Open(t.Context(), url, Config{})
	require.ErrorIs(t, err, persist.ErrNewerSchema)
	require.ErrorContains(t, err, "99")
	require.EqualValues(t, 99, value[int64](t, pgtest.Connect(t, url), `SELECT value FROM pawl_meta WHERE name = 'schema'`))
}

// TestFailedMigration leaves nothing half done.
//
// Proves STORE-9.
func TestFailedMigration(t *testing.T) {
	url := pgtest.URL(t)
	execute(t, url, `CREATE TABLE pawl_records (something text)`)
	_, err := Open(t.Context(), url, Config{})
	require.ErrorContains(t, err, "0001_records.sql")
	require.EqualValues(t, 1, value[int64](t, pgtest.Connect(t, url), `SELECT count(*) FROM pg_class WHERE relname LIKE 'pawl%'`))
}
