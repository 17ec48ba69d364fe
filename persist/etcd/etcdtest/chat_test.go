package etcdtest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/examples/chat/server"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist/etcd/etcdtest"
)

// A conversation on the chat server goes on when the leader dies. A request that fails meanwhile is
// repeated under its key, and every question is stored and answered once.
func TestChat(t *testing.T) {
	c, err := etcdtest.Start(3, etcdtest.Options{})
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	store, err := open(fmt.Sprintf("chat%d/@%s", places.Add(1), strings.Join(c.Endpoints(), ",")))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s, err := server.New(t.Context(), server.Config{Store: store, Delay: time.Millisecond, Lease: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	site := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		s.EndStreams()
		site.Close()
		require.NoError(t, s.Close(context.WithoutCancel(t.Context())))
	})
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	user := &http.Client{Jar: jar}
	call := func(method, path, body string) string {
		t.Helper()
		key, answer := idempotency.NewKey(), ""
		testkit.EventuallyWithin(t, time.Minute, func() bool {
			r, err := http.NewRequestWithContext(t.Context(), method, site.URL+path, strings.NewReader(body))
			require.NoError(t, err)
			r.Header.Set(idempotency.Header, key)
			response, err := user.Do(r)
			if err != nil {
				return false
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			answer = string(text)
			return err == nil && response.StatusCode < 300
		})
		return answer
	}
	field := func(text, name string) string {
		t.Helper()
		var all map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &all))
		return all[name].(string)
	}
	call("GET", "/", "")
	session := "/api/sessions/" + field(call("POST", "/api/sessions", ""), "id")
	for i := range 3 {
		turn := field(call("POST", session+"/messages", fmt.Sprintf(`{"text":"question %d"}`, i)), "turn")
		if i == 1 { // while the question is being answered
			leader, err := c.Leader(t.Context())
			require.NoError(t, err)
			leader.Kill()
		}
		testkit.EventuallyWithin(t, time.Minute, func() bool {
			return strings.Contains(call("GET", "/api/turns/"+turn+"/events", ""), `"status":"done"`)
		})
	}
	messages := call("GET", session+"/messages", "")
	for i := range 3 {
		require.Equal(t, 1, strings.Count(messages, fmt.Sprintf(`"text":"question %d"`, i)), messages)
	}
}
