package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist/open"
	"github.com/pawl-go/pawl/stream"
)

func TestMain(m *testing.M) {
	testkit.Main(m.Run, stores.Stop, http.DefaultClient.CloseIdleConnections)
}

var quiet = slog.New(slog.DiscardHandler)

// onStores runs a test on every kind of store, each at its own location.
func onStores(t *testing.T, test func(t *testing.T, location string)) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // most of the time is spent waiting
		test(t, stores.Flag(location))
	})
}

// site is a server under test.
type site struct {
	*Server
	url string
	end func(patience time.Duration) error // stops the server like a signal
}

// start starts a server on a store. Two calls with one location start two servers.
func start(t *testing.T, location string, change ...func(*Config)) *site {
	t.Helper()
	store, err := open.Store(t.Context(), location, open.Options{Scheme: "sqlite"})
	require.NoError(t, err)
	c := Config{Store: store, Delay: time.Millisecond, Lease: time.Second, Logger: quiet}
	for _, f := range change {
		f(&c)
	}
	s, err := New(t.Context(), c)
	require.NoError(t, err)
	srv := httptest.NewServer(s.Handler())
	var once sync.Once
	stop := func(patience time.Duration) (err error) {
		once.Do(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			s.EndStreams()
			srv.Close()
			err = errors.Join(s.Close(ctx), store.Close())
		})
		return err
	}
	t.Cleanup(func() { assert.NoError(t, stop(20*time.Second)) })
	return &site{s, srv.URL, stop}
}

// user is an HTTP client with cookies.
type user struct {
	t      *testing.T
	client *http.Client
}

// visit opens the page as a new user.
func visit(t *testing.T, url string) *user {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	u := &user{t, &http.Client{Jar: jar, Transport: &http.Transport{}}}
	t.Cleanup(u.client.CloseIdleConnections)
	status, body, _ := u.call("GET", url+"/", "")
	require.Equal(t, http.StatusOK, status, body)
	return u
}

// copyCookies copies the user's cookies of one server to another.
func (u *user) copyCookies(from, to string) {
	a, err := url.Parse(from)
	require.NoError(u.t, err)
	b, err := url.Parse(to)
	require.NoError(u.t, err)
	u.client.Jar.SetCookies(b, u.client.Jar.Cookies(a))
}

func (u *user) call(method, url, body string, header ...string) (int, string, http.Header) {
	u.t.Helper()
	r, err := http.NewRequestWithContext(u.t.Context(), method, url, strings.NewReader(body))
	require.NoError(u.t, err)
	if method == "POST" {
		r.Header.Set("Idempotency-Key", idempotency.NewKey())
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := u.client.Do(r)
	require.NoError(u.t, err)
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	require.NoError(u.t, err)
	return response.StatusCode, string(b), response.Header
}

// get decodes the JSON response of a URL.
func get[T any](u *user, url string) (v T) {
	u.t.Helper()
	status, body, _ := u.call("GET", url, "")
	require.Equal(u.t, http.StatusOK, status, body)
	require.NoError(u.t, json.Unmarshal([]byte(body), &v))
	return v
}

func (u *user) newSession(url string) string {
	u.t.Helper()
	status, body, _ := u.call("POST", url+"/api/sessions", "")
	require.Equal(u.t, http.StatusCreated, status, body)
	var view sessionView
	require.NoError(u.t, json.Unmarshal([]byte(body), &view))
	return view.ID
}

// ask sends a question and returns its turn. It repeats a request with an unknown outcome under the
// same key.
func (u *user) ask(url, session, question string, header ...string) string {
	u.t.Helper()
	text, err := json.Marshal(map[string]string{"text": question})
	require.NoError(u.t, err)
	header = append([]string{"Idempotency-Key", idempotency.NewKey()}, header...)
	var status int
	var body string
	testkit.EventuallyWithin(u.t, time.Minute, func() bool {
		status, body, _ = u.call("POST", url+"/api/sessions/"+session+"/messages", string(text), header...)
		return status != http.StatusServiceUnavailable
	})
	require.Equal(u.t, http.StatusAccepted, status, body)
	var in struct{ Turn string }
	require.NoError(u.t, json.Unmarshal([]byte(body), &in))
	return in.Turn
}

type me struct {
	User     string
	Credits  int64
	Settings map[string]string
	Org      struct{ Used int64 }
}

// settled waits until a session has no open turn, and returns its thread.
func (u *user) settled(url, session string) page {
	u.t.Helper()
	testkit.EventuallyWithin(u.t, time.Minute, func() bool {
		for _, s := range get[[]sessionView](u, url+"/api/sessions") {
			if s.ID == session {
				return len(s.Open) == 0
			}
		}
		return false
	})
	return get[page](u, url+"/api/sessions/"+session+"/messages")
}

// watch reads a turn's stream until until returns true, and returns the last view.
func (u *user) watch(url, turn string, until func(turnView) bool) (last turnView) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", url+"/api/turns/"+turn+"/events", nil)
	require.NoError(u.t, err)
	response, err := u.client.Do(r)
	require.NoError(u.t, err)
	defer response.Body.Close()
	require.Equal(u.t, http.StatusOK, response.StatusCode)
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			require.NoError(u.t, json.Unmarshal([]byte(data), &last))
			if until(last) {
				return last
			}
		}
	}
	require.NoError(u.t, lines.Err())
	return last
}

