package stream_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// Real processes commit to and consume streams of one database, as fast as they can. `make streams`
// runs it at full length. PAWL_COMMITS sets how many commits each process makes.

func init() {
	testkit.Child("harness-committer", harnessCommits)
	testkit.Child("harness-consumer", harnessConsumes)
}

// Variables of the children.
const (
	harnessEnvName    = "PAWL_TEST_NAME"    // of the process
	harnessEnvCommits = "PAWL_TEST_COMMITS" // of the process
	harnessEnvStreams = "PAWL_TEST_STREAMS" // over which it commits
	harnessEnvActs    = "PAWL_TEST_ACTS"    // not empty: it commits by Act
	harnessEnvHangs   = "PAWL_TEST_HANGS"   // not empty: its handlers hang after some events
)

// harnessLease is the lease of consumers, some of which are killed.
const harnessLease = 2 * time.Second

// harnessNoted is an event: commit N of the process By, which saw so many events before it.
type harnessNoted struct {
	By   string `json:"by"`
	N    int    `json:"n"`
	Seen *int   `json:"seen,omitempty"` // nil: it did not look
}

func harnessConfig() stream.Config {
	return stream.Config{
		Events: []stream.Type{stream.Of[harnessNoted]("noted")}, Logger: reactQuiet, Lease: harnessLease, Poll: time.Second,
		Retry: pawl.Retry{Attempts: 1000, Within: time.Minute},
	}
}

// harnessOpen opens the log of a child.
func harnessOpen() (*pawl.Runtime, *stream.Log, error) {
	store, err := stores.OpenGiven()
	if err != nil {
		return nil, nil, err
	}
	rt, err := pawl.Open(pawl.Config{
		Store: store, Logger: reactQuiet, Holder: os.Getenv(harnessEnvName), Retry: pawl.Retry{Attempts: 1000, Within: time.Minute},
	})
	if err != nil {
		return nil, nil, err
	}
	l, err := stream.New(rt, harnessConfig())
	return rt, l, err
}

// harnessNumber returns the number in an environment variable.
func harnessNumber(name string) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		panic(fmt.Sprintf("%s: %v", name, err))
	}
	return n
}

// harnessCommits is a process that appends events, each by a commit of its own.
func harnessCommits() error {
	rt, l, err := harnessOpen()
	if err != nil {
		return err
	}
	ctx, by := context.Background(), os.Getenv(harnessEnvName)
	fold := stream.Fold[int]{Name: "count", Apply: func(n *int, _ stream.Event) error { *n++; return nil }}
	testkit.Begin()
	for n := range harnessNumber(harnessEnvCommits) {
		name, event := fmt.Sprint("s", rand.N(harnessNumber(harnessEnvStreams))), harnessNoted{By: by, N: n}
		commit := func() (err error) {
			if os.Getenv(harnessEnvActs) == "" {
				_, err = l.Append(ctx, name, stream.Any, event)
				return err
			}
			_, err = stream.Act(ctx, l, name, stream.Any, fold, func(_ context.Context, seen int) ([]any, error) {
				event.Seen = &seen
				return []any{event}, nil
			})
			return err
		}
		err := commit()
		// On a busy machine others can keep the lock of SQLite for longer than the store waits.
		for tries := 1; tries < 10 && errors.Is(err, pawl.ErrUnavailable) && !pawl.OutcomeUnknown(err); tries++ {
			err = commit()
		}
		if err != nil {
			return fmt.Errorf("commit %d: %w", n, err)
		}
	}
	return errors.Join(rt.Close(ctx), rt.Store().Close())
}

// harnessHangs is the number of events after which the handlers of a process hang.
const harnessHangs = 5

