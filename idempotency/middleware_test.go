package idempotency_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// The first request runs, and a repeat gets its response, in another process too. Another payload
// gets 422, even if it differs only in part. Proves IDEM-1, IDEM-3.
func TestReplay(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
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

// A key belongs to its principal and its route. Proves IDEM-3.
func TestKeyPerPrincipalAndRoute(t *testing.T) {
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
	require.Equal(t, 422, as("ann", "POST", "/a/2").status, "same route, another path")
	anonymous := as("", "POST", "/b")
	require.Equal(t, 401, anonymous.status)
	require.Equal(t, "IDEMPOTENCY_NO_PRINCIPAL", anonymous.code(t))
	bare := serve(t, keys.Middleware(counted(&runs))) // without a router the path is the route
	require.Equal(t, 201, bare.send("POST", "/a/1", "k", "").status)
	require.Equal(t, 201, bare.send("POST", "/a/2", "k", "").status)
	require.EqualValues(t, 5, runs.Load())

	// Another user, and values that would be equal if they were joined without separators.
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

// Valid keys are accepted and invalid ones refused. Proves IDEM-1, IDEM-3.
func TestKeySyntax(t *testing.T) {
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
	require.Equal(t, 400, a.status, "an empty key is no key")
	require.Equal(t, before, runs.Load())
}

// While the first request runs, in any process, a repeat gets 409 and another payload 422. After
// that the repeat gets the response. Proves IDEM-1.
func TestInProgress(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		g := newGate()
		one := serve(t, keysOn(t, runtimeOn(t, store), idempotency.Config{}).Middleware(g))
		two := serve(t, keysOn(t, runtimeOn(t, store), idempotency.Config{}).Middleware(g))
		first := one.async("k")
		g.in(t)
		for _, s := range []*server{one, two} {
			a := s.post("k")
			require.Equal(t, 409, a.status)
			require.Equal(t, "IDEMPOTENCY_IN_PROGRESS", a.code(t))
			require.Equal(t, "1", a.header.Get("Retry-After"))
			require.Equal(t, 422, s.send("POST", "/orders", "k", "another").status)
		}
		g.next <- say(200, "done")
		require.Equal(t, "done", (<-first).body)
		require.Equal(t, "done", two.post("k").body)
		require.Empty(t, g.entered)
	})
}

// A response below 500 is stored, a 5xx or a panic frees the key, unless Keep decides otherwise.
// The key stays bound to its payload. Proves IDEM-1, IDEM-4.
func TestStoredStatuses(t *testing.T) {
	g := newGate()
	_, keys := onMemory(t, idempotency.Config{})
	s := serve(t, keys.Middleware(g))
	for _, status := range []int{200, 204, 301, 304, 400, 404, 409, 422, 499} {
		key := fmt.Sprint("kept-", status)
		g.next <- say(status, "")
		require.Equal(t, status, s.post(key).status)
		require.Equal(t, status, s.post(key).status)
		g.in(t)
	}
	require.Empty(t, g.entered)
	for i, fails := range []func(http.ResponseWriter, *http.Request){
		say(500, "broken"), say(503, "later"),
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic(http.ErrAbortHandler) },
	} {
		key := fmt.Sprint("freed-", i)
		g.next <- fails
		a, err := s.try(t.Context(), "POST", "/orders", key, `{"item":7}`)
		g.in(t)
		if i < 2 {
			require.NoError(t, err)
			require.Contains(t, []int{500, 503}, a.status)
			require.Contains(t, []string{"broken", "later"}, a.body)
		} else {
			require.Error(t, err, "the panic propagates")
		}
		require.Equal(t, 422, s.send("POST", "/orders", key, "another").status)
		g.next <- say(200, "second try")
		a = s.post(key)
		g.in(t)
		require.Equal(t, "second try", a.body)
		require.False(t, a.replayed())
		require.Equal(t, "second try", s.post(key).body)
	}
	_, keys = onMemory(t, idempotency.Config{Keep: func(status int) bool { return status != 429 }})
	s = serve(t, keys.Middleware(g))
	g.next <- say(500, "for good")
	s.post("a")
	require.True(t, s.post("a").replayed())
	g.next <- say(429, "slow down")
	s.post("b")
	g.next <- say(200, "now")
	require.Equal(t, "now", s.post("b").body)
}

