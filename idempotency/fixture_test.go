package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/fs"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// children are what this binary is when PAWL_TEST_CHILD names one of them.
var children = map[string]func() int{}

func TestMain(m *testing.M) {
	if run := os.Getenv("PAWL_TEST_CHILD"); run != "" {
		os.Exit(children[run]())
	}
	code := m.Run()
	pgtest.Stop()
	if code == 0 {
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines outlived the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// sharedStores are those that several processes can open, each with a new location.
var sharedStores = []struct {
	name     string
	location func(t testing.TB) string
}{
	{"sqlite", func(t testing.TB) string { return "sqlite:" + filepath.Join(t.TempDir(), "state.db") }},
	{"fs", func(t testing.TB) string { return "fs:" + filepath.Join(t.TempDir(), "state") }},
	{"postgres", func(t testing.TB) string { return pgtest.URL(t) }},
}

// openStore opens the store at a location, in any process.
func openStore(location string) (persist.Store, error) {
	ctx := context.Background()
	scheme, rest, _ := strings.Cut(location, ":")
	switch scheme {
	case "sqlite":
		return sqlite.Open(ctx, rest, sqlite.Config{})
	case "fs":
		return fs.Open(ctx, rest, fs.Config{LockTimeout: time.Minute})
	}
	return postgres.Open(ctx, location, postgres.Config{})
}

// onStores runs test on a new store of every sort.
func onStores(t *testing.T, test func(t *testing.T, store persist.Store)) {
	t.Run("memory", func(t *testing.T) { test(t, memory.New()) })
	for _, s := range sharedStores {
		t.Run(s.name, func(t *testing.T) {
			store, err := openStore(s.location(t))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			test(t, store)
		})
	}
}

// runtimeOn opens a runtime on a store until t ends. Two of them on one store are like two processes.
func runtimeOn(t testing.TB, store persist.Store) *pawl.Runtime {
	rt, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, rt.Close(ctx))
	})
	return rt
}

// user is the principal of a request in tests.
func user(r *http.Request) string { return r.Header.Get("User") }

// keysOn returns Keys on a runtime, with a principal.
func keysOn(t testing.TB, rt *pawl.Runtime, c idempotency.Config) *idempotency.Keys {
	if c.Principal == nil {
		c.Principal = user
	}
	keys, err := idempotency.New(rt, c)
	require.NoError(t, err)
	return keys
}

// onMemory returns Keys on a new store in memory.
func onMemory(t testing.TB, c idempotency.Config) (*pawl.Runtime, *idempotency.Keys) {
	rt := runtimeOn(t, memory.New())
	return rt, keysOn(t, rt, c)
}

// server serves a handler over loopback.
type server struct {
	t testing.TB
	*httptest.Server
}

func serve(t testing.TB, h http.Handler) *server {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	s.Client().Transport.(*http.Transport).DisableKeepAlives = true // on a connection that was used before, it repeats requests with a key by itself
	return &server{t, s}
}

// answer is a response, read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) replayed() bool { return a.header.Get(idempotency.Replayed) == "true" }

// code is that of a problem.
func (a answer) code(t testing.TB) string {
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"), a.body)
	var p struct {
		Title, Detail, Code string
		Status              int
	}
	require.NoError(t, json.Unmarshal([]byte(a.body), &p))
	require.Equal(t, a.status, p.Status)
	require.NotEmpty(t, p.Title)
	require.NotEmpty(t, p.Detail)
	return p.Code
}

// send sends a request with a key, none if it is empty, as a user; further headers are pairs.
func (s *server) send(method, path, key, body string, headers ...string) answer {
	s.t.Helper()
	a, err := s.try(context.Background(), method, path, key, body, headers...)
	require.NoError(s.t, err)
	return a
}

// post sends the usual request.
func (s *server) post(key string) answer {
	s.t.Helper()
	return s.send("POST", "/orders", key, `{"item":7}`)
}

func (s *server) try(ctx context.Context, method, path, key, body string, headers ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, s.URL+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("User", "ann")
	if key != "" {
		r.Header.Set(idempotency.Header, key)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "User" {
			r.Header.Del("User")
		}
		r.Header.Add(headers[i], headers[i+1])
	}
	response, err := s.Client().Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text)}, err
}

// counted is a handler that says how often it ran.
func counted(runs *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := runs.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Location", fmt.Sprintf("/orders/%d", n))
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "run %d of %s", n, body)
	})
}

// gate is a handler that waits, once it is entered, until it is told how to go on.
type gate struct {
	entered chan *http.Request
	next    chan func(w http.ResponseWriter, r *http.Request)
}

func newGate() *gate {
	return &gate{make(chan *http.Request, 100), make(chan func(http.ResponseWriter, *http.Request), 100)}
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.entered <- r
	(<-g.next)(w, r)
}

// in waits until somebody has entered, and returns its request.
func (g *gate) in(t testing.TB) *http.Request {
	select {
	case r := <-g.entered:
		return r
	case <-time.After(patience):
		require.Fail(t, "nobody enters the handler")
		return nil
	}
}

// say is what a handler does that answers.
func say(status int, text string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// async sends the usual request and returns where its answer will be.
func (s *server) async(key string) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		defer close(out)
		if a, err := s.try(context.Background(), "POST", "/orders", key, `{"item":7}`); err == nil {
			out <- a
		}
	}()
	return out
}
