package soak_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

const (
	overloadQueue   = 8   // Config.MaxQueue
	overloadCallers = 300 // at once
	overloadLeaving = 3   // waiters that leave
)

// hits is the state that overloaded callers change.
type hits struct {
	N int64 `json:"n"`
}

var hitsKind = pawl.Kind[hits]{Name: "hits"}

// answers collects the answers of calls.
type answers struct {
	all                           sync.WaitGroup
	acked, refused, left, unknown atomic.Int64
	mu                            sync.Mutex // protects strange
	strange                       []error
}

// call makes one call on a goroutine of its own.
func (a *answers) call(ctx context.Context, scope pawl.Scope[hits]) {
	a.all.Go(func() { a.note(inc(ctx, scope)) })
}

func inc(ctx context.Context, scope pawl.Scope[hits]) error {
	_, err := scope.IncState(ctx, "n", 1)
	return err
}

// note counts one answer.
func (a *answers) note(err error) {
	var overloaded *pawl.OverloadedError
	switch {
	case err == nil:
		a.acked.Add(1)
	case errors.As(err, &overloaded) && overloaded.Queue >= overloadQueue && pawl.IsRetryable(err):
		a.refused.Add(1)
	case pawl.OutcomeUnknown(err):
		a.unknown.Add(1)
	case errors.Is(err, context.Canceled):
		a.left.Add(1)
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.strange = append(a.strange, err)
	}
}

// Many callers more than the queue of a scope takes get *pawl.OverloadedError while the store does
// not answer. A waiter that leaves makes room for another one. No acknowledged change is lost, none
// of a refused call is there, and as soon as the store answers again, calls succeed.
func TestOverload(t *testing.T) {
	for _, s := range []stores.Store{stores.SQLite, stores.Postgres} {
		t.Run(s.Name, func(t *testing.T) {
			stores.Need(t, s.Name)
			location := s.New(t)
			tap := &stores.Tap{Store: stores.OpenFor(t, location)}
			rt := overloadRuntime(t, tap)
			scope, other := hitsKind.Scope(rt, "hot"), hitsKind.Scope(rt, "other")
			var a answers

			// The first call is in a commit that the store does not answer. All others come later.
			entered, release := holdCommits(tap, scope.Key())
			a.call(t.Context(), scope)
			testkit.Receive(t, entered, "the commit of the first call")
			leaving, leave := context.WithCancel(t.Context())
			defer leave()
			for range overloadLeaving {
				a.call(leaving, scope)
			}
			testkit.Eventually(t, func() bool { return waiting(rt) == overloadLeaving }, "the first waiters")
			for range overloadCallers {
				a.call(t.Context(), scope)
			}
			const refused = overloadCallers - (overloadQueue - overloadLeaving)
			testkit.Eventually(t, func() bool { return a.refused.Load() == refused }, "callers are refused while the store does not answer")
			require.Equal(t, overloadQueue, waiting(rt))
			require.NoError(t, inc(t.Context(), other), "another scope is not concerned")

			leave()
			testkit.Eventually(t, func() bool { return a.left.Load() == overloadLeaving })
			for range overloadLeaving + 1 { // there is room for all of them but one
				a.call(t.Context(), scope)
			}
			testkit.Eventually(t, func() bool { return a.refused.Load() == refused+1 })
			require.Zero(t, a.acked.Load())
			release()
			a.all.Wait()
			require.Empty(t, a.strange)
			require.EqualValues(t, 1+overloadQueue, a.acked.Load())
			require.EqualValues(t, 1+overloadQueue, hitsOf(t, location, "hot"))

			burst := overloadBurst(t, location, rt)
			require.NoError(t, inc(t.Context(), scope))
			require.EqualValues(t, 2+overloadQueue, hitsOf(t, location, "hot"))
			testkit.Figures(t, "queue of %d: %d callers at once, %d refused; then %d calls of two runtimes, %d refused, %d acknowledged",
				overloadQueue, overloadCallers+overloadLeaving+2, refused+1,
				burst.acked.Load()+burst.refused.Load(), burst.refused.Load(), burst.acked.Load())
		})
	}
}

// holdCommits blocks the commits to one scope until release is called. entered gets a value when the
// first one has arrived.
func holdCommits(tap *stores.Tap, key pawl.Key) (entered <-chan struct{}, release func()) {
	in, out := make(chan struct{}, 1), make(chan struct{})
	tap.OnCommit(func(_ context.Context, c persist.Commit) error {
		if len(c.Writes) == 0 || c.Writes[0].Key != key {
			return nil
		}
		select {
		case in <- struct{}{}:
		default:
		}
		<-out
		return nil
	})
	return in, func() { close(out) }
}

// overloadBurst lets the callers of two runtimes change one scope as fast as they can, each until it
// has as many answers as it wants. A refused caller calls again.
func overloadBurst(t *testing.T, location string, first *pawl.Runtime) *answers {
	t.Helper()
	const callers, calls = 40, 5
	second := overloadRuntime(t, stores.OpenFor(t, location))
	var a answers
	for _, rt := range []*pawl.Runtime{first, second} {
		scope := hitsKind.Scope(rt, "burst")
		for range callers {
			a.all.Go(func() {
				for n := 0; n < calls; {
					err := inc(context.Background(), scope)
					if a.note(err); !errors.Is(err, pawl.ErrOverloaded) {
						n++
						continue
					}
					time.Sleep(rand.N(5 * time.Millisecond)) // the client backs off
				}
			})
		}
	}
	a.all.Wait()
	require.Empty(t, a.strange)
	require.Positive(t, a.refused.Load())
	require.EqualValues(t, 2*callers*calls, a.acked.Load()+a.unknown.Load())
	n := hitsOf(t, location, "burst")
	require.GreaterOrEqual(t, n, a.acked.Load(), "acknowledged changes are there")
	require.LessOrEqual(t, n, a.acked.Load()+a.unknown.Load(), "refused changes are not there")
	for _, rt := range []*pawl.Runtime{first, second} {
		testkit.Eventually(t, func() bool { return len(rt.Stats().Queues) == 0 }, "all queues are empty")
		require.NoError(t, inc(t.Context(), hitsKind.Scope(rt, "burst")), "calls succeed again")
	}
	return &a
}

// overloadRuntime returns a runtime with short queues.
func overloadRuntime(t *testing.T, store persist.Store) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store, MaxQueue: overloadQueue, Logger: quiet, Retry: pawl.Retry{Attempts: 1000}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(testkit.Within(t, testkit.Patience))) })
	return rt
}

// waiting returns how many mutations wait in all queues.
func waiting(rt *pawl.Runtime) (n int) {
	for _, q := range rt.Stats().Queues {
		n += q.Waiting
	}
	return n
}

// hitsOf returns how many changes of a scope the store has, as another process sees it.
func hitsOf(t *testing.T, location, id string) int64 {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: stores.OpenFor(t, location), Logger: quiet})
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Close(context.Background())) }()
	h, err := hitsKind.Scope(rt, id).State(t.Context())
	require.NoError(t, err)
	return h.N
}
