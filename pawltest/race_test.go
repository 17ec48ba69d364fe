package pawltest_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/pawltest"
)

// Writers of two runtimes lose nothing, whatever the store does to their commits.
func TestRace(t *testing.T) {
	store := pawltest.NewStore()
	scopes := []pawl.Scope[counter]{created(t, open(t, store)), counters.Scope(open(t, store), "a")}
	for n := 1; n < 200; n += 9 {
		store.Nth(n, pawltest.Conflict)
		store.Nth(n+3, pawltest.LostAnswer)
		store.Nth(n+6, pawltest.LostRequest)
	}
	pawltest.Race(t, 8, func(ctx context.Context, writer int) (acknowledged int, err error) {
		for ; acknowledged < 50; acknowledged++ {
			if _, err := add(ctx, scopes[writer%2]); err != nil {
				return acknowledged, err
			}
		}
		return acknowledged, nil
	}, count(scopes[0]))
}

// Get-then-set loses updates, and Race says how many. All writers read before one of them writes,
// so that the test does not depend on timing.
func TestRaceFindsLostUpdates(t *testing.T) {
	const writers = 8
	scope := created(t, open(t, pawltest.NewStore()))
	var haveRead sync.WaitGroup
	haveRead.Add(writers)
	getThenSet := func(ctx context.Context, _ int) (int, error) {
		c, err := scope.State(ctx)
		haveRead.Done()
		if err != nil {
			return 0, err
		}
		haveRead.Wait()
		c.N++
		_, err = scope.SetState(ctx, c)
		return 1, err
	}
	fails(t, "7 of 8 acknowledged updates are lost", func(t testing.TB) { pawltest.Race(t, writers, getThenSet, count(scope)) })
}

func TestRaceFails(t *testing.T) {
	scope := created(t, open(t, pawltest.NewStore()))
	broken := errors.New("broken")
	write := func(by int64, acknowledged int, err error) func(context.Context, int) (int, error) {
		return func(ctx context.Context, _ int) (int, error) {
			if _, err := scope.IncState(ctx, "n", by); err != nil {
				return 0, err
			}
			return acknowledged, err
		}
	}
	for message, f := range map[string]func(t testing.TB){
		"4 updates are there, but only 2 were acknowledged": func(t testing.TB) { pawltest.Race(t, 2, write(2, 1, nil), count(scope)) },
		"2 of 4 acknowledged updates are lost":              func(t testing.TB) { pawltest.Race(t, 2, write(1, 2, nil), count(scope)) },
		"no update was acknowledged":                        func(t testing.TB) { pawltest.Race(t, 2, write(0, 0, nil), count(scope)) },
		"writer 0: broken":                                  func(t testing.TB) { pawltest.Race(t, 1, write(1, 1, broken), count(scope)) },
		"writer 0 ended without an answer": func(t testing.TB) {
			pawltest.Race(t, 1, func(context.Context, int) (int, error) { runtime.Goexit(); return 0, nil }, count(scope))
		},
		"count before the race: broken": func(t testing.TB) {
			pawltest.Race(t, 1, write(1, 1, nil), func(context.Context) (int, error) { return 0, broken })
		},
		"count after the race: broken": func(t testing.TB) {
			calls := 0
			pawltest.Race(t, 1, write(1, 1, nil), func(context.Context) (int, error) {
				if calls++; calls == 2 {
					return 0, broken
				}
				return 0, nil
			})
		},
	} {
		t.Run(message, func(t *testing.T) { fails(t, message, f) })
	}
}

// All writers run at the same time: each waits for the others.
func TestRaceRunsWritersTogether(t *testing.T) {
	scope := created(t, open(t, pawltest.NewStore()))
	var running sync.WaitGroup
	running.Add(5)
	seen := make([]bool, 5)
	pawltest.Race(t, 5, func(ctx context.Context, writer int) (int, error) {
		running.Done()
		running.Wait()
		seen[writer] = true
		_, err := scope.IncState(ctx, "n", 1)
		return 1, err
	}, count(scope))
	require.Equal(t, []bool{true, true, true, true, true}, seen)
}
