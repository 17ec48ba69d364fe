package main

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A percentile is accurate to about 3 %.
func TestPercentiles(t *testing.T) {
	var h, other histogram
	for i := 1; i <= 50_000; i++ {
		h.add(time.Duration(i) * time.Microsecond)
		other.add(time.Duration(50_000+i) * time.Microsecond)
	}
	h.merge(&other)
	for _, q := range []float64{0.01, 0.5, 0.99, 1} {
		require.InEpsilon(t, q*float64(100*time.Millisecond), float64(h.at(q)), 0.035, "%v", q)
	}
	for v := uint64(0); v < 1<<20; v += 7 {
		require.InDelta(t, float64(v), float64(middle(bucket(v))), float64(v)/60+1)
	}
}

// A run breaks the rule of -check if a mandatory goal is missed, or another by more than 1.5 times.
func TestGoalsOfARun(t *testing.T) {
	ran := []chapter{{id: "A", goal: true, mandatory: true}, {id: "B", goal: true}, {id: "C", goal: true}, {id: "D", goal: true}, {id: "E", goal: true}, {id: "W"}}
	row := func(id string, ratio float64, goal *bound) Row {
		r := Row{ID: id, Ratio: ratio}
		r.judge(goal, ratio, true)
		return r
	}
	rows := func(a, b, c, d, e float64) []Row {
		return []Row{row("A", a, atMost(1)), row("B", b, atMost(1)), row("C", c, atMost(1)), row("D", d, atMost(1)), row("E", e, atLeast(1)), row("W", 9, nil)}
	}
	cases := map[string]struct {
		rows   []Row
		met    int
		broken int
	}{
		"all met":               {rows(1, 1, 1, 1, 1), 5, 0},
		"four missed a little":  {rows(1, 1.2, 1.5, 1.1, 0.9), 1, 0},
		"one missed by more":    {rows(1, 1.6, 1, 1, 1), 4, 1},
		"at least, by more":     {rows(1, 1, 1, 1, 0.6), 4, 1},
		"mandatory missed":      {rows(1.01, 1, 1, 1, 1), 4, 1},
		"not measured":          {rows(1, 1, 1, 1, 1)[:4], 4, 1},
		"one row of two missed": {append(rows(1, 1, 1, 1, 1), row("A", 2, atMost(1))), 4, 1},
		"nothing measurable":    {rows(1, math.NaN(), 1, 1, 1), 4, 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v := judge(ran, c.rows)
			require.Equal(t, 5, v.goals)
			require.Equal(t, c.met, v.met)
			require.Len(t, v.broken, c.broken, "%v", v.broken)
		})
	}
	failed := Row{ID: "A", Failures: 1}
	failed.judge(atMost(1), 0.5, true)
	require.False(t, *failed.Met)
}

// Beside a load a row keeps its goal and has no verdict. Failed calls and lost updates of ours are
// reported, those of a peer are not.
func TestLoadedRows(t *testing.T) {
	b := newBench(t.Context(), true)
	b.busy = make([]*child, 2)
	for _, r := range []Row{
		{ID: "A", Ratio: 9, PeerFailures: 5, PeerLost: 5},
		{ID: "B", Work: "work", Store: "files", Failures: 1},
		{ID: "C", Work: "work", Store: "memory", Lost: 2},
	} {
		r.judge(atMost(1), r.Ratio, true)
		b.add(r)
	}
	for _, r := range b.rows {
		require.Nil(t, r.Met)
		require.Equal(t, "<= 1", r.Goal)
		require.Equal(t, 2, r.Busy)
	}
	require.Equal(t, []string{"B, work, files: 1 call failed, 0 updates lost", "C, work, memory: 0 calls failed, 2 updates lost"}, flaws(b.rows))
}

// pick returns chapters in the order of the suite, and an error for an unknown id.
func TestPick(t *testing.T) {
	picked, err := pick("p1, M3")
	require.NoError(t, err)
	require.Equal(t, []string{"M3", "P1"}, []string{picked[0].id, picked[1].id})
	_, err = pick("M3,X9")
	require.ErrorContains(t, err, `"X9"`)
}
