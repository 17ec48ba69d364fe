package postgres

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// TestUnsafeServerIsRefused: an acknowledged commit would not be there after a power failure.
//
// Proves STORE-10.
func TestUnsafeServerIsRefused(t *testing.T) {
	_, err := Open(t.Context(), pgtest.New(t, "fsync=off").URL("postgres"), Config{})
	require.ErrorContains(t, err, "fsync")
}

// Proves STORE-10.
func TestEncodings(t *testing.T) {
	address := pgtest.URL(t)
	_, err := Open(t.Context(), with(t, address, "client_encoding", "latin1"), Config{})
	require.ErrorContains(t, err, "client_encoding")

	parsed, err := url.Parse(address)
	require.NoError(t, err)
	name := strings.TrimPrefix(parsed.Path, "/") + "_latin"
	execute(t, address, "CREATE DATABASE "+name+" TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
	defer execute(t, address, "DROP DATABASE "+name+" WITH (FORCE)")
	parsed.Path = "/" + name
	_, err = Open(t.Context(), parsed.String(), Config{})
	require.ErrorContains(t, err, "server_encoding")
}

// TestDurableWhateverTheDefault asks, inside every transaction that writes, whether its COMMIT will
// wait for the disk.
//
// Proves STORE-10.
func TestDurableWhateverTheDefault(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, with(t, url, "synchronous_commit", "off"), Config{})
	execute(t, url,
		`CREATE TABLE seen (operation text, setting text)`,
		`CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS
			$$BEGIN INSERT INTO seen VALUES (TG_OP || TG_TABLE_NAME, current_setting('synchronous_commit')); RETURN NULL; END$$`,
		// Deferred until the transaction ends.
		`CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON pawl_records DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()`,
		`CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON pawl_log DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()`)
	exercise(t, s)
	conn := pgtest.Connect(t, url)
	require.EqualValues(t, 6, value[int64](t, conn, "SELECT count(DISTINCT operation) FROM seen"))
	require.Zero(t, value[int64](t, conn, "SELECT count(*) FROM seen WHERE setting <> 'on'"))
}

// TestReadOnlyDatabase: what cannot be written now is not written, and is as soon as it can be.
//
// Proves STORE-14.
func TestReadOnlyDatabase(t *testing.T) {
	url := pgtest.URL(t)
	require.NoError(t, openAt(t, url, Config{}).Close())
	database := value[string](t, pgtest.Connect(t, url), "SELECT quote_ident(current_database())")
	execute(t, url, "ALTER DATABASE "+database+" SET default_transaction_read_only = on")
	s := openAt(t, connections(t, url, 3), Config{}) // there is nothing to migrate
	for range 5 {
		_, err := s.Commit(t.Context(), put("a", 0))
		unavailable(t, err)
		_, err = s.Commit(t.Context(), together(put("a", 0), put("b", 0)))
		unavailable(t, err)
		_, err = s.Take(t.Context(), persist.Query{}, persist.Acquire{For: time.Hour}, nil)
		unavailable(t, err)
		_, err = s.Purge(t.Context(), persist.Query{})
		unavailable(t, err)
	}
	_, err := s.Load(t.Context(), thing("a"))
	require.ErrorIs(t, err, persist.ErrNotFound)
	_, err = Open(t.Context(), url, Config{TablePrefix: "new_"})
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.ErrorContains(t, err, "read-only")

	admin := pgtest.Connect(t, url)
	_, err = admin.Exec(t.Context(), "SET default_transaction_read_only = off")
	require.NoError(t, err)
	_, err = admin.Exec(t.Context(), "ALTER DATABASE "+database+" RESET default_transaction_read_only")
	require.NoError(t, err)
	// Connections from before are still read-only. Each is given up when that is noticed.
	for range 3 {
		if _, err = s.Commit(t.Context(), put("a", 0)); err == nil {
			return
		}
		unavailable(t, err)
	}
	must(t, s, put("a", 0))
}

