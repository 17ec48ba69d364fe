package postgres_test

import (
	"context"
	"testing"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/persisttest"
	"github.com/pawl-go/pawl/persist/postgres"
)

func open(url string) (persist.Store, error) {
	return postgres.Open(context.Background(), url, postgres.Config{})
}

func TestMain(m *testing.M) {
	testkit.Main(func() int { return persisttest.Main(m, open) }, pgtest.Stop)
}

// Proves STORE-1, STORE-3.
func TestConformance(t *testing.T) {
	t.Parallel()
	persisttest.Run(t, open, persisttest.Options{Location: func(t *testing.T) string { return pgtest.URL(t) }})
}
