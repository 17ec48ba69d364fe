package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	library "github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	runs "github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// inspected is a running pawl inspect, and a browser that visits it.
type inspected struct {
	*running
	url    string
	client *http.Client
}

// inspectAt starts pawl inspect.
func inspectAt(t *testing.T, location string, args ...string) *inspected {
	t.Helper()
	s := &inspected{running: start(t, append([]string{"inspect", "--store", flag(location)}, args...)...)}
	line, err := bufio.NewReader(s.out).ReadString('\n')
	require.NoError(t, err)
	s.url = strings.TrimSpace(line)
	require.Regexp(t, `^http://127\.0\.0\.1:\d+/[A-Z2-7]{26}/$`, s.url)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	s.client = &http.Client{Jar: jar, Timeout: testkit.Patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

// ask sends a request to a path of the server with a Host; empty: its own.
func (s *inspected) ask(method, address, host string, form url.Values) (int, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, address, strings.NewReader(form.Encode()))
	require.NoError(s.t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Host = host
	res, err := s.client.Do(r)
	require.NoError(s.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return res.StatusCode, string(body)
}

var tags = regexp.MustCompile(`<[^>]*>`)

// page returns the text of a page.
func (s *inspected) page(address string) string {
	s.t.Helper()
	status, body := s.ask("GET", s.url+address, "", nil)
	require.Equal(s.t, http.StatusOK, status, "%s: %s", address, body)
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(body, " "))), " ")
}

// interrupt ends the program, whose exit code must be 0.
func (s *inspected) interrupt() {
	s.t.Helper()
	s.signal(syscall.SIGINT)
	code, said := s.wait()
	require.Zero(s.t, code, said)
}

// layers fills a store with documents of the layers, and leaves their lives to no process.
func layers(t *testing.T, store persist.Store) (runID string) {
	t.Helper()
	rt, err := library.Open(library.Config{Store: store})
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Close(testkit.Within(t, testkit.Patience))) }()
	e := runs.NewEngine(rt, runs.Config{})
	orders := runs.Register(e, runs.Definition[struct{}]{Name: "order", Steps: []runs.Step[struct{}]{
		{Name: "ship", Do: func(context.Context, *runs.Attempt[struct{}]) (runs.Next, error) { return runs.Continue(), nil }}}})
	r, _, err := orders.Start(t.Context(), struct{}{})
	require.NoError(t, err)
	type noted struct{ Text string }
	log, err := stream.New(rt, stream.Config{Name: "thread", Events: []stream.Type{stream.Of[noted]("noted")}})
	require.NoError(t, err)
	require.NoError(t, log.React(stream.Reaction{Name: "mail", Handle: func(context.Context, *stream.Delivery) error {
		return library.NonRetryable(errors.New("no line"))
	}}))
	_, err = log.Append(t.Context(), "ann", stream.Any, noted{"Hi"})
	require.NoError(t, err)
	_, err = log.Drain(t.Context())
	require.NoError(t, err)
	require.NoError(t, log.Stop(t.Context()))
	f, err := flow.New(rt, flow.Config{Kind: "chat", Admit: flow.Queue, Per: flow.PerSession})
	require.NoError(t, err)
	answer := flow.Define(f, "answer", func(context.Context, *flow.Call, string) (string, error) { return "", nil })
	_, err = answer.Do(t.Context(), flow.IDs{Request: "r1", Session: "s1"}, "")
	require.NoError(t, err)
	require.NoError(t, f.Stop(t.Context()))
	keys, err := idempotency.New(rt, idempotency.Config{})
	require.NoError(t, err)
	_, _, err = idempotency.Do(t.Context(), keys, idempotency.Op{Name: "pay", Key: "1"}, func(context.Context) (int, error) { return 1, nil })
	require.NoError(t, err)
	return r.ID
}

// The pages show documents of all kinds and of the layers, without their types, and change nothing.
func TestInspect(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		if stores.Name(location) == "memory" {
			t.Skip("another process cannot see it")
		}
		store := stores.OpenFor(t, location)
		fill(t, store)
		id := layers(t, store)
		s := inspectAt(t, location)
		require.Regexp(t, `session 3 .*thread 1`, s.page(""))
		require.Contains(t, s.page("kind?kind=session"), "cid")
		require.Contains(t, s.page("doc?kind=session&id=bob"), "12345678901234567890")
		require.Contains(t, s.page("view?name=runs"), id+" order PENDING ship")
		require.Contains(t, s.page("view?name=streams-thread"), "ann 1 0 open")
		require.Regexp(t, `mail ann 0 1 blocked .*no line`, s.page("view?name=reactions-thread"))
		require.Contains(t, s.page("view?name=idempotency"), "done")
		require.Contains(t, s.page("view?name=gates-chat-session"), "s1")
		require.Contains(t, s.page("view?name=effects"), "There is none.")
		require.Contains(t, s.page("queues"), "All queues are idle.")
		for _, address := range []string{"act?action=release&kind=session&id=cid", "act?action=cancel&view=runs&kind=run&id=" + id} {
			for _, method := range []string{"GET", "POST"} {
				status, _ := s.ask(method, s.url+address, "", nil)
				require.Equal(t, http.StatusForbidden, status)
			}
		}
		// The store is in use: the page of a document follows another process.
		r, err := http.NewRequestWithContext(t.Context(), "GET", s.url+"live?kind=session&id=ann", nil)
		require.NoError(t, err)
		res, err := s.client.Do(r)
		require.NoError(t, err)
		defer res.Body.Close()
		events := bufio.NewScanner(res.Body)
		until := func(text string) {
			for events.Scan() {
				if strings.Contains(events.Text(), text) {
					return
				}
			}
			t.Fatalf("no %q: %v", text, events.Err())
		}
		until(`"version":2`)
		put(t, store, "other", persist.Write{Key: key("session", "ann"), Expected: 2, Version: 3, Doc: []byte(`{"title":"He"}`)})
		until(`"changes":[{"path":"title"`)
		s.interrupt() // a live view does not hold it up
	})
}

