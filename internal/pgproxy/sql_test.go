package pgproxy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEffect(t *testing.T) {
	w := newWords([]string{"write"})
	for text, want := range map[string]effect{
		"SELECT 1":                                   reads,
		"INSERT INTO t VALUES (1)":                   writes,
		"\n\tupdate t SET n = 1":                     writes,
		"WITH d AS (DELETE FROM t) SELECT 1":         writes,
		"SELECT * FROM t FOR UPDATE":                 reads,
		"SELECT * FROM t FOR NO KEY UPDATE OF t":     reads,
		"SELECT updated, deleted FROM t":             reads,
		"SELECT 'delete', \"n\" FROM t -- update":    reads,
		"SELECT $q$ insert $q$ /* update\n */":       reads,
		"SELECT * FROM \"s\".\"pawl_write\"($1, $2)": writes,
		"SELECT write ($1)":                          writes,
		"SELECT writer($1), write FROM t":            reads,
		"begin":                                      begins,
		"START  TRANSACTION READ ONLY":               begins,
		"beginning":                                  reads,
		"commit":                                     commits,
		" COMMIT WORK":                               commits,
		"end":                                        commits,
		"rollback":                                   rollsBack,
		"ABORT":                                      rollsBack,
		"ROLLBACK TO SAVEPOINT s":                    reads,
		"rollback work to s":                         reads,
		"SAVEPOINT s":                                reads,
		"SELECT 'it''s; commit' WHERE false":         reads,
	} {
		parts := split(text)
		require.Len(t, parts, 1, text)
		require.Equal(t, want, w.effect(parts[0]), text)
	}
}

// A sequence of statements has the expected commits, and leaves a transaction open or not.
func TestTransaction(t *testing.T) {
	for _, c := range []struct {
		text             string
		commit           []string // nil if there is none
		explicit, within bool
	}{
		{text: "SELECT 1"},
		{text: "UPDATE t SET n = 1", commit: []string{"UPDATE t SET n = 1"}},
		{text: "SELECT 1; UPDATE t SET n = 1;", commit: []string{"SELECT 1", "UPDATE t SET n = 1"}},
		{text: "BEGIN", within: true},
		{text: "BEGIN; UPDATE t SET n = 1", within: true},
		{text: "BEGIN; UPDATE t SET n = 1; COMMIT", commit: []string{"BEGIN", "UPDATE t SET n = 1", "COMMIT"}, explicit: true},
		{text: "BEGIN; UPDATE t SET n = 1; ROLLBACK"},
		{text: "BEGIN; ROLLBACK; UPDATE t SET n = 1", commit: []string{"UPDATE t SET n = 1"}},
		{text: "BEGIN; COMMIT; BEGIN", commit: []string{"BEGIN", "COMMIT"}, explicit: true, within: true},
	} {
		tx := newTransaction(newWords(nil))
		commit, ok, err := tx.follow(queryMessage, append([]byte(c.text), 0))
		require.NoError(t, err)
		require.Equal(t, c.commit != nil, ok, c.text)
		if ok {
			require.Equal(t, c.commit, commit.Statements, c.text)
		}
		require.Equal(t, c.explicit, commit.Explicit, c.text)
		require.Equal(t, c.within, tx.explicit, c.text)
	}
}