// harnessConsumes is a process that counts events and echoes them, until it is told to stop.
func harnessConsumes() error {
	rt, l, err := harnessOpen()
	if err != nil {
		return err
	}
	var handled atomic.Int32
	err = l.React(stream.Reaction{
		Name: "r", Source: regexp.MustCompile("^s"), Batch: 10,
		Handle: func(ctx context.Context, d *stream.Delivery) error {
			if n := handled.Add(1); os.Getenv(harnessEnvHangs) != "" && n > harnessHangs {
				if n == harnessHangs+1 {
					testkit.Say("hangs")
				}
				select {} // until it is killed
			}
			d.OnCommit(reactInOrder(d))
			if d.Version%10 != 0 {
				return nil
			}
			_, err := l.Append(ctx, "echo-"+d.Stream, stream.Any, stream.Raw{Type: "echo", Data: fmt.Appendf(nil, "%d", d.Version)})
			return err
		},
	})
	if err != nil {
		return err
	}
	ctx := context.Background()
	if err := l.Start(ctx); err != nil {
		return err
	}
	testkit.Begin() // until the test has seen that all is handled
	return errors.Join(l.Stop(ctx), rt.Close(ctx), rt.Store().Close())
}

// harnessStart starts a number of processes in a role.
func harnessStart(t testing.TB, role, location string, n int, env ...string) (all []*testkit.Process) {
	t.Helper()
	for i := range n {
		own := append([]string{stores.Env(location), fmt.Sprintf("%s=%s %d", harnessEnvName, role, i)}, env...)
		all = append(all, testkit.Start(t, role, own...))
	}
	return all
}

// harnessWait lets committers begin, at the same moment, and waits for them.
func harnessWait(committers []*testkit.Process) {
	testkit.Ready(committers...)
	for _, p := range committers {
		p.Wait()
	}
}

// harnessEach runs a test on SQLite and PostgreSQL.
func harnessEach(t *testing.T, test func(t *testing.T, location string, commits int)) {
	t.Helper()
	commits := testkit.Times(200, 50, "PAWL_COMMITS")
	for _, s := range []stores.Store{stores.SQLite, stores.Postgres} {
		t.Run(s.Name, func(t *testing.T) {
			stores.Need(t, s.Name)
			test(t, s.New(t), commits)
		})
	}
}

// harnessCheck checks that the streams have the events of all commits: their versions have no gaps,
// each event is there once, and the order of all streams has the same events, each process's own in
// their order. It returns the number of events of each stream.
func harnessCheck(t testing.TB, l *stream.Log, committers, commits int) map[string]int {
	t.Helper()
	next, sizes := map[string]int{}, map[string]int{}
	var last uint64
	total := 0
	for e, err := range l.ReadAll(t.Context(), stream.AllQuery{Stream: regexp.MustCompile("^s")}) {
		require.NoError(t, err)
		require.Greater(t, e.Position, last)
		last = e.Position
		require.EqualValues(t, sizes[e.Stream], e.Version, "in the order of all streams")
		sizes[e.Stream]++
		noted := e.Data.(harnessNoted)
		if noted.Seen != nil {
			require.EqualValues(t, e.Version, *noted.Seen, "Act decides on all events before its own")
		}
		require.Equal(t, next[noted.By], noted.N, "%s: each commit was answered before the next one began", noted.By)
		next[noted.By]++
		total++
	}
	require.Equal(t, committers*commits, total)
	for name, n := range sizes {
		version := 0
		for e, err := range l.Read(t.Context(), name, stream.Query{}) {
			require.NoError(t, err)
			require.EqualValues(t, version, e.Version)
			version++
		}
		require.Equal(t, n, version, name)
	}
	testkit.Figures(t, "%d processes, %d commits each, %d streams", committers, commits, len(sizes))
	return sizes
}

// harnessDrained waits until the reaction has handled all events of the streams, and checks that the
// effects are there once and that no lease is left.
func harnessDrained(t testing.TB, rt *pawl.Runtime, l *stream.Log, sizes map[string]int) {
	t.Helper()
	testkit.EventuallyWithin(t, time.Minute, func() bool {
		done := 0
		for _, p := range reactPositions(t, l, stream.Filter{}) {
			require.False(t, p.Blocked, "%+v", p)
			if p == reactDone(p.Stream, int64(sizes[p.Stream])) {
				done++
			}
		}
		time.Sleep(20 * time.Millisecond) // leave the machine to the consumers
		return done == len(sizes)
	}, "all events are handled")
	for name, n := range sizes {
		require.Equal(t, n, reactCount(t, rt, name), "writes for %s", name)
		var echoes []string
		for e, err := range l.Read(t.Context(), "echo-"+name, stream.Query{}) {
			require.NoError(t, err)
			echoes = append(echoes, string(e.Raw))
		}
		require.Len(t, echoes, (n+9)/10, "appends for %s", name)
		for i, echo := range echoes {
			require.Equal(t, fmt.Sprint(10*i), echo)
		}
	}
	page, err := rt.Store().List(t.Context(), persist.Query{Kind: "stream.position"})
	require.NoError(t, err)
	for _, r := range page.Records {
		require.Zero(t, r.Lease, r.ID)
	}
}