// count returns the numbers from 1 to n, separated by spaces.
func count(n int) string {
	words := []string{}
	for i := range n {
		words = append(words, fmt.Sprint(i+1))
	}
	return strings.Join(words, " ")
}

// Messages sent to two servers at once are all recorded and paid once. They are answered one at a
// time, in the order of their numbers.
func TestTwoServersAnswerInOrder(t *testing.T) {
	onStores(t, func(t *testing.T, location string) {
		a, b := start(t, location), start(t, location)
		u := visit(t, a.url)
		u.copyCookies(a.url, b.url)
		session := u.newSession(a.url)
		var wg sync.WaitGroup
		for i := range maxOpen {
			wg.Go(func() { u.ask([]string{a.url, b.url}[i%2], session, fmt.Sprint("count to ", i+1)) })
		}
		wg.Wait()
		th := u.settled(b.url, session)
		require.Len(t, th.Messages, 2*maxOpen)
		seen, last := map[string]bool{}, time.Time{}
		for i, m := range th.Messages {
			require.Equal(t, i/2, m.N)
			if i%2 == 0 {
				require.Equal(t, "user", m.Role)
				seen[m.Text] = true
				continue
			}
			var n int
			_, err := fmt.Sscanf(th.Messages[i-1].Text, "count to %d", &n)
			require.NoError(t, err)
			require.Equal(t, count(n), m.Text)
			require.True(t, m.At.After(last), "answers must be in the order of the questions")
			last = m.At
			turn, err := Turns.Scope(a.rt, m.Turn).State(t.Context())
			require.NoError(t, err)
			if i > 1 {
				require.False(t, turn.Started.Before(th.Messages[i-2].At), "two turns ran at the same time")
			}
		}
		require.Len(t, seen, maxOpen)
		now := get[me](u, b.url+"/api/me")
		require.EqualValues(t, freeCredits-maxOpen, now.Credits)
		require.EqualValues(t, maxOpen, now.Org.Used)
	})
}

// Requests with the same key make one message and get the same response, on every server.
func TestSameKeyIsOneMessage(t *testing.T) {
	onStores(t, func(t *testing.T, location string) {
		a, b := start(t, location), start(t, location)
		u := visit(t, a.url)
		u.copyCookies(a.url, b.url)
		session := u.newSession(a.url)
		turns := make([]string, 20)
		var wg sync.WaitGroup
		for i := range turns {
			wg.Go(func() { turns[i] = u.ask([]string{a.url, b.url}[i%2], session, "hello", "Idempotency-Key", "one") })
		}
		wg.Wait()
		for _, turn := range turns {
			require.Equal(t, turns[0], turn)
		}
		require.Len(t, u.settled(a.url, session).Messages, 2)
		require.EqualValues(t, freeCredits-1, get[me](u, a.url+"/api/me").Credits)
	})
}

// Of many concurrent questions, exactly as many are accepted as there are credits. A failed answer
// returns its credit.
func TestCreditsAreExact(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"))
	u := visit(t, s.url)
	_, err := Accounts.Scope(s.rt, get[me](u, s.url+"/api/me").User).PatchState(t.Context(), pawl.Patch{credits: 5})
	require.NoError(t, err)
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for range 4 {
		session := u.newSession(s.url)
		for range 3 {
			wg.Go(func() {
				status, _, _ := u.call("POST", s.url+"/api/sessions/"+session+"/messages", `{"text":"hello"}`)
				mu.Lock()
				defer mu.Unlock()
				statuses[status]++
			})
		}
	}
	wg.Wait()
	require.Equal(t, map[int]int{http.StatusAccepted: 5, http.StatusPaymentRequired: 7}, statuses)

	_, err = Accounts.Scope(s.rt, get[me](u, s.url+"/api/me").User).PatchState(t.Context(), pawl.Patch{credits: 1})
	require.NoError(t, err)
	session := u.newSession(s.url)
	u.ask(s.url, session, "fail")
	th := u.settled(s.url, session)
	require.Equal(t, failed, th.Messages[1].Status)
	require.EqualValues(t, 1, get[me](u, s.url+"/api/me").Credits, "the credit must be returned")

	_, err = Orgs.Scope(s.rt, orgOfGuests).PatchState(t.Context(), pawl.Patch{"per_day": 6})
	require.NoError(t, err)
	status, body, _ := u.call("POST", s.url+"/api/sessions/"+session+"/messages", `{"text":"hello"}`)
	require.Equal(t, http.StatusTooManyRequests, status, body)
	require.EqualValues(t, 1, get[me](u, s.url+"/api/me").Credits, "a refused question must cost nothing")
}

