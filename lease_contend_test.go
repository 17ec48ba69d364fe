package pawl_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func init() { testkit.Child("contend", contendChild) }

const (
	contendProcesses = 3
	contenders       = 34 // per process
	contendTurns     = 3  // per contender
	// contendWork is how long a turn lasts at least. All turns of a process take several times as long
	// as a process keeps a lease from others.
	contendWork = 30 * time.Millisecond
)

// logbook is a state that holders write their tokens to.
type logbook struct {
	Token uint64   `json:"token"`
	Turns int      `json:"turns"`
	Log   []string `json:"log"`
}

var logbooks = pawl.Kind[logbook]{Name: "logbook"}

// contendChild acquires the lease again and again, and reports the token, the begin and the end of
// each turn.
func contendChild() error {
	return processChild(func(ctx context.Context, rt *pawl.Runtime) error {
		lock, book := logbooks.Scope(rt, "lock"), logbooks.Scope(rt, "book")
		turn := func(ctx context.Context, l *pawl.Lease) error {
			began := testkit.Now()
			_, err := book.AtomicState(ctx, func(_ context.Context, b *logbook) error {
				if b.Token >= l.Token() {
					return fmt.Errorf("token %d after %d", l.Token(), b.Token)
				}
				b.Token = l.Token()
				b.Turns++
				return nil
			})
			time.Sleep(contendWork)
			testkit.Say("%d %d %d", l.Token(), began, testkit.Now())
			return err
		}
		var g errgroup.Group
		for range contenders {
			g.Go(func() error {
				for range contendTurns {
					if err := lock.Hold(ctx, turn, pawl.WaitForLease()); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return g.Wait()
	})
}

// Of a hundred contenders in three processes, at most one holds the lease at any time. Tokens grow,
// and no process waits until another is done.
//
// Proves STORE-13.
func TestContendersHoldInTurn(t *testing.T) {
	for _, s := range stores.Shared {
		t.Run(s.Name, func(t *testing.T) {
			location := s.New(t)
			t.Parallel()
			testContenders(t, location)
		})
	}
}

type contendTurn struct {
	process      int
	token        uint64
	began, ended int64
}

func testContenders(t *testing.T, location string) {
	store := stores.OpenFor(t, location) // creates the store before the processes open it
	var processes []*testkit.Process
	for range contendProcesses {
		processes = append(processes, testkit.Start(t, "contend", stores.Env(location)))
	}
	testkit.Ready(processes...)
	var turns []contendTurn
	first, last := make([]int64, contendProcesses), make([]int64, contendProcesses)
	for i, p := range processes {
		for _, line := range p.Wait() {
			turn := contendTurn{process: i}
			_, err := fmt.Sscan(line, &turn.token, &turn.began, &turn.ended)
			require.NoError(t, err, line)
			turns = append(turns, turn)
			if first[i] == 0 || turn.began < first[i] {
				first[i] = turn.began
			}
			last[i] = max(last[i], turn.ended)
		}
	}
	const want = contendProcesses * contenders * contendTurns
	require.Len(t, turns, want)
	slices.SortFunc(turns, func(a, b contendTurn) int { return int(a.began - b.began) })
	handovers, idle := 0, int64(0)
	for i, turn := range turns[1:] {
		before := turns[i]
		require.Less(t, before.ended, turn.began, "two holders at the same time: %+v, %+v", before, turn)
		require.Less(t, before.token, turn.token)
		if before.process != turn.process {
			handovers++
		}
		idle = max(idle, turn.began-before.ended)
	}
	if _, hints := store.(persist.Watcher); hints { // without hints, a process that polls is at a disadvantage
		require.Less(t, slices.Max(first), slices.Min(last), "one process waited until another had finished all its turns")
	}
	rt := openRuntime(t, pawl.Config{Store: store})
	book, err := logbooks.Scope(rt, "book").State(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, book.Turns)
	require.Equal(t, turns[want-1].token, book.Token)
	t.Logf("%d turns in %v, %d changes of process, at most %v between two turns", want,
		time.Duration(turns[want-1].ended-turns[0].began), handovers, time.Duration(idle))
}
