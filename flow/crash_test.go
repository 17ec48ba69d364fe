//go:build unix

package flow_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

func init() {
	testkit.Child("victim", victim)
	testkit.Child("crowd", crowd)
	testkit.Child("caller", caller)
	testkit.Child("sleeper", sleeper)
}

const (
	whichCall = "PAWL_TEST_CALL"
	killPoint = "PAWL_TEST_KILL" // number of the commit: negative kills before it, positive after it
)

// crashLease is short to keep these tests short.
const crashLease = time.Second

// process holds a child's flow, its runtime and the store that the parent named.
type process struct {
	*flow.Flow
	rt    *pawl.Runtime
	store *stores.Tap
}

func startProcess(lease time.Duration) (*process, error) {
	store, err := stores.OpenGiven()
	if err != nil {
		return nil, err
	}
	p := &process{store: &stores.Tap{Store: store}}
	if p.rt, err = pawl.Open(pawl.Config{Store: p.store}); err != nil {
		return nil, err
	}
	p.Flow, err = flow.New(p.rt, flow.Config{Kind: "chat", Admit: flow.Queue, Lease: lease})
	return p, err
}

func (p *process) stop() error {
	ctx := context.Background()
	return errors.Join(p.Stop(ctx), p.rt.Close(ctx), p.store.Close())
}

func kill() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }

// victim makes one call and kills its process before or after the given commit.
func victim() error {
	p, err := startProcess(crashLease)
	if err != nil {
		return err
	}
	at, err := strconv.ParseInt(os.Getenv(killPoint), 10, 64)
	if err != nil {
		return err
	}
	var n atomic.Int64 // commits that write; renewals do not, and come as time passes
	p.store.OnCommit(func(_ context.Context, c persist.Commit) error {
		if len(c.Writes) > 0 && n.Add(1) == -at {
			kill()
		}
		return nil
	})
	p.store.OnCommitted(func(c persist.Commit, t time.Time, err error) (time.Time, error) {
		if len(c.Writes) > 0 && n.Load() == at {
			kill()
		}
		return t, err
	})
	a := flow.Define(p.Flow, "a", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
		_, err := session(c, c.Session).PushState(ctx, "log", "victim")
		return "", err
	})
	id := os.Getenv(whichCall)
	testkit.Begin()
	_, err = a.Do(context.Background(), flow.IDs{Request: id, Session: id}, "")
	return errors.Join(errors.New("the process should have been killed"), err)
}

// A process is killed before and after each commit of a call. The next call, in another process,
// waits for at most the lease and 2 s. Nothing of the dead call is left, and its request id can be
// used again. Proves FLOW-4.
func TestKilledAtEveryStep(t *testing.T) {
	points := []int{-1, 1, -2, 2, -3, 3, -4, 4} // the record, the ticket, the action's write, the end
	onSharedStores(t, func(t *testing.T, s site) {
		f, rt := s.flow(t, flow.Config{Admit: flow.Queue, Lease: crashLease})
		a := flow.Define(f, "a", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
			_, err := session(c, c.Session).PushState(ctx, "log", "next")
			return "", err
		})
		var victims []*testkit.Process
		for _, p := range points {
			victims = append(victims, testkit.Start(t, "victim", s.env(), whichCall+"="+fmt.Sprint(p), killPoint+"="+fmt.Sprint(p)))
		}
		testkit.Ready(victims...)
		var mu sync.Mutex
		var worst time.Duration
		var wg sync.WaitGroup
		for i, p := range points {
			_, more := victims[i].Next()
			require.False(t, more, "the victim must be dead")
			died := time.Now()
			wg.Go(func() {
				_, err := a.Do(t.Context(), flow.IDs{Session: fmt.Sprint(p)}, "")
				if err != nil {
					t.Errorf("killed at commit %d: %v", p, err)
				}
				mu.Lock()
				defer mu.Unlock()
				worst = max(worst, time.Since(died))
			})
		}
		wg.Wait()
		require.Less(t, worst, crashLease+2*time.Second)
		testkit.Figures(t, "killed at every step; blocked for at most %v, lease %v", worst, crashLease)
		var sessions []string
		for i, p := range points {
			victims[i].Kill()
			id := fmt.Sprint(p)
			testkit.Eventually(t, func() bool { // once the lease of the dead call has expired
				_, err := a.Do(t.Context(), flow.IDs{Request: id, Session: id}, "")
				if err != nil {
					var busy *flow.BusyError
					require.ErrorAs(t, err, &busy)
				}
				return err == nil
			})
			state, err := session(rt, id).State(t.Context())
			require.NoError(t, err)
			want := []string{"next", "next"}
			if p >= 3 || p == -4 {
				want = append([]string{"victim"}, want...)
			}
			require.Equal(t, want, state.Log, "killed at commit %d", p)
			sessions = append(sessions, id)
		}
		nothingLeft(t, rt, sessions...)
	})
}

// crowd makes one call that runs and many that wait behind it, then reports that they wait.
func crowd() error {
	p, err := startProcess(crashLease)
	if err != nil {
		return err
	}
	b := newBusyAction()
	a := flow.Define(p.Flow, "a", b.run)
	testkit.Begin()
	for i := range 20 {
		if err := a.Go(context.Background(), flow.IDs{Request: fmt.Sprint("crowd", i), Session: "s"}, ""); err != nil {
			return err
		}
	}
	testkit.Say("waiting")
	select {}
}

