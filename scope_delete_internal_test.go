package pawl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A handle that is kept, and deletes and creates again, leaves one grave and not one for each time. Proves SCOPE-10.
func TestOneGravePerContainer(t *testing.T) {
	rt, err := Open(Config{})
	require.NoError(t, err)
	s := Memory[struct{ N int }](rt, "a")
	for range 1000 {
		_, err := s.IncState(t.Context(), "N", 1, IfAbsent())
		require.NoError(t, err)
		require.NoError(t, s.Delete(t.Context()))
	}
	require.Len(t, rt.memory.graves, 1)
}
