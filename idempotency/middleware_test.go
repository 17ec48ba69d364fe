package idempotency_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/persist"
)

// TestReplay: the first request runs, a repeat gets its response, in another process too; another payload gets 422, also in part.
//
// Proves IDEM-1, IDEM-3.
func TestReplay(t *testing.T) {
	onStores(t, func(t *testing.T, store persist.Store) {
		var runs atomic.Int64
		one := serve(t, keysOn(t, runtimeOn(t, store), idempotency.Config{}).Middleware(counted(&runs)))
		two := serve(t, keysOn(t, runtimeOn(t, store), idempotency.Config{}).Middleware(counted(&runs)))
		first := one.post(`"k"`)
		require.Equal(t, 201, first.status)
		require.Equal(t, `run 1 of {"item":7}`, first.body)
		require.Equal(t, "/orders/1", first.header.Get("Location"))
		require.Equal(t, "text/plain; charset=utf-8", first.header.Get("Content-Type"))
		require.False(t, first.replayed())
		for _, s := range []*server{one, two, two} {
			again := s.post(`k`) // the same key, without quotes
			require.True(t, again.replayed())
			require.Equal(t, first.status, again.status)
			require.Equal(t, first.body, again.body)
			require.Equal(t, "/orders/1", again.header.Get("Location"))
			require.Equal(t, "text/plain; charset=utf-8", again.header.Get("Content-Type"))
		}
		for _, other := range []answer{
			two.send("POST", "/orders", "k", `{"item":8}`),
			one.send("POST", "/orders", "k", ``),
			one.send("POST", "/orders?a=1", "k", `{"item":7}`),
		} {
			require.Equal(t, 422, other.status)
			require.Equal(t, "IDEMPOTENCY_KEY_REUSED", other.code(t))
			require.False(t, other.replayed())
		}
		require.EqualValues(t, 1, runs.Load())
		require.Equal(t, `run 2 of {"item":7}`, one.post("other").body)
	})
}

// TestScopes: a key is its principal's and its route's, whatever is written where.
//
// Proves IDEM-3.
func TestScopes(t *testing.T) {
	var runs atomic.Int64
	_, keys := onMemory(t, idempotency.Config{})
	h := keys.Middleware(counted(&runs))
	mux := http.NewServeMux()
	mux.Handle("POST /a/{id}", h)
	mux.Handle("PUT /a/{id}", h)
	mux.Handle("POST /b", h)
	s := serve(t, mux)
	as := func(name, method, path string) answer { return s.send(method, path, "k", "", "User", name) }
	for i, one := range []struct{ method, path string }{{"POST", "/a/1"}, {"PUT", "/a/1"}, {"POST", "/b"}} {
		require.Equal(t, fmt.Sprintf("run %d of ", i+1), as("ann", one.method, one.path).body)
		require.True(t, as("ann", one.method, one.path).replayed())
	}
	require.Equal(t, 422, as("ann", "POST", "/a/2").status, "the same route, another path")
	nobody := as("", "POST", "/b")
	require.Equal(t, 401, nobody.status)
	require.Equal(t, "IDEMPOTENCY_NO_PRINCIPAL", nobody.code(t))
	bare := serve(t, keys.Middleware(counted(&runs))) // without a router the path is the route
	require.Equal(t, 201, bare.send("POST", "/a/1", "k", "").status)
	require.Equal(t, 201, bare.send("POST", "/a/2", "k", "").status)
	require.EqualValues(t, 5, runs.Load())

	// Another user, and texts that would be the same if they were put together without care.
	var owned atomic.Int64
	_, keys = onMemory(t, idempotency.Config{Route: func(r *http.Request) string { return r.Header.Get("Route") }})
	s = serve(t, keys.Middleware(counted(&owned)))
	n := int64(0)
	for _, v := range [][3]string{{"u", "r", "k"}, {"v", "r", "k"}, {"ur", "", "k"}, {"u", "rk", "k"}, {"u", "r", "kk"}} {
		for range 2 {
			a, err := s.try(t.Context(), "POST", "/", v[2], "", "Route", v[1], "User", v[0])
			require.NoError(t, err)
			require.Equal(t, 201, a.status)
		}
		n++
		require.Equal(t, n, owned.Load(), v)
	}
}

// TestKeys: what a key can be.
//
// Proves IDEM-1, IDEM-3.
func TestKeys(t *testing.T) {
	var runs atomic.Int64
	_, keys := onMemory(t, idempotency.Config{Require: true})
	s := serve(t, keys.Middleware(counted(&runs)))
	long := strings.Repeat("x", 255)
	for _, key := range []string{"8e03978e-40d5-43dd-bc93-6894a57f9324", `"8e03978e"`, `"with space, comma; and more"`, `"a \"quoted\" \\ key"`, `"p";a=1`, long, `"` + long + `"`, ":YWJj:", "  padded\t"} {
		before := runs.Load()
		a := s.post(key)
		require.Equal(t, 201, a.status, "%s: %s", key, a.body)
		require.Equal(t, a.body, s.post(key).body)
		require.LessOrEqual(t, runs.Load(), before+1)
	}
	before := runs.Load()
	for _, key := range []string{`""`, `"`, `"open`, `"a"b`, `"a", "b"`, `a,b`, `a b`, `a"b`, `a\b`, `"a\b"`, `"a\`, "ümlaut", "\"\u00fc\"", "\xff", long + "x", `"` + long + `x"`, strings.Repeat("y", 100_000), "a;b"} {
		a := s.post(key)
		require.Equal(t, 400, a.status, key)
		require.Equal(t, "IDEMPOTENCY_KEY_INVALID", a.code(t))
	}
	a := s.send("POST", "/orders", "a", "", idempotency.Header, "b")
	require.Equal(t, 400, a.status)
	a = s.send("POST", "/orders", "", "")
	require.Equal(t, 400, a.status)
	require.Equal(t, "IDEMPOTENCY_KEY_MISSING", a.code(t))
	a = s.send("POST", "/orders", "", "", idempotency.Header, "")
	require.Equal(t, 400, a.status, "an empty key is none")
	require.Equal(t, before, runs.Load())
}
