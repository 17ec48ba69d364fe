package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// An index yields the positions that were added and not removed, in order, from any position on.
// Proves SCOPE-20.
func TestIndex(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var x index
	model := map[cursor.Position]bool{}
	for range 20_000 {
		p := cursor.Position{Due: random.Int64N(3), Kind: fmt.Sprint(random.IntN(3)), ID: fmt.Sprint(random.IntN(2000))}
		if random.IntN(3) == 0 {
			x.remove(p)
			delete(model, p)
		} else {
			x.add(p)
			model[p] = true
		}
	}
	require.Greater(t, len(x.chunks), 4)
	var want []cursor.Position
	for p := range model {
		want = append(want, p)
	}
	slices.SortFunc(want, cursor.Position.Compare)
	require.Equal(t, want, slices.Collect(x.from(cursor.Position{})))
	for range 100 {
		start := want[random.IntN(len(want))]
		i, _ := slices.BinarySearchFunc(want, start, cursor.Position.Compare)
		require.Equal(t, want[i:], slices.Collect(x.from(start)))
	}
	for _, p := range want {
		x.remove(p)
	}
	require.Empty(t, x.chunks)
	require.Empty(t, slices.Collect(x.from(cursor.Position{})))
}
