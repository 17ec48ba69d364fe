//go:build linux

package soak_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// allowance is how far a figure of a process may grow: by a share of its first value, and by a fixed
// number. A first value below usual counts as usual: on a busy machine a process takes long to use all
// its goroutines and connections.
type allowance struct{ usual, share, fixed float64 }

// The load of a server is steady: as many writers, watchers and workers from its start to its end. So
// its goroutines, descriptors and connections are steady too, except for the moment: a watch in
// progress, or a connection that the pool opens or gives up. The allowances are for that.
//
// The heap is measured after a garbage collection. It grows for good reasons: the runtime keeps
// scopes that were used lately, and a scope of the two thousand may be used for the first time late.
// A leak of a kilobyte per call is more than that in the five minutes that a process lives in `make
// soak`; the test logs the curve, which flattens without a leak. Resident memory is reported
// and not judged: the garbage collector gives pages back late.
var allowances = map[string]allowance{
	"goroutines":  {40, 0.25, 15},
	"descriptors": {20, 0.1, 6},
	"connections": {poolSize + 1, 0, 3}, // one for hints, and sometimes one for a notification
	"heap":        {2 << 20, 0.25, 12 << 20},
}

// leastSamples is the number of samples from which on a process is judged.
const leastSamples = 16

// growth compares two parts of a series.
type growth struct{ first, last float64 }

// grown returns the medians of the first and the last third of a series, without its first quarter,
// in which caches and pools fill. It returns false if there are too few samples.
func grown(series []float64) (growth, bool) {
	if len(series) < leastSamples {
		return growth{}, false
	}
	series = series[len(series)/4:]
	third := len(series) / 3
	return growth{median(series[:third]), median(series[len(series)-third:])}, true
}

func median(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// excess returns an error if g is more than what is allowed.
func (a allowance) excess(g growth) error {
	if limit := max(g.first, a.usual)*(1+a.share) + a.fixed; g.last > limit {
		return fmt.Errorf("grew from %.0f to %.0f, limit %.0f", g.first, g.last, limit)
	}
	return nil
}

// A series that only fluctuates passes, one that grows does not, and the warm-up does not count.
func TestGrowth(t *testing.T) {
	series := func(value func(i int) float64) (all []float64) {
		for i := range 100 {
			all = append(all, value(i))
		}
		return all
	}
	a := allowances["goroutines"]
	for name, test := range map[string]struct {
		value func(i int) float64
		grows bool
	}{
		"steady":   {func(int) float64 { return 60 }, false},
		"waves":    {func(i int) float64 { return 60 + float64(i%7)*5 }, false},
		"peak":     {func(i int) float64 { return 60 + float64(i/99)*1000 }, false},
		"warms up": {func(i int) float64 { return min(float64(i)*3, 60) }, false},
		"leaks":    {func(i int) float64 { return 60 + float64(i) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			g, ok := grown(series(test.value))
			require.True(t, ok)
			require.Equal(t, test.grows, a.excess(g) != nil, "%+v", g)
		})
	}
	_, ok := grown(make([]float64, leastSamples-1))
	require.False(t, ok)
}
