package fs

import (
	"context"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/persisttest"
)

func TestMain(m *testing.M) {
	testkit.Main(func() int { return persisttest.Main(m, openAny) })
}

func openAny(dir string) (persist.Store, error) {
	return Open(context.Background(), dir, Config{LockTimeout: time.Minute}) // the default is too short for a busy disk
}

// Proves STORE-1, STORE-3.
func TestConformance(t *testing.T) { persisttest.Run(t, openAny, persisttest.Options{}) }