// TestRights: a role needs those that it uses, and learns which one it lacks.
//
// Proves STORE-10, STORE-12.
func TestRights(t *testing.T) {
	address := pgtest.URL(t)
	role := "role_" + fmt.Sprint(rand.Uint64())
	execute(t, address, "CREATE ROLE "+role+" LOGIN PASSWORD 'hush-hush'", "REVOKE ALL ON SCHEMA public FROM PUBLIC")
	defer execute(t, address, "DROP OWNED BY "+role, "DROP ROLE "+role)
	parsed, err := url.Parse(address)
	require.NoError(t, err)
	parsed.User = url.UserPassword(role, "hush-hush")
	own := parsed.String()

	_, err = Open(t.Context(), own, Config{Schema: "public"})
	require.ErrorContains(t, err, "permission denied for schema public")
	require.NotErrorIs(t, err, persist.ErrUnavailable)
	_, err = Open(t.Context(), own, Config{Schema: "mine"})
	require.ErrorContains(t, err, "create schema: ")
	require.NotContains(t, err.Error(), "hush")

	must(t, openAt(t, address, Config{}), put("a", 0))
	execute(t, address, "GRANT USAGE ON SCHEMA public TO "+role, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO "+role)
	s := openAt(t, own, Config{Schema: "public"})
	require.EqualValues(t, 1, load(t, s, "a").Version)
	for _, c := range []persist.Commit{put("a", 1), together(put("a", 1), put("b", 0))} {
		_, err = s.Commit(t.Context(), c)
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.ErrorContains(t, err, "permission denied")
	}
	execute(t, address, "GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "+role)
	must(t, s, put("a", 1), together(put("a", 2), put("b", 0)), adding(put("a", 3), 0, `0`))
	require.Len(t, orderAfter(t, s, 0), 1)
}

// TestCredentialsStaySecret: no error and no log has the password in it, however it is printed.
//
// Proves STORE-12.
func TestCredentialsStaySecret(t *testing.T) {
	const secret = "open-sesame"
	address, err := url.Parse(pgtest.URL(t))
	require.NoError(t, err)
	address.User = url.UserPassword("unknown", secret)
	wrong := address.String()
	address.Host = "127.0.0.1:1"
	for _, url := range []string{
		wrong,
		address.String(), // no server listens there
		"postgres://user:" + secret + "@host:port/db",
		"postgres://user:" + secret + "%zz@host/db",
		"postgres://user:" + secret + "/x?@host/db",
		"postgres://" + secret + "@[::1/db",
		"user=u password=" + secret + " host='",
		"host=h password='" + secret + "' port=none",
		"postgres://host/db?sslmode=" + secret,
		"postgres://user:" + secret + "@host/db?pool_max_conns=many",
		"postgres://user:" + secret + "@host/db?sslrootcert=/no/such/file&sslmode=verify-full",
	} {
		_, err := Open(t.Context(), url, Config{AcquireTimeout: 2 * time.Second})
		require.Error(t, err)
		var log strings.Builder
		slog.New(slog.NewJSONHandler(&log, nil)).Error("open", "err", err)
		for _, text := range []string{err.Error(), fmt.Sprintf("%v %+v %#v %q", err, err, err, err), log.String()} {
			require.NotContains(t, text, secret, url)
		}
	}
}

// TestView: the view shows what is alive.
func TestView(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	expired, leased, dead := put("expired", 0), put("leased", 0), put("dead", 0)
	expired.Writes[0].TTL, leased.Writes[0].TTL = time.Microsecond, time.Microsecond
	leased.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: time.Hour}
	dead.Writes[0].Deleted, dead.Writes[0].Doc = true, nil
	must(t, s, put("alive", 0), expired, leased, dead)
	conn := pgtest.Connect(t, url)
	eventually(t, conn, "SELECT NOT EXISTS (SELECT FROM pawl_state WHERE id = 'expired')")
	require.Equal(t, "alive,leased", value[string](t, conn, "SELECT string_agg(id, ',' ORDER BY id) FROM pawl_state WHERE kind = 'thing'"))
	require.Equal(t, "hello", value[string](t, conn, "SELECT doc->>'title' FROM pawl_state WHERE id = 'alive' AND version = 1 AND holder IS NULL"))
	require.Equal(t, "me", value[string](t, conn, "SELECT holder FROM pawl_state WHERE held_until > clock_timestamp()"))
}

