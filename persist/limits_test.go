package persist_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// A commit at the limits passes. One beyond them is refused, with an error that says by how much and
// that nothing was written. Proves STORE-16.
func TestLimits(t *testing.T) {
	key := func(id string) persist.Key { return persist.Key{Kind: "k", ID: id} }
	c := persist.Commit{
		Writes: []persist.Write{
			{Key: key("a"), Doc: json.RawMessage(`{"n":1}`), Label: "open"},
			{Key: key("b"), Log: &persist.LogWrite{Entries: []json.RawMessage{json.RawMessage("12"), json.RawMessage("3")}}},
		},
		Guards: []persist.Guard{{Key: key("b")}, {Key: key("c")}},
	}
	size := len("ka"+`{"n":1}`+"open") + len("kb"+"12"+"3") + len("kb") + len("kc")
	require.Equal(t, size, c.Size())
	require.NoError(t, persist.Limits{}.Check(c), "no limits")
	require.NoError(t, persist.Limits{MaxKeys: 3, MaxBytes: size}.Check(c), "a key with a write and a guard counts once")

	err := persist.Limits{MaxKeys: 2, MaxBytes: size}.Check(c)
	require.Equal(t, &persist.LimitError{What: "keys", Limit: 2, Got: 3}, err)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.EqualError(t, err, "persist: commit too large: keys: limit 2, got 3")
	err = persist.Limits{MaxEntries: 1}.Check(c)
	require.Equal(t, &persist.LimitError{What: "entries", Limit: 1, Got: 2}, err)
	require.NoError(t, persist.Limits{MaxEntries: 2}.Check(c))
	err = persist.Limits{MaxKeys: 3, MaxBytes: size - 1}.Check(c)
	require.Equal(t, &persist.LimitError{What: "bytes", Limit: size - 1, Got: size}, err)
}
