package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/pgtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// start serves the example from a store; two calls with one location are two servers.
func start(t *testing.T, path string) *httptest.Server {
	t.Helper()
	store, err := openStore(t.Context(), path)
	require.NoError(t, err)
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Threads, Accounts}})
	require.NoError(t, err)
	srv := httptest.NewServer(routes(rt))
	t.Cleanup(func() {
		srv.Close()
		assert.NoError(t, rt.Close(context.Background()))
		assert.NoError(t, store.Close())
	})
	return srv
}

func call(t *testing.T, method, url, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("X-User", "ann")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b), resp.Header
}

func TestTwoServersOneThread(t *testing.T) {
	for name, location := range map[string]func(t *testing.T) string{
		"sqlite":   func(t *testing.T) string { return filepath.Join(t.TempDir(), "chat.db") },
		"fs":       func(t *testing.T) string { return "dir:" + filepath.Join(t.TempDir(), "chat") },
		"postgres": func(t *testing.T) string { return pgtest.URL(t) },
	} {
		t.Run(name, func(t *testing.T) { testTwoServersOneThread(t, location(t)) })
	}
}

func testTwoServersOneThread(t *testing.T, path string) {
	servers := []*httptest.Server{start(t, path), start(t, path)}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			status, body, _ := call(t, "POST", servers[i%2].URL+"/sessions/1/messages", fmt.Sprintf(`{"text":"m%d"}`, i))
			assert.Equal(t, http.StatusOK, status, body)
		})
	}
	wg.Wait()
	_, body, header := call(t, "GET", servers[0].URL+"/sessions/1", "")
	var thread Thread
	require.NoError(t, json.Unmarshal([]byte(body), &thread))
	seen := map[string]int{}
	for _, m := range thread.Messages {
		seen[m.Role+m.Text]++
	}
	for i := range 40 {
		assert.Equal(t, 1, seen[fmt.Sprintf("userm%d", i)])
	}
	assert.Len(t, thread.Messages, 80)
	assert.Equal(t, `"80"`, header.Get("ETag"), "one version per message")

	status, _, _ := call(t, "PATCH", servers[1].URL+"/sessions/1", `{"title":"stale"}`, "If-Match", `"79"`)
	assert.Equal(t, http.StatusConflict, status)
	status, body, _ = call(t, "PATCH", servers[1].URL+"/sessions/1", `{"title":"new"}`, "If-Match", `"80"`)
	assert.Equal(t, http.StatusOK, status, body)
	_, body, _ = call(t, "GET", servers[0].URL+"/sessions", "")
	assert.JSONEq(t, `["1"]`, body)
	status, _, _ = call(t, "GET", servers[0].URL+"/sessions/none", "")
	assert.Equal(t, http.StatusNotFound, status)
}

func TestAllowanceIsExact(t *testing.T) {
	srv := start(t, filepath.Join(t.TempDir(), "chat.db"))
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range (freeMessages + 20) / 8 {
				status, _, _ := call(t, "POST", fmt.Sprintf("%s/sessions/%d-%d/messages", srv.URL, i, j), `{"text":"x"}`)
				mu.Lock()
				statuses[status]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	assert.Equal(t, map[int]int{http.StatusOK: freeMessages, http.StatusPaymentRequired: 20}, statuses)
}