// TestIndices asserts that a list does not read the records that it leaves out.
//
// Proves STORE-1.
func TestIndices(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	execute(t, url, `INSERT INTO pawl_records (kind, id, version, born, doc, schema, label, due, expires, updated, deleted, holder, token, commits)
		SELECT 'k', n::text, 1, 1, '{}', 0, CASE WHEN n % 100 = 0 THEN 'open' ELSE 'done' END,
			CASE WHEN n % 100 = 1 THEN now() - n * interval '1 s' END, CASE WHEN n % 100 = 2 THEN now() - interval '1 s' END,
			now(), CASE WHEN n % 100 = 3 THEN now() - interval '2 h' END, '', 0, '{}' FROM generate_series(1, 20000) n`, "ANALYZE pawl_records")
	conn := pgtest.Connect(t, url)
	for index, q := range map[string]persist.Query{
		"pawl_label":        {Kind: "k", Labels: []string{"open"}},
		"pawl_due":          {Kind: "k", Due: true, Unheld: true},
		"pawl_expires":      {Kind: "k", Expired: true},
		"pawl_deleted":      {Kind: "k", Deleted: true, Age: time.Hour},
		"pawl_records_pkey": {Kind: "k", Prefix: "12"},
	} {
		statement, err := s.sql.list(q, 100)
		require.NoError(t, err)
		require.Contains(t, plan(t, conn, statement), index+" ", "%+v", q)
		page, err := s.List(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, page.Records, 100)
	}
}

// TestListReadsEachRecordOnce: a listing of many pages reads each record about once, also before the
// table is first analyzed.
//
// Proves SCOPE-20.
func TestListReadsEachRecordOnce(t *testing.T) {
	const count = 5000
	for name, q := range map[string]persist.Query{
		"all": {}, "reverse": {Reverse: true}, "label": {Labels: []string{"open"}}, "label, reverse": {Labels: []string{"open"}, Reverse: true},
		"due": {Due: true}, "due, reverse": {Due: true, Reverse: true}, "from": {From: "0", Before: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.URL(t)
			s := openAt(t, url, Config{})
			execute(t, url, "ALTER TABLE pawl_records SET (autovacuum_enabled = false)",
				fmt.Sprintf(`INSERT INTO pawl_records (kind, id, version, born, doc, schema, label, due, updated, holder, token, commits)
				SELECT 'k', md5(n::text), 1, 1, '{}', 0, 'open', now() - (n * 7919 %% 1000) * interval '1 s', now(), '', 0, '{}' FROM generate_series(1, %d) n`, count))
			read := tuplesRead(t, url, "pawl_records")
			before := read()
			listed := 0
			for q.Kind = "k"; ; {
				page, err := s.List(t.Context(), q)
				require.NoError(t, err)
				listed += len(page.Records)
				if q.After = page.Next; q.After == "" {
					break
				}
			}
			if q.From == "" {
				require.Equal(t, count, listed)
			}
			require.NoError(t, s.Close()) // the server counts when the connections end
			testkit.Eventually(t, func() bool { return read()-before >= int64(listed) })
			require.Less(t, read()-before, int64(3*count))
		})
	}
}

