//go:build unix

package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m.Run, http.DefaultClient.CloseIdleConnections)
}

const storeVariable = "CHAT_TEST_STORE"

func init() {
	testkit.Child("chat", func() error {
		os.Args = []string{"chat", "-addr", ":0", "-store", os.Getenv(storeVariable), "-inspect"}
		main()
		return nil
	})
}

// The program serves the page at the URL that it prints, keeps its state in the file of -store, and
// ends without an error after SIGTERM.
func TestProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "chat.db")
	p := testkit.Start(t, "chat", storeVariable+"="+file)
	url := p.Line()
	for _, path := range []string{"/", "/app.js", "/healthz", "/pawl/"} {
		answer, err := http.Get(url + path)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusOK, answer.StatusCode, path)
	}
	p.Signal(syscall.SIGTERM)
	p.Wait()
	require.FileExists(t, file)
}
