//go:build unix

package pawl_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// processorTime returns the time that this process has used the processors. Unlike a clock, it does
// not count what other processes use.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// The time to list a whole kind grows with the number of its records, because a page costs the same
// wherever it is. With ten times the records it is about ten times as long, and would be a hundred
// times as long if each page looked at all records. The work of a PostgreSQL server and the readings
// of a folder are counted by TestListReadsEachRecordOnce and TestListReadsTheFolderOnce.
//
// Proves SCOPE-20.
func TestListIsLinear(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		few, many := testkit.Times(2_000, 300), testkit.Times(20_000, 3_000)
		if p.name == "fs store" { // each record is a file that is synced
			few, many = testkit.Times(300, 100), testkit.Times(3_000, 1_000)
		}
		fill := func(from, to int) {
			for from < to {
				c := persist.Commit{ID: fmt.Sprint("fill.", from)}
				for range min(1000, to-from) {
					// The order of creation is neither that of the ids nor that of the due times.
					id := fmt.Sprintf("%08x", uint32(from)*2654435761)
					w := persist.Write{Key: pawl.Key{Kind: listed.Name, ID: id}, Version: 1, Label: "open", Due: time.Unix(int64(from*7919%many), 0)}
					w.Doc = encode(t, listedState{Status: w.Label, At: w.Due})
					c.Writes = append(c.Writes, w)
					from++
				}
				_, err := p.store.Store.Commit(t.Context(), c)
				require.NoError(t, err)
			}
		}
		// measure returns the least processor time of three lists, and checks the order of the records.
		measure := func(q pawl.Query, want int) time.Duration {
			shortest := time.Hour
			for range 3 {
				began, n := processorTime(t), 0
				var last pawl.Snapshot[listedState]
				for snap, err := range listed.List(t.Context(), p.rt, q) {
					require.NoError(t, err)
					if n++; n > 1 && q.Due {
						require.False(t, snap.ReadOnly().At.Before(last.ReadOnly().At))
					} else if n > 1 {
						require.Greater(t, snap.ID, last.ID)
					}
					last = snap
				}
				require.Equal(t, want, n)
				shortest = min(shortest, processorTime(t)-began)
			}
			return shortest
		}
		queries := map[string]pawl.Query{"all": {}, "by label": {Labels: []string{"open"}}, "due": {Due: true}}
		fill(0, few)
		before := map[string]time.Duration{}
		for name, q := range queries {
			before[name] = measure(q, few)
		}
		fill(few, many)
		for name, q := range queries {
			after := measure(q, many)
			require.Less(t, after, 40*before[name], "%s: %v for %d records, %v for %d", name, before[name], few, after, many)
		}
	})
}

// List yields a range of ids in order, in both directions, and Limit counts from the end with
// Reverse.
//
// Proves STORE-1.
func TestListRange(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for i := range 250 {
			seed(t, chores.Scope(p.rt, fmt.Sprintf("%03d", i)), chore{N: i})
		}
		ids := func(q pawl.Query) (ids []string) {
			for snap, err := range chores.List(t.Context(), p.rt, q) {
				require.NoError(t, err)
				ids = append(ids, snap.ID)
			}
			return ids
		}
		require.Equal(t, []string{"100", "101", "102"}, ids(pawl.Query{From: "100", Before: "103"}))
		require.Equal(t, []string{"249", "248"}, ids(pawl.Query{Reverse: true, Limit: 2}))
		require.Equal(t, []string{"109", "108"}, ids(pawl.Query{Prefix: "10", Reverse: true, Limit: 2}))
		back := ids(pawl.Query{From: "010", Reverse: true})
		require.Len(t, back, 240)
		require.True(t, slices.IsSortedFunc(back, func(a, b string) int { return strings.Compare(b, a) }))
		for _, q := range []pawl.Query{{From: "\xff"}, {Limit: -1}} {
			for _, err := range chores.List(t.Context(), p.rt, q) {
				require.ErrorAs(t, err, new(*pawl.ArgumentError))
			}
		}
		_, err := chores.Take(t.Context(), p.rt, pawl.Query{Limit: -1})
		require.ErrorAs(t, err, new(*pawl.ArgumentError))
	})
}
