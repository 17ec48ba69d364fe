package postgres

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// longLog gives "a", which has a record, a log of count entries with positions.
func longLog(count int) string {
	return fmt.Sprintf(`WITH moved AS (UPDATE pawl_last_position SET value = value + %[1]d RETURNING value - %[1]d AS before)
		INSERT INTO pawl_log (kind, id, number, position, at, data)
		SELECT 'thing', 'a', 1000 + n, before + n, now(), '"entry"' FROM moved, generate_series(1, %[1]d) n`, count)
}

// TestLogPlans: the statements that read logs use an index in the order of the answer, before and
// after the table is analyzed.
//
// Proves SCOPE-20.
func TestLogPlans(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	execute(t, url, "ALTER TABLE pawl_log SET (autovacuum_enabled = false)", longLog(20_000))
	conn := pgtest.Connect(t, url)
	for _, prepare := range []string{"SELECT", "ANALYZE pawl_log"} {
		_, err := conn.Exec(t.Context(), prepare)
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), "BEGIN")
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), inOrder.text)
		require.NoError(t, err)
		read := func(p *prepared) *statement { return p.query().string("thing").string("a").int(1).int(5000).int(10) }
		for _, test := range []struct {
			index     string
			statement *statement
		}{
			{"Index Scan using pawl_log_numbers ", read(s.sql.logs.forward)},
			{"Index Scan Backward using pawl_log_numbers ", read(s.sql.logs.backward)},
			{"Index Scan using pawl_log_position ", s.sql.order(persist.OrderQuery{After: 1})},
			{"Index Scan using pawl_log_kind ", s.sql.order(persist.OrderQuery{After: 1, Kinds: []string{"thing", "other"}})},
			{"Scan using pawl_log_waiting ", s.sql.logs.waiting.query()},
			{"Scan using pawl_log_waiting ", s.sql.logs.number.query().int(numberStep)},
		} {
			plan := plan(t, conn, test.statement)
			require.Contains(t, plan, test.index, test.statement.text)
			require.NotContains(t, plan, "Seq Scan on pawl_log", test.statement.text)
			if test.statement.text != s.sql.logs.orderOf.text { // merges the kinds
				require.NotContains(t, plan, "Sort", test.statement.text)
			}
		}
		_, err = conn.Exec(t.Context(), "ROLLBACK")
		require.NoError(t, err)
	}
}

// TestCostOfALongLog: what is done with a few entries of a long log reads few entries. It makes no
// difference whether the table was analyzed, or sessions have planned for a small one.
//
// Proves SCOPE-20.
func TestCostOfALongLog(t *testing.T) {
	const count = 20_000
	for _, state := range []string{"new", "analyzed", "planned for a small table"} {
		t.Run(state, func(t *testing.T) {
			url := pgtest.URL(t)
			s := openAt(t, connections(t, url, 1), Config{})
			execute(t, url, "ALTER TABLE pawl_log SET (autovacuum_enabled = false)")
			must(t, s, put("a", 0), put("b", 0))
			version, beside := uint64(1), uint64(1)
			use := func(first, drop, after uint64) {
				t.Helper()
				direct := adding(put("a", version), first, `1`)
				batch := adding(put("a", version+1), first+1, `2`, `3`)
				transaction := together(adding(put("a", version+2), first+3, `4`), put("b", beside))
				cut := put("a", version+3)
				cut.Writes[0].Log = &persist.LogWrite{Drop: drop}
				must(t, s, direct)
				require.NoError(t, batched(t, s, batch)[0].err)
				must(t, s, transaction, cut)
				version, beside = version+4, beside+1
				s.queue.maxDirect = maxDirect
				for _, q := range []persist.LogQuery{{Limit: 4, Reverse: true}, {From: first}} {
					q.Key = thing("a")
					entries, err := s.ReadLog(t.Context(), q)
					require.NoError(t, err)
					require.Len(t, entries, 4)
				}
				for _, kinds := range [][]string{nil, {"thing", "other"}} {
					entries, err := s.ReadOrder(t.Context(), persist.OrderQuery{After: after, Limit: 100, Kinds: kinds})
					require.NoError(t, err)
					require.Len(t, entries, 4)
				}
				rare, err := s.ReadOrder(t.Context(), persist.OrderQuery{Kinds: []string{"other"}})
				require.NoError(t, err)
				require.Empty(t, rare)
			}
			if state == "planned for a small table" {
				for n := range uint64(8) { // the first few are planned for their own parameters
					use(n*4, n*4, n*4)
					if n == 0 {
						execute(t, url, "ANALYZE pawl_log")
					}
				}
			}
			execute(t, url, longLog(count))
			if state == "analyzed" {
				execute(t, url, "ANALYZE pawl_log")
			}
			last, err := s.LastPosition(t.Context())
			require.NoError(t, err)
			read := tuplesRead(t, url, "pawl_log")
			before := read()
			use(1_000_000, 1005, last)
			require.NoError(t, s.Close()) // the server counts when the connections end
			testkit.Eventually(t, func() bool { return read()-before >= 16 })
			require.Less(t, read()-before, int64(count/10))
		})
	}
}
