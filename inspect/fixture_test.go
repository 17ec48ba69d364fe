package inspect_test

import (
	"bytes"
	"context"
	"encoding/json"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

// note is the state of these tests.
type note struct {
	Title  string    `json:"title"`
	Status string    `json:"status,omitempty"`
	Due    time.Time `json:"due,omitzero"`
	Secret string    `json:"secret,omitempty"`
	N      int       `json:"n,omitempty"`
}

var notes = pawl.Kind[note]{Name: "note", Label: "status", Due: "due"}

// site is a server with the handler at /pawl/, and a browser that visits it.
type site struct {
	*httptest.Server
	t      testing.TB
	client *http.Client
	log    *logs
}

// logs collects the text of a logger.
type logs struct {
	mu   sync.Mutex // protects text
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serve mounts the handler for rt.
func serve(t testing.TB, rt *pawl.Runtime, c inspect.Config) *site {
	t.Helper()
	s := &site{t: t, log: &logs{}}
	c.Logger = slog.New(slog.NewTextHandler(s.log, nil))
	mux := http.NewServeMux()
	mux.Handle("/pawl/", inspect.New(rt, c))
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	s.client = s.Server.Client()
	s.client.Jar = jar
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return s
}

// answer is a response that was read.
type answer struct {
	status int
	header http.Header
	body   string
}

// send sends a request. The address is relative to /pawl/.
func (s *site) send(method, address string, form url.Values, header ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(testkit.Within(s.t, testkit.Patience), method, s.URL+"/pawl/"+address, strings.NewReader(form.Encode()))
	require.NoError(s.t, err)
	if method == "POST" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := s.client.Do(r)
	require.NoError(s.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return answer{res.StatusCode, res.Header, string(body)}
}

// get returns a page, which must have the status 200.
func (s *site) get(address string) answer {
	s.t.Helper()
	a := s.send("GET", address, nil)
	require.Equal(s.t, http.StatusOK, a.status, "%s: %s", address, a.body)
	return a
}

var href = regexp.MustCompile(`href="([^"]*)"`)

// links returns the links of a page that start with prefix.
func (a answer) links(prefix string) (all []string) {
	for _, found := range href.FindAllStringSubmatch(a.body, -1) {
		if link := html.UnescapeString(found[1]); strings.HasPrefix(link, prefix) {
			all = append(all, link)
		}
	}
	return all
}

// ids returns the ids of the documents that a page links to.
func (a answer) ids(t testing.TB) (all []string) {
	t.Helper()
	for _, link := range a.links("doc?") {
		u, err := url.Parse(link)
		require.NoError(t, err)
		all = append(all, u.Query().Get("id"))
	}
	return all
}

var tags = regexp.MustCompile(`<[^>]*>`)

// text returns what a page shows, without tags.
func (a answer) text() string {
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(a.body, " "))), " ")
}

// openOn returns a runtime on a store, which is closed when t ends.
func openOn(t testing.TB, store persist.Store) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{notes}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(testkit.Within(t, 10*time.Second))) })
	return rt
}

// onStores runs test with a runtime on a store of every kind.
func onStores(t *testing.T, test func(t *testing.T, rt *pawl.Runtime)) {
	t.Helper()
	stores.EachOpen(t, func(t *testing.T, store persist.Store) { test(t, openOn(t, store)) })
}

// inMemory returns a runtime on a store in memory.
func inMemory(t testing.TB) *pawl.Runtime {
	t.Helper()
	return openOn(t, stores.OpenFor(t, stores.Memory.New(t)))
}

// put writes a record as another process would.
func put(t testing.TB, rt *pawl.Runtime, w persist.Write) {
	t.Helper()
	if w.Version == 0 {
		w.Version = w.Expected + 1
	}
	_, err := rt.Store().Commit(t.Context(), persist.Commit{ID: "foreign.1", Writes: []persist.Write{w}})
	require.NoError(t, err)
}

// set writes a note.
func set(t testing.TB, rt *pawl.Runtime, id string, n note, opts ...pawl.CallOption) {
	t.Helper()
	_, err := notes.Scope(rt, id).SetState(t.Context(), n, opts...)
	require.NoError(t, err)
}

// docOf returns the address of the page of a note.
func docOf(id string) string {
	return "doc?" + (url.Values{"kind": {"note"}, "id": {id}}).Encode()
}

// raw returns a JSON document.
func raw(t testing.TB, v any) json.RawMessage {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return data
}

// recorded is a store that keeps the queries of List, and can be down.
type recorded struct {
	persist.Store
	mu      sync.Mutex // protects the fields below
	queries []persist.Query
	down    error
}

func (s *recorded) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

func (s *recorded) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	if err := s.failure(); err != nil {
		return persist.Page{}, err
	}
	s.mu.Lock()
	s.queries = append(s.queries, q)
	s.mu.Unlock()
	return s.Store.List(ctx, q)
}

func (s *recorded) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if err := s.failure(); err != nil {
		return persist.Record{}, err
	}
	return s.Store.Load(ctx, key)
}
