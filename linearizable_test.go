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
	histOps        = 2000 // of a history
)

func memoryScope(rt *pawl.Runtime, id string) pawl.Scope[histState] {
	return pawl.Memory[histState](rt, id)
}
func storedScope(rt *pawl.Runtime, id string) pawl.Scope[histState] {
	return pawl.Session[histState](rt, id)
}

// leisurelyStore takes its time before and after a commit, as a store across a network does: memory alone is so quick that nobody
// would ever leave in between.
type leisurelyStore struct{ persist.Store }

func (s leisurelyStore) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	time.Sleep(rand.N(100 * time.Microsecond))
	at, err := s.Store.Commit(ctx, c)
	time.Sleep(rand.N(100 * time.Microsecond))
	return at, err
}

// histories records and checks several histories, the clients spread over so many runtimes.
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
	t.Logf("%+v", sum)
	return sum
}

// requireLively requires that histories contain what they are to be judged by.
func requireLively(t *testing.T, f histFigures) {
	t.Helper()
	require.Greater(t, f.overlapping, f.ops/20, "hardly any operations overlap")
	require.Greater(t, f.unknown, f.histories, "hardly any caller left without an answer")
	require.Greater(t, f.withdrawn, f.histories, "hardly any operation was withdrawn")
	require.Greater(t, f.conflicts, f.histories, "hardly any pinned version had moved")
	require.Greater(t, f.ops+f.withdrawn, f.histories*histOps*9/10, "the histories are short")
}

// TestMemoryHistoriesAreLinearizable: whatever eight goroutines are told about in-memory scopes can be explained by one order of their
// operations, also where callers leave: a withdrawn one has not happened, another one that left may have.
//
// Proves LOCK-2, LOCK-7, LOCK-8, SCOPE-4.
func TestMemoryHistoriesAreLinearizable(t *testing.T) {
	requireLively(t, histories(t, 20, 1, nil, 20*time.Microsecond, memoryScope))
}

// TestStoredHistoriesAreLinearizable: the same for persisted scopes, in one runtime and with several that compete.
//
// Proves CAS-4, CAS-5, CAS-9, SCOPE-17.
func TestStoredHistoriesAreLinearizable(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		requireLively(t, histories(t, testkit.Times(12, 4), 1, leisurelyStore{memory.New()}, 300*time.Microsecond, storedScope))
	})
	t.Run("two runtimes", func(t *testing.T) {
		requireLively(t, histories(t, testkit.Times(12, 4), 2, leisurelyStore{memory.New()}, 300*time.Microsecond, storedScope))
	})
	stores.EachShared(t, func(t *testing.T, location string) {
		requireLively(t, histories(t, testkit.Times(6, 2), 1, stores.OpenFor(t, location), 3*time.Millisecond, storedScope))
	})
}

const (
	histProcesses   = 3
	histOfProcesses = 2 // histories
	histSeed        = "PAWL_TEST_SEED"
	histFirst       = "PAWL_TEST_CLIENT"
)

// historyChild does its part of the histories and says what it did.
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

// TestHistoriesOfProcessesAreLinearizable: the same for three processes on one store, by a clock that they share. One answer of the store in
// twenty is lost.
//
// Proves SCOPE-17, STORE-3, CAS-6, CAS-7.
func TestHistoriesOfProcessesAreLinearizable(t *testing.T) {
	for _, s := range stores.Shared {
		t.Run(s.Name, func(t *testing.T) { testHistoriesOfProcesses(t, s) })
	}
}

func testHistoriesOfProcesses(t *testing.T, s stores.Store) {
	var sum histFigures
	for range histOfProcesses {
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
	t.Logf("%+v", sum)
	requireLively(t, sum)
}
