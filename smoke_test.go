package pawl_test

import (
	"context"
	"sync"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

type counter struct {
	N    int64    `json:"n"`
	Name string   `json:"name"`
	List []string `json:"list"`
}

func TestSmoke(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	ctx := context.Background()
	for name, s := range map[string]pawl.Scope[counter]{"mem": pawl.Memory[counter](rt, "a"), "stored": pawl.Session[counter](rt, "a")} {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					for i := range 50 {
						var err error
						if i%2 == 0 {
							_, err = s.IncState(ctx, "n", 1)
						} else {
							_, err = s.AtomicState(ctx, func(_ context.Context, c *counter) error { c.N++; return nil })
						}
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			snap, err := s.Snapshot(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 3200, snap.ReadOnly().N)
			require.EqualValues(t, 3200, snap.Version)
		})
	}
	require.NoError(t, rt.Close(ctx))
}
