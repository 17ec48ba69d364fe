package etcdtest_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// counter is the state of a scope that callers increment.
type counter struct {
	Count int `json:"count"`
}

// account is the state of a scope that transfers change.
type account struct {
	Sum int `json:"sum"`
	// Moves counts the transfers from and to the account.
	Moves int `json:"moves"`
}

var (
	counters = pawl.Kind[counter]{Name: "counter"}
	accounts = pawl.Kind[account]{Name: "account"}
)

const (
	loadCounters = 4
	loadAccounts = 4
	firstSum     = 1000
	loadWriters  = 2 // of each sort, for each runtime
)

// load runs increments, reads and transfers on a store through several runtimes, and remembers the
// answers. Each runtime stands for a process, on a host with a clock of its own.
type load struct {
	t        *testing.T
	location string
	began    time.Time
	runtimes []*pawl.Runtime
	stores   []persist.Store
	stop     chan struct{}
	writers  sync.WaitGroup

	acked     []atomic.Int64 // commits that were acknowledged, by runtime
	transfers atomic.Int64   // that were acknowledged
	doubtful  atomic.Int64   // transfers that may have changed something
	failed    atomic.Int64   // calls that certainly changed nothing
	unknown   atomic.Int64   // calls that may have

	mu      sync.Mutex            // protects the fields below
	history []porcupine.Operation // of the counters
	slowest time.Duration         // call since the last fault
	last    time.Time             // of the last acknowledgement
	gap     time.Duration         // between two of them, since the last fault
}

// startLoad starts the load on the store at location. The hosts of the runtimes have clocks that
// differ by hours.
func startLoad(t *testing.T, location string) *load {
	l := &load{t: t, location: location, began: time.Now(), stop: make(chan struct{})}
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		store, err := openSkewed(location, off)
		require.NoError(t, err)
		rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{counters, accounts}})
		require.NoError(t, err)
		l.runtimes, l.stores = append(l.runtimes, rt), append(l.stores, store)
	}
	l.acked = make([]atomic.Int64, len(l.runtimes))
	for i := range loadAccounts {
		_, err := accounts.Scope(l.runtimes[0], fmt.Sprint(i)).SetState(t.Context(), account{Sum: firstSum})
		require.NoError(t, err)
	}
	for i, rt := range l.runtimes {
		for w := range loadWriters {
			client := i*2*loadWriters + 2*w
			l.writers.Go(func() { l.repeat(func() { l.increment(rt, i, client) }) })
			l.writers.Go(func() { l.repeat(func() { l.transfer(rt, i) }) })
			l.writers.Go(func() { l.repeat(func() { l.read(rt, client+1) }) })
		}
	}
	return l
}

func (l *load) repeat(do func()) {
	for {
		select {
		case <-l.stop:
			return
		default:
			do()
		}
	}
}

// operation is what a client asked of a counter: an increment, or a read.
type operation struct {
	id        int
	increment bool
}

// anyResult is the result of an increment whose outcome is unknown.
const anyResult = -1

