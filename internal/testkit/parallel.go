package testkit

import (
	"sync"
	"sync/atomic"
	"testing"
)

// Parallel runs the b.N iterations of a benchmark on a number of goroutines. run gets the number of
// its goroutine and that of the iteration, both from 0. A goroutine ends with its first error.
func Parallel(b *testing.B, goroutines int, run func(goroutine, i int) error) {
	b.Helper()
	b.ResetTimer()
	var next atomic.Int64
	var all sync.WaitGroup
	for goroutine := range goroutines {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
				if err := run(goroutine, i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
