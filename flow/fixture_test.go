package flow_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

// site is the location of a store. Each runtime opened on it stands for one process.
type site string

// onStores runs test on every store, on all of them in parallel, because most of the time is
// waiting.
func onStores(t *testing.T, test func(t *testing.T, s site)) {
	stores.Each(t, func(t *testing.T, location string) {
		if stores.Name(location) != "memory" {
			t.Parallel()
		}
		test(t, site(location))
	})
}

// onSharedStores runs test on every store that several processes can share.
func onSharedStores(t *testing.T, test func(t *testing.T, s site)) {
	stores.EachShared(t, func(t *testing.T, location string) { test(t, site(location)) })
}

func inMemory(t *testing.T) site { return site(stores.Memory.New(t)) }

// store opens another connection to the store.
func (s site) store(t *testing.T) persist.Store { return stores.OpenFor(t, string(s)) }

// env returns the environment variable that makes a child open the store.
func (s site) env() string { return stores.Env(string(s)) }

// runtime opens another runtime, with a tap on its store.
func (s site) runtime(t *testing.T) (*pawl.Runtime, *stores.Tap) {
	t.Helper()
	store := &stores.Tap{Store: s.store(t)}
	rt, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(testkit.Within(t, 20*time.Second))) })
	return rt, store
}

// flow makes a flow from c in a runtime of its own.
func (s site) flow(t *testing.T, c flow.Config) (*flow.Flow, *pawl.Runtime) {
	t.Helper()
	rt, _ := s.runtime(t)
	return newFlow(t, rt, c), rt
}

// newFlow makes a flow that stops when the test ends.
func newFlow(t *testing.T, rt *pawl.Runtime, c flow.Config) *flow.Flow {
	t.Helper()
	if c.Kind == "" {
		c.Kind = "chat"
	}
	f, err := flow.New(rt, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Stop(testkit.Within(t, 20*time.Second))) })
	return f
}

// thread is the state of a session in these tests.
type thread struct {
	Log  []string `json:"log"`
	A, B int
}

func session(o pawl.Owner, id string) pawl.Scope[thread] { return pawl.Session[thread](o, id) }

// door is the stored document of a gate.
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

// records returns the requests that have a record in the store.
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

// busyAction is an action that reports when it begins. It returns when the test finishes it or its
// context ends.
type busyAction struct {
	began chan string // receives the request of each call that begins
	ends  sync.Map    // request → chan struct{}
	all   chan struct{}
	most  atomic.Int64 // the largest number of calls that ran at the same time
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
	return testkit.Receive(t, b.began, "no call began")
}

// answer holds the results of Do.
type answer struct {
	out string
	err error
}

// do calls a in the background and sends the results to the channel.
func do(ctx context.Context, a *flow.Action[string, string], ids flow.IDs) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		s, err := a.Do(ctx, ids, "")
		out <- answer{s, err}
	}()
	return out
}

var errOfTheAction = errors.New("an error of the action's own")
