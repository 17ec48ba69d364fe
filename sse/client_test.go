package sse_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/sse"
)

func TestMain(m *testing.M) { testkit.Main(m.Run) }

// tally is the state of these tests.
type tally struct {
	N      int    `json:"n"`
	Secret string `json:"secret"`
	Text   string `json:"text,omitempty"`
}

// inMemory returns a scope in memory and its runtime, which the end of the test closes.
func inMemory(t testing.TB) (pawl.Scope[tally], *pawl.Runtime) {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	return pawl.Memory[tally](rt, "a"), rt
}

// count adds one to n.
func count(t testing.TB, s pawl.Scope[tally]) {
	t.Helper()
	_, err := s.IncState(context.Background(), "n", 1)
	require.NoError(t, err)
}

// server is an HTTP server with one handler, and a client for it.
type server struct {
	*httptest.Server
	t       testing.TB
	client  *http.Client
	results chan error // errors that the handler returned
}

// serve starts a server for handler.
func serve(t testing.TB, http2 bool, handler func(http.ResponseWriter, *http.Request) error, configure ...func(*http.Server)) *server {
	t.Helper()
	s := &server{t: t, results: make(chan error, 100)}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.results <- handler(w, r) }))
	for _, f := range configure {
		f(s.Config)
	}
	if http2 {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	s.client = s.Server.Client()
	t.Cleanup(s.Close)
	return s
}

// result waits for the handler and returns its error.
func (s *server) result() error {
	s.t.Helper()
	return testkit.Receive(s.t, s.results, "the handler did not return")
}

// get requests the stream. An empty last sends no Last-Event-ID.
func (s *server) get(method, query, last string) *client {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	r, err := http.NewRequestWithContext(ctx, method, s.URL+query, nil)
	require.NoError(s.t, err)
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	res, err := s.client.Do(r)
	require.NoError(s.t, err)
	c := &client{t: s.t, Response: res, lines: bufio.NewReader(res.Body), cancel: cancel}
	s.t.Cleanup(c.leave)
	return c
}

// client reads a stream as EventSource would.
type client struct {
	*http.Response
	t      testing.TB
	lines  *bufio.Reader
	cancel context.CancelFunc
	beats  int    // heartbeats: comments without text
	retry  string // value of the last retry field
}

// leave closes the connection.
func (c *client) leave() {
	c.cancel()
	_ = c.Body.Close()
}

// message is an event.
type message struct{ name, id, data string }

// next returns the next event, and false at the end of the stream.
func (c *client) next() (m message, ok bool) {
	c.t.Helper()
	some := false
	for {
		line, err := c.lines.ReadString('\n')
		if err != nil {
			require.Empty(c.t, line, "the stream ended within a line")
			require.NotErrorIs(c.t, err, context.DeadlineExceeded, "no event arrived")
			return m, false
		}
		field, value, colon := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case !colon && some:
			return m, true
		case !colon:
			continue
		case field == "" && value == "":
			c.beats++
			continue
		case field == "retry":
			c.retry = value
			continue
		case field == "":
			c.t.Fatalf("EventSource does not show the comment %q", value)
		case field == "event":
			m.name = value
		case field == "id":
			m.id = value
		case field == "data":
			m.data += value
		default:
			c.t.Fatalf("unknown field %q", field)
		}
		some = true
	}
}

// want asserts that the next event is want.
func (c *client) want(want message) {
	c.t.Helper()
	m, ok := c.next()
	require.True(c.t, ok, "the stream has ended")
	require.Equal(c.t, want, m)
}

// wantEnd asserts that the stream ends here.
func (c *client) wantEnd() {
	c.t.Helper()
	m, ok := c.next()
	require.False(c.t, ok, "%v", m)
}

// memoryID is the id of an event with this version of a scope in memory.
func memoryID(version int) string { return fmt.Sprintf("%d.%s", version, sse.Process) }
