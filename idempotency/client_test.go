package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
)

// The client repeats a request under one key until it gets an answer, and the work is done once.
// Proves IDEM-1.
func TestTransport(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{Require: true})
	var runs, tries atomic.Int64
	inner := keys.Middleware(counted(&runs))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("User", "ann")
		switch tries.Add(1) {
		case 1:
			w.WriteHeader(502)
		case 2:
			panic(http.ErrAbortHandler)
		case 3:
			inner.ServeHTTP(lost{w}, r) // the work is done, but the response is lost
			panic(http.ErrAbortHandler)
		default:
			inner.ServeHTTP(w, r)
		}
	}))
	base := s.Client().Transport
	client := &http.Client{Transport: &idempotency.Transport{Base: base, Retry: pawl.Retry{First: time.Millisecond, Max: 2 * time.Millisecond}}}
	response, err := client.Post(s.URL, "text/plain", strings.NewReader("body"))
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, "run 1 of body", string(body))
	require.Equal(t, "true", response.Header.Get(idempotency.Replayed))
	require.EqualValues(t, 1, runs.Load())
	require.EqualValues(t, 4, tries.Load())

	// The next request has another key.
	response, err = client.Post(s.URL, "text/plain", strings.NewReader("body"))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.EqualValues(t, 2, runs.Load())
	require.NotEqual(t, idempotency.NewKey(), idempotency.NewKey())
}

// lost is a connection that loses its response.
type lost struct{ http.ResponseWriter }

func (lost) Header() http.Header         { return http.Header{} }
func (lost) Write(p []byte) (int, error) { return len(p), nil }
func (lost) WriteHeader(int)             {}

// scripted is a transport that answers with one status after another.
type scripted struct {
	answers []int // 0 is a lost connection
	after   string
	keys    []string
	bodies  []string
	closed  func() // called when a response is closed; may be nil
}

// closing is a body that calls a function when it is closed.
type closing struct {
	io.Reader
	closed func()
}

func (c closing) Close() error {
	if c.closed != nil {
		c.closed()
	}
	return nil
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	s.keys = append(s.keys, r.Header.Get(idempotency.Header))
	body := ""
	if r.Body != nil {
		b, _ := io.ReadAll(r.Body)
		body = string(b)
		_ = r.Body.Close()
	}
	s.bodies = append(s.bodies, body)
	status := s.answers[min(len(s.keys), len(s.answers))-1]
	if status == 0 {
		return nil, errors.New("connection lost")
	}
	h := http.Header{}
	if s.after != "" {
		h.Set("Retry-After", s.after)
	}
	return &http.Response{StatusCode: status, Header: h, Body: closing{strings.NewReader("x"), s.closed}, Request: r}, nil
}

