package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

func openAt(t testing.TB, url string, config Config) *Store {
	t.Helper()
	s, err := Open(t.Context(), url, config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// with returns a URL with one more setting in it.
func with(t testing.TB, address, name, value string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	require.NoError(t, err)
	query := parsed.Query()
	query.Set(name, value)
	parsed.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes + for itself
	return parsed.String()
}

// connections returns a URL with the size of the pool in it.
func connections(t testing.TB, url string, n int) string {
	return with(t, url, "pool_max_conns", fmt.Sprint(n))
}

// execute runs statements one by one, on a connection of their own.
func execute(t testing.TB, url string, statements ...string) {
	t.Helper()
	conn := pgtest.Connect(t, url)
	for _, text := range statements {
		_, err := conn.Exec(t.Context(), text)
		require.NoError(t, err, text)
	}
	require.NoError(t, conn.Close(t.Context()))
}

// value returns the only column of the only row of a query.
func value[T any](t testing.TB, conn *pgx.Conn, text string, args ...any) T {
	t.Helper()
	var v T
	require.NoError(t, conn.QueryRow(t.Context(), text, args...).Scan(&v), text)
	return v
}

// pooled returns a pool of the caller's own.
func pooled(t testing.TB, url string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	if change != nil {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// locked locks records in another transaction, and returns the function that ends it.
func locked(t testing.TB, url string, ids ...string) (release func()) {
	t.Helper()
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	tag, err := tx.Exec(t.Context(), "SELECT FROM pawl_records WHERE kind = 'thing' AND id = ANY ($1) ORDER BY id FOR UPDATE", ids)
	require.NoError(t, err)
	require.EqualValues(t, len(ids), tag.RowsAffected())
	return func() { require.NoError(t, tx.Rollback(context.Background())) }
}

// eventually waits until a query returns true.
func eventually(t testing.TB, conn *pgx.Conn, text string) {
	t.Helper()
	testkit.Eventually(t, func() bool { return value[bool](t, conn, text) }, text)
}

// someoneWaits is true while a connection to this database waits for a lock.
const someoneWaits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

func thing(id string) persist.Key { return persist.Key{Kind: "thing", ID: id} }

// put is a commit of one write that follows version expected.
func put(id string, expected uint64) persist.Commit {
	var recent []string // if all before were put, too
	for n := range expected {
		recent = persist.Remember(recent, fmt.Sprintf("test-%s.%d", id, n))
	}
	return persist.Commit{ID: fmt.Sprintf("test-%s.%d", id, expected), Writes: []persist.Write{
		{Key: thing(id), Expected: expected, Version: expected + 1, Doc: []byte(`{"title": "hello", "n": 12345}`), Recent: recent},
	}}
}

// together is a commit of the writes of several.
func together(commits ...persist.Commit) persist.Commit {
	all := persist.Commit{ID: "all-" + commits[0].ID}
	for _, c := range commits {
		all.Writes = append(all.Writes, c.Writes...)
		all.Guards = append(all.Guards, c.Guards...)
	}
	return all
}

// must commits what has to succeed.
func must(t testing.TB, s *Store, commits ...persist.Commit) (at time.Time) {
	t.Helper()
	for _, c := range commits {
		var err error
		at, err = s.Commit(t.Context(), c)
		require.NoError(t, err)
	}
	return at
}

// load returns the record of a key that is not absent.
func load(t testing.TB, s *Store, id string) persist.Record {
	t.Helper()
	r, err := s.Load(t.Context(), thing(id))
	require.NoError(t, err)
	return r
}

// winner asserts that err is a *persist.Conflict about one record and returns it.
func winner(t testing.TB, err error) persist.Record {
	t.Helper()
	var conflict *persist.Conflict
	require.ErrorAs(t, err, &conflict)
	require.Len(t, conflict.Winners, 1)
	return conflict.Winners[0]
}

func isConflict(err error) bool {
	var conflict *persist.Conflict
	return errors.As(err, &conflict)
}

// unavailable asserts that nothing was written, and that waiting may help.
func unavailable(t testing.TB, err error) {
	t.Helper()
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, persist.ErrUnavailable)
}

// commitLater commits in the background.
func commitLater(ctx context.Context, s *Store, c persist.Commit) <-chan result {
	answer := make(chan result, 1)
	go func() {
		at, err := s.Commit(ctx, c)
		answer <- result{at, err}
	}()
	return answer
}

// answered returns what becomes of a commit.
func answered(t testing.TB, answer <-chan result) result {
	t.Helper()
	return testkit.Receive(t, answer, "the commit was never answered")
}
