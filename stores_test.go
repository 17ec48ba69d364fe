package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/fs"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
	"github.com/stretchr/testify/require"
)

// sharedStore is a store that several processes can open.
type sharedStore struct {
	name string
	// location returns a new place for t, in the form that openStore takes.
	location func(t testing.TB) string
}

// onlyStore names a store that alone is to be tested, where the others are tested anyhow; empty: all.
var onlyStore = os.Getenv("PAWL_TEST_STORE_ONLY")

var sharedStores = slices.DeleteFunc([]sharedStore{
	{"sqlite", func(t testing.TB) string { return "sqlite:" + filepath.Join(t.TempDir(), "state.db") }},
	{"fs", func(t testing.TB) string { return "fs:" + filepath.Join(t.TempDir(), "state") }},
	{"postgres", func(t testing.TB) string { return pgtest.URL(t) }},
}, func(s sharedStore) bool { return onlyStore != "" && onlyStore != s.name })

// openStore opens the store at a location, in any process.
func openStore(location string) (persist.Store, error) {
	ctx := context.Background()
	scheme, rest, _ := strings.Cut(location, ":")
	switch scheme {
	case "sqlite":
		return sqlite.Open(ctx, rest, sqlite.Config{})
	case "fs":
		return fs.Open(ctx, rest, fs.Config{LockTimeout: time.Minute}) // on a busy disk the default is soon over
	case "postgres":
		return postgres.Open(ctx, location, postgres.Config{})
	}
	return nil, fmt.Errorf("no store is at %q", location)
}

// openFor opens the store at a location until t ends.
func openFor(t testing.TB, location string) persist.Store {
	t.Helper()
	store, err := openStore(location)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// onSharedStores runs test with a new location on every store that processes can share.
func onSharedStores(t *testing.T, test func(t *testing.T, location string)) {
	t.Helper()
	for _, s := range sharedStores {
		t.Run(s.name, func(t *testing.T) { test(t, s.location(t)) })
	}
}

// flaky is a store that loses some of its answers, of commits that were executed and of commits that were not.
type flaky struct {
	persist.Store
	rate float64
}

func (s flaky) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	lose := rand.Float64() < s.rate
	if lose && rand.IntN(3) == 0 {
		return time.Time{}, errAnswerLost
	}
	at, err := s.Store.Commit(ctx, c)
	if lose {
		return time.Time{}, errAnswerLost
	}
	return at, err
}

// LoadAll makes flaky a persist.Reader, as every store of these tests is.
func (s flaky) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	return s.Store.(persist.Reader).LoadAll(ctx, keys)
}

var errAnswerLost = errors.New("the answer was lost")

// oneByOne is a store that cannot commit several keys at once.
type oneByOne struct{ persist.Store }

func (s oneByOne) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if len(c.Keys()) > 1 {
		return time.Time{}, persist.ErrUnsupported
	}
	return s.Store.Commit(ctx, c)
}

func needsPostgres(t *testing.T) {
	t.Helper()
	if onlyStore != "" && onlyStore != "postgres" {
		t.Skip("only " + onlyStore + " is to be tested")
	}
}

// proxied starts a proxy before a fresh database and returns the database's location behind it, and without it.
func proxied(t *testing.T) (proxy *pgproxy.Proxy, behind, direct string) {
	t.Helper()
	needsPostgres(t)
	direct = pgtest.URL(t)
	u, err := url.Parse(direct)
	require.NoError(t, err)
	proxy = pgproxy.Start(t, "tcp", u.Host, "write", "create_records", "replace_records") // functions of the store that write
	return proxy, proxy.URL(direct), direct
}
