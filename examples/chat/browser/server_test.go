package browser

import (
	"context"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Signals that pause and resume a process.
const (
	stopped   = syscall.SIGSTOP
	continued = syscall.SIGCONT
)

// server is a chat server in its own process.
type server struct {
	t       *testing.T
	address string
	args    []string
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process is gone
	log     lines
}

// lines collects the output of a process.
type lines struct {
	mu   sync.Mutex // protects text
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serve starts a server on a free port. An empty store means a new SQLite file.
func serve(t *testing.T, store string, args ...string) *server {
	t.Helper()
	browser(t) // skips the test before the build if there is no browser
	if store == "" {
		store = filepath.Join(t.TempDir(), "chat.db")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	s := &server{t: t, address: address, args: append([]string{"-addr", address, "-store", store, "-stop-timeout=1s"}, args...)}
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("output of the server %s:\n%s", s.address, s.log.String())
		}
	})
	s.start()
	return s
}

// start starts a process and waits until it serves. It may be called again after the process ended.
func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(build(s.t), s.args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	s.ended = ended
	go func(cmd *exec.Cmd) {
		defer close(ended)
		_ = cmd.Wait()
	}(s.cmd)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !s.healthy(ctx) {
		select {
		case <-s.ended:
			s.t.Fatalf("the server ended: %s", s.log.String())
		case <-ctx.Done():
			s.t.Fatalf("the server did not become healthy: %s", s.log.String())
		case <-tick.C:
		}
	}
}

func (s *server) healthy(ctx context.Context) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url()+"healthz", nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode == http.StatusOK
}

func (s *server) url() string { return "http://" + s.address + "/" }

// signal sends a signal to the process.
func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// kill ends the process as a power cut would.
func (s *server) kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	<-s.ended
}

// stop asks the process to end, and kills it if it does not.
func (s *server) stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGCONT)
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.ended:
	case <-time.After(patience / 2):
		_ = s.cmd.Process.Kill()
		<-s.ended
		s.t.Errorf("the server did not end after SIGTERM")
	}
}
