package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A database below its limit answers all, and one beyond it answers as much as its slots can, in
// commits that grow.
func TestModel(t *testing.T) {
	m := model{rate: 60, processes: 2, connections: 4, slots: 2, trip: 100 * time.Microsecond, record: 50 * time.Microsecond, length: 2 * time.Second}
	m.sessions = 1_000
	easy := m.run(1)
	require.InDelta(t, 2_000, easy.asked, 300)
	require.InDelta(t, easy.asked, easy.done, 10)
	require.Less(t, easy.p99, time.Millisecond)
	require.Equal(t, easy, m.run(1))

	m.sessions = 100_000
	full := m.run(1)
	require.Less(t, float64(full.done), 0.9*float64(full.asked))
	require.LessOrEqual(t, full.done, 2*2*20_000, "two slots make 20,000 records a second each, without the fixed part")
	require.Greater(t, full.batch, 10*easy.batch)
	require.InDelta(t, 1, full.busy, 0.05)
	require.Greater(t, full.p50, 100*easy.p50)
}
