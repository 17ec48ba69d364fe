package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// A list with any texts as its bounds and its cursor is the same in SQLite and in memory, or refused by
// both.
func FuzzList(f *testing.F) {
	ctx := context.Background()
	s, err := Open(ctx, filepath.Join(f.TempDir(), "state.db"), Config{})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, s.Close()) })
	model := memory.New()
	due := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	for i, id := range []string{"a", "a0", "a%", "A", "b_", "é", "\x01", "\U0010FFFF", "'", `"`} {
		c := put(id, 0)
		c.ID = fmt.Sprintf("fuzz.%d", i)
		c.Writes[0].Label, c.Writes[0].Due = []string{"", "odd", "even"}[i%3], due.Add(time.Duration(i%4)*time.Second)
		for _, store := range []persist.Store{s, model} {
			_, err := store.Commit(ctx, c)
			require.NoError(f, err)
		}
	}
	page, err := model.List(ctx, persist.Query{Kind: "thing", Limit: 3})
	require.NoError(f, err)
	f.Add("thing", "", "", "", "", page.Next, uint8(0))
	f.Add("thing", "a", "a%", "b", "odd", "", uint8(7))
	f.Add("thing' OR 1=1 --", "%", "_", "\x00", "even", "x", uint8(3))
	f.Fuzz(func(t *testing.T, kind, prefix, from, before, label, after string, how uint8) {
		q := persist.Query{Kind: kind, Prefix: prefix, From: from, Before: before, After: after,
			Reverse: how&1 > 0, Due: how&2 > 0, Limit: int(how >> 4)}
		if how&4 > 0 {
			q.Labels = []string{label}
		}
		ids := func(store persist.Store) (ids []string, next string, err error) {
			page, err := store.List(ctx, q)
			for _, r := range page.Records {
				ids = append(ids, r.ID)
			}
			return ids, page.Next, err
		}
		want, wantNext, wantErr := ids(model)
		got, gotNext, err := ids(s)
		require.Equal(t, wantErr == nil, err == nil, "in memory %v, in SQLite %v", wantErr, err)
		require.Equal(t, fmt.Sprintf("%q", want), fmt.Sprintf("%q", got))
		require.Equal(t, wantNext, gotNext)
	})
}
