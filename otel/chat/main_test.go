//go:build unix

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/examples/chat/server"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist/sqlite"
)

func TestMain(m *testing.M) { testkit.Main(m.Run) }

const storeVariable = "CHAT_TEST_STORE"

func init() {
	testkit.Child("chat", func() error {
		os.Args = []string{"chat", "-addr", ":0", "-metrics", ":0", "-store", os.Getenv(storeVariable), "-delay", "5ms", "-lease", "1s", "-stop-timeout", "100ms"}
		main()
		return nil
	})
}

// process is the program in its own process.
type process struct {
	*testkit.Process
	t            *testing.T
	url, metrics string
	user         *http.Client
}

// start starts the program. All processes of a test have the same user, who may be new.
func start(t *testing.T, store string, user *http.Client) *process {
	t.Helper()
	p := &process{Process: testkit.Start(t, "chat", storeVariable+"="+store), t: t, user: user}
	p.Limit(5 * time.Minute)
	metrics, found := strings.CutPrefix(p.Line(), "metrics: ")
	require.True(t, found)
	p.metrics, p.url = metrics, p.Line()
	p.call("GET", p.url, "")
	return p
}

// send sends a request and returns its response, whose body the caller closes.
func (p *process) send(ctx context.Context, method, url, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set(idempotency.Header, idempotency.NewKey())
	return p.user.Do(r)
}

// call returns the body of a successful response.
func (p *process) call(method, url, body string) []byte {
	p.t.Helper()
	answer, err := p.send(p.t.Context(), method, url, body)
	require.NoError(p.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(p.t, err)
	require.Less(p.t, answer.StatusCode, 300, "%s %s: %s", method, url, text)
	return text
}

// post sends a request and returns a field of its JSON response.
func (p *process) post(path, body, field string) string {
	p.t.Helper()
	var out map[string]any
	require.NoError(p.t, json.Unmarshal(p.call("POST", p.url+path, body), &out))
	return out[field].(string)
}

// background sends a request in a goroutine, and waits for its end when the test ends. cancel lets
// the client leave; ended is closed when the response has been read.
func (p *process) background(method, path, body string) (cancel func(), ended <-chan struct{}) {
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan struct{})
	p.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		if answer, err := p.send(ctx, method, p.url+path, body); err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
	}()
	return cancel, done
}

// series is one line of /metrics.
type series struct {
	name, labels string
	value        float64
}

// scrape returns the metrics of the process.
func (p *process) scrape() (all []series) {
	p.t.Helper()
	for line := range strings.Lines(string(p.call("GET", p.metrics, ""))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		end := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[end+1:]), 64)
		require.NoError(p.t, err)
		name, labels, _ := strings.Cut(strings.TrimSuffix(line[:end], "}"), "{")
		all = append(all, series{name, labels, value})
	}
	return all
}

// sum returns the sum of the series of a metric that have all of these labels, such as kind="user".
func (p *process) sum(name string, labels ...string) (sum float64) {
	p.t.Helper()
	for _, s := range p.scrape() {
		if s.name == name && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(s.labels, l) }) {
			sum += s.value
		}
	}
	return sum
}

// ends returns how many mutations of this kind have ended, and how many callers have left.
func (p *process) ends(kind string) float64 {
	p.t.Helper()
	kind = `kind="` + kind + `"`
	return p.sum("pawl_mutations_total", kind) + p.sum("pawl_incidents_total", kind)
}

// lock returns functions that take and release the write lock of an SQLite file. Commits of the
// servers wait for it.
func lock(t *testing.T, file string) (take, release func()) {
	t.Helper()
	db, err := sql.Open(sqlite.Driver, file)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	run := func(statement string) error {
		_, err := conn.ExecContext(t.Context(), statement)
		return err
	}
	require.NoError(t, run("PRAGMA busy_timeout = 0")) // SQLite's own waiting gives way to busy servers
	take = func() {
		testkit.EventuallyWithin(t, time.Minute, func() bool {
			err := run("BEGIN IMMEDIATE")
			if err != nil {
				require.ErrorContains(t, err, "database is locked")
			}
			return err == nil
		})
	}
	return take, func() { require.NoError(t, run("ROLLBACK")) }
}