// TestTakeReadsWhatItTakes: taking a few of many due records reads few records, also before the
// table is first analyzed. The server would otherwise read and sort all records with the labels.
//
// Proves SCOPE-20.
func TestTakeReadsWhatItTakes(t *testing.T) {
	const count = 5000
	change := func(r persist.Record) (persist.Record, bool) { return r, true }
	for name, change := range map[string]persist.Change{"plain": nil, "changed": change} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.URL(t)
			s := openAt(t, url, Config{})
			execute(t, url, "ALTER TABLE pawl_records SET (autovacuum_enabled = false)",
				fmt.Sprintf(`INSERT INTO pawl_records (kind, id, version, born, doc, schema, label, due, updated, holder, token, commits)
				SELECT 'k', md5(n::text), 1, 1, '{}', 0, 'open', now() - (n * 7919 %% 1000) * interval '1 s', now(), '', 0, '{}' FROM generate_series(1, %d) n`, count))
			read := tuplesRead(t, url, "pawl_records")
			before := read()
			q := persist.Query{Kind: "k", Due: true, Labels: []string{"open", "parked"}, Limit: 5}
			taken, err := s.Take(t.Context(), q, persist.Acquire{Holder: "h", For: time.Minute}, change)
			require.NoError(t, err)
			require.Len(t, taken, 5)
			require.NoError(t, s.Close()) // the server counts when the connections end
			testkit.Eventually(t, func() bool { return read()-before >= 5 })
			require.Less(t, read()-before, int64(count/10))
		})
	}
}

// tuplesRead returns a function that returns how many rows of a table the server has read so far.
func tuplesRead(t *testing.T, url, table string) func() int64 {
	conn := pgtest.Connect(t, url)
	return func() (n int64) {
		_, err := conn.Exec(t.Context(), "SELECT pg_stat_clear_snapshot()")
		require.NoError(t, err)
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
			FROM pg_stat_user_tables WHERE relname = $1`, table).Scan(&n))
		return n
	}
}

// plan returns how PostgreSQL would run a statement.
func plan(t *testing.T, conn *pgx.Conn, s *statement) string {
	t.Helper()
	result := conn.PgConn().ExecParams(t.Context(), "EXPLAIN "+s.text, s.values, s.types, binaryFormat, nil).Read()
	require.NoError(t, result.Err)
	var lines strings.Builder
	for _, row := range result.Rows {
		fmt.Fprintf(&lines, "%s\n", row[0])
	}
	return lines.String()
}

// Proves STORE-1.
func TestVersionBeyondBigint(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	c := put("a", 0)
	c.Writes[0].Version = math.MaxInt64 + 1
	_, err := s.Commit(t.Context(), c)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	c.Writes[0].Version = math.MaxInt64
	must(t, s, c)
	require.EqualValues(t, math.MaxInt64, load(t, s, "a").Version)
}

// TestLongestDurations are exact to the microsecond.
//
// Proves STORE-8.
func TestLongestDurations(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	c := put("a", 0)
	c.Writes[0].TTL, c.Writes[0].DueIn = math.MaxInt64, math.MaxInt64-12345
	c.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: 1999}
	at := must(t, s, c)
	r := load(t, s, "a")
	require.Equal(t, at.Add(math.MaxInt64).Truncate(time.Microsecond), r.Expires)
	require.Equal(t, at.Add(math.MaxInt64-12345).Truncate(time.Microsecond), r.Due)
	require.Equal(t, at.Add(time.Microsecond), r.Lease.Until, "what is less than a microsecond does not count")
}

// TestPurgeInSteps removes more tombstones than one transaction takes.
//
// Proves STORE-1.
func TestPurgeInSteps(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	const tombstones = purgeStep + 20
	c := persist.Commit{ID: "test.1"}
	for i := range tombstones {
		c.Writes = append(c.Writes, persist.Write{Key: thing(fmt.Sprint(i)), Version: uint64(i + 1), Deleted: true})
	}
	must(t, s, c)
	removed, err := s.Purge(t.Context(), persist.Query{})
	require.NoError(t, err)
	require.Equal(t, tombstones, removed)
	r, err := s.Load(t.Context(), thing("0"))
	require.ErrorIs(t, err, persist.ErrNotFound)
	require.EqualValues(t, tombstones, r.Version)
}
