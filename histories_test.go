package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/stretchr/testify/require"
)

// A history lists the operations of several clients on some scopes, with their answers. Porcupine
// finds an order of the operations that explains the answers and agrees with the clock, or shows
// that there is none.

// histState is the state of the scopes in a history.
type histState struct {
	N    int64   `json:"n"`
	List []int64 `json:"list"`
}

// The operations of a history.
const (
	histInc  = "inc"  // adds 1
	histPush = "push" // appends to the list
	histSet  = "set"  // replaces N by Arg if the version is Pin
	histRead = "read"
	histNoop = "no-op"
	histFail = "fail" // a function that reads the state and returns an error
)

// histOp is one operation with its answer.
type histOp struct {
	Client, Key  int
	Kind         string
	Arg          int64  // histSet
	Pin          uint64 // histSet
	Call, Return int64

	Unknown  bool // the caller left; the operation may have happened, or happen later
	Conflict bool // histSet: refused
	N        int64
	Len      int
	Version  uint64 // after the operation; of a conflict, the version found
}

func (o histOp) writes() bool { return o.Kind == histInc || o.Kind == histPush || o.Kind == histSet }

// histModel is the simplest model of a scope.
type histModel struct {
	n       int64
	len     int
	version uint64
}

// histInput is an operation with the versions that answered operations made. An operation with an
// unknown outcome cannot have made one of these: no version is made twice. With them, Porcupine
// need not try every subset of the unknown operations at every step.
type histInput struct {
	histOp
	claimed map[uint64]bool // versions of answered operations
}

func (m histModel) step(in histInput) (bool, histModel) {
	next := m
	next.version++
	switch in.Kind {
	case histInc:
		next.n++
	case histPush:
		next.len++
	case histSet:
		next.n = in.Arg
	}
	seen := histModel{in.N, in.Len, in.Version}
	switch {
	case in.Unknown && in.Kind == histSet && in.Pin != m.version:
		return true, m
	case in.Unknown:
		return !in.claimed[next.version], next
	case in.Kind == histRead || in.Kind == histNoop:
		return seen == m, m
	case in.Kind == histFail: // a function does not see the version
		return in.N == m.n && in.Len == m.len, m
	case in.Conflict && in.Pin == 0:
		return m.version != 0, m
	case in.Conflict:
		return in.Pin != m.version && in.Version == m.version, m
	case in.Kind == histSet && in.Pin != m.version:
		return false, m
	}
	return seen == next, next
}

var histSpec = porcupine.Model{
	Init: func() any { return histModel{} },
	Step: func(state, input, _ any) (bool, any) { return state.(histModel).step(input.(histInput)) },
}

// histFigures counts what a set of histories contains.
type histFigures struct {
	histories, ops, overlapping, unknown, withdrawn, conflicts int
}

func (f histFigures) String() string {
	return fmt.Sprintf("%d histories of %d operations; %d overlap, %d have no answer, %d were withdrawn, %d met a conflict",
		f.histories, f.ops, f.overlapping, f.unknown, f.withdrawn, f.conflicts)
}

func (f *histFigures) add(o histFigures) {
	f.histories += o.histories
	f.ops += o.ops
	f.overlapping += o.overlapping
	f.unknown += o.unknown
	f.withdrawn += o.withdrawn
	f.conflicts += o.conflicts
}

// histPatience bounds one check. A history that is not decided in that time fails the test.
const histPatience = 30 * time.Second

// checkHistory requires that the operations on each key are linearizable, and returns their
// figures.
func checkHistory(t testing.TB, ops []histOp) histFigures {
	t.Helper()
	byKey := map[int][]histOp{}
	for _, op := range ops {
		byKey[op.Key] = append(byKey[op.Key], op)
	}
	f := histFigures{histories: 1, ops: len(ops)}
	for key, ops := range byKey {
		claimed := map[uint64]bool{}
		for _, op := range ops {
			if op.writes() && !op.Unknown && !op.Conflict {
				claimed[op.Version] = true
			}
			if op.Unknown {
				f.unknown++
			}
			if op.Conflict {
				f.conflicts++
			}
		}
		f.overlapping += overlapping(ops)
		var history []porcupine.Operation
		for _, op := range ops {
			history = append(history, porcupine.Operation{ClientId: op.Client, Input: histInput{op, claimed}, Call: op.Call, Return: op.Return})
		}
		if got := porcupine.CheckOperationsTimeout(histSpec, history, histPatience); got != porcupine.Ok {
			slices.SortFunc(ops, func(a, b histOp) int { return int(a.Call - b.Call) })
			for _, op := range ops {
				t.Logf("%+v", op)
			}
			t.Fatalf("history of key %d not linearizable: %v", key, got)
		}
	}
	return f
}

// overlapping counts the operations of one key that began before an earlier one had ended.
func overlapping(ops []histOp) (n int) {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(a, b histOp) int { return int(a.Call - b.Call) })
	last := int64(0)
	for _, op := range ops {
		if op.Call < last {
			n++
		}
		if !op.Unknown {
			last = max(last, op.Return)
		}
	}
	return n
}

// histClients is a set of clients in this process, with their scopes and results.
type histClients struct {
	scopes  [][]pawl.Scope[histState] // by client, by key
	first   int                       // number of the first client
	each    int                       // operations per client
	seed    uint64
	hurried time.Duration // longest life of a context that ends early

	mu        sync.Mutex // protects the fields below
	ops       []histOp
	withdrawn int
	errs      []error
}

