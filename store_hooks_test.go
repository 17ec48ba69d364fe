package pawl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// hooked is a store whose commits and loads pass through functions of the test.
type hooked struct {
	*memory.Store
	onCommit func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error)
	onLoad   func()
	commits  atomic.Int32
	loads    atomic.Int32
}

func (h *hooked) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	h.commits.Add(1)
	commit := func() (time.Time, error) { return h.Store.Commit(ctx, c) }
	if h.onCommit == nil {
		return commit()
	}
	return h.onCommit(c, commit)
}

func (h *hooked) Load(ctx context.Context, k persist.Key) (persist.Record, error) {
	h.loads.Add(1)
	if h.onLoad != nil {
		h.onLoad()
	}
	return h.Store.Load(ctx, k)
}

// foreign writes to the store behind the runtime's back, as another process would: it adds to n.
func (h *hooked) foreign(t testing.TB, key pawl.Key, n int) {
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
func (h *hooked) gate() (open func(), entered <-chan persist.Commit) {
	hold, in := make(chan struct{}), make(chan persist.Commit, 100)
	h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
		in <- c
		<-hold
		return commit()
	}
	return sync.OnceFunc(func() { close(hold) }), in
}

func newHooked() *hooked { return &hooked{Store: memory.New()} }

// rt2 returns another runtime on h, what another process would be. Whoever asks closes it.
func rt2(t *testing.T, h *hooked) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: h, Holder: "another"})
	require.NoError(t, err)
	return rt
}

// decode returns the document of a record as a T.
func decode[T any](t testing.TB, r persist.Record) (state T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(r.Doc, &state))
	return state
}

func encode(t testing.TB, state any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(state)
	require.NoError(t, err)
	return b
}

func persisted(t *testing.T, c pawl.Config, fn func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts])) {
	t.Helper()
	h := &hooked{Store: memory.New()}
	c.Store = h
	bubble(t, c, func(t *testing.T, rt *pawl.Runtime) { fn(t, h, rt, pawl.Session[counts](rt, "a")) })
}
