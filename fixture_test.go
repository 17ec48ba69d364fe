package pawl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// path is one of the ways that a verb can take: in memory, or through a store.
type path struct {
	name   string
	rt     *pawl.Runtime
	config pawl.Config
	store  *tap // nil in memory
}

// another returns a second runtime on the store of p: what another process would be.
func (p path) another(t *testing.T) *pawl.Runtime {
	t.Helper()
	return openRuntime(t, p.config)
}

// record returns what the store of p has of key; the zero Record if it has nothing, or there is no store.
func (p path) record(t *testing.T, key pawl.Key) persist.Record {
	t.Helper()
	if p.store == nil {
		return persist.Record{}
	}
	r, err := p.store.Store.Load(t.Context(), key)
	if !errors.Is(err, persist.ErrNotFound) {
		require.NoError(t, err)
	}
	return r
}

// put writes a document into the store of p as a foreign writer would, whatever is there.
func (p path) put(t *testing.T, key pawl.Key, doc string, schema int) {
	t.Helper()
	was := p.record(t, key)
	w := persist.Write{Key: key, Version: was.Version + 1, Doc: json.RawMessage(doc), Schema: schema}
	if !was.Absent() {
		w.Expected, w.Gone = was.Version, was.Gone(was.Now)
	}
	_, err := p.store.Store.Commit(t.Context(), persist.Commit{ID: "foreign.1", Writes: []persist.Write{w}})
	require.NoError(t, err)
}

// paths returns every path, each with a runtime of its own that is closed with the test.
func paths(t *testing.T, configure ...func(*pawl.Config)) []path {
	t.Helper()
	all := []path{{name: "in memory"}, {name: "memory store", store: &tap{Store: memory.New()}}}
	for _, s := range sharedStores {
		all = append(all, path{name: s.name + " store", store: &tap{Store: openFor(t, s.location(t))}})
	}
	for i := range all {
		p := &all[i]
		if p.store != nil {
			p.config.Store = p.store
		}
		for _, f := range configure {
			f(&p.config)
		}
		p.rt = openRuntime(t, p.config)
	}
	return all
}

// onPaths runs test on every path.
func onPaths(t *testing.T, test func(t *testing.T, p path), configure ...func(*pawl.Config)) {
	t.Helper()
	for _, p := range paths(t, configure...) {
		t.Run(p.name, func(t *testing.T) { test(t, p) })
	}
}

// onStores runs test on the paths that have a store.
func onStores(t *testing.T, test func(t *testing.T, p path), configure ...func(*pawl.Config)) {
	t.Helper()
	for _, p := range paths(t, configure...)[1:] {
		t.Run(p.name, func(t *testing.T) { test(t, p) })
	}
}

func openRuntime(t *testing.T, config pawl.Config) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(config)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, rt.Close(ctx))
	})
	return rt
}

func openOn(t *testing.T, store persist.Store) *pawl.Runtime {
	rt, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	return rt
}

// board is a state with a field for every verb.
type board struct {
	Title string            `json:"title"`
	Count int64             `json:"count"`
	Tags  []string          `json:"tags"`
	Notes map[string]string `json:"notes"`
}

// scopeOf returns the scope id of a T on p.
func scopeOf[T any](p path, id string) pawl.Scope[T] {
	if p.store == nil {
		return pawl.Memory[T](p.rt, id)
	}
	return pawl.Session[T](p.rt, id)
}

// requireState asserts the state of s, its version, and what the store has of it.
func requireState[T any](t *testing.T, p path, s pawl.Scope[T], version uint64, want T) {
	t.Helper()
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.True(t, snap.Exists())
	require.Equal(t, version, snap.Version)
	require.Equal(t, want, snap.State())
	if p.store != nil {
		r := p.record(t, s.Key())
		require.Equal(t, version, r.Version)
		doc, err := json.Marshal(want)
		require.NoError(t, err)
		require.JSONEq(t, string(doc), string(r.Doc))
	}
}

// requireAbsent asserts that s has no state, and that the store has no record of it.
func requireAbsent[T any](t *testing.T, p path, s pawl.Scope[T]) {
	t.Helper()
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.False(t, snap.Exists())
	require.Zero(t, snap.Version)
	require.True(t, p.record(t, s.Key()).Absent())
}

// seed creates s with state, at version 1.
func seed[T any](t *testing.T, s pawl.Scope[T], state T) {
	t.Helper()
	snap, err := s.SetState(t.Context(), state)
	require.NoError(t, err)
	require.EqualValues(t, 1, snap.Version)
}

