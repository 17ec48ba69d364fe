package pawl

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whoever comes is counted once, and no more once it is gone, whether it was answered, refused, withdrawn, passed by or given back by Abandon. One who
// was not would count for ever against those who come later, or let too many in. Proves LOCK-14.
func TestWhoIsGoneIsNotCounted(t *testing.T) {
	const writers, each = 128, 50
	rt, err := Open(Config{MaxQueue: writers / 2})
	require.NoError(t, err)
	s := Memory[struct{ N int }](rt, "a")
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for range each {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(2_000))*time.Microsecond)
				stuck := r.IntN(50) == 0
				_, _ = s.AtomicState(ctx, func(ctx context.Context, _ *struct{ N int }) error {
					if stuck {
						<-ctx.Done()
						s.Abandon()
					}
					return nil
				})
				cancel()
			}
		})
	}
	all.Wait()
	require.NoError(t, rt.Close(t.Context()))
	q := &s.mem.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retire()
	require.Zero(t, q.came.Load())
}
