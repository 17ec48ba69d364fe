package memory

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// TestRemovedEntries: an entry that was dropped or cleared leaves nothing behind that a read would
// pass over.
//
// Proves STORE-1.
func TestRemovedEntries(t *testing.T) {
	store := New()
	key := persist.Key{Kind: "thing", ID: "1"}
	const each, rounds = 3 * chunkSize, 3
	version, next := uint64(0), uint64(0)
	write := func(log persist.LogWrite) {
		t.Helper()
		w := persist.Write{Key: key, Expected: version, Version: version + 1, Doc: []byte(`{}`), Log: &log}
		_, err := store.Commit(t.Context(), persist.Commit{ID: fmt.Sprintf("w.%d", version), Writes: []persist.Write{w}})
		require.NoError(t, err)
		version++
	}
	add := func(n int) persist.LogWrite {
		log := persist.LogWrite{First: next}
		for range n {
			log.Entries = append(log.Entries, []byte(`1`))
		}
		next += uint64(n)
		return log
	}
	for range rounds {
		write(add(each))
		write(persist.LogWrite{Drop: next - 2})
		require.Len(t, store.logs.byKey[key], 2)
		require.Len(t, store.logs.byPosition, 2)
		require.Len(t, store.logs.order["thing"].chunks, 1)
	}
	require.EqualValues(t, rounds*each, store.logs.last)
	entries, err := store.ReadOrder(t.Context(), persist.OrderQuery{})
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, next-2, entries[0].Number)

	write(add(each))
	write(persist.LogWrite{Clear: true})
	require.Empty(t, store.logs.byKey)
	require.Empty(t, store.logs.byPosition)
	require.Empty(t, store.logs.order)
	require.EqualValues(t, (rounds+1)*each, store.logs.last)
}
