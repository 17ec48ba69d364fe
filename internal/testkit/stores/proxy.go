package stores

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/pgtest"
)

// Proxied returns a proxy before a new database of PostgreSQL, the location behind it, and the location
// of the database itself. The proxy sees the commits of the store: the calls of its functions that write.
func Proxied(t testing.TB) (proxy *pgproxy.Proxy, behind, direct string) {
	t.Helper()
	Need(t, "postgres")
	direct = pgtest.URL(t)
	u, err := url.Parse(direct)
	require.NoError(t, err)
	proxy = pgproxy.Start(t, "tcp", u.Host, "write", "write_together", "create_records", "replace_records")
	return proxy, proxy.URL(direct), direct
}
