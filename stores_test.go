package pawl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// newTap returns a tap on a new store in memory.
func newTap() *stores.Tap { return &stores.Tap{Store: memory.New()} }

// persisted runs fn in a synctest bubble, on a scope whose store passes through a tap.
func persisted(t *testing.T, c pawl.Config, fn func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts])) {
	t.Helper()
	h := newTap()
	c.Store = h
	bubble(t, c, func(t *testing.T, rt *pawl.Runtime) { fn(t, h, rt, pawl.Session[counts](rt, "a")) })
}

// openAnother opens a second runtime on h, which stands for another process. The caller closes it.
func openAnother(t *testing.T, h *stores.Tap) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: h, Holder: "another"})
	require.NoError(t, err)
	return rt
}

// foreign adds to n in the store below h, as another process would.
func foreign(t testing.TB, h *stores.Tap, key pawl.Key, n int) {
	t.Helper()
	r, err := h.Store.Load(context.Background(), key)
	w := persist.Write{Key: key, Expected: r.Version, Version: r.Version + 1}
	var doc counts
	if err == nil {
		doc = decode[counts](t, r)
	}
	doc.N += n
	w.Doc = encode(t, doc)
	_, err = h.Store.Commit(context.Background(), persist.Commit{ID: fmt.Sprintf("foreign.%d", r.Version+1), Writes: []persist.Write{w}})
	require.NoError(t, err)
}

// gate holds commits until it is opened.
func gate(h *stores.Tap) (open func(), entered <-chan persist.Commit) {
	hold, in := make(chan struct{}), make(chan persist.Commit, 100)
	h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
		in <- c
		<-hold
		return commit()
	})
	return sync.OnceFunc(func() { close(hold) }), in
}

// purge removes all tombstones of a store and returns their number.
func purge(t *testing.T, store persist.Purger) int {
	t.Helper()
	n, err := store.Purge(t.Context(), persist.Query{})
	require.NoError(t, err)
	return n
}

// decode returns the document of a record as a T.
func decode[T any](t testing.TB, r persist.Record) (state T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(r.Doc, &state))
	return state
}

// encode returns state as a document.
func encode(t testing.TB, state any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(state)
	require.NoError(t, err)
	return b
}

var errAnswerLost = errors.New("the answer was lost")

// flaky is a store that loses some answers, both of executed commits and of commits that it drops.
type flaky struct {
	persist.Store
	rate float64
}

func (s flaky) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	lose := rand.Float64() < s.rate
	if lose && rand.IntN(3) == 0 {
		return time.Time{}, errAnswerLost
	}
	at, err := s.Store.Commit(ctx, c)
	if lose {
		return time.Time{}, errAnswerLost
	}
	return at, err
}

// LoadAll makes flaky a persist.Reader, like every other store in these tests.
func (s flaky) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	return s.Store.(persist.Reader).LoadAll(ctx, keys)
}

// oneByOne is a store that cannot commit several keys at once.
type oneByOne struct{ persist.Store }

func (s oneByOne) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if len(c.Keys()) > 1 {
		return time.Time{}, persist.ErrUnsupported
	}
	return s.Store.Commit(ctx, c)
}

// slowReader is a store that calls a function before it reads several records.
type slowReader struct {
	*stores.Tap
	before func()
}

func (s *slowReader) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	s.before()
	return s.Tap.LoadAll(ctx, keys)
}

// proxied starts a proxy in front of a new database. It returns the location through the proxy and
// the direct one.
func proxied(t *testing.T) (proxy *pgproxy.Proxy, behind, direct string) {
	t.Helper()
	return stores.Proxied(t)
}
