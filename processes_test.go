package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/crashtest"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func init() { children["increment"] = incrementChild }

const (
	incrementProcesses = 3
	incrementWriters   = 4
	incrementsEach     = 50
)

// Where the parent tells its children to work, and how many answers of the store they are to lose.
const (
	processStore = "PAWL_TEST_STORE"
	processFlaky = "PAWL_TEST_FLAKY"
)

// openProcessStore opens a runtime on the store at a location.
func openProcessStore(location string) (*pawl.Runtime, persist.Store, error) {
	store, err := openStore(location)
	if err != nil {
		return nil, nil, err
	}
	if rate, err := strconv.ParseFloat(os.Getenv(processFlaky), 64); err == nil {
		store = flaky{store, rate}
	}
	rt, err := pawl.Open(pawl.Config{Store: store})
	return rt, store, err
}

// processChild does work in a child, with a runtime on the store that the parent named.
func processChild(work func(context.Context, *pawl.Runtime) error) int {
	ctx := context.Background()
	rt, store, err := openProcessStore(os.Getenv(processStore))
	if err == nil {
		crashtest.Begin() // now, so that the processes meet
		err = work(ctx, rt)
	}
	if err == nil {
		err = errors.Join(rt.Close(ctx), store.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type processTally struct {
	N int64 `json:"n"`
}

// incrementChild adds to the shared counter and says what each answer was. Losing to the other processes until the budget is spent
// is an answer too; it promises that nothing was added, so it is asked again.
func incrementChild() int {
	return processChild(func(ctx context.Context, rt *pawl.Runtime) error {
		var wg sync.WaitGroup
		errs := make([]error, incrementWriters)
		for i := range incrementWriters {
			wg.Go(func() {
				scope := pawl.Session[processTally](rt, "shared")
				for n := 0; n < incrementsEach; {
					var snap pawl.Snapshot[processTally]
					var err error
					if n%2 == 0 {
						snap, err = scope.IncState(ctx, "n", 1)
					} else {
						snap, err = scope.AtomicState(ctx, func(_ context.Context, s *processTally) error { s.N++; return nil })
					}
					var lost *pawl.ConcurrentModificationError
					if errors.As(err, &lost) {
						crashtest.Say("lost")
						continue
					}
					if err != nil {
						errs[i] = err
						return
					}
					n++
					crashtest.Say("%d %d", snap.ReadOnly().N, snap.Version)
					time.Sleep(rand.N(2 * incrementWriters * time.Millisecond)) // think, so that others come in between
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	})
}

// TestProcessesShareACounter: three processes with four writers each add to one scope, and one answer of the store in twenty is lost. Every
// addition counts once, and every answer has a version of its own, whoever it was given to.
//
// Proves CAS-1, CAS-5, CAS-6, CAS-7.
func TestProcessesShareACounter(t *testing.T) { onSharedStores(t, testProcessesShareACounter) }

func testProcessesShareACounter(t *testing.T, location string) {
	var processes []*crashtest.Child
	for range incrementProcesses {
		processes = append(processes, crashtest.Start(t, "increment", processStore+"="+location, processFlaky+"=0.05"))
	}
	crashtest.Ready(processes...)
	const want = incrementProcesses * incrementWriters * incrementsEach
	answered := map[uint64]int{} // by version, which process
	lost := 0
	for i, p := range processes {
		before := uint64(0)
		for _, line := range p.Wait() {
			if line == "lost" {
				lost++
				continue
			}
			var value, version uint64
			_, err := fmt.Sscan(line, &value, &version)
			require.NoError(t, err, line)
			require.Equal(t, version, value, "the answer is not the state at its version")
			if other, twice := answered[version]; twice {
				t.Fatalf("version %d was given to process %d and to process %d", version, other, i)
			}
			answered[version] = i
			before = max(before, version)
		}
		require.NotZero(t, before, "process %d added nothing", i)
	}
	require.Len(t, answered, want)
	rt, store, err := openProcessStore(location)
	require.NoError(t, err)
	snap, err := pawl.Session[processTally](rt, "shared").Snapshot(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, want, snap.Version)
	require.EqualValues(t, want, snap.ReadOnly().N)
	require.GreaterOrEqual(t, processTurns(answered), incrementProcesses, "the processes never met")
	t.Logf("%d increments, the lead changed between processes %d times, %d budgets were spent", want, processTurns(answered), lost)
	require.NoError(t, rt.Close(t.Context()))
	require.NoError(t, store.Close())
}

// processTurns counts how often successive versions belong to different processes.
func processTurns(owner map[uint64]int) (n int) {
	for version, who := range owner {
		if next, ok := owner[version+1]; ok && next != who {
			n++
		}
	}
	return n
}

// TestRivalThatIsAlwaysFaster: a process whose rival commits again whenever it is about to, and knows what is current sooner, has its turn,
// in which the rival waits for it.
//
// Proves CAS-1, CAS-6.
func TestRivalThatIsAlwaysFaster(t *testing.T) {
	location := pgtest.URL(t)
	var rivals sync.WaitGroup
	defer rivals.Wait()
	rival := pawl.Session[counts](openRuntime(t, pawl.Config{Store: openFor(t, location)}), "s")
	seed(t, rival, counts{})
	store := &tap{Store: openFor(t, location)}
	s := pawl.Session[counts](openRuntime(t, pawl.Config{Store: store}), "s")
	var commits, turns atomic.Int64
	held := false
	commit := func() {
		_, err := rival.IncState(context.Background(), "n", 1)
		assert.NoError(t, err)
		commits.Add(1)
	}
	store.onCommit(func(context.Context, persist.Commit) error {
		if held {
			rivals.Go(commit) // it is on its way when ours is
		} else {
			commit()
		}
		return nil
	})
	store.onCommitted(func(at time.Time, err error) (time.Time, error) {
		var lost *persist.Conflict
		if held = errors.As(err, &lost) && lost.Held; held {
			turns.Add(1)
		}
		return at, err
	})
	_, err := s.IncState(t.Context(), "n", 1)
	require.NoError(t, err)
	require.NotZero(t, turns.Load())
	rivals.Wait()
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1+commits.Load(), snap.State().N)
}

// TestWhoDoesNotInsist: nothing is held for a call that would not come back for it in time: one that may lose no more, and one whose function is slow.
//
// Proves CAS-1, CAS-11.
func TestWhoDoesNotInsist(t *testing.T) {
	location := pgtest.URL(t)
	rival := pawl.Session[counts](openRuntime(t, pawl.Config{Store: openFor(t, location)}), "s")
	seed(t, rival, counts{})
	store := &tap{Store: openFor(t, location)}
	s := pawl.Session[counts](openRuntime(t, pawl.Config{Store: store}), "s")
	var insisted []bool
	store.onCommit(func(_ context.Context, c persist.Commit) error {
		insisted = append(insisted, c.Insist)
		_, err := rival.IncState(context.Background(), "n", 1)
		return err
	})
	var spent *pawl.ConcurrentModificationError
	_, err := s.IncState(t.Context(), "n", 1, pawl.WithRetry(pawl.Retry{Attempts: 3}))
	require.ErrorAs(t, err, &spent)
	require.Equal(t, []bool{false, true, false}, insisted[len(insisted)-3:])
	insisted = nil
	_, err = s.AtomicState(t.Context(), func(_ context.Context, c *counts) error {
		time.Sleep(20 * time.Millisecond) // twice as long as a round waits
		c.N++
		return nil
	}, pawl.WithRetry(pawl.Retry{Attempts: 4}))
	require.ErrorAs(t, err, &spent)
	require.NotContains(t, insisted, true)
}
