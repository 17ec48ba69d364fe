package inspect_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// many is the number of documents of these tests. `make inspect-scale` has a million.
func many(t testing.TB) int {
	text := os.Getenv("PAWL_RECORDS")
	if text == "" {
		return 20_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// special is the number of documents that are due, expired, deleted or held.
const special = 80

// populate writes n notes, of which a few are special and lie in the middle.
func populate(t testing.TB, store persist.Store, n int) {
	t.Helper()
	began, now := time.Now(), time.Now().Truncate(time.Second)
	var records []persist.Record
	for i := range n {
		r := persist.Record{Key: pawl.Key{Kind: "note", ID: fmt.Sprintf("n-%07d", i)}, Version: 1, Born: 1, Updated: now, Commits: []string{"w.1"},
			Doc: fmt.Appendf(nil, `{"title":%q}`, strings.Repeat("t", 300)), Label: []string{"open", "done"}[i%2]}
		if at := i - n/2; at >= 0 && at < 5*special {
			switch at % 5 {
			case 0:
				r.Due = now.Add(-time.Hour)
			case 1:
				r.Expires = now.Add(-time.Hour)
			case 2:
				r.Deleted, r.Doc, r.Label = true, nil, ""
			case 3:
				r.Lease = persist.Lease{Holder: "worker", Token: 1, Until: now.Add(24 * time.Hour)}
			case 4:
				r.Label = "rare"
			}
		}
		if records = append(records, r); len(records) == 1000 || i == n-1 {
			require.NoError(t, store.(persist.Restorer).Restore(t.Context(), records, 0))
			records = nil
		}
	}
	t.Logf("%d documents written in %v", n, time.Since(began).Round(time.Second))
}

// scalePages are pages and views of all sorts.
var scalePages = []string{
	"", "kind?kind=note", "kind?kind=note&prefix=n-0001", "kind?kind=note&from=n-0009000", "kind?kind=note&reverse=1", "kind?kind=note&label=open", "kind?kind=note&label=rare",
	"kind?kind=note&label=done&prefix=n-00099", "kind?kind=note&state=due", "kind?kind=note&state=expired", "kind?kind=note&state=deleted", "kind?kind=note&state=held",
	"doc?kind=note&id=n-0000777", "raw?kind=note&id=n-0000777", "queues", "view?name=runs", "view?name=calls-chat", "view?name=claims-note", "view?name=idempotency", "view?name=effects",
	"view?name=streams-stream", "view?name=reactions-stream", "view?name=all",
}

// eachPage shows every page, and the second page of each list, by a handle of its own on the store.
// It calls read with what one page has taken.
func eachPage(t *testing.T, location string, show func(name string, visit func())) {
	t.Helper()
	next := map[string]string{}
	for _, page := range scalePages {
		for _, second := range []bool{false, true} {
			address := page
			if second {
				if address = next[page]; address == "" {
					continue
				}
			}
			name := address
			if second {
				name = page + ", second page"
			}
			show(name, func() {
				store, err := stores.Open(location)
				require.NoError(t, err)
				rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{notes}})
				require.NoError(t, err)
				all := inspect.View{Name: "all", Query: persist.Query{Kind: "note"}, Row: func(context.Context, inspect.Record) ([]string, error) { return nil, nil }}
				h := inspect.New(rt, inspect.Config{Views: []inspect.View{inspect.Runs(nil), inspect.Calls("chat", nil), inspect.Claims("note", machine.Workflow{}),
					inspect.Idempotency(), inspect.Undelivered(nil), inspect.Streams(""), inspect.Reactions("", nil), all}})
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/pawl/"+address, nil))
				require.Equal(t, 200, w.Code, "%s: %s", address, w.Body)
				a := answer{body: w.Body.String()}
				for _, link := range append(a.links("kind?"), a.links("view?")...) {
					if strings.Contains(link, "after=") && !second {
						next[page] = link
					}
				}
				require.NoError(t, rt.Close(t.Context()))
				require.NoError(t, store.Close())
			})
		}
	}
	require.Greater(t, len(next), 6, "lists with more than one page")
}

// No page reads a store of PostgreSQL as a whole: the server counts the rows that it reads.
//
// Proves INSPECT-4.
func TestPagesReadFewRows(t *testing.T) {
	stores.Need(t, "postgres")
	location := stores.Postgres.New(t)
	store := stores.OpenFor(t, location)
	conn := pgtest.Connect(t, stores.Flag(location))
	// The planner knows nothing of the rows: it may not depend on when the server analyzes the tables.
	_, err := conn.Exec(t.Context(), `DO $$ DECLARE t regclass; BEGIN
		FOR t IN SELECT relid FROM pg_stat_user_tables LOOP EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', t); END LOOP; END $$`)
	require.NoError(t, err)
	populate(t, store, many(t))
	require.NoError(t, store.Close())
	counts := func() (rows, entries int) {
		t.Helper()
		testkit.Eventually(t, func() bool { // a connection reports its counts before it leaves
			var others int
			require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`).Scan(&others))
			return others == 0
		}, "no other connection")
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables`).Scan(&rows))
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT sum(idx_tup_read) FROM pg_stat_user_indexes`).Scan(&entries))
		return rows, entries
	}
	counts()
	eachPage(t, location, func(name string, visit func()) {
		rows, entries := counts()
		began := time.Now()
		visit()
		took := time.Since(began)
		rowsAfter, entriesAfter := counts()
		t.Logf("%-55s %5d rows %5d index entries %8v", name, rowsAfter-rows, entriesAfter-entries, took.Round(100*time.Microsecond))
		require.Less(t, rowsAfter-rows, 1500, name)
		require.Less(t, entriesAfter-entries, 1500, name)
	})
}

// No page reads a store of SQLite as a whole: a page of many documents reads hardly more bytes than the
// same page of a tenth of them.
//
// Proves INSPECT-4.
func TestPagesReadFewBytes(t *testing.T) {
	stores.Need(t, "sqlite")
	if runtime.GOOS != "linux" {
		t.Skip("only Linux counts the bytes that a process reads")
	}
	read := map[string]int{}
	for _, n := range []int{many(t) / 10, many(t)} {
		location := stores.SQLite.New(t)
		store := stores.OpenFor(t, location)
		populate(t, store, n)
		require.NoError(t, store.Close())
		eachPage(t, location, func(name string, visit func()) {
			before, began := bytesRead(t), time.Now()
			visit()
			took, bytes := time.Since(began), bytesRead(t)-before
			if n == many(t) {
				t.Logf("%-55s %5d KiB %8v", name, bytes>>10, took.Round(100*time.Microsecond))
				require.Less(t, bytes, 2*read[name]+(256<<10), "%s: with a tenth of the documents it reads %d bytes", name, read[name])
			}
			read[name] = bytes
		})
	}
}

// bytesRead returns the number of bytes that this process has read from files.
func bytesRead(t testing.TB) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	require.NoError(t, err)
	_, err = fmt.Sscanf(string(text), "rchar: %d", &n)
	require.NoError(t, err)
	return n
}
