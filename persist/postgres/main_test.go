package postgres_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

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
	persisttest.Run(t, open, persisttest.Options{Location: func(t *testing.T) string { return pgtest.URL(t) }, Link: link})
}

// link puts a proxy in front of the server of a URL.
func link(t *testing.T, location string) persisttest.Link {
	u, err := url.Parse(location)
	require.NoError(t, err)
	proxy := persisttest.NewProxy(t, u.Host)
	u.Host = proxy.Addr()
	return persisttest.Link{Location: u.String(), Mute: proxy.Mute, Cut: proxy.Cut}
}
