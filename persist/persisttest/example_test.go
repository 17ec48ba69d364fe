package persisttest_test

import (
	"os"
	"testing"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/persisttest"
)

// An adapter opens its stores in one function, and hands it to Main and to Run.
func Example() {
	open := func(location string) (persist.Store, error) { return memory.New(), nil }

	// In the adapter's test file these two are called TestMain and TestConformance.
	_ = func(m *testing.M) { os.Exit(persisttest.Main(m, open)) }
	_ = func(t *testing.T) { persisttest.Run(t, open, persisttest.Options{Volatile: true}) }
	// Output:
}