// With --allow-actions each action is confirmed, and logged with the user.
func TestInspectActions(t *testing.T) {
	location := stores.SQLite.New(t)
	store := stores.OpenFor(t, location)
	fill(t, store)
	id := layers(t, store)
	s := inspectAt(t, location, "--allow-actions")
	act := func(address string) {
		t.Helper()
		_, body := s.ask("GET", s.url+address, "", nil)
		form := url.Values{}
		for _, found := range regexp.MustCompile(`name="(\w+)" value="([^"]*)"`).FindAllStringSubmatch(body, -1) {
			form.Set(found[1], html.UnescapeString(found[2]))
		}
		status, body := s.ask("POST", s.url+address, "", url.Values{"pin": form["pin"]})
		require.Equal(t, http.StatusForbidden, status, "without the token: %s", body)
		status, body = s.ask("POST", s.url+address, "", form)
		require.Equal(t, http.StatusSeeOther, status, body)
	}
	act("act?action=release&kind=session&id=cid")
	r, err := store.Load(t.Context(), key("session", "cid"))
	require.NoError(t, err)
	require.False(t, r.Held(r.Now))
	act("act?action=cancel&view=runs&kind=run&id=" + id)
	require.Contains(t, s.page("view?name=runs"), "order CANCELED")
	page, err := store.List(t.Context(), persist.Query{Kind: "thread.position"})
	require.NoError(t, err)
	require.Len(t, page.Records, 1)
	act("act?action=unblock&view=reactions-thread&" + (url.Values{"kind": {"thread.position"}, "id": {page.Records[0].ID}}).Encode())
	require.Contains(t, s.page("view?name=reactions-thread"), "mail ann 0 1 ready")
	s.signal(syscall.SIGTERM)
	code, said := s.wait()
	require.Zero(t, code, said)
	require.Regexp(t, `msg="inspect: action" action=release .* scope=session/cid .* author=\S+`, said)
	require.Regexp(t, `msg="inspect: action" action=cancel view=runs`, said)
}

// Only requests to this machine, by its own name, with the secret of the URL, get a page.
func TestInspectIsGuarded(t *testing.T) {
	location := stores.SQLite.New(t)
	store := stores.OpenFor(t, location)
	fill(t, store)
	s := inspectAt(t, location, "--allow-actions")
	u, err := url.Parse(s.url)
	require.NoError(t, err)
	for _, host := range []string{"evil.example", "evil.example:" + u.Port(), "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:" + u.Port()} {
		status, body := s.ask("GET", s.url, host, nil)
		require.Equal(t, http.StatusMisdirectedRequest, status, host)
		require.NotContains(t, body, "session")
	}
	status, _ := s.ask("GET", s.url, "localhost:"+u.Port(), nil)
	require.Equal(t, http.StatusOK, status)
	root := "http://" + u.Host
	token := strings.Trim(u.Path, "/")
	for _, path := range []string{"/", "/kind?kind=session", "/" + strings.ToLower(token) + "/", "/" + token, "/" + token[1:] + "/", "/x/" + token + "/", "//", "/" + token + "x/"} {
		status, body := s.ask("GET", root+path, "", nil)
		require.Equal(t, http.StatusNotFound, status, path)
		require.NotContains(t, body, "session", path)
	}
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() {
			conn, err := net.DialTimeout("tcp", net.JoinHostPort(ip.IP.String(), u.Port()), time.Second)
			if err == nil {
				_ = conn.Close()
			}
			require.Error(t, err, "it listens on %s", ip)
		}
	}
	slow, err := net.Dial("tcp", u.Host) // a request that does not end holds nothing up
	require.NoError(t, err)
	defer slow.Close()
	_, err = io.WriteString(slow, "GET / HTTP/1.1\r\n")
	require.NoError(t, err)
	s.interrupt()
}

// The URL is a JSON value on request, and a port that is taken is an error.
func TestInspectPort(t *testing.T) {
	location := stores.SQLite.New(t)
	require.NoError(t, stores.OpenFor(t, location).Close())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)
	r := pawl(t, "inspect", "--store", flag(location), "--port", port)
	require.Equal(t, exitNegative, r.code)
	require.Contains(t, r.err, "cannot listen")
	require.Equal(t, exitUsage, pawl(t, "inspect", "--store", flag(location), "--port", "70000").code)
	p := start(t, "inspect", "--json", "--store", flag(location))
	line, err := bufio.NewReader(p.out).ReadString('\n')
	require.NoError(t, err)
	var v struct{ URL string }
	require.NoError(t, json.Unmarshal([]byte(line), &v))
	require.Contains(t, v.URL, "http://127.0.0.1:")
	p.signal(syscall.SIGINT)
	code, said := p.wait()
	require.Zero(t, code, said)
}