// Two servers answer, collide and lose a client. Their /metrics have every metric of the dashboard,
// with a value.
func TestMetrics(t *testing.T) {
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	user := &http.Client{Jar: jar, Transport: &http.Transport{}}
	t.Cleanup(user.CloseIdleConnections)
	file := filepath.Join(t.TempDir(), "chat.db")
	a, b := start(t, file, user), start(t, file, user)

	session := "/api/sessions/" + a.post("/api/sessions", "", "id")
	turn := a.post(session+"/messages", `{"text":"charge 5; email bob@example.com hello; search pawl lease"}`, "turn")
	require.Contains(t, string(a.call("GET", a.url+"/api/turns/"+turn+"/events", "")), `"status":"done"`)
	a.post(session+"/messages", `{"text":"count to 10000"}`, "turn") // holds leases until the end
	a.background("GET", session+"/events", "")                       // watches until the end
	testkit.EventuallyWithin(t, time.Minute, func() bool { return a.sum("pawl_watchers", `kind="session"`) > 0 })
	take, release := lock(t, file)

	// The server's commit waits for the lock when its client leaves. If the server is slower than the
	// store's patience with locks, the commit has failed by then.
	testkit.EventuallyWithin(t, 2*time.Minute, func() bool {
		queued, ended := a.sum("pawl_queue_depth_count", `kind="user"`), a.ends("user")
		take()
		leave, _ := a.background("PUT", "/api/settings/name", `{"value":"Ann"}`)
		testkit.EventuallyWithin(t, time.Minute, func() bool { return a.sum("pawl_queue_depth_count", `kind="user"`) > queued })
		leave()
		testkit.EventuallyWithin(t, time.Minute, func() bool { return a.ends("user") > ended })
		release()
		return a.sum("pawl_incidents_total", `kind="user"`, `outcome="withdrawn"`) > 0
	})

	// Both servers rename the session, from the same version on. Several renames at one server share
	// a commit, so that its watch sees the last of them only.
	testkit.EventuallyWithin(t, 2*time.Minute, func() bool {
		before := map[*process]float64{}
		for _, p := range []*process{a, b} {
			before[p] = p.sum("pawl_queue_depth_count", `kind="session"`)
		}
		take()
		var ends []<-chan struct{}
		for p, queued := range before {
			for range 5 {
				_, ended := p.background("PATCH", session, `{"title":"`+idempotency.NewKey()+`"}`)
				ends = append(ends, ended)
			}
			testkit.EventuallyWithin(t, time.Minute, func() bool { return p.sum("pawl_queue_depth_count", `kind="session"`) >= queued+5 })
		}
		release()
		for _, ended := range ends {
			<-ended
		}
		return a.sum("pawl_conflicts_total", `kind="session"`)+b.sum("pawl_conflicts_total", `kind="session"`) > 0 &&
			a.sum("pawl_watch_missed_total", `kind="session"`) > 0
	})

	dashboard, err := os.ReadFile(filepath.Join("..", "dashboard.json"))
	require.NoError(t, err)
	names := regexp.MustCompile(`pawl_[a-z_]+`).FindAllString(string(dashboard), -1)
	slices.Sort(names)
	names = slices.Compact(names)
	require.Greater(t, len(names), 18)
	got := map[string]float64{}
	for _, s := range append(a.scrape(), b.scrape()...) {
		got[s.name] += s.value
	}
	for _, name := range names {
		value, found := got[name]
		assert.True(t, found, name)
		if name != "pawl_swept_total" { // nothing has expired
			assert.Positive(t, value, name)
		}
	}
	for _, p := range []*process{a, b} {
		p.Signal(syscall.SIGTERM)
		p.Wait()
	}
}

// A program whose address for metrics is in use does not serve.
func TestMetricsAddressInUse(t *testing.T) {
	listener, err := server.Listen(":0")
	require.NoError(t, err)
	defer listener.Close()
	c := server.Command{Addr: ":0", Store: filepath.Join(t.TempDir(), "chat.db"), Model: "local"}
	require.ErrorContains(t, run(t.Context(), c, listener.Addr().String()), "in use")
	require.NoFileExists(t, c.Store)
}