// Status, Retry-After, method and body decide whether and how often a request is repeated.
func TestTransportRetries(t *testing.T) {
	quick := pawl.Retry{Attempts: 3, First: time.Microsecond, Max: time.Microsecond}
	for name, test := range map[string]struct {
		answers []int
		after   string
		tries   int
		status  int
	}{
		"created":                {[]int{201}, "", 1, 201},
		"invalid":                {[]int{422}, "", 1, 422},
		"conflict, final":        {[]int{409}, "", 1, 409},
		"conflict, in progress":  {[]int{409, 200}, "0", 2, 200},
		"in progress since 1999": {[]int{409, 200}, "Fri, 31 Dec 1999 23:59:59 GMT", 2, 200},
		"limited":                {[]int{429, 200}, "", 2, 200},
		"broken":                 {[]int{500, 503, 200}, "", 3, 200},
		"not implemented":        {[]int{501}, "", 1, 501},
		"always broken":          {[]int{503}, "", 3, 503},
		"retry after an hour":    {[]int{503}, "3600", 1, 503},
		"retry after centuries":  {[]int{503}, "10000000000", 1, 503},
		"retry after overflows":  {[]int{503}, "9223372036854775807", 1, 503},
		"retry in the year 9999": {[]int{503}, "Fri, 31 Dec 9999 23:59:59 GMT", 1, 503},
		"connection lost":        {[]int{0, 200}, "", 2, 200},
		"always lost":            {[]int{0}, "", 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scripted{answers: test.answers, after: test.after}
			client := &http.Client{Transport: &idempotency.Transport{Base: s, Retry: quick}}
			response, err := client.Post("http://x", "", strings.NewReader("body"))
			if test.status == 0 {
				require.ErrorContains(t, err, "connection lost")
			} else {
				require.NoError(t, err)
				require.Equal(t, test.status, response.StatusCode)
				require.NoError(t, response.Body.Close())
			}
			require.Len(t, s.keys, test.tries)
			for i := range s.keys {
				require.NotEmpty(t, s.keys[i])
				require.Equal(t, s.keys[0], s.keys[i])
				require.Equal(t, "body", s.bodies[i])
			}
		})
	}
	t.Run("key set by the caller", func(t *testing.T) {
		s := &scripted{answers: []int{200}}
		r, err := http.NewRequest("POST", "http://x", nil)
		require.NoError(t, err)
		r.Header.Set(idempotency.Header, "mine")
		_, err = (&idempotency.Transport{Base: s}).RoundTrip(r)
		require.NoError(t, err)
		require.Equal(t, []string{"mine"}, s.keys)
	})
	t.Run("safe method", func(t *testing.T) {
		s := &scripted{answers: []int{503, 200}}
		r, err := http.NewRequest("GET", "http://x", nil)
		require.NoError(t, err)
		_, err = (&idempotency.Transport{Base: s, Retry: quick}).RoundTrip(r)
		require.NoError(t, err)
		require.Equal(t, []string{"", ""}, s.keys)
		require.Empty(t, r.Header)
	})
	t.Run("body without GetBody", func(t *testing.T) {
		s := &scripted{answers: []int{503, 200}}
		r, err := http.NewRequest("POST", "http://x", io.MultiReader(strings.NewReader("body")))
		require.NoError(t, err)
		_, err = (&idempotency.Transport{Base: s, Retry: quick}).RoundTrip(r)
		require.NoError(t, err)
		require.Len(t, s.keys, 1)
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &scripted{answers: []int{503}, after: "30", closed: cancel} // the response is closed before the wait begins
		r, err := http.NewRequestWithContext(ctx, "POST", "http://x", nil)
		require.NoError(t, err)
		open := 1
		r.Body = closing{http.NoBody, func() { open-- }}
		r.GetBody = func() (io.ReadCloser, error) { open++; return closing{http.NoBody, func() { open-- }}, nil }
		_, err = (&idempotency.Transport{Base: s, Retry: quick}).RoundTrip(r)
		require.ErrorIs(t, err, context.Canceled)
		require.Len(t, s.keys, 1)
		require.Zero(t, open, "bodies")
	})
}

// A server that sends the header of a 503 response and then hangs does not stop the client from
// retrying. http.Client can close idle connections through Transport.
func TestTransportHungResponse(t *testing.T) {
	var tries atomic.Int64
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries.Add(1) > 1 {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // or else the server does not notice that the client leaves
		w.WriteHeader(503)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	base := &letGo{RoundTripper: s.Client().Transport}
	client := &http.Client{Transport: &idempotency.Transport{Base: base, Retry: pawl.Retry{First: time.Millisecond, Max: 2 * time.Millisecond}}}
	response, err := client.Post(s.URL, "text/plain", strings.NewReader("body"))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 200, response.StatusCode)
	require.EqualValues(t, 2, tries.Load())
	client.CloseIdleConnections()
	require.True(t, base.closed)
}

// letGo records a call of CloseIdleConnections.
type letGo struct {
	http.RoundTripper
	closed bool
}

func (c *letGo) CloseIdleConnections() { c.closed = true }
