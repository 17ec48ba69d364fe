package idempotency_test

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
)

// The handler reads the body that the client sent, up to a limit. Proves IDEM-3.
func TestRequestBodies(t *testing.T) {
	var runs atomic.Int64
	_, keys := onMemory(t, idempotency.Config{MaxRequest: 1000})
	s := serve(t, keys.Middleware(counted(&runs)))
	for i, body := range []string{"", "{}", "\x00\xff\xfe", strings.Repeat("x", 1000)} {
		a := s.send("POST", "/", fmt.Sprint("k", i), body)
		require.Equal(t, fmt.Sprintf("run %d of %s", i+1, body), a.body)
		require.Equal(t, a.body, s.send("POST", "/", fmt.Sprint("k", i), body).body)
	}
	for _, size := range []int{1001, 5_000_000} {
		a := s.send("POST", "/", "huge", strings.Repeat("x", size))
		require.Equal(t, 413, a.status)
		require.Equal(t, "IDEMPOTENCY_REQUEST_BODY", a.code(t))
	}
	require.EqualValues(t, 4, runs.Load())
	require.Equal(t, 201, s.send("POST", "/", "huge", "small").status, "the key is still free")
	require.Equal(t, 201, s.send("POST", "/", "", strings.Repeat("x", 5000)).status, "without a key there is no limit")

	// A compressed body is compared and passed on as sent.
	var b strings.Builder
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte("text"))
	require.NoError(t, z.Close())
	require.Equal(t, "run 7 of "+b.String(), s.send("POST", "/", "z", b.String(), "Content-Encoding", "gzip").body)

	// A form with a file.
	forms := serve(t, keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file, _, err := r.FormFile("f")
		if err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		defer file.Close()
		_, _ = io.Copy(w, file)
	})))
	var form strings.Builder
	m := multipart.NewWriter(&form)
	part, err := m.CreateFormFile("f", "f.txt")
	require.NoError(t, err)
	_, _ = part.Write([]byte("file"))
	require.NoError(t, m.Close())
	require.Equal(t, "file", forms.send("POST", "/", "f", form.String(), "Content-Type", m.FormDataContentType()).body)
}

// dial opens a raw connection, for requests that no HTTP client would send.
func (s *server) dial() net.Conn {
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(s.t, err)
	s.t.Cleanup(func() { conn.Close() })
	require.NoError(s.t, conn.SetDeadline(time.Now().Add(testkit.Patience)))
	return conn
}

// A request claims its key only when its body is complete. A truncated request does nothing.
func TestSlowBody(t *testing.T) {
	var runs atomic.Int64
	_, keys := onMemory(t, idempotency.Config{})
	s := serve(t, keys.Middleware(counted(&runs)))
	const head = "POST /orders HTTP/1.1\r\nHost: x\r\nUser: ann\r\nIdempotency-Key: slow\r\nContent-Length: 10\r\n\r\n{\"ite"
	slow := s.dial()
	_, err := io.WriteString(slow, head)
	require.NoError(t, err)
	require.Equal(t, `run 1 of {"item":7}`, s.post("slow").body) // while the other request is incomplete
	_, err = io.WriteString(slow, "m\":7}")
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(slow), nil)
	require.NoError(t, err)
	require.Equal(t, "true", response.Header.Get(idempotency.Replayed))

	short := s.dial()
	_, err = io.WriteString(short, strings.Replace(head, "slow", "short", 1))
	require.NoError(t, err)
	require.NoError(t, short.(*net.TCPConn).CloseWrite())
	response, err = http.ReadResponse(bufio.NewReader(short), nil)
	require.NoError(t, err)
	require.Equal(t, 400, response.StatusCode)
	require.EqualValues(t, 1, runs.Load())
	require.Equal(t, `run 2 of {"item":7}`, s.post("short").body)
}

