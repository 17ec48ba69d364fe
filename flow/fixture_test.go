package flow_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/fs"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// children are what this binary does instead of testing when crashtest.Start names one of them.
var children = map[string]func() error{}

func TestMain(m *testing.M) {
	if run := os.Getenv("PAWL_TEST_CHILD"); run != "" {
		if err := children[run](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	pgtest.Stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines outlived the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// site is a store that several processes use; each runtime on it stands for one.
type site struct {
	location string
	memory   persist.Store // the store itself, where it is in memory
}

// onStores runs test on every store, on all at the same time: what takes long is mostly waiting.
func onStores(t *testing.T, test func(t *testing.T, s *site)) {
	t.Run("memory", func(t *testing.T) { test(t, inMemory()) })
	onSharedStores(t, func(t *testing.T, s *site) {
		t.Parallel()
		test(t, s)
	})
}

// onSharedStores runs test on every store that processes can share.
func onSharedStores(t *testing.T, test func(t *testing.T, s *site)) {
	t.Run("fs", func(t *testing.T) { test(t, &site{location: "fs:" + filepath.Join(t.TempDir(), "state")}) })
	t.Run("sqlite", func(t *testing.T) { test(t, onSQLite(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, &site{location: pgtest.URL(t)}) })
}

func inMemory() *site { return &site{memory: memory.New()} }

func onSQLite(t *testing.T) *site {
	return &site{location: "sqlite:" + filepath.Join(t.TempDir(), "state.db")}
}

// openStore opens the store at a location, in any process.
func openStore(location string) (persist.Store, error) {
	ctx := context.Background()
	scheme, rest, _ := strings.Cut(location, ":")
	switch scheme {
	case "sqlite":
		return sqlite.Open(ctx, rest, sqlite.Config{})
	case "fs":
		return fs.Open(ctx, rest, fs.Config{LockTimeout: time.Minute})
	case "postgres":
		return postgres.Open(ctx, location, postgres.Config{})
	}
	return nil, fmt.Errorf("no store is at %q", location)
}

// store opens the store once more.
func (s *site) store(t *testing.T) persist.Store {
	t.Helper()
	if s.memory != nil {
		return s.memory
	}
	store, err := openStore(s.location)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// runtime opens another runtime, with a tap on its store.
func (s *site) runtime(t *testing.T) (*pawl.Runtime, *tap) {
	t.Helper()
	store := &tap{Store: s.store(t)}
	rt, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(within(t, 20*time.Second))) })
	return rt, store
}

// flow makes the flow that c defines in a runtime of its own.
func (s *site) flow(t *testing.T, c flow.Config) (*flow.Flow, *pawl.Runtime) {
	t.Helper()
	rt, _ := s.runtime(t)
	return newFlow(t, rt, c), rt
}

// newFlow makes a flow that is stopped with the test.
func newFlow(t *testing.T, rt *pawl.Runtime, c flow.Config) *flow.Flow {
	t.Helper()
	if c.Kind == "" {
		c.Kind = "chat"
	}
	f, err := flow.New(rt, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Stop(within(t, 20*time.Second))) })
	return f
}

// within returns a context that outlives t but not d.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// tap is a store whose commits are counted, and can be refused.
type tap struct {
	persist.Store
	loads, commits atomic.Int64
	// before is asked about each commit; an error is the answer instead.
	before atomic.Pointer[func(persist.Commit) error]
	after  atomic.Pointer[func(persist.Commit)]
}

func (s *tap) Load(ctx context.Context, k persist.Key) (persist.Record, error) {
	s.loads.Add(1)
	return s.Store.Load(ctx, k)
}

func (s *tap) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	s.loads.Add(1)
	return s.Store.(persist.Reader).LoadAll(ctx, keys)
}

func (s *tap) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	s.commits.Add(1)
	if f := s.before.Load(); f != nil {
		if err := (*f)(c); err != nil {
			return time.Time{}, err
		}
	}
	at, err := s.Store.Commit(ctx, c)
	if f := s.after.Load(); f != nil {
		(*f)(c)
	}
	return at, err
}

// refuse makes the store unreachable for the commits that are asked about with true.
func (s *tap) refuse(which func(persist.Commit) bool) {
	f := func(c persist.Commit) error {
		if which(c) {
			return fmt.Errorf("%w: cut off", persist.ErrUnavailable)
		}
		return nil
	}
	s.before.Store(&f)
}

// The rest is what every store of these tests can.

