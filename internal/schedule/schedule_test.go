package schedule_test

import (
	"slices"
	"testing"

	"github.com/pawl-go/pawl/internal/schedule"
	"github.com/pawl-go/pawl/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m.Run) }

// A seed replays its schedule: the same points, in the same order, with the same choices. Not so in
// TestGroupSchedules: which of two transactions gets a queue is decided between two points there.
func TestReplay(t *testing.T) {
	for name, scenario := range map[string]func(*schedule.Schedule){
		"queue": queueScenario, "memory": memoryScenario, "stored": storedScenario,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(testkit.Times(300, 60, "PAWL_SCHEDULES")) {
				first, again := schedule.One(t, seed+1, scenario), schedule.One(t, seed+1, scenario)
				for i, step := range first {
					if i >= len(again) || step != again[i] {
						t.Fatalf("seed %d: step %d was %q, and %q when replayed", seed+1, i+1, step, slices.Concat(again, []string{"none"})[min(i, len(again))])
					}
				}
				if len(again) != len(first) {
					t.Fatalf("seed %d: %d steps, and %d when replayed", seed+1, len(first), len(again))
				}
			}
		})
	}
}