// Allowed headers are replayed byte by byte, and no others. Headers set outside the middleware
// stay, and none can be injected. Proves IDEM-1.
func TestResponseHeaders(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{Headers: []string{"x-allowed", "X-Odd"}})
	inner := keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Content-Encoding", "odd")
		h.Set("Location", "/a\r\nX-Injected: 1")
		h.Add("X-Allowed", "one")
		h.Add("X-Allowed", "two")
		h["X-Odd"] = []string{"latin \xe9", "\u00fc"}
		h.Set("Set-Cookie", "session=secret")
		h.Set("X-Other", "first only")
		h.Set("X-Outer", "changed")
		w.WriteHeader(201)
		h.Set("X-Allowed", "too late")
		_, _ = w.Write([]byte("\x1f\x8b\x00\xff"))
		w.WriteHeader(500)
	}))
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", "outer")
		inner.ServeHTTP(w, r)
	}))
	first, again := s.post("k"), s.post("k")
	require.False(t, first.replayed())
	require.True(t, again.replayed())
	for _, a := range []answer{first, again} {
		require.Equal(t, 201, a.status)
		require.Equal(t, "\x1f\x8b\x00\xff", a.body)
		require.Equal(t, "application/json", a.header.Get("Content-Type"))
		require.Equal(t, "odd", a.header.Get("Content-Encoding"))
		require.Equal(t, []string{"one", "two"}, a.header["X-Allowed"])
		require.Equal(t, []string{"latin \xe9", "\u00fc"}, a.header["X-Odd"])
		require.Equal(t, "/a  X-Injected: 1", a.header.Get("Location"))
		require.Empty(t, a.header.Get("X-Injected"))
	}
	require.Equal(t, "session=secret", first.header.Get("Set-Cookie"))
	require.Equal(t, "first only", first.header.Get("X-Other"))
	require.Equal(t, "changed", first.header.Get("X-Outer"))
	require.Empty(t, again.header.Get("Set-Cookie"))
	require.Empty(t, again.header.Get("X-Other"))
	require.Equal(t, "outer", again.header.Get("X-Outer"))
}

