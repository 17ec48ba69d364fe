package stream_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// Events of the tests of reactions.
type (
	reactNoted struct { // "noted"
		N int `json:"n"`
	}
	reactEcho struct { // "echo": what handlers append
		Of string `json:"of"`
		N  int    `json:"n"`
	}
	reactOther struct{} // "other"
)

var reactEvents = []stream.Type{
	stream.Of[reactNoted]("noted"), stream.Of[reactEcho]("echo"), stream.Of[reactOther]("other"),
}

// reactSum is the document that writes of OnCommit change.
type reactSum struct {
	Count int `json:"count"`
	// Next is the version of the event that comes next, if the events of one stream are counted.
	Next int64 `json:"next"`
}

var reactSums = pawl.Kind[reactSum]{Name: "react.sum"}

var (
	reactQuiet  = slog.New(slog.DiscardHandler)
	errReact    = errors.New("the handler failed")
	reactAtOnce = pawl.Retry{First: 1, Max: 1} // a backoff without a pause
)

// reactHandle is the type of Reaction.Handle.
type reactHandle = func(ctx context.Context, d *stream.Delivery) error

// reactEachIf runs test on every store if all is true, and otherwise in memory: a table whose cases
// differ in nothing that a store sees.
func reactEachIf(t *testing.T, all bool, test func(t *testing.T, store persist.Store)) {
	t.Helper()
	if all {
		stores.EachOpen(t, test)
		return
	}
	test(t, memory.New())
}

// reactOpen returns a runtime that is called holder in leases.
func reactOpen(t testing.TB, store persist.Store, holder string, change ...func(c *pawl.Config)) *pawl.Runtime {
	t.Helper()
	c := pawl.Config{Store: store, Holder: holder, Logger: reactQuiet}
	for _, fn := range change {
		fn(&c)
	}
	rt, err := pawl.Open(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	return rt
}

// reactConfig is the configuration of the logs: they look for events only when they are woken.
func reactConfig() stream.Config {
	return stream.Config{Events: reactEvents, Poll: time.Hour, Logger: reactQuiet}
}

// reactLog returns a log with reactions. Those without a name are named "r".
func reactLog(t testing.TB, rt *pawl.Runtime, c stream.Config, reactions ...stream.Reaction) *stream.Log {
	t.Helper()
	l, err := stream.New(rt, c)
	require.NoError(t, err)
	for _, r := range reactions {
		if r.Name == "" {
			r.Name = "r"
		}
		require.NoError(t, l.React(r))
	}
	return l
}

// reactStart starts a log until the test ends.
func reactStart(t testing.TB, l *stream.Log) {
	t.Helper()
	require.NoError(t, l.Start(context.Background()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		require.NoError(t, l.Stop(ctx))
	})
}

// reactAppend appends n events of type "noted" to a stream, numbered from the version on.
func reactAppend(t testing.TB, l *stream.Log, name string, n int) []stream.Event {
	t.Helper()
	h, err := l.Head(context.Background(), name)
	require.NoError(t, err)
	var events []any
	for i := range n {
		events = append(events, reactNoted{N: int(h.Last) + 1 + i})
	}
	made, err := l.Append(context.Background(), name, stream.Any, events...)
	require.NoError(t, err)
	require.Len(t, made, n)
	return made
}

// reactDrain drains a log and returns how many streams it claimed.
func reactDrain(t testing.TB, l *stream.Log) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	n, err := l.Drain(ctx)
	require.NoError(t, err)
	return n
}

// reactPosition returns the position of the reaction "r" on a stream.
func reactPosition(t testing.TB, l *stream.Log, name string) stream.Position {
	t.Helper()
	return reactPositionOf(t, l, "r", name)
}

func reactPositionOf(t testing.TB, l *stream.Log, reaction, name string) stream.Position {
	t.Helper()
	all := reactPositions(t, l, stream.Filter{Reactions: []string{reaction}, Streams: []string{name}})
	require.Len(t, all, 1, "%s of %s", reaction, name)
	return all[0]
}

func reactPositions(t testing.TB, l *stream.Log, f stream.Filter) (all []stream.Position) {
	t.Helper()
	for p, err := range l.Positions(context.Background(), f) {
		require.NoError(t, err)
		all = append(all, p)
	}
	return all
}

// reactDone is a position whose events are all handled.
func reactDone(name string, next int64) stream.Position {
	return stream.Position{Reaction: "r", Stream: name, Next: next}
}

// reactRead returns the events of a stream.
func reactRead(t testing.TB, l *stream.Log, name string) (all []stream.Event) {
	t.Helper()
	for e, err := range l.Read(context.Background(), name, stream.Query{}) {
		require.NoError(t, err)
		all = append(all, e)
	}
	return all
}

// reactEchoes returns the data of the events of a stream that handlers append to, as text.
func reactEchoes(t testing.TB, l *stream.Log, name string) (all []string) {
	t.Helper()
	for _, e := range reactRead(t, l, name) {
		echo := e.Data.(reactEcho)
		all = append(all, fmt.Sprint(echo.Of, "/", echo.N))
	}
	return all
}

// reactCounts returns a function for OnCommit that counts in the document id.
func reactCounts(id string) func(ctx context.Context, tx *pawl.Tx) error {
	return func(ctx context.Context, tx *pawl.Tx) error {
		_, err := reactSums.Scope(tx, id).IncState(ctx, "count", 1)
		return err
	}
}

func reactCount(t testing.TB, rt *pawl.Runtime, id string) int {
	t.Helper()
	sum, err := reactSums.Scope(rt, id).State(context.Background())
	require.NoError(t, err)
	return sum.Count
}

// reactCalls records which events handlers were called for, as "stream/version".
type reactCalls struct {
	mu  sync.Mutex
	all []string
}

func (c *reactCalls) add(d *stream.Delivery) (nth int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprint(d.Stream, "/", d.Version))
	return len(c.all)
}

// take returns the calls since the last take.
func (c *reactCalls) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.all
	c.all = nil
	return taken
}

// count returns the number of calls since the last take.
func (c *reactCalls) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

// handle is a handler that records the call and then calls fn; nil: it succeeds.
func (c *reactCalls) handle(fn reactHandle) reactHandle {
	return func(ctx context.Context, d *stream.Delivery) error {
		c.add(d)
		if fn == nil {
			return nil
		}
		return fn(ctx, d)
	}
}

// reactGate is a handler that says that it began, and waits until it may go on.
type reactGate struct {
	began chan string // streams
	goOn  chan struct{}
}

func newReactGate() *reactGate {
	return &reactGate{make(chan string, 100), make(chan struct{})}
}

func (g *reactGate) handle(_ context.Context, d *stream.Delivery) error {
	g.began <- d.Stream
	<-g.goOn
	return nil
}

// reactWrites reports whether a commit writes a record of a kind.
func reactWrites(c persist.Commit, kind string) bool {
	for _, w := range c.Writes {
		if w.Kind == kind {
			return true
		}
	}
	return false
}

// reactRenews reports whether a commit renews a lease.
func reactRenews(c persist.Commit) bool {
	for _, g := range c.Guards {
		if g.Extend > 0 {
			return true
		}
	}
	return false
}

// reactReleases reports whether a commit releases a lease.
func reactReleases(c persist.Commit) bool {
	for _, g := range c.Guards {
		if g.Release {
			return true
		}
	}
	return false
}

// reactAck reports whether a commit ends a claim.
func reactAck(c persist.Commit) bool { return reactWrites(c, "stream.position") && reactReleases(c) }
