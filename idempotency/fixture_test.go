package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

func TestMain(m *testing.M) {
	testkit.Main(m.Run, stores.Stop, http.DefaultClient.CloseIdleConnections)
}

// runtimeOn opens a runtime on a store until t ends. Two runtimes on one store act like two
// processes.
func runtimeOn(t testing.TB, store persist.Store) *pawl.Runtime {
	rt, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(testkit.Within(t, testkit.Patience))) })
	return rt
}

// user returns the principal of a test request.
func user(r *http.Request) string { return r.Header.Get("User") }

// keysOn returns Keys on a runtime, with user as the principal.
func keysOn(t testing.TB, rt *pawl.Runtime, c idempotency.Config) *idempotency.Keys {
	if c.Principal == nil {
		c.Principal = user
	}
	keys, err := idempotency.New(rt, c)
	require.NoError(t, err)
	return keys
}

// onMemory returns Keys on a new in-memory store.
func onMemory(t testing.TB, c idempotency.Config) (*pawl.Runtime, *idempotency.Keys) {
	rt := runtimeOn(t, memory.New())
	return rt, keysOn(t, rt, c)
}

// server serves a handler on the loopback interface.
type server struct {
	t testing.TB
	*httptest.Server
}

func serve(t testing.TB, h http.Handler) *server {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	s.Client().Transport.(*http.Transport).DisableKeepAlives = true // or else it repeats requests with a key by itself on a reused connection
	return &server{t, s}
}

// answer is a response, read completely.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) replayed() bool { return a.header.Get(idempotency.Replayed) == "true" }

// code returns the code of the problem document in the body.
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

// send sends a request as a user, with a key unless it is empty. Further headers are pairs.
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
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
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

// counted is a handler that answers with the number of its runs.
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

// gate is a handler that blocks until the test sends its next action.
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

// in waits until a request has entered the handler, and returns it.
func (g *gate) in(t testing.TB) *http.Request {
	t.Helper()
	return testkit.Receive(t, g.entered, "no request enters the handler")
}

// say returns an action that answers with a status and a text.
func say(status int, text string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// async sends the usual request and returns a channel for its answer.
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
