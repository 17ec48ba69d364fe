package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/persisttest"
	"github.com/pawl-go/pawl/persist/sqlite"
)

func open(folder string) (persist.Store, error) {
	return sqlite.Open(context.Background(), filepath.Join(folder, "state.db"), sqlite.Config{})
}

func TestMain(m *testing.M) {
	testkit.Main(func() int { return persisttest.Main(m, open) })
}

// TestConformance runs with CGO_ENABLED=0 as well, on the driver in pure Go.
//
// Proves STORE-1, STORE-3, STORE-11.
func TestConformance(t *testing.T) {
	persisttest.Run(t, open, persisttest.Options{})
}