func (s *tap) Watch(ctx context.Context, wake func(persist.Hint)) error {
	return s.Store.(persist.Watcher).Watch(ctx, wake)
}

func (s *tap) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	return s.Store.(persist.Prober).Versions(ctx, keys)
}

func (s *tap) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	return s.Store.List(ctx, q)
}

func (s *tap) Purge(ctx context.Context, q persist.Query) (int, error) {
	return s.Store.(persist.Purger).Purge(ctx, q)
}

// thread is the state of a session in these tests.
type thread struct {
	Log  []string `json:"log"`
	A, B int
}

func session(o pawl.Owner, id string) pawl.Scope[thread] { return pawl.Session[thread](o, id) }

// door is what the store has of a gate.
type door struct {
	Last    uint64 `json:"last"`
	Tickets map[string]struct {
		Number  uint64 `json:"number"`
		Request string `json:"request"`
	} `json:"tickets"`
}

func gateOf(rt *pawl.Runtime, unit, id string) pawl.Scope[door] {
	return pawl.Kind[door]{Name: "flow.chat." + unit}.Scope(rt, id)
}

// waiting returns the requests at the gate of a session, in order.
func waiting(t *testing.T, rt *pawl.Runtime, id string) (requests []string) {
	t.Helper()
	g, err := gateOf(rt, "session", id).State(t.Context())
	require.NoError(t, err)
	for _, ticket := range g.Tickets {
		requests = append(requests, fmt.Sprintf("%09d%s", ticket.Number, ticket.Request))
	}
	slices.Sort(requests)
	for i := range requests {
		requests[i] = requests[i][9:]
	}
	return requests
}

// records returns the requests that have a record.
func records(t *testing.T, rt *pawl.Runtime) (requests []string) {
	t.Helper()
	for snap, err := range (pawl.Kind[pawl.Doc]{Name: "flow.chat.call"}).List(t.Context(), rt, pawl.Query{}) {
		require.NoError(t, err)
		requests = append(requests, snap.ID)
	}
	return requests
}

// nothingLeft asserts that no call of the flow chat is in the store.
func nothingLeft(t *testing.T, rt *pawl.Runtime, sessions ...string) {
	t.Helper()
	require.Empty(t, records(t, rt))
	for _, id := range sessions {
		require.Empty(t, waiting(t, rt, id))
	}
}

// soon waits until it is.
func soon(t testing.TB, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come about")
		}
	}
}

// busyAction is an action that tells when it begins, and returns when it is told to, or its context ends.
type busyAction struct {
	began chan string // gets the request
	ends  sync.Map    // request → chan struct{}
	all   chan struct{}
	most  atomic.Int64 // that ran at one time
	runs  atomic.Int64
	now   atomic.Int64
	mu    sync.Mutex
	order []string
}

func newBusyAction() *busyAction {
	return &busyAction{began: make(chan string, 1000), all: make(chan struct{})}
}

func (b *busyAction) ended(request string) chan struct{} {
	ch, _ := b.ends.LoadOrStore(request, make(chan struct{}, 100))
	return ch.(chan struct{})
}

// finish lets a call of request return.
func (b *busyAction) finish(request string) { b.ended(request) <- struct{}{} }

func (b *busyAction) run(ctx context.Context, c *flow.Call, _ string) (string, error) {
	now := b.now.Add(1)
	defer b.now.Add(-1)
	b.runs.Add(1)
	for most := b.most.Load(); now > most && !b.most.CompareAndSwap(most, now); most = b.most.Load() {
	}
	b.mu.Lock()
	b.order = append(b.order, c.Request)
	b.mu.Unlock()
	b.began <- c.Request
	select {
	case <-b.all:
		return "done " + c.Request, nil
	case <-b.ended(c.Request):
		return "done " + c.Request, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (b *busyAction) ran() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.order)
}

// next waits until a call begins, and returns its request.
func (b *busyAction) next(t *testing.T) string {
	t.Helper()
	select {
	case r := <-b.began:
		return r
	case <-time.After(30 * time.Second):
		t.Fatal("no call began")
		return ""
	}
}

// answer is what Do returned.
type answer struct {
	out string
	err error
}

// do calls a in the background.
func do(ctx context.Context, a *flow.Action[string, string], ids flow.IDs) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		s, err := a.Do(ctx, ids, "")
		out <- answer{s, err}
	}()
	return out
}

// of returns what is in ch, soon.
func of[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(30 * time.Second):
		t.Fatal("no answer")
		panic("unreachable")
	}
}

var errOfTheAction = errors.New("an error of the action's own")
