package flow

import (
	"context"
	"time"

	"github.com/pawl-go/pawl"
)

// Sweep sweeps the flow's documents now, with tombstones of at least this age.
func (f *Flow) Sweep(ctx context.Context, graves time.Duration) (pawl.Swept, error) {
	s, err := newSweeper(f.rt, graves, f.calls.Name, f.gates.Name)
	if err != nil {
		return pawl.Swept{}, err
	}
	return s.Sweep(ctx)
}
