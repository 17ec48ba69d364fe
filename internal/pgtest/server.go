package pgtest

import (
	crand "crypto/rand"
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// Server is a private PostgreSQL server. Kill, Start and Restart must not be called concurrently.
type Server struct {
	t        testing.TB
	programs programs
	folder   string // holds the cluster, the socket and the log
	password string
	port     int
	settings []string
	run      *run // the current run, or the one that Start will start
	running  bool
}

const superuser = "pawl"

// defaults configure a small server that is as durable as in production.
var defaults = []string{
	"listen_addresses=127.0.0.1",
	"fsync=on",
	"synchronous_commit=on",
	"full_page_writes=on",
	"max_connections=100",
	"shared_buffers=16MB",
	"max_wal_size=256MB",
	"logging_collector=off",
	"log_line_prefix=%m [%p] ",
}

// New starts a server for t alone, with settings such as "max_connections=20", and ends it when t
// ends. It needs PostgreSQL on this machine, even if Variable names a running server.
func New(t testing.TB, settings ...string) *Server {
	t.Helper()
	s := create(t, settings)
	t.Cleanup(s.remove)
	return s
}

// URL returns the URL of a database. The database "postgres" exists from the start.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     s.host(),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Addr returns the server's network and address for net.Dial.
func (s *Server) Addr() (network, address string) { return "tcp", s.host() }

func (s *Server) host() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Kill ends the server like a crash: it finishes nothing, connections break, and the next start has
// to recover. Kill returns when the last process of the server has ended. It does nothing if the
// server is not running.
func (s *Server) Kill() {
	s.t.Helper()
	if !s.running {
		return
	}
	s.running = false
	if err := s.endRun(); err != nil {
		s.t.Fatalf("pgtest: %v", err)
	}
}

// Start starts a killed server again, with the same data and address, and returns when it accepts
// connections. It does nothing if the server is running.
func (s *Server) Start() {
	s.t.Helper()
	if s.running {
		return
	}
	if err := s.startRun(); err != nil {
		s.t.Fatalf("pgtest: %v", err)
	}
}

// Restart calls Kill and Start.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// create makes and starts a server. If PostgreSQL is missing, t ends.
func create(t testing.TB, settings []string) *Server {
	t.Helper()
	s := &Server{t: t, programs: find(t), password: crand.Text(), settings: settings}
	if err := s.create(); err != nil {
		s.remove()
		t.Fatalf("pgtest: %v", err)
	}
	return s
}

func (s *Server) create() (err error) {
	if s.folder, err = s.programs.folder(); err != nil {
		return err
	}
	passwordFile := filepath.Join(s.folder, "password")
	if err := os.WriteFile(passwordFile, []byte(s.password), 0o600); err != nil {
		return err
	}
	if err := s.programs.own(passwordFile); err != nil {
		return err
	}
	if s.run, err = s.newRun(); err != nil {
		return err
	}
	// Another process may take a free port before the server starts.
	for range 5 {
		if s.port, err = pickPort(); err != nil {
			return err
		}
		if err = s.startRun(); !errors.Is(err, errPortTaken) {
			break
		}
		if err := s.endRun(); err != nil {
			return err
		}
	}
	return err
}

// startRun starts the run that newRun prepared.
func (s *Server) startRun() error {
	if err := s.run.start(s.port, s.URL("postgres")); err != nil {
		return err
	}
	s.running = true
	return nil
}

// endRun kills the server and prepares its next run. The next supervisor starts before the old one
// ends, so that one of them removes the folder if this process dies.
func (s *Server) endRun() error {
	next, err := s.newRun()
	if err != nil {
		return err
	}
	err = s.run.kill()
	s.run = next
	return err
}

// newRun prepares a run of the server.
func (s *Server) newRun() (*run, error) {
	arguments := []string{s.programs.postgres, "-D", filepath.Join(s.folder, "data")}
	for _, setting := range slices.Concat(defaults, []string{"unix_socket_directories=" + s.folder}, s.settings) {
		arguments = append(arguments, "-c", setting)
	}
	return newRun(s.programs, s.folder, arguments)
}

// remove ends the server and removes its folder.
func (s *Server) remove() {
	s.running = false
	if s.run != nil {
		s.run.remove()
	}
	if s.folder != "" {
		_ = os.RemoveAll(s.folder) // the supervisor may lack the rights
	}
}

var pickPort = freePort // a test replaces it by a function that returns a used port

// freePort returns a free port outside the range that the kernel uses for outgoing connections, so
// that it is still free when a killed server starts again.
func freePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(12000)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, errors.New("no free port in 100 tries")
}
