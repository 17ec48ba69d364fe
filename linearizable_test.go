package pawl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/crashtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func init() { children["history"] = historyChild }

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
		requireLively(t, histories(t, some(12), 1, leisurelyStore{memory.New()}, 300*time.Microsecond, storedScope))
	})
	t.Run("two runtimes", func(t *testing.T) {
		requireLively(t, histories(t, some(12), 2, leisurelyStore{memory.New()}, 300*time.Microsecond, storedScope))
	})
	onSharedStores(t, func(t *testing.T, location string) {
		requireLively(t, histories(t, some(6), 1, openFor(t, location), 3*time.Millisecond, storedScope))
	})
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

const (
	histProcesses   = 3
	histOfProcesses = 2 // histories
	histSeed        = "PAWL_TEST_SEED"
	histFirst       = "PAWL_TEST_CLIENT"
)

// historyChild does its part of the histories and says what it did.
func historyChild() int {
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
			crashtest.Say("%s", line)
		}
		crashtest.Say("withdrawn %d", h.withdrawn)
		return nil
	})
}

// TestHistoriesOfProcessesAreLinearizable: the same for three processes on one store, by a clock that they share. One answer of the store in
// twenty is lost.
//
// Proves SCOPE-17, STORE-3, CAS-6, CAS-7.
func TestHistoriesOfProcessesAreLinearizable(t *testing.T) {
	for _, s := range sharedStores {
		t.Run(s.name, func(t *testing.T) { testHistoriesOfProcesses(t, s) })
	}
}

func testHistoriesOfProcesses(t *testing.T, s sharedStore) {
	var sum histFigures
	for range histOfProcesses {
		location := s.location(t)
		var processes []*crashtest.Child
		for i := range histProcesses {
			processes = append(processes, crashtest.Start(t, "history", processStore+"="+location, processFlaky+"=0.05", fmt.Sprintf("%s=%d", histSeed, rand.Uint64()), fmt.Sprintf("%s=%d", histFirst, i*100)))
		}
		crashtest.Ready(processes...)
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

// TestPanicOnAStaleStateIsNoAnswer: a mutator that panicked on a state that was not current any more is not what its caller hears of; on the
// current one it is not even run.
//
// Proves CAS-4, SCOPE-12.
func TestPanicOnAStaleStateIsNoAnswer(t *testing.T) {
	store := memory.New()
	here, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	there, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	stale := storedScope(here, "x")
	_, err = stale.Snapshot(t.Context())
	require.NoError(t, err)
	_, err = storedScope(there, "x").IncState(t.Context(), "n", 1)
	require.NoError(t, err)
	require.NotPanics(t, func() {
		_, err = stale.AtomicState(t.Context(), func(context.Context, *histState) error { panic("stale") }, pawl.IfAbsent())
	})
	require.ErrorIs(t, err, pawl.ErrExists)
	require.NoError(t, here.Close(t.Context()))
	require.NoError(t, there.Close(t.Context()))
}

// scriptedStore calls a function before each commit, with its number.
type scriptedStore struct {
	persist.Store
	before  func(n int64)
	commits atomic.Int64
}

func (s *scriptedStore) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	s.before(s.commits.Add(1))
	return s.Store.Commit(ctx, c)
}

// TestSharedCommitThatLosesKeepsItsOrder: a deletion and a creation that waits behind it share a commit, which loses to another runtime. The
// creation still comes after the deletion, and is not refused by what was there before.
//
// Proves CAS-4.
func TestSharedCommitThatLosesKeepsItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, gate := t.Context(), make(chan struct{})
		inner := memory.New()
		there, err := pawl.Open(pawl.Config{Store: inner})
		require.NoError(t, err)
		store := &scriptedStore{Store: inner, before: func(n int64) {
			switch n {
			case 1: // the others queue up behind the first
				<-gate
			case 2:
				_, err := storedScope(there, "x").IncState(ctx, "n", 1)
				assert.NoError(t, err)
			}
		}}
		here, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		scope := storedScope(here, "x")
		var created pawl.Snapshot[histState]
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := scope.IncState(ctx, "n", 1)
			assert.NoError(t, err)
		})
		synctest.Wait()
		wg.Go(func() { assert.NoError(t, scope.Delete(ctx)) })
		synctest.Wait()
		wg.Go(func() {
			var err error
			created, err = scope.IncState(ctx, "n", 10, pawl.IfAbsent())
			assert.NoError(t, err)
		})
		synctest.Wait()
		close(gate)
		wg.Wait()
		require.EqualValues(t, 4, created.Version, "two increments, a deletion, a creation")
		require.EqualValues(t, 10, created.State().N)
		require.EqualValues(t, 3, store.commits.Load(), "the deletion and the creation shared a commit, which lost once")
		require.NoError(t, here.Close(ctx))
		require.NoError(t, there.Close(ctx))
	})
}
