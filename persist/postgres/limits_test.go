package postgres

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
)

// TestStatementTimeoutOfTheRole does not end a wait for a lock.
//
// Proves STORE-10.
func TestStatementTimeoutOfTheRole(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	must(t, s, put("a", 0), put("b", 0))
	s = openAt(t, connections(t, with(t, url, "statement_timeout", "120"), 8), Config{}) // of which two may wait
	release := locked(t, url, "a", "b")
	one, two := commitLater(t.Context(), s, put("a", 1)), commitLater(t.Context(), s, together(put("b", 1), put("c", 0)))
	eventually(t, connect(t, url), `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
		AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '180 ms'`)
	release()
	require.NoError(t, answered(t, one).err)
	require.NoError(t, answered(t, two).err)
}

// TestFailedSiblingFailsAlone: an error that passes by itself, but that one part of a batch has caused,
// does not fail the others.
//
// Proves CAS-11.
func TestFailedSiblingFailsAlone(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	execute(t, url, `CREATE FUNCTION exhausted() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE disk_full; END$$`,
		`CREATE TRIGGER exhausted AFTER INSERT ON pawl_records FOR EACH ROW WHEN (NEW.id = 'x') EXECUTE FUNCTION exhausted()`)
	results := batched(t, s, put("x", 0), put("y", 0), put("z", 0))
	unavailable(t, results[0].err)
	require.NoError(t, results[1].err)
	require.NoError(t, results[2].err)
}

// TestNumbersThatCannotBeRead: jsonb writes exponents out, and could keep a small document that is too
// large to be read, or listed with others.
//
// Proves CAS-11.
func TestNumbersThatCannotBeRead(t *testing.T) {
	s := openAt(t, pgtest.URL(t), Config{})
	for name, doc := range map[string]string{
		"many":     "[" + strings.Repeat("1e131000,", 9000) + "1]",
		"small":    "[" + strings.Repeat("1e-16000,", 9000) + "1]",
		"one":      `{"a": 1E+131000}`,
		"overflow": `1e99999999999999999999999`,
	} {
		c := put(name, 0)
		c.Writes[0].Doc = []byte(doc)
		_, err := s.Commit(t.Context(), c)
		require.ErrorIs(t, err, persist.ErrNotApplied, name)
		require.NotErrorIs(t, err, persist.ErrUnavailable, name)
	}
	for i, doc := range []string{`1e400`, `-1.5e-400`, `"1e131000 \" 1e131000"`, "[" + strings.Repeat("12345678901234567890.5,", 9000) + "1]"} {
		c := put(fmt.Sprint(i), 0)
		c.Writes[0].Doc = []byte(doc)
		must(t, s, c)
		require.NotEmpty(t, load(t, s, fmt.Sprint(i)).Doc)
	}
}

// TestOneNewSchemaForManyStores: stores with prefixes of their own create it together.
//
// Proves STORE-9.
func TestOneNewSchemaForManyStores(t *testing.T) {
	url := connections(t, pgtest.URL(t), 2)
	const openers, rounds = 8, 3
	for round := range rounds {
		stores, errs := make([]*Store, openers), make([]error, openers)
		var group sync.WaitGroup
		for i := range openers {
			group.Go(func() {
				stores[i], errs[i] = Open(t.Context(), url, Config{Schema: fmt.Sprint("fresh", round), TablePrefix: fmt.Sprintf("p%d_", i)})
			})
		}
		group.Wait()
		for _, s := range stores {
			if s != nil {
				require.NoError(t, s.Close())
			}
		}
		for _, err := range errs {
			require.NoError(t, err)
		}
	}
}

// TestOpenIsBounded where somebody has locked the tables.
//
// Proves STORE-14.
func TestOpenIsBounded(t *testing.T) {
	url := pgtest.URL(t)
	require.NoError(t, openAt(t, url, Config{}).Close())
	tx, err := connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE pawl_meta IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)
	_, err = Open(t.Context(), url, Config{CommitTimeout: 300 * time.Millisecond})
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.NoError(t, tx.Rollback(t.Context()))
	openAt(t, url, Config{})
}

// TestClockIsTheServers, also where a schema before pg_catalog in the search path has another.
//
// Proves STORE-8, STORE-10.
func TestClockIsTheServers(t *testing.T) {
	url := pgtest.URL(t)
	for _, name := range []string{"clock_timestamp", "statement_timestamp"} {
		execute(t, url, "CREATE FUNCTION public."+name+"() RETURNS timestamptz LANGUAGE sql AS $$SELECT '2140-01-01'::timestamptz$$")
	}
	url = with(t, url, "search_path", "public, pg_catalog")
	require.Equal(t, 2140, value[time.Time](t, connect(t, url), "SELECT clock_timestamp()").Year())
	s := openAt(t, url, Config{Schema: "public"})
	leased := put("a", 0)
	leased.Writes[0].Acquire = &persist.Acquire{Holder: "me", For: time.Hour}
	require.Less(t, must(t, s, leased).Year(), 2140)
	require.Less(t, must(t, s, together(put("b", 0), put("c", 0))).Year(), 2140)
	require.Less(t, load(t, s, "a").Now.Year(), 2140)
	taken, err := s.Take(t.Context(), persist.Query{}, persist.Acquire{Holder: "another", For: time.Hour})
	require.NoError(t, err)
	require.Len(t, taken, 2, "one is leased")
	require.Less(t, taken[0].Now.Year(), 2140)
	require.EqualValues(t, 3, value[int64](t, connect(t, url), "SELECT count(*) FROM pawl_state WHERE held_until < '2140-01-01'"))
}