// Eight processes commit over eighty streams. Proves STREAM-1.
func TestProcessesCommitToManyStreams(t *testing.T) {
	harnessEach(t, func(t *testing.T, location string, commits int) {
		harnessWait(harnessStart(t, "harness-committer", location, 8,
			fmt.Sprint(harnessEnvCommits, "=", commits), harnessEnvStreams+"=80"))
		l := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "test"), harnessConfig())
		harnessCheck(t, l, 8, commits)
	})
}

// Eight processes commit to one stream: four append without a version, and four by Act, which asserts
// one. Proves STREAM-1, STREAM-4.
func TestProcessesCommitToOneStream(t *testing.T) {
	harnessEach(t, func(t *testing.T, location string, commits int) {
		commits = max(commits/10, 1)
		env := []string{fmt.Sprint(harnessEnvCommits, "=", commits), harnessEnvStreams + "=1"}
		all := harnessStart(t, "harness-committer", location, 4, env...)
		for i := range 4 {
			own := append(env[:2:2], stores.Env(location), fmt.Sprintf("%s=actor %d", harnessEnvName, i), harnessEnvActs+"=1")
			all = append(all, testkit.Start(t, "harness-committer", own...))
		}
		harnessWait(all)
		l := reactLog(t, reactOpen(t, stores.OpenFor(t, location), "test"), harnessConfig())
		sizes := harnessCheck(t, l, 8, commits)
		require.Equal(t, map[string]int{"s0": 8 * commits}, sizes)
	})
}

// Four processes commit and four consume at the same time. What is drained equals what was committed.
// Proves LEASE-1, LEASE-2, LEASE-7, STREAM-5.
func TestProcessesCommitAndConsume(t *testing.T) {
	harnessEach(t, func(t *testing.T, location string, commits int) {
		consumers := harnessStart(t, "harness-consumer", location, 4)
		harnessWait(harnessStart(t, "harness-committer", location, 4,
			fmt.Sprint(harnessEnvCommits, "=", commits), harnessEnvStreams+"=20"))
		rt := reactOpen(t, stores.OpenFor(t, location), "test")
		l := reactLog(t, rt, harnessConfig())
		harnessDrained(t, rt, l, harnessCheck(t, l, 4, commits))
		harnessWait(consumers)
	})
}

// Of six processes that consume, two are killed while they work. The others take over, and nothing is
// lost or doubled. Proves LEASE-5, LEASE-2, STREAM-5.
func TestProcessesKilledConsumers(t *testing.T) {
	harnessEach(t, func(t *testing.T, location string, commits int) {
		rt := reactOpen(t, stores.OpenFor(t, location), "test")
		l := reactLog(t, rt, harnessConfig())
		victims := harnessStart(t, "harness-consumer", location, 2, harnessEnvHangs+"=1")
		committers := harnessStart(t, "harness-committer", location, 2,
			fmt.Sprint(harnessEnvCommits, "=", commits), harnessEnvStreams+"=40") // more than the two can hold
		testkit.Ready(committers...)
		for _, p := range victims {
			require.ElementsMatch(t, []string{"ready", "hangs"}, []string{p.Line(), p.Line()})
		}
		consumers := harnessStart(t, "harness-consumer", location, 4)
		for _, p := range victims {
			p.Kill()
		}
		for _, p := range committers {
			p.Wait()
		}
		harnessDrained(t, rt, l, harnessCheck(t, l, 2, commits))
		harnessWait(consumers)
	})
}
