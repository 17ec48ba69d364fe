package persist_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pawl-go/pawl/persist"
)

// Remember keeps the last ids of the writers that wrote last. The test computes them in another
// way.
func TestRemember(t *testing.T) {
	writerOf := func(id string) string {
		if dot := strings.LastIndexByte(id, '.'); dot >= 0 {
			return id[:dot]
		}
		return id
	}
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SampledFrom([]string{"", "a", "b", "a.b", "a.b.", "ab"})
		var ring []string
		for n := range rapid.IntRange(1, 120).Draw(t, "commits") {
			writer := names.Draw(t, "writer")
			if rapid.IntRange(0, 3).Draw(t, "many") == 0 {
				writer += strconv.Itoa(rapid.IntRange(0, 20).Draw(t, "which"))
			}
			id := writer + rapid.SampledFrom([]string{"", ".", ".1", "." + strconv.Itoa(n)}).Draw(t, "number")

			all := append(slices.Clone(ring), id)
			counts, want := map[string]int{}, []string{}
			for _, old := range slices.Backward(all) {
				w := writerOf(old)
				if counts[w] == 0 && len(counts) == persist.KeptWriters || counts[w] == persist.KeptPerWriter {
					continue
				}
				counts[w]++
				want = append(want, old)
			}
			slices.Reverse(want)

			before := slices.Clone(ring)
			got := persist.Remember(ring, id)
			require.Equal(t, before, ring)
			require.Equal(t, want, got)
			ring = got
		}
	})
}
