package pawl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// path is one of the ways to run a verb: in memory or through a store.
type path struct {
	name   string
	rt     *pawl.Runtime
	config pawl.Config
	store  *stores.Tap // nil in memory
}

// another returns a second runtime on the store of p, which stands for another process.
func (p path) another(t *testing.T) *pawl.Runtime {
	t.Helper()
	return openRuntime(t, p.config)
}

// record returns the record of key in the store of p, or the zero Record without a record or store.
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

// put writes a document into the store of p as another process would, after the current version.
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

// paths returns every path, each with its own runtime, which is closed when t ends.
func paths(t *testing.T, configure ...func(*pawl.Config)) []path {
	t.Helper()
	all := []path{{name: "in memory"}, {name: "memory store", store: newTap()}}
	for _, s := range stores.Shared {
		all = append(all, path{name: s.Name + " store", store: &stores.Tap{Store: stores.OpenFor(t, s.New(t))}})
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

// openRuntime opens a runtime, which is closed when t ends.
func openRuntime(t testing.TB, config pawl.Config) *pawl.Runtime {
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

// openOn opens a runtime on store, which is closed when t ends.
func openOn(t *testing.T, store persist.Store) *pawl.Runtime {
	t.Helper()
	return openRuntime(t, pawl.Config{Store: store})
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

// requireState asserts the state of s, its version and its record in the store.
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

// collect frees unreachable memory, with weak pointers, cleanups and pools.
func collect() {
	runtime.GC()
	runtime.GC()
}

// eventLog is an Observer that keeps all events.
type eventLog struct {
	mu     sync.Mutex // protects events
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

// count returns the number of events of type typ.
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

// syncBuffer is a buffer that several goroutines may write to.
type syncBuffer struct {
	mu sync.Mutex // protects b
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
