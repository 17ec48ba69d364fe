package flow

import (
	"context"
	"time"

	"github.com/pawl-go/pawl"
)

// Sweep sweeps the flow's documents now, with tombstones of at least the given age.
func (f *Flow) Sweep(ctx context.Context, tombstones time.Duration) (pawl.Swept, error) {
	s, err := newSweeper(f.rt, tombstones, f.calls.Name, f.gates.Name)
	if err != nil {
		return pawl.Swept{}, err
	}
	return s.Sweep(ctx)
}
