package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/require"
)

func init() { testkit.Child("increment", incrementChild) }

const (
	incrementProcesses = 3
	incrementWriters   = 4
	incrementsEach     = 50
)

type processTally struct {
	N int64 `json:"n"`
}

// incrementChild adds to the shared counter and reports each answer. A spent budget promises that
// nothing was added, so the child reports "lost" and tries again.
func incrementChild() error {
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
						testkit.Say("lost")
						continue
					}
					if err != nil {
						errs[i] = err
						return
					}
					n++
					testkit.Say("%d %d", snap.ReadOnly().N, snap.Version)
					time.Sleep(rand.N(2 * incrementWriters * time.Millisecond)) // lets other writers in between
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	})
}

// Three processes add to one scope while one store answer in twenty is lost. Each addition counts
// once, and no two answers have the same version.
//
// Proves CAS-1, CAS-5, CAS-6, CAS-7.
func TestProcessesShareACounter(t *testing.T) {
	for _, s := range stores.Shared {
		t.Run(s.Name, func(t *testing.T) {
			for range 5 { // on a busy machine they may follow each other
				if shareACounter(t, s.New(t)) >= incrementProcesses {
					return
				}
			}
			t.Fatal("the processes did not compete")
		})
	}
}

// shareACounter returns how often successive versions belong to different processes.
func shareACounter(t *testing.T, location string) int {
	var processes []*testkit.Process
	for range incrementProcesses {
		processes = append(processes, testkit.Start(t, "increment", stores.Env(location), processFlaky+"=0.05"))
	}
	testkit.Ready(processes...)
	const want = incrementProcesses * incrementWriters * incrementsEach
	answered := map[uint64]int{} // process by version
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
			require.Equal(t, version, value, "the answer does not match its version")
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
	t.Logf("%d increments, %d times in a row from different processes, %d budgets spent", want, processTurns(answered), lost)
	require.NoError(t, rt.Close(t.Context()))
	require.NoError(t, store.Close())
	return processTurns(answered)
}

// processTurns counts how often successive versions belong to different processes.
func processTurns(owner map[uint64]int) (n int) {
	for version, process := range owner {
		if next, ok := owner[version+1]; ok && next != process {
			n++
		}
	}
	return n
}
