package persisttest_test

import (
	"os"
	"testing"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/persisttest"
)

// An adapter passes the function that opens its stores to Main and to Run.
func Example() {
	open := func(location string) (persist.Store, error) { return memory.New(), nil }

	// In the test file of an adapter these functions are TestMain and TestConformance.
	_ = func(m *testing.M) { os.Exit(persisttest.Main(m, open)) }
	_ = func(t *testing.T) { persisttest.Run(t, open, persisttest.Options{Volatile: true}) }
	// Output:
}