// A server can stop an answer that another server writes, and the text so far stays. A waiting turn
// is stopped before it starts.
func TestStop(t *testing.T) {
	onStores(t, func(t *testing.T, location string) {
		a, b := start(t, location, func(c *Config) { c.Delay = 5 * time.Millisecond }), start(t, location)
		u := visit(t, a.url)
		u.copyCookies(a.url, b.url)
		session := u.newSession(a.url)
		first, second := u.ask(a.url, session, "count to 10000"), u.ask(a.url, session, "count to 10000")
		third := u.ask(a.url, session, "count to 3")
		u.watch(b.url, first, func(v turnView) bool { return len(v.Text) > 30 })
		for _, turn := range []string{second, first, first} {
			status, body, _ := u.call("DELETE", b.url+"/api/turns/"+turn, "")
			require.Equal(t, http.StatusNoContent, status, body)
		}
		v := u.watch(a.url, third, func(v turnView) bool { return v.Status == done })
		require.Equal(t, count(3), v.Text)
		th := u.settled(a.url, session)
		require.Len(t, th.Messages, 6)
		require.Equal(t, []string{stopped, stopped, done}, []string{th.Messages[1].Status, th.Messages[3].Status, th.Messages[5].Status})
		require.Greater(t, len(th.Messages[1].Text), 30)
		require.True(t, strings.HasPrefix(count(10000), th.Messages[1].Text))
		require.Empty(t, th.Messages[3].Text)
	})
}

// Each tool has its effect once.
func TestTools(t *testing.T) {
	onStores(t, func(t *testing.T, location string) {
		s := start(t, location)
		u, friend := visit(t, s.url), visit(t, s.url)
		to := get[me](friend, s.url+"/api/me").User
		session := u.newSession(s.url)
		u.ask(s.url, session, "charge 50; email bob@example.com hello you; transfer 30 to "+to+"; search pawl lease x; transfer 1000 to "+to+"; transfer 1 to unknown; charge 1000")
		th := u.settled(s.url, session)
		require.Equal(t, done, th.Messages[1].Status)
		require.Len(t, th.Messages[1].Steps, 1)
		results := []string{}
		for _, call := range th.Messages[1].Steps[0].Calls {
			require.True(t, call.Done)
			results = append(results, call.Result)
		}
		require.Equal(t, []string{
			"charged 50, and added as many credits", "the mail to bob@example.com is on its way", "gave 30 to " + to,
			"lease: a right that ends by itself when its holder falls silent; pawl: the catch that lets a ratchet turn one way only; x: nothing found",
			"refused: INSUFFICIENT_CREDITS", "refused: NOT_FOUND", "refused: between 1 and 100",
		}, results)
		require.EqualValues(t, freeCredits-1+50-30, get[me](u, s.url+"/api/me").Credits)
		require.EqualValues(t, freeCredits+30, get[me](friend, s.url+"/api/me").Credits)
		type panel struct {
			Charges []struct{ Amount, Status any }
			Mails   []struct{ To, Status string }
			Scope   struct{ Version uint64 }
		}
		testkit.EventuallyWithin(t, time.Minute, func() bool {
			p := get[panel](u, s.url+"/api/sessions/"+session+"/panel")
			return len(p.Mails) == 1 && p.Mails[0].Status == "delivered" && len(p.Charges) == 1 && p.Charges[0].Status == "paid" && p.Scope.Version == 3
		})
		require.Empty(t, get[panel](friend, s.url+"/api/sessions/"+friend.newSession(s.url)+"/panel").Charges, "another user must not see the charges")
	})
}

