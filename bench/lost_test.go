package main

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// No contender of L1 loses an update of a single writer, and Pawl loses none of eight writers.
func TestLostSides(t *testing.T) {
	b := newBench(t.Context(), true)
	t.Cleanup(b.close)
	for _, work := range lostWorks {
		for _, store := range lostStores {
			for _, s := range lostSides {
				t.Run(fmt.Sprintf("%s/%s/%s", work.name, store, s.name), func(t *testing.T) {
					l := load{writers: 1, each: 20}
					if s.name == "Pawl" {
						l.writers = 8
					}
					m, err := b.once(work.on(s.name, store, s.open), l)
					require.NoError(t, err)
					require.EqualValues(t, l.writers*l.each, m.acknowledged)
					require.Zero(t, m.failed)
					require.Zero(t, m.lost)
				})
			}
		}
	}
}

// Lost updates are counted: if all writers read before one of them writes, one update is left.
func TestLostIsCounted(t *testing.T) {
	const writers = 4
	for _, work := range lostWorks {
		g := getSetMap()
		var got sync.WaitGroup
		got.Add(writers)
		put := g.put
		g.put = func(ctx context.Context, all map[string]int64) error {
			got.Done()
			got.Wait()
			return put(ctx, all)
		}
		open := func(*bench, string) (numbers, error) { return g, nil }
		m, err := newBench(t.Context(), true).once(work.on("get-then-set", "memory", open), load{writers: writers, each: 1})
		require.NoError(t, err)
		require.EqualValues(t, writers-1, m.lost)
	}
}

func TestLostTable(t *testing.T) {
	b := newBench(t.Context(), true)
	b.chapter = "L1"
	b.lostRows("increments", "SQLite", 64, []measured{{acknowledged: 10}, {acknowledged: 8, failed: 2}, {acknowledged: 10, lost: 7}})
	b.lostRows("own keys", "memory", 64, []measured{{acknowledged: 10, lost: 1}, {acknowledged: 10}, {acknowledged: 10}})
	require.True(t, *b.rows[0].Met)
	require.False(t, *b.rows[2].Met, "one was lost")
	require.Equal(t, `| 64 writers | store | Pawl | ADK-Go | get-then-set |
|---|---|---|---|---|
| increments | SQLite | 10 acknowledged, 10 present | 8 acknowledged, 8 present, 2 calls failed | 10 acknowledged, 3 present, **7 lost** |
| own keys | memory | 10 acknowledged, 9 present, **1 lost** | 10 acknowledged, 10 present | 10 acknowledged, 10 present |
`, lostTable(b.rows))
	require.Empty(t, lostTable([]Row{{ID: "M1"}}))
}