// A request that a handler makes to the same mux has a key of its own. Proves IDEM-1.
func TestRequestsInsideARequest(t *testing.T) {
	var runs atomic.Int64
	_, keys := onMemory(t, idempotency.Config{})
	mux := http.NewServeMux()
	mux.Handle("POST /orders", keys.Middleware(counted(&runs)))
	mux.Handle("POST /batch", keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		order, err := http.NewRequestWithContext(r.Context(), "POST", "/orders", strings.NewReader(`{"item":7}`))
		assert.NoError(t, err)
		order.Header.Set("User", "ann")
		order.Header.Set(idempotency.Header, "order-1")
		mux.ServeHTTP(httptest.NewRecorder(), order)
		w.WriteHeader(http.StatusInternalServerError) // so that the batch is repeated
	})))
	s := serve(t, mux)
	for _, key := range []string{"batch-1", "batch-1", ""} {
		s.send("POST", "/batch", key, "{}")
	}
	require.True(t, s.post("order-1").replayed())
	require.EqualValues(t, 1, runs.Load())
}

// Requests with a safe method or without a key are passed on, whatever tracing ids they carry.
// Proves IDEM-1, IDEM-5.
func TestOnlyHeaderIsKey(t *testing.T) {
	var runs atomic.Int64
	_, keys := onMemory(t, idempotency.Config{})
	s := serve(t, keys.Middleware(counted(&runs)))
	n := int64(0)
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE"} {
		for range 2 {
			n++
			require.Equal(t, 201, s.send(method, "/", "k", "").status)
			require.Equal(t, n, runs.Load())
		}
	}
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, trace := range []string{"Traceparent", "Tracestate", "X-Request-Id", "X-Correlation-Id", "Correlation-Id", "X-Trace-Id", "X-B3-Traceid", "X-Amzn-Trace-Id", "X-Cloud-Trace-Context", "X-Idempotency-Key"} {
		for range 2 {
			n++
			a := s.send("POST", "/orders", "", "", trace, "00-"+id+"-00f067aa0ba902b7-01")
			require.Equal(t, 201, a.status)
			require.False(t, a.replayed())
			require.Equal(t, n, runs.Load(), trace)
		}
	}
	// Two keys in one trace are two requests. One key in two traces is one request.
	for _, key := range []string{"a", "b"} {
		n++
		for _, trace := range []string{"one", "two"} {
			require.Equal(t, 201, s.send("POST", "/orders", key, "", "X-Request-Id", trace, "Traceparent", id).status)
			require.Equal(t, n, runs.Load())
		}
	}
}

// A handler that is wrapped twice by one middleware runs once.
func TestMiddlewareTwice(t *testing.T) {
	var runs atomic.Int64
	_, keys := onMemory(t, idempotency.Config{Require: true})
	s := serve(t, keys.Middleware(keys.Middleware(counted(&runs))))
	require.Equal(t, 201, s.post("k").status)
	require.True(t, s.post("k").replayed())
	require.EqualValues(t, 1, runs.Load())
}

// New refuses an invalid Config, such as one whose keys never expire. Proves IDEM-3.
func TestInvalidConfig(t *testing.T) {
	rt, _ := onMemory(t, idempotency.Config{})
	for _, c := range []idempotency.Config{
		{TTL: -1}, {TTL: idempotency.MaxTTL + 1}, {TTL: math.MaxInt64}, {Lease: -1}, {Wait: -1}, {MaxBody: -1}, {MaxRequest: -1},
		{Headers: []string{""}}, {Headers: []string{"a b"}}, {Headers: []string{"X-A", "content-length"}}, {Headers: []string{"a\r\nb"}},
	} {
		_, err := idempotency.New(rt, c)
		require.Error(t, err, "%+v", c)
	}
	_, err := idempotency.New(nil, idempotency.Config{})
	require.Error(t, err)
	keys, err := idempotency.New(rt, idempotency.Config{})
	require.NoError(t, err)
	require.Panics(t, func() { keys.Middleware(http.NotFoundHandler()) }, "Config without Principal")
}