// A long thread has pages, in both directions, and the model gets only its last messages.
func TestLongThread(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"), func(c *Config) { c.Delay = 0 })
	u := visit(t, s.url)
	session := u.newSession(s.url)
	const turns = messagesPerPage/2 + 3
	for i := range turns {
		u.ask(s.url, session, fmt.Sprint("count to ", i+1))
		if i%maxOpen == maxOpen-1 {
			u.settled(s.url, session)
		}
	}
	last := u.settled(s.url, session)
	require.Len(t, last.Messages, messagesPerPage)
	require.Equal(t, page{First: 6, Next: 2 * turns, More: true, Messages: last.Messages}, last)
	at := s.url + "/api/sessions/" + session + "/messages"
	earlier := get[page](u, at+"?before=6")
	require.Equal(t, page{First: 0, Next: 6, Messages: earlier.Messages}, earlier)
	all := append(earlier.Messages, last.Messages...)
	sortMessages(all)
	require.Len(t, all, 2*turns)
	for i, m := range all {
		require.Equal(t, i/2, m.N)
		require.Equal(t, []string{"user", "assistant"}[i%2], m.Role)
	}
	forward := get[page](u, at+"?from=0")
	require.Equal(t, page{First: 0, Next: messagesPerPage, More: true, Messages: forward.Messages}, forward)
	forward = get[page](u, at+"?from=100")
	require.Equal(t, page{First: 100, Next: 2 * turns, Messages: forward.Messages}, forward)
	require.Len(t, forward.Messages, 6)
	require.Equal(t, page{First: 2 * turns, Next: 2 * turns, Messages: []Message{}}, get[page](u, fmt.Sprint(at, "?from=", 2*turns)))
	for _, query := range []string{"?before=-1", "?from=x", "?from=99999999999999999999"} {
		status, _, _ := u.call("GET", at+query, "")
		require.Equal(t, http.StatusBadRequest, status)
	}
	for _, m := range all[2*turns-8:] { // among them those whose question came before other answers
		turn, err := Turns.Scope(s.rt, m.Turn).State(t.Context())
		require.NoError(t, err)
		seen, err := s.thread(t.Context(), &turn)
		require.NoError(t, err)
		require.Equal(t, all[2*m.N+2-maxContext:2*m.N+2], seen)
	}
}

// The head of a thread with ten thousand messages, far more than a document can hold, stays small,
// and its last page is read alone.
func TestThreadWithoutEnd(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"), func(c *Config) { c.Delay = 0 })
	u := visit(t, s.url)
	session := u.newSession(s.url)
	many := make([]any, stream.MaxEvents)
	for i := range many {
		many[i] = Message{N: i / 2, Role: []string{"user", "assistant"}[i%2], Text: strings.Repeat("long ", 100)}
	}
	_, err := s.threads.Append(t.Context(), session, stream.Absent, many...)
	require.NoError(t, err)
	_, err = Sessions.Scope(s.rt, session).PatchState(t.Context(), pawl.Patch{"turns": len(many) / 2})
	require.NoError(t, err)
	u.ask(s.url, session, "count to 3")
	last := u.settled(s.url, session)
	require.Len(t, last.Messages, messagesPerPage)
	require.Equal(t, count(3), last.Messages[messagesPerPage-1].Text)
	head, err := s.rt.Store().Load(t.Context(), pawl.Key{Kind: "thread", ID: session})
	require.NoError(t, err)
	require.Less(t, len(head.Doc), 200)
}

// Of two tabs that rename a session at the same version, the second gets a conflict.
func TestRename(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"))
	u := visit(t, s.url)
	at := s.url + "/api/sessions/" + u.newSession(s.url)
	status, _, header := u.call("PATCH", at, `{"title":"one"}`, "If-Match", `"1"`)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, `"2"`, header.Get("ETag"))
	status, body, header := u.call("PATCH", at, `{"title":"two"}`, "If-Match", `"1"`)
	require.Equal(t, http.StatusPreconditionFailed, status)
	require.Empty(t, header.Get("Retry-After"), "the same request would fail again")
	require.JSONEq(t, `{"code":"CONCURRENCY_ERROR"}`, body)
	require.Equal(t, "one", get[[]sessionView](u, s.url+"/api/sessions")[0].Title)
	for _, name := range []string{"name", "instructions"} {
		status, body, _ = u.call("PUT", s.url+"/api/settings/"+name, `{"value":"x"}`)
		require.Equal(t, http.StatusOK, status, body)
	}
	require.Len(t, get[me](u, s.url+"/api/me").Settings, 2)
}

