package yield_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl/internal/yield"
)

// TestLocal: who is in line on the same processor runs before whoever yields goes on.
func TestLocal(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var ran atomic.Int32
	for range 3 {
		go ran.Add(1)
	}
	for range 1_000 {
		if yield.Local(); ran.Load() == 3 {
			return
		}
	}
	t.Fatal("only", ran.Load(), "of three have run")
}

func ExampleLocal() {
	done := make(chan struct{})
	go close(done)
	for {
		select {
		case <-done:
			fmt.Println("done")
			return
		default:
			yield.Local()
		}
	}
	// Output: done
}
