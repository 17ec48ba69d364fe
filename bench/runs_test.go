package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Both contenders complete every run that they started, and time each unit.
func TestRunsAreCompleted(t *testing.T) {
	b := benchFor(t)
	withPostgres(t, b)
	for n, s := range runSides {
		for work, on := range map[string]func(int) side{"starts": startsOnly, "one by one": oneByOne, "to step": toStep} {
			t.Run(s.name+", "+work, func(t *testing.T) {
				l := load{writers: 1, each: 4}
				if work == "starts" {
					l.writers = runWorkers
				}
				m, err := b.once(on(n), l)
				require.NoError(t, err)
				require.EqualValues(t, l.writers*l.each, m.acknowledged)
				require.Zero(t, m.failed)
				require.Zero(t, m.lost)
				require.Positive(t, m.latency.at(0.5))
			})
		}
	}
}
