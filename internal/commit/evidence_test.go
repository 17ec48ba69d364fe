package commit

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// ids returns the ids of one writer, from first to last.
func ids(writer string, first, last int) (out []string) {
	for n := first; n <= last; n++ {
		out = append(out, fmt.Sprintf("%s.%d", writer, n))
	}
	return out
}

// writers returns one id of each of n other writers.
func writers(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("other%d.1", i))
	}
	return out
}

// Commit 5 of writer "w" replaces a record born with version 1, or creates one, and makes version
// 8. The record that refuses it shows what happened to it. Proves CAS-7.
func TestEvidence(t *testing.T) {
	continued, created := Base{Born: 1}, Base{Absent: true}
	for _, c := range []struct {
		name  string
		base  Base
		won   persist.Record
		floor uint64
		want  evidence
	}{
		{"the id is found", continued, persist.Record{Born: 1, Commits: []string{"w.4", "w.5", "x.1"}}, 0, yes},
		{"the id is found in a record created again", continued, persist.Record{Born: 9, Commits: []string{"w.5"}}, 0, yes},
		{"another writer only", continued, persist.Record{Born: 1, Commits: []string{"x.1"}}, 0, never},
		{"no ids", continued, persist.Record{Born: 1}, 0, never},
		{"an id without a number", continued, persist.Record{Born: 1, Commits: []string{"x"}}, 0, never},
		{"a few later commits of the writer", continued, persist.Record{Born: 1, Commits: ids("w", 6, 5+persist.KeptPerWriter-1)}, 0, never},
		{"later commits of the writer pushed it out", continued, persist.Record{Born: 1, Commits: ids("w", 6, 5+persist.KeptPerWriter)}, 0, gone},
		{"other writers pushed the writer out", continued, persist.Record{Born: 1, Commits: writers(persist.KeptWriters)}, 0, gone},
		{"one writer fewer", continued, persist.Record{Born: 1, Commits: writers(persist.KeptWriters - 1)}, 0, never},
		{"many writers, but an earlier commit of the writer is found", continued, persist.Record{Born: 1, Commits: append(writers(persist.KeptWriters-1), "w.4")}, 0, never},
		{"many writers, and only a later commit of the writer", continued, persist.Record{Born: 1, Commits: append(writers(persist.KeptWriters-1), "w.6")}, 0, gone},
		{"created again since", continued, persist.Record{Born: 9}, 9, gone},
		{"created by another with a lower version", created, persist.Record{Born: 7}, 9, never},
		{"created by another with the same version", created, persist.Record{Born: 8}, 9, never},
		{"created with a higher version, nothing purged", created, persist.Record{Born: 9}, 7, never},
		{"created with a higher version after a purge", created, persist.Record{Born: 9}, 8, gone},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.won.Updated = time.Unix(1, 0)
			require.Equal(t, c.want, evidenceIn(c.won, "w.5", c.base, 8, func() uint64 { return c.floor }))
		})
	}
	require.Equal(t, gone, evidenceIn(persist.Record{Version: 9}, "w.5", continued, 8, nil), "a purged record has no ids")
}

// The outcome of a commit of several records follows from all records that refuse it. Proves CAS-7.
func TestJudgeSeveralRecords(t *testing.T) {
	a, b, g := persist.Key{Kind: "k", ID: "a"}, persist.Key{Kind: "k", ID: "b"}, persist.Key{Kind: "k", ID: "guard"}
	commit := persist.Commit{ID: "w.5", Writes: []persist.Write{{Key: a, Version: 2}, {Key: b, Version: 2}}, Guards: []persist.Guard{{Key: g, Read: true}}}
	bases := []Base{{Born: 1}, {Born: 1}}
	at := time.Unix(7, 0)
	won := func(key persist.Key, commits ...string) persist.Record {
		return persist.Record{Key: key, Version: 9, Born: 1, Updated: at, Commits: commits}
	}
	forgotten := won(a, ids("w", 6, 5+persist.KeptPerWriter)...)
	purged := persist.Record{Key: b, Version: 9}
	for _, c := range []struct {
		name    string
		winners []persist.Record
		want    evidence
	}{
		{"one shows the id", []persist.Record{won(a, "x.1"), won(b, "w.5")}, yes},
		{"one shows the id, the other has lost its evidence", []persist.Record{forgotten, won(b, "w.5")}, yes},
		{"both deny it", []persist.Record{won(a, "x.1"), won(b, "x.1")}, never},
		{"one denies it", []persist.Record{forgotten, won(b, "x.1")}, never},
		{"no evidence is left", []persist.Record{forgotten, purged}, gone},
		{"one has not moved", []persist.Record{forgotten}, never},
		{"only a guard moved", []persist.Record{won(g, "x.1")}, never},
		{"nothing refuses it", nil, gone},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, when := judge(commit, bases, c.winners, func() uint64 { return 0 })
			require.Equal(t, c.want, got)
			require.Equal(t, c.want == yes, when.Equal(at))
		})
	}
}
