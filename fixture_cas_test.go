package pawl_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// decode returns the document of a record as a T.
func decode[T any](t testing.TB, r persist.Record) (state T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(r.Doc, &state))
	return state
}

func encode(t testing.TB, state any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(state)
	require.NoError(t, err)
	return b
}
