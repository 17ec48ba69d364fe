package server

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// The pages of package inspect are there only if asked for, only for this machine, and do not show
// the secret that signs cookies.
func TestInspect(t *testing.T) {
	location := stores.Flag(stores.SQLite.New(t))
	s := start(t, location, func(c *Config) { c.Inspect = true })
	u := visit(t, s.url)
	for _, page := range []string{"", "kind?kind=session", "queues", "doc?kind=secret&id=cookies", "raw?kind=secret&id=cookies",
		"view?name=calls-chat", "view?name=gates-chat", "view?name=claims-charge", "view?name=effects", "view?name=streams-thread", "view?name=idempotency"} {
		status, body, _ := u.call("GET", s.url+"/pawl/"+page, "")
		require.Equal(t, http.StatusOK, status, page)
		require.NotContains(t, body, string(s.secret), page)
	}
	status, _, _ := u.call("GET", s.url+"/pawl/act?action=delete&kind=session&id=a", "")
	require.Equal(t, http.StatusForbidden, status)

	r, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"/pawl/", nil)
	require.NoError(t, err)
	r.Host = "evil.example"
	res, err := u.client.Do(r)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusNotFound, res.StatusCode)
	for address, local := range map[string]bool{"127.0.0.1:80": true, "[::1]:80": true, "localhost": true, "10.0.0.7:80": false, "": false, "evil.example:80": false} {
		require.Equal(t, local, isLocal(address), address)
	}

	live, err := u.client.Get(s.url + "/pawl/live?kind=session&id=a")
	require.NoError(t, err)
	defer live.Body.Close()
	require.NoError(t, s.end(20*time.Second)) // a live view does not hold up the shutdown
	_, _ = io.Copy(io.Discard, live.Body)

	plain := start(t, location)
	status, _, _ = visit(t, plain.url).call("GET", plain.url+"/pawl/", "")
	require.Equal(t, http.StatusNotFound, status)
}
