package cycles_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/cycles"
	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

type list struct {
	Values []int64 `json:"values"`
}

var lists = pawl.Kind[list]{Name: "list"}

const (
	keys     = 5
	writers  = 8  // per runtime
	perRound = 60 // transactions of a writer; each round has its own keys, so that lists stay short
)

// recorder makes transactions and records them.
type recorder struct {
	runtimes  []*pawl.Runtime
	impatient time.Duration // the deadline of some calls; 0: none
	values    atomic.Int64

	mu      sync.Mutex // protects the fields below
	history []cycles.Tx
	unknown int
	refused int
	strange []error // of calls that had no reason to fail like that
}

// one makes a transaction of one to four random operations on the lists of a round.
func (r *recorder) one(rt *pawl.Runtime, round int, random *rand.Rand, name string) {
	planned := make([]cycles.Op, 1+random.IntN(4))
	for i := range planned {
		planned[i].Key = fmt.Sprintf("%d/%d", round, random.IntN(keys))
		if random.IntN(2) == 0 {
			planned[i].Append = r.values.Add(1)
		}
	}
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if r.impatient > 0 && random.IntN(10) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(random.Int64N(int64(r.impatient))))
	}
	defer cancel()
	done := cycles.Tx{Name: name, Begin: testkit.Now()}
	err := pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		done.Ops = make([]cycles.Op, 0, len(planned)) // the function may run again
		for _, op := range planned {
			s := lists.Scope(tx, op.Key)
			if op.Append != 0 {
				if _, err := s.PushState(ctx, "values", op.Append); err != nil {
					return err
				}
			} else {
				l, err := s.State(ctx)
				if err != nil && !errors.Is(err, pawl.ErrNotFound) {
					return err
				}
				op.Read = l.Values
			}
			done.Ops = append(done.Ops, op)
		}
		return nil
	})
	done.End = testkit.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
	case pawl.OutcomeUnknown(err):
		done.Outcome, done.Ops = cycles.Unknown, planned
		r.unknown++
	default:
		done.Outcome, done.Ops = cycles.Refused, planned
		r.refused++
		if ctx.Err() == nil && !errors.Is(err, pawl.ErrUnavailable) && !errors.Is(err, pawl.ErrConflict) {
			r.strange = append(r.strange, err)
		}
	}
	r.history = append(r.history, done)
}

// run records rounds of transactions, and reads all lists at the end of each.
func (r *recorder) run(t *testing.T, rounds int) {
	for round := range rounds {
		var all sync.WaitGroup
		for n, rt := range r.runtimes {
			for w := range writers {
				all.Go(func() {
					random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) // no seed would repeat the schedule
					for i := range perRound {
						r.one(rt, round, random, fmt.Sprintf("%d/%d.%d.%d", round, n, w, i))
					}
				})
			}
		}
		all.Wait()
		last := cycles.Tx{Name: fmt.Sprintf("%d/end", round)}
		testkit.Eventually(t, func() bool { // connections may still be cut
			last.Begin = testkit.Now()
			return r.readAll(round, &last) == nil
		})
		last.End = testkit.Now()
		r.history = append(r.history, last)
	}
}

// readAll reads the lists of a round at one moment: a commit without an answer may still arrive.
func (r *recorder) readAll(round int, into *cycles.Tx) error {
	return pawl.Transact(context.Background(), r.runtimes[0], func(ctx context.Context, tx *pawl.Tx) error {
		into.Ops = nil
		for k := range keys {
			op := cycles.Op{Key: fmt.Sprintf("%d/%d", round, k)}
			l, err := lists.Scope(tx, op.Key).State(ctx)
			if err != nil && !errors.Is(err, pawl.ErrNotFound) {
				return err
			}
			op.Read = l.Values
			into.Ops = append(into.Ops, op)
		}
		return nil
	})
}

func (r *recorder) check(t *testing.T) {
	ops := 0
	for _, tx := range r.history {
		ops += len(tx.Ops)
	}
	require.Empty(t, r.strange)
	require.Greater(t, len(r.history), 2*(r.unknown+r.refused), "most transactions failed")
	testkit.Figures(t, "%d transactions of %d operations; %d without an answer, %d refused", len(r.history), ops, r.unknown, r.refused)
	require.NoError(t, cycles.Check(r.history))
}

// Transactions of two runtimes are strictly serializable, also when callers leave. Proves TX-1, TX-2.
func TestTransactionsHaveNoCycles(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		r := recorder{impatient: 5 * time.Millisecond}
		for range 2 {
			r.runtimes = append(r.runtimes, open(t, location))
		}
		r.run(t, testkit.Times(4, 1, "PAWL_ROUNDS"))
		r.check(t)
		require.Positive(t, r.unknown+r.refused, "no caller left")
	})
}

// The same on PostgreSQL while connections are cut around commits. Proves TX-1, CAS-7.
func TestTransactionsWithCutsHaveNoCycles(t *testing.T) {
	proxy, location, _ := stores.Proxied(t)
	r := recorder{}
	for range 2 {
		r.runtimes = append(r.runtimes, open(t, location))
	}
	proxy.Cut(0.05, rand.Uint64())
	r.run(t, testkit.Times(4, 1, "PAWL_ROUNDS"))
	cuts := proxy.Counts()
	proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.Pass })
	testkit.Figures(t, "cuts %+v", cuts)
	r.check(t)
	require.Positive(t, cuts.Cuts())
}

func open(t *testing.T, location string) *pawl.Runtime {
	rt, err := pawl.Open(pawl.Config{Store: stores.OpenFor(t, location)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	return rt
}
