//go:build unix

package server

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A server that is told to stop does not wait for clients that have sent half of a request.
func TestShutdownWithHalfSentRequests(t *testing.T) {
	p := startProcess(t, filepath.Join(t.TempDir(), "chat.db"))
	u := visit(t, p.url)
	session := u.newSession(p.url)
	at, err := url.Parse(p.url)
	require.NoError(t, err)
	cookie := u.client.Jar.Cookies(at)[0].String()
	path := "/api/sessions/" + session + "/messages"
	for i := range 100 {
		conn, err := net.Dial("tcp", at.Host)
		require.NoError(t, err)
		defer conn.Close()
		half := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\nIdempotency-Key: half%d\r\nContent-Length: 1000\r\n\r\n{\"text\":", path, at.Host, cookie, i)
		switch i % 4 {
		case 0:
			half = strings.Replace(half, cookie, "chat=unknown", 1) // refused before its body is read
		case 1:
			half = half[:len(half)/2] // half of its header
		}
		_, err = io.WriteString(conn, half)
		require.NoError(t, err)
	}
	status, _, _ := u.call(http.MethodGet, p.url+path, "") // the server has accepted the connections before
	require.Equal(t, http.StatusOK, status)
	began := time.Now()
	p.Signal(syscall.SIGTERM)
	p.Wait()
	took := time.Since(began)
	require.Less(t, took, 8*time.Second) // 3 on an idle machine
	t.Log("stopped after", took)
}