// A process dies with the running call and the calls that wait next. The calls of another process
// behind them run in order, after one lease, not one lease per dead call. Proves FLOW-4.
func TestKilledWithItsWaitingCalls(t *testing.T) {
	onSharedStores(t, func(t *testing.T, s site) {
		b := newBusyAction()
		f, rt := s.flow(t, flow.Config{Admit: flow.Queue, Lease: crashLease})
		a := flow.Define(f, "a", b.run)
		child := testkit.Start(t, "crowd", s.env())
		testkit.Ready(child)
		child.Expect("waiting")
		want := []string{"x", "y", "z"}
		for _, id := range want {
			require.NoError(t, a.Go(t.Context(), flow.IDs{Request: id, Session: "s"}, ""))
		}
		require.Len(t, waiting(t, rt, "s"), 23)
		child.Kill()
		died := time.Now()
		require.Equal(t, "x", b.next(t))
		blocked := time.Since(died)
		require.Less(t, blocked, crashLease+2*time.Second)
		testkit.Figures(t, "blocked for %v, lease %v", blocked, crashLease)
		close(b.all)
		require.NoError(t, f.Stop(testkit.Within(t, 10*time.Second)))
		require.Equal(t, want, b.ran())
		nothingLeft(t, rt, "s")
	})
}

const callers = 3

// callsOfACaller is the number of calls that each child makes.
var callsOfACaller = testkit.Times(12, 12, "PAWL_CALLS")

// caller makes its calls at the same time. Each checks that it has the lowest ticket, then adds the
// ticket's number to a list, in two steps that only admission protects.
func caller() error {
	p, err := startProcess(flow.DefaultLease)
	if err != nil {
		return err
	}
	a := flow.Define(p.Flow, "a", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
		g, err := gateOf(p.rt, "session", "s").State(ctx)
		if err != nil {
			return "", err
		}
		low, lowestRequest := uint64(0), ""
		for _, ticket := range g.Tickets {
			if low == 0 || ticket.Number < low {
				low, lowestRequest = ticket.Number, ticket.Request
			}
		}
		if lowestRequest != c.Request {
			return "", fmt.Errorf("%s runs, but the lowest ticket belongs to %s", c.Request, lowestRequest)
		}
		state, err := session(c, c.Session).State(ctx)
		if err != nil {
			return "", err
		}
		state.Log = append(state.Log, fmt.Sprint(low))
		_, err = session(c, c.Session).SetState(ctx, state)
		return "", err
	})
	testkit.Begin()
	var wg sync.WaitGroup
	errs := make([]error, callsOfACaller)
	for i := range errs {
		wg.Go(func() { _, errs[i] = a.Do(context.Background(), flow.IDs{Session: "s"}, "") })
	}
	wg.Wait()
	return errors.Join(append(errs, p.stop())...)
}

// Calls from three processes run one at a time, in the order of their tickets. Proves FLOW-4.
func TestQueueAcrossProcesses(t *testing.T) {
	onSharedStores(t, func(t *testing.T, s site) {
		rt, _ := s.runtime(t)
		var processes []*testkit.Process
		for range callers {
			processes = append(processes, testkit.Start(t, "caller", s.env()))
		}
		testkit.Ready(processes...)
		for _, p := range processes {
			p.Wait()
		}
		state, err := session(rt, "s").State(t.Context())
		require.NoError(t, err)
		require.Len(t, state.Log, callers*callsOfACaller)
		for i, n := range state.Log {
			require.Equal(t, fmt.Sprint(i+1), n)
		}
		nothingLeft(t, rt, "s")
	})
}

// sleeper is paused by its parent in the middle of an action. After that it reports the results of
// its commits.
func sleeper() error {
	p, err := startProcess(crashLease)
	if err != nil {
		return err
	}
	a := flow.Define(p.Flow, "a", func(ctx context.Context, c *flow.Call, _ string) (string, error) {
		testkit.Say("running")
		<-ctx.Done() // the parent pauses this process until the lease has expired
		_, err := session(c, c.Session).PushState(context.WithoutCancel(ctx), "log", "late")
		testkit.Say("%s", pawl.Code(err))
		return "", nil
	})
	testkit.Begin()
	_, err = a.Do(context.Background(), flow.IDs{Request: "sleeper", Session: "s"}, "")
	testkit.Say("%s", pawl.Code(err))
	return p.stop()
}

// A process that was paused for longer than its lease commits nothing when it resumes in the middle
// of an action. Proves FLOW-4.
func TestPausedProcess(t *testing.T) {
	onSharedStores(t, func(t *testing.T, s site) {
		b := newBusyAction()
		f, rt := s.flow(t, flow.Config{Admit: flow.Queue, Lease: crashLease})
		a := flow.Define(f, "a", b.run)
		child := testkit.Start(t, "sleeper", s.env())
		testkit.Ready(child)
		child.Expect("running")
		child.Pause(stores.Unlocked(s.store(t)))
		got := do(t.Context(), a, flow.IDs{Request: "next", Session: "s"})
		require.Equal(t, "next", b.next(t))
		child.Resume()
		require.Equal(t, []string{"LEASE_LOST", "LEASE_LOST"}, child.Wait())
		b.finish("next")
		require.NoError(t, testkit.Receive(t, got).err)
		state, err := session(rt, "s").State(t.Context())
		require.NoError(t, err)
		require.Empty(t, state.Log)
		nothingLeft(t, rt, "s")
	})
}