// A response that is streamed, hijacked, too large or has trailers arrives unchanged, and is not
// stored. Proves IDEM-3.
func TestNotStored(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{MaxBody: 1000})
	g := newGate()
	s := serve(t, keys.Middleware(g))
	t.Run("streamed", func(t *testing.T) {
		for _, flush := range []func(http.ResponseWriter) error{
			func(w http.ResponseWriter) error { w.(http.Flusher).Flush(); return nil },
			func(w http.ResponseWriter) error { return http.NewResponseController(w).Flush() },
		} {
			for range 2 {
				rest := make(chan struct{})
				g.next <- func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.WriteString(w, "one ")
					if err := flush(w); err != nil {
						panic(err)
					}
					<-rest
					_, _ = io.WriteString(w, "two")
				}
				r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/stream", nil)
				require.NoError(t, err)
				r.Header = http.Header{"User": {"ann"}, idempotency.Header: {"s"}}
				response, err := s.Client().Do(r)
				require.NoError(t, err)
				part := make([]byte, 4)
				_, err = io.ReadFull(response.Body, part)
				require.NoError(t, err)
				require.Equal(t, "one ", string(part)) // while the handler waits
				require.Equal(t, 409, s.send("POST", "/stream", "s", "").status)
				close(rest)
				end, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				require.Equal(t, "two", string(end))
				response.Body.Close()
				g.in(t)
				free(t, s, "/stream", "s", g)
			}
		}
	})
	t.Run("too large to keep", func(t *testing.T) {
		rest := make(chan struct{})
		finish := sync.OnceFunc(func() { close(rest) })
		defer finish()
		g.next <- func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 100_000))
			<-rest
		}
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/keep", nil)
		require.NoError(t, err)
		r.Header = http.Header{"User": {"ann"}, idempotency.Header: {"l"}}
		defer time.AfterFunc(testkit.Patience, finish).Stop()
		response, err := s.Client().Do(r)
		require.NoError(t, err)
		defer response.Body.Close()
		_, err = io.ReadFull(response.Body, make([]byte, 1001)) // while the handler waits
		require.NoError(t, err)
		select {
		case <-rest:
			t.Error("the body was kept until the handler returned")
		default:
		}
	})
	t.Run("too large", func(t *testing.T) {
		for range 2 {
			g.next <- func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-A", "b")
				for range 10 {
					_, _ = io.WriteString(w, strings.Repeat("x", 101))
				}
			}
			a := s.send("POST", "/large", "l", "")
			g.in(t)
			require.Equal(t, 1010, len(a.body))
			require.Equal(t, "b", a.header.Get("X-A"))
			free(t, s, "/large", "l", g)
		}
		g.next <- say(200, strings.Repeat("x", 1000))
		s.send("POST", "/large", "exactly", "")
		require.True(t, s.send("POST", "/large", "exactly", "").replayed())
		g.in(t)
	})
	t.Run("trailers", func(t *testing.T) {
		g.next <- func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "text")
			w.Header().Set("X-Sum", "7")
		}
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/trailers", nil)
		require.NoError(t, err)
		r.Header = http.Header{"User": {"ann"}, idempotency.Header: {"t"}}
		response, err := s.Client().Do(r)
		require.NoError(t, err)
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		require.Equal(t, "7", response.Trailer.Get("X-Sum"))
		g.in(t)
	})
	t.Run("hijacked", func(t *testing.T) {
		g.next <- func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(conn, "hello\n")
			conn.Close()
		}
		conn := s.dial()
		_, err := io.WriteString(conn, "POST /h HTTP/1.1\r\nHost: x\r\nUser: ann\r\nIdempotency-Key: h\r\nContent-Length: 0\r\n\r\n")
		require.NoError(t, err)
		text, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Equal(t, "hello\n", string(text))
		g.in(t)
		free(t, s, "/h", "h", g)
	})
}

// free waits until a key is free, then uses it for a run that frees it again.
func free(t *testing.T, s *server, path, key string, g *gate) {
	t.Helper()
	g.next <- say(500, "ran")
	testkit.Eventually(t, func() bool { return s.send("POST", path, key, "").body == "ran" })
	g.in(t)
}

// Interim responses arrive, deadlines can be set, and a handler that writes nothing answers 200.
func TestUnusualResponses(t *testing.T) {
	_, keys := onMemory(t, idempotency.Config{})
	g := newGate()
	s := serve(t, keys.Middleware(g))
	g.next <- func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(testkit.Patience)); err != nil {
			panic(err)
		}
	}
	hints := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		if code != 103 || h.Get("Link") == "" {
			return errors.New("no hint")
		}
		hints++
		return nil
	}})
	a, err := s.try(ctx, "POST", "/", "k", "")
	require.NoError(t, err)
	require.Equal(t, 200, a.status)
	require.Empty(t, a.body)
	require.Equal(t, 1, hints)
	again := s.send("POST", "/", "k", "")
	require.Equal(t, 200, again.status)
	require.True(t, again.replayed())
}

// The middleware works over HTTP/2.
func TestHTTP2(t *testing.T) {
	var runs atomic.Int64
	_, keys := onMemory(t, idempotency.Config{})
	h := httptest.NewUnstartedServer(keys.Middleware(counted(&runs)))
	h.EnableHTTP2 = true
	h.StartTLS()
	t.Cleanup(h.Close)
	s := &server{t, h}
	for i := range 3 {
		a := s.post("k")
		require.Equal(t, `run 1 of {"item":7}`, a.body)
		require.Equal(t, i > 0, a.replayed())
	}
	require.Equal(t, 422, s.send("POST", "/orders", "k", "another").status)
	require.Equal(t, 413, s.send("POST", "/orders", "l", strings.Repeat("x", 2<<20)).status)
	require.EqualValues(t, 1, runs.Load())
}