func (l *load) increment(rt *pawl.Runtime, i, client int) {
	id, began := rand.IntN(loadCounters), time.Now()
	snap, err := counters.Scope(rt, fmt.Sprint(id)).AtomicState(context.Background(), func(_ context.Context, c *counter) error {
		c.Count++
		return nil
	})
	op := porcupine.Operation{ClientId: client, Input: operation{id, true}, Call: began.Sub(l.began).Nanoseconds()}
	switch {
	case err == nil:
		op.Output, op.Return = snap.State().Count, time.Since(l.began).Nanoseconds()
		l.answered(i, began)
	case pawl.OutcomeUnknown(err):
		op.Output, op.Return = anyResult, math.MaxInt64
		l.unknown.Add(1)
	default:
		l.failed.Add(1)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history = append(l.history, op)
}

func (l *load) read(rt *pawl.Runtime, client int) {
	id, began := rand.IntN(loadCounters), time.Now()
	snap, err := counters.Scope(rt, fmt.Sprint(id)).Snapshot(context.Background())
	if err != nil {
		l.failed.Add(1)
		return
	}
	count := 0
	if snap.Version > 0 {
		count = snap.State().Count
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history = append(l.history, porcupine.Operation{
		ClientId: client, Input: operation{id, false}, Output: count,
		Call: began.Sub(l.began).Nanoseconds(), Return: time.Since(l.began).Nanoseconds(),
	})
}

func (l *load) transfer(rt *pawl.Runtime, i int) {
	from, began := rand.IntN(loadAccounts), time.Now()
	to := (from + 1 + rand.IntN(loadAccounts-1)) % loadAccounts
	err := pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		for id, sum := range map[int]int{from: -1, to: 1} {
			add := func(_ context.Context, a *account) error { a.Sum, a.Moves = a.Sum+sum, a.Moves+1; return nil }
			if _, err := accounts.Scope(rt, fmt.Sprint(id)).In(tx).AtomicState(ctx, add); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil:
		l.transfers.Add(1)
		l.answered(i, began)
	case pawl.OutcomeUnknown(err):
		l.unknown.Add(1)
		l.doubtful.Add(1)
	default:
		l.failed.Add(1)
	}
}

// answered counts an acknowledged commit.
func (l *load) answered(i int, began time.Time) {
	l.acked[i].Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.last.IsZero() {
		l.gap = max(l.gap, now.Sub(l.last))
	}
	l.last, l.slowest = now, max(l.slowest, now.Sub(began))
}

// progress waits until each runtime has committed n times more.
func (l *load) progress(n int64) {
	l.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for i := range l.acked {
		for want := l.acked[i].Load() + n; l.acked[i].Load() < want; time.Sleep(time.Millisecond) {
			require.True(l.t, time.Now().Before(deadline), "runtime %d commits no more", i)
		}
	}
}

// fault runs a fault, waits for the cluster to work again, and reports what callers saw.
func (l *load) fault(name string, fault func()) {
	l.t.Helper()
	l.progress(20)
	l.mu.Lock()
	l.gap, l.slowest = 0, 0
	l.mu.Unlock()
	failed, unknown := l.failed.Load(), l.unknown.Load()
	fault()
	l.progress(20)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.Logf("%s: no commit for %v, slowest call %v, failed calls %d, unknown outcomes %d",
		name, l.gap.Round(time.Millisecond), l.slowest.Round(time.Millisecond), l.failed.Load()-failed, l.unknown.Load()-unknown)
}

// check ends the load and checks that every acknowledged change counts once.
func (l *load) check() {
	close(l.stop)
	l.writers.Wait()
	for i, rt := range l.runtimes {
		require.NoError(l.t, rt.Close(l.t.Context()))
		require.NoError(l.t, l.stores[i].Close())
	}
	store, err := open(l.location)
	require.NoError(l.t, err)
	defer store.Close()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{counters, accounts}})
	require.NoError(l.t, err)
	defer rt.Close(context.Background())
	sum, moves := 0, int64(0)
	for i := range loadAccounts {
		snap, err := accounts.Scope(rt, fmt.Sprint(i)).Snapshot(l.t.Context())
		require.NoError(l.t, err)
		sum += snap.State().Sum
		moves += int64(snap.State().Moves)
	}
	require.Equal(l.t, loadAccounts*firstSum, sum, "money was lost or made")
	require.GreaterOrEqual(l.t, moves/2, l.transfers.Load(), "transfers were lost")
	require.LessOrEqual(l.t, moves/2, l.transfers.Load()+l.doubtful.Load(), "transfers were doubled")
	acked, lost, doubled := 0, 0, 0
	for i := range loadCounters {
		l.read(rt, 1000+i)
		snap, err := counters.Scope(rt, fmt.Sprint(i)).Snapshot(l.t.Context())
		require.NoError(l.t, err)
		known, unknown := 0, 0
		for _, op := range l.history {
			switch in := op.Input.(operation); {
			case in.id != i || !in.increment:
			case op.Output == anyResult:
				unknown++
			default:
				known++
			}
		}
		acked += known
		lost += max(0, known-snap.State().Count)
		doubled += max(0, snap.State().Count-known-unknown)
	}
	testkit.Figures(l.t, "increments acknowledged %d, lost %d, doubled %d; transfers %d; unknown outcomes %d, failed calls %d",
		acked, lost, doubled, l.transfers.Load(), l.unknown.Load(), l.failed.Load())
	require.Zero(l.t, lost)
	require.Zero(l.t, doubled)
	require.Equal(l.t, porcupine.Ok, porcupine.CheckOperationsTimeout(counting, l.history, time.Minute), "the history is not linearizable")
}

// counting is the model of the counters: an increment returns the new count.
var counting = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, loadCounters)
		for _, op := range history {
			id := op.Input.(operation).id
			parts[id] = append(parts[id], op)
		}
		return parts
	},
	Init: func() any { return 0 },
	Step: func(state, input, output any) (bool, any) {
		next := state.(int)
		if input.(operation).increment {
			next++
		}
		return output == next || output == anyResult, next
	},
	DescribeOperation: func(input, output any) string { return strings.TrimSpace(fmt.Sprint(input, " ", output)) },
}