// If-Match is read as RFC 9110 says: "*" matches any version, a weak tag matches none, and one of
// several tags is enough.
func TestIfMatch(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"))
	u := visit(t, s.url)
	at := s.url + "/api/sessions/" + u.newSession(s.url)
	version := 1
	for _, c := range []struct {
		match  string // VERSION stands for the current one
		status int
	}{
		{"*", 200}, {`"VERSION"`, 200}, {`"0", "VERSION"`, 200}, {`W/"VERSION", "VERSION"`, 200}, {`"a,b","VERSION"`, 200}, {"", 200},
		{`W/"VERSION"`, 412}, {`"0"`, 412}, {`"0VERSION"`, 412}, {`"abc"`, 412}, {`""`, 412},
		{"VERSION", 400}, {`"VERSION`, 400}, {`W/VERSION`, 400}, {`*, "VERSION"`, 400}, {`w/"VERSION"`, 400},
	} {
		match := strings.ReplaceAll(c.match, "VERSION", fmt.Sprint(version))
		status, body, header := u.call("PATCH", at, fmt.Sprintf(`{"title":"after %d"}`, version), "If-Match", match)
		require.Equal(t, c.status, status, "%s: %s", match, body)
		if status == http.StatusOK {
			version++
			require.Equal(t, fmt.Sprintf("%q", fmt.Sprint(version)), header.Get("ETag"))
		}
	}
	status, _, _ := u.call("PATCH", s.url+"/api/sessions/none", `{"title":"x"}`, "If-Match", "*")
	require.Equal(t, http.StatusNotFound, status)
}

// A request whose body is more than one JSON value is refused, and changes nothing.
func TestTextAfterBody(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"))
	u := visit(t, s.url)
	session := u.newSession(s.url)
	for _, after := range []string{"x", "{}", "]", "\x00", " null", `{"text":"hello"}`} {
		status, body, _ := u.call("POST", s.url+"/api/sessions/"+session+"/messages", `{"text":"hello"}`+after)
		require.Equal(t, http.StatusBadRequest, status, body)
		status, body, _ = u.call("PATCH", s.url+"/api/sessions/"+session, `{"title":"new"}`+after)
		require.Equal(t, http.StatusBadRequest, status, body)
	}
	status, body, _ := u.call("PATCH", s.url+"/api/sessions/"+session, `{"title":"new"}`+strings.Repeat(" ", maxBody))
	require.Equal(t, http.StatusRequestEntityTooLarge, status, body)
	require.Empty(t, get[page](u, s.url+"/api/sessions/"+session+"/messages").Messages)
	status, body, _ = u.call("PATCH", s.url+"/api/sessions/"+session, "{\"title\":\"new\"} \r\n\t")
	require.Equal(t, http.StatusOK, status, body)
}

// The two safe ways of writing lose no update under contention.
func TestContention(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"))
	u := visit(t, s.url)
	status, body, _ := u.call("POST", s.url+"/api/contention", "")
	require.Equal(t, http.StatusOK, status, body)
	var out contest
	require.NoError(t, json.Unmarshal([]byte(body), &out))
	require.Len(t, out.Ways, 3)
	require.EqualValues(t, writers*each, out.Ways[0].Present)
	require.EqualValues(t, writers*each, out.Ways[1].Present)
	require.LessOrEqual(t, out.Ways[2].Present, out.Ways[2].Expected)
}

// The user's instructions reach the model with the next question.
func TestInstructions(t *testing.T) {
	s := start(t, filepath.Join(t.TempDir(), "chat.db"))
	u := visit(t, s.url)
	session := u.newSession(s.url)
	u.ask(s.url, session, "hello")
	long := u.settled(s.url, session).Messages[1].Text
	status, body, _ := u.call("PUT", s.url+"/api/settings/instructions", `{"value":"Be brief."}`)
	require.Equal(t, http.StatusOK, status, body)
	u.ask(s.url, session, "hello")
	require.Less(t, len(u.settled(s.url, session).Messages[3].Text), len(long))
}

// A program that cannot serve reports why.
func TestRunFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	good := Command{Addr: "127.0.0.1:0", Store: "dir:" + t.TempDir(), Model: "local", Logger: quiet}
	for want, change := range map[string]func(*Command){
		file:           func(c *Command) { c.Store = "dir:" + file },
		"tape":         func(c *Command) { c.Store = "tape:1" },
		"base URL":     func(c *Command) { c.Model, c.BaseURL = "other", ":" },
		"missing port": func(c *Command) { c.Addr = "127.0.0.1" },
	} {
		c := good
		change(&c)
		require.ErrorContains(t, c.Run(t.Context()), want)
	}
	_, err := New(t.Context(), Config{Logger: quiet})
	require.ErrorIs(t, err, pawl.ErrNoStore)
}
