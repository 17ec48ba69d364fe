package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExponent(t *testing.T) {
	sizes := []int{10, 1_000, 100_000}
	for _, e := range []float64{0, 0.5, 1, 2} {
		var costs []float64
		for _, size := range sizes {
			costs = append(costs, 7*math.Pow(float64(size), e))
		}
		require.InDelta(t, e, exponent(sizes, costs), 1e-9)
	}
}

func TestThousands(t *testing.T) {
	for n, s := range map[int]string{0: "0", 999: "999", 1_000: "1,000", 1_234_567: "1,234,567"} {
		require.Equal(t, s, thousands(n))
	}
}

func TestGrowthSides(t *testing.T) {
	fair(t, doubling(10), load{writers: 1, each: 100})
	fair(t, patching(10), load{writers: 1, each: 20})
	fair(t, patchingStored(10), load{writers: 1, each: 20})
	fair(t, watched(20), load{writers: 4, each: 50})
}

// A dropped scope uses less memory than a kept one.
func TestMemoryOfScopes(t *testing.T) {
	b := newBench(t.Context(), true)
	defer b.close()
	require.NoError(t, measureIdleInMemory(b, 2_000, idleBytes, unusedBytes))
	require.NoError(t, measureIdleStored(b, 2_000, unusedBytes))
	by := map[string]float64{}
	for _, r := range b.rows {
		by[r.Work] = r.Ours
	}
	require.Len(t, by, 5)
	require.Less(t, by["scopes that were read, never written, and dropped: 2,000"], by["idle scopes with a small state: 2,000"]/2)
	require.Less(t, by["scopes, read once, handle dropped: 2,000"], by["idle scopes, read once, handle held: 2,000"]/2)
}