// tap is a store that counts what it is asked for, and can be made to do something first.
type tap struct {
	persist.Store
	loads, commits atomic.Int64

	mu           sync.Mutex
	beforeCommit func(context.Context, persist.Commit) error // an error is returned instead
	afterCommit  func(time.Time, error) (time.Time, error)
	beforeLoad   func(context.Context) error
}

func (s *tap) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	s.loads.Add(1)
	s.mu.Lock()
	before := s.beforeLoad
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return persist.Record{}, err
		}
	}
	return s.Store.Load(ctx, key)
}

// LoadAll makes tap a persist.Reader, as every store of these tests is.
func (s *tap) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	s.loads.Add(1)
	return s.Store.(persist.Reader).LoadAll(ctx, keys)
}

// Purge and Take make tap what every store of these tests is.
func (s *tap) Purge(ctx context.Context, q persist.Query) (int, error) {
	return s.Store.(persist.Purger).Purge(ctx, q)
}

func (s *tap) Take(ctx context.Context, q persist.Query, a persist.Acquire) ([]persist.Record, error) {
	return s.Store.(persist.Leaser).Take(ctx, q, a)
}

// Watch and Versions are those of the store.
func (s *tap) Watch(ctx context.Context, wake func(persist.Hint)) error {
	if w, ok := s.Store.(persist.Watcher); ok {
		return w.Watch(ctx, wake)
	}
	return persist.ErrUnsupported
}

func (s *tap) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	if p, ok := s.Store.(persist.Prober); ok {
		return p.Versions(ctx, keys)
	}
	var versions []uint64
	for _, key := range keys {
		r, err := s.Store.Load(ctx, key)
		if err != nil && !errors.Is(err, persist.ErrNotFound) {
			return nil, err
		}
		if r.Absent() {
			r.Version = 0
		}
		versions = append(versions, r.Version)
	}
	return versions, nil
}

func (s *tap) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	s.commits.Add(1)
	s.mu.Lock()
	before, after := s.beforeCommit, s.afterCommit
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx, c); err != nil {
			return time.Time{}, err
		}
	}
	at, err := s.Store.Commit(ctx, c)
	if after != nil {
		return after(at, err)
	}
	return at, err
}

// onCommit makes f run before each commit.
func (s *tap) onCommit(f func(context.Context, persist.Commit) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beforeCommit = f
}

// onCommitted lets f change the answer of each commit.
func (s *tap) onCommitted(f func(time.Time, error) (time.Time, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.afterCommit = f
}

// onLoad makes f run before each load.
func (s *tap) onLoad(f func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beforeLoad = f
}

// purge removes all tombstones.
func (s *tap) purge(t *testing.T) int {
	t.Helper()
	n, err := s.Store.(persist.Purger).Purge(t.Context(), persist.Query{})
	require.NoError(t, err)
	return n
}

// hold blocks the first commit until release is called; entered is closed once it is there.
func (s *tap) hold() (entered <-chan struct{}, release func()) {
	in, out := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.onCommit(func(ctx context.Context, _ persist.Commit) error {
		once.Do(func() {
			close(in)
			<-out
		})
		return nil
	})
	return in, func() { close(out) }
}

// How long tests that cannot do without poll for something, and how often.
const (
	waitLong = 20 * time.Second
	waitStep = 5 * time.Millisecond
)

// collect lets go of what nobody holds, weak pointers and cleanups included.
func collect() {
	runtime.GC()
	runtime.GC()
}

// soon waits until is reports true, and fails t if that takes too long.
func soon(t testing.TB, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come about")
		}
	}
}

// eventLog is an Observer that remembers.
type eventLog struct {
	mu     sync.Mutex
	events []pawl.Event
}

func (l *eventLog) Observe(_ context.Context, e pawl.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// find returns the last event of type typ, the zero Event if there is none.
func (l *eventLog) find(typ pawl.EventType) pawl.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.events) - 1; i >= 0; i-- {
		if l.events[i].Type == typ {
			return l.events[i]
		}
	}
	return pawl.Event{}
}

// count returns how many events of type typ there were.
func (l *eventLog) count(typ pawl.EventType) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Type == typ {
			n++
		}
	}
	return n
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// shortForm says that some repetitions will do, as for CI. It is not -short, by which property tests become too short to have seen anything.
var shortForm = os.Getenv("PAWL_SHORT") != ""

// some is n, or in the short form a third of it.
func some(n int) int {
	if shortForm {
		return n / 3
	}
	return n
}
