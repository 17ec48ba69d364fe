package commit

import (
	"context"
	"time"
)

// Backoff bounds the pauses between attempts. The pause itself is a random part of the bound.
type Backoff struct {
	// First is the bound of the first pause.
	First time.Duration
	// Max is the bound of any pause.
	Max time.Duration
}

// Bound returns the upper bound of the pause after attempt n, the first being 1. It doubles from
// First to Max.
func (b Backoff) Bound(n int) time.Duration {
	d := b.First
	for i := 1; i < n && d < b.Max; i++ {
		if d > b.Max/2 {
			return b.Max // doubled, it could overflow
		}
		d *= 2
	}
	return min(d, b.Max)
}

// Sleep waits for d and reports whether it passed before ctx ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
