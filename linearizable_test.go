package pawl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

func init() { testkit.Child("history", historyChild) }

const (
	histGoroutines = 8
	histKeys       = 4
	histOps        = 2000 // per history
)

func memoryScope(rt *pawl.Runtime, id string) pawl.Scope[histState] {
	return pawl.Memory[histState](rt, id)
}
func storedScope(rt *pawl.Runtime, id string) pawl.Scope[histState] {
	return pawl.Session[histState](rt, id)
}

// delayedStore delays commits before and after the write, as a network does. Without a delay hardly
// any caller would leave during a commit.
type delayedStore struct{ persist.Store }

func (s delayedStore) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	time.Sleep(rand.N(100 * time.Microsecond))
	at, err := s.Store.Commit(ctx, c)
	time.Sleep(rand.N(100 * time.Microsecond))
	return at, err
}

// histories records and checks count histories, whose clients are spread over the runtimes.
func histories(t *testing.T, count, runtimes int, store persist.Store, hurried time.Duration, open func(*pawl.Runtime, string) pawl.Scope[histState]) histFigures {
	var rts []*pawl.Runtime
	for range runtimes {
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		rts = append(rts, rt)
	}
	var sum histFigures
	for n := range count {
		h := histClients{scopes: histScopes(histGoroutines, histKeys, strconv.Itoa(n), open, rts...), each: histOps / histGoroutines, seed: rand.Uint64(), hurried: hurried}
		require.NoError(t, h.run())
		ops, withdrawn := h.finish(t)
		f := checkHistory(t, ops)
		f.withdrawn = withdrawn
		sum.add(f)
	}
	for _, rt := range rts {
		require.NoError(t, rt.Close(t.Context()))
	}
	testkit.Figures(t, "%v", sum)
	return sum
}

// requireVaried requires that histories contain enough concurrency and failures to mean something.
func requireVaried(t *testing.T, f histFigures) {
	t.Helper()
	require.Greater(t, f.overlapping, f.ops/20, "hardly any operations overlap")
	require.Greater(t, f.unknown, f.histories, "hardly any caller left without an answer")
	require.Greater(t, f.withdrawn, f.histories, "hardly any operation was withdrawn")
	require.Greater(t, f.conflicts, f.histories, "hardly any version condition failed")
	require.Greater(t, f.ops+f.withdrawn, f.histories*histOps*9/10, "the histories are too short")
}

// Histories of in-memory scopes are linearizable, even when callers leave. A withdrawn operation
// has not happened; any other operation without an answer may have.
//
// Proves LOCK-2, LOCK-7, LOCK-8, SCOPE-4.
func TestMemoryHistoriesAreLinearizable(t *testing.T) {
	requireVaried(t, histories(t, testkit.Times(20, 20, "PAWL_HISTORIES"), 1, nil, 20*time.Microsecond, memoryScope))
}

// Histories of persisted scopes are linearizable, with one runtime and with two that compete.
//
// Proves CAS-4, CAS-5, CAS-9, SCOPE-17.
func TestStoredHistoriesAreLinearizable(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		requireVaried(t, histories(t, testkit.Times(12, 4, "PAWL_HISTORIES"), 1, delayedStore{memory.New()}, 300*time.Microsecond, storedScope))
	})
	t.Run("two runtimes", func(t *testing.T) {
		requireVaried(t, histories(t, testkit.Times(12, 4, "PAWL_HISTORIES"), 2, delayedStore{memory.New()}, 300*time.Microsecond, storedScope))
	})
	stores.EachShared(t, func(t *testing.T, location string) {
		requireVaried(t, histories(t, testkit.Times(6, 2, "PAWL_HISTORIES"), 1, stores.OpenFor(t, location), 3*time.Millisecond, storedScope))
	})
}

const (
	histProcesses   = 3
	histOfProcesses = 2 // histories per store
	histSeed        = "PAWL_TEST_SEED"
	histFirst       = "PAWL_TEST_CLIENT"
)

// historyChild runs the clients of one process and reports their operations.
func historyChild() error {
	return processChild(func(ctx context.Context, rt *pawl.Runtime) error {
		seed, err := strconv.ParseUint(os.Getenv(histSeed), 10, 64)
		if err != nil {
			return err
		}
		first, err := strconv.Atoi(os.Getenv(histFirst))
		if err != nil {
			return err
		}
		const clients = 4
		h := histClients{scopes: histScopes(clients, histKeys, "shared", storedScope, rt), each: histOps / histProcesses / clients, first: first, seed: seed, hurried: 3 * time.Millisecond}
		if err := h.run(); err != nil {
			return err
		}
		for _, op := range h.ops {
			line, err := json.Marshal(op)
			if err != nil {
				return err
			}
			testkit.Say("%s", line)
		}
		testkit.Say("withdrawn %d", h.withdrawn)
		return nil
	})
}

// Histories of three processes on one store are linearizable by a clock that they share, while one
// store answer in twenty is lost.
//
// Proves SCOPE-17, STORE-3, CAS-6, CAS-7.
func TestHistoriesOfProcessesAreLinearizable(t *testing.T) {
	for _, s := range stores.Shared {
		t.Run(s.Name, func(t *testing.T) { testHistoriesOfProcesses(t, s) })
	}
}

func testHistoriesOfProcesses(t *testing.T, s stores.Store) {
	var sum histFigures
	for range testkit.Times(histOfProcesses, 1, "PAWL_HISTORIES") {
		location := s.New(t)
		var processes []*testkit.Process
		for i := range histProcesses {
			processes = append(processes, testkit.Start(t, "history", stores.Env(location), processFlaky+"=0.05", fmt.Sprintf("%s=%d", histSeed, rand.Uint64()), fmt.Sprintf("%s=%d", histFirst, i*100)))
		}
		testkit.Ready(processes...)
		var ops []histOp
		withdrawn := 0
		for _, p := range processes {
			lines := p.Wait()
			require.NotEmpty(t, lines)
			last := len(lines) - 1
			own := 0
			_, err := fmt.Sscanf(lines[last], "withdrawn %d", &own)
			require.NoError(t, err)
			withdrawn += own
			for _, line := range lines[:last] {
				var op histOp
				require.NoError(t, json.Unmarshal([]byte(line), &op))
				ops = append(ops, op)
			}
		}
		f := checkHistory(t, ops)
		f.withdrawn = withdrawn
		sum.add(f)
	}
	testkit.Figures(t, "%v", sum)
	requireVaried(t, sum)
}