// run performs the operations of all clients and records them.
func (h *histClients) run() error {
	var wg sync.WaitGroup
	for i, scopes := range h.scopes {
		wg.Go(func() {
			c := histClient{number: h.first + i, scopes: scopes, seen: make([]uint64, len(scopes)), hurried: h.hurried, rng: rand.New(rand.NewPCG(h.seed, uint64(h.first+i)))}
			for range h.each {
				if err := c.operate(); err != nil {
					c.err = err
					break
				}
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			h.ops, h.withdrawn, h.errs = append(h.ops, c.ops...), h.withdrawn+c.withdrawn, append(h.errs, c.err)
		})
	}
	wg.Wait()
	return errors.Join(h.errs...)
}

// histClient performs one operation after the other.
type histClient struct {
	number    int
	scopes    []pawl.Scope[histState]
	seen      []uint64 // version last seen, by key
	hurried   time.Duration
	rng       *rand.Rand
	next      int64
	ops       []histOp
	withdrawn int
	err       error
}

var errHistory = errors.New("history: intended failure")

// operate performs a random operation and records it, unless it certainly had no effect.
func (c *histClient) operate() error {
	c.next++
	id, sawN, sawLen := c.next, int64(0), 0 // not fields of c: functions may outlive the call
	op := histOp{Client: c.number, Key: c.rng.IntN(len(c.scopes))}
	scope := c.scopes[op.Key]
	hasty := c.rng.IntN(8) == 0
	within := time.Hour
	if hasty && c.rng.IntN(2) == 0 {
		within = time.Duration(c.rng.Int64N(int64(c.hurried)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	// A function yields, so that other operations overlap. Sometimes its caller leaves while it
	// runs.
	during := func() {
		if hasty {
			cancel()
		}
		for range 4 {
			runtime.Gosched()
		}
	}
	var snap pawl.Snapshot[histState]
	var err error
	op.Call = testkit.Now()
	switch n := c.rng.IntN(100); {
	case n < 20:
		op.Kind = histInc
		snap, err = scope.IncState(ctx, "n", 1)
	case n < 40:
		op.Kind = histInc
		snap, err = scope.AtomicState(ctx, func(_ context.Context, s *histState) error { during(); s.N++; return nil })
	case n < 50:
		op.Kind = histPush
		snap, err = scope.PushState(ctx, "list", id)
	case n < 55:
		op.Kind = histPush
		snap, err = scope.AtomicState(ctx, func(_ context.Context, s *histState) error {
			s.List = append(s.List, id)
			during()
			return nil
		})
	case n < 70:
		op.Kind, op.Arg, op.Pin = histSet, (int64(c.number+1)<<24|id)<<24, c.seen[op.Key]
		snap, err = scope.PatchState(ctx, pawl.Patch{"n": op.Arg}, pawl.IfVersion(op.Pin))
	case n < 85:
		op.Kind = histRead
		snap, err = scope.Snapshot(ctx)
	case n < 93:
		op.Kind = histNoop
		snap, err = scope.IncState(ctx, "n", 0)
	default:
		op.Kind = histFail
		_, err = scope.AtomicState(ctx, func(_ context.Context, s *histState) error {
			sawN, sawLen = s.N, len(s.List)
			s.List = append(s.List, -1)
			during()
			return errHistory
		})
		if errors.Is(err, errHistory) {
			op.N, op.Len = sawN, sawLen
		}
	}
	op.Return = testkit.Now()
	return c.record(op, snap, err)
}

// record appends op with its answer. It returns an unexpected error.
func (c *histClient) record(op histOp, snap pawl.Snapshot[histState], err error) error {
	var stale *pawl.ConcurrencyError
	var lost *pawl.ConcurrentModificationError
	var left *pawl.CanceledError
	switch {
	case err == nil:
		if snap.Exists() {
			op.N, op.Len, op.Version = snap.ReadOnly().N, len(snap.ReadOnly().List), snap.Version
		}
		c.seen[op.Key] = snap.Version
	case op.Kind == histFail && errors.Is(err, errHistory):
	case op.Kind == histSet && errors.As(err, &stale):
		op.Conflict, op.Version = true, uint64(stale.Actual)
		c.seen[op.Key] = op.Version
	case op.Kind == histSet && op.Pin == 0 && errors.Is(err, pawl.ErrExists):
		op.Conflict = true
		c.seen[op.Key] = 1
	case errors.As(err, &lost):
		return nil // nothing happened
	case errors.As(err, &left):
		if !pawl.OutcomeUnknown(err) {
			c.withdrawn++
			return nil
		}
		if !op.writes() {
			return nil
		}
		op.Unknown, op.Return = true, math.MaxInt64
	default:
		return err
	}
	c.ops = append(c.ops, op)
	return nil
}

// finish adds a final read of every key by another client, and returns the history and the number
// of withdrawn operations.
func (h *histClients) finish(t testing.TB) ([]histOp, int) {
	c := histClient{number: h.first + len(h.scopes), scopes: h.scopes[0], seen: make([]uint64, len(h.scopes[0]))}
	for key, scope := range c.scopes {
		op := histOp{Client: c.number, Key: key, Kind: histRead, Call: testkit.Now()}
		snap, err := scope.Snapshot(context.Background())
		op.Return = testkit.Now()
		require.NoError(t, err)
		require.NoError(t, c.record(op, snap, nil))
	}
	return append(h.ops, c.ops...), h.withdrawn
}

// histScopes returns the scopes of each client, by client and key. The clients are spread over the
// runtimes.
func histScopes(clients, keys int, name string, open func(*pawl.Runtime, string) pawl.Scope[histState], runtimes ...*pawl.Runtime) (all [][]pawl.Scope[histState]) {
	for i := range clients {
		var scopes []pawl.Scope[histState]
		for key := range keys {
			scopes = append(scopes, open(runtimes[i%len(runtimes)], name+"-"+strconv.Itoa(key)))
		}
		all = append(all, scopes)
	}
	return all
}
