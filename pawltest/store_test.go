package pawltest_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/pawltest"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/persisttest"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// counter is the state of the tests.
type counter struct {
	N    int            `json:"n"`
	Seen map[string]int `json:"seen,omitempty"`
}

var counters = pawl.Kind[counter]{Name: "counter"}

// withoutNative is a Store without the methods of persist.Native, which a store in memory lacks.
type withoutNative struct {
	persist.LogRestorer
	persist.Reader
	persist.Watcher
	persist.Prober
	persist.Leaser
	persist.Purger
	persist.Restorer
}

func openFaultless(string) (persist.Store, error) {
	s := pawltest.NewStore()
	return withoutNative{s, s, s, s, s, s, s}, nil
}

func TestMain(m *testing.M) {
	testkit.Main(func() int { return persisttest.Main(m, openFaultless) })
}

// A Store without faults behaves as the store behind it.
func TestConformance(t *testing.T) {
	persisttest.Run(t, openFaultless, persisttest.Options{Volatile: true})
}

// open returns a runtime on a store, which is closed at the end of the test.
func open(t *testing.T, store persist.Store, observers ...pawl.Observer) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{counters}, Observer: pawl.Observers(observers...)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	return rt
}

// created returns a scope at version 1, with a zero state.
func created(t *testing.T, rt *pawl.Runtime) pawl.Scope[counter] {
	t.Helper()
	scope := counters.Scope(rt, "a")
	_, err := scope.SetState(t.Context(), counter{}, pawl.IfAbsent())
	require.NoError(t, err)
	return scope
}

// add increments the counter by a function, and returns how often the function ran.
func add(ctx context.Context, scope pawl.Scope[counter]) (runs int, err error) {
	_, err = scope.AtomicState(ctx, func(_ context.Context, c *counter) error {
		runs++
		c.N++
		return nil
	})
	return runs, err
}

func TestConflict(t *testing.T) {
	var events pawltest.Recorder
	store := pawltest.NewStore()
	scope := created(t, open(t, store, &events))
	store.Next(pawltest.Conflict)
	runs, err := add(t.Context(), scope)
	require.NoError(t, err)
	require.Equal(t, 2, runs)
	require.Equal(t, 1, events.Count(pawl.EventConflicted))
	pawltest.RequireState(t, scope, counter{N: 1})
	pawltest.RequireVersion(t, scope, 3) // of the creation, of the rival, of the function
}

func TestConflictOfNthCommit(t *testing.T) {
	store := pawltest.NewStore()
	scope := created(t, open(t, store))
	store.Nth(3, pawltest.Conflict)
	store.Nth(3, pawltest.Conflict) // replaces the fault there
	for n := 1; n <= 5; n++ {
		runs, err := add(t.Context(), scope)
		require.NoError(t, err)
		require.Equal(t, map[bool]int{true: 2, false: 1}[n == 3], runs, n)
	}
	require.Equal(t, 7, store.Commits()) // the creation, five functions, one of them twice
	require.Panics(t, func() { store.Nth(0, pawltest.Conflict) })
}

// The record that a transaction only read moves, too: the transaction conflicts.
func TestConflictOfTransaction(t *testing.T) {
	store := pawltest.NewStore()
	rt := open(t, store)
	source := created(t, rt)
	store.Next(pawltest.Conflict)
	runs := 0
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		runs++
		from, err := counters.Scope(tx, "a").State(ctx)
		if err != nil {
			return err
		}
		_, err = counters.Scope(tx, "b").SetState(ctx, counter{N: from.N + 1})
		return err
	})
	require.NoError(t, err)
	require.Equal(t, 2, runs)
	pawltest.RequireVersion(t, source, 2)
	pawltest.RequireState(t, counters.Scope(rt, "b"), counter{N: 1})
}

// A conflict of a commit that creates its record needs a rival that creates it. Without one the
// test is told, instead of passing without a conflict.
func TestConflictOfCreation(t *testing.T) {
	store := pawltest.NewStore()
	scope := counters.Scope(open(t, store), "a")
	store.Next(pawltest.Conflict)
	_, err := add(t.Context(), scope)
	require.ErrorIs(t, err, persist.ErrUnsupported)
	require.ErrorContains(t, err, "use Rival")
	pawltest.RequireAbsent(t, scope)

	other := counters.Scope(open(t, store.Below()), "a")
	store.Next(pawltest.Rival(func() error { _, err := add(t.Context(), other); return err }))
	runs, err := add(t.Context(), scope)
	require.NoError(t, err)
	require.Equal(t, 2, runs)
	pawltest.RequireState(t, scope, counter{N: 2})
}

func TestRivalFails(t *testing.T) {
	store := pawltest.NewStore()
	scope := created(t, open(t, store))
	store.Next(pawltest.Rival(func() error { return errors.New("no luck") }))
	_, err := add(t.Context(), scope)
	require.ErrorContains(t, err, "rival: no luck")
	require.False(t, pawl.OutcomeUnknown(err))
	pawltest.RequireVersion(t, scope, 1)
}

// Pawl settles both kinds of doubt: the mutation is applied once.
func TestLostAnswers(t *testing.T) {
	for name, fault := range map[string]pawltest.Fault{"answer": pawltest.LostAnswer, "request": pawltest.LostRequest} {
		t.Run(name, func(t *testing.T) {
			store := pawltest.NewStore()
			scope := created(t, open(t, store))
			store.Next(fault)
			landed := map[string]int{"answer": 1, "request": 0}[name]
			store.Next(pawltest.Rival(func() error {
				pawltest.RequireState(t, counters.Scope(open(t, store.Below()), "a"), counter{N: landed})
				return nil
			}))
			_, err := scope.IncState(t.Context(), "n", 1)
			require.NoError(t, err)
			pawltest.RequireState(t, scope, counter{N: 1})
			pawltest.RequireVersion(t, scope, 2)
			require.Equal(t, 3, store.Commits())
		})
	}
}

// A conflict is an answer that LostAnswer does not lose: the store has decided.
func TestLostAnswerOfConflict(t *testing.T) {
	store := pawltest.NewStore()
	scope := created(t, open(t, store))
	_, err := counters.Scope(open(t, store.Below()), "a").IncState(t.Context(), "n", 1)
	require.NoError(t, err)
	store.Next(pawltest.LostAnswer, nil)
	runs, err := add(t.Context(), scope)
	require.NoError(t, err)
	require.Equal(t, 2, runs)
	pawltest.RequireState(t, scope, counter{N: 2})
	require.Equal(t, 3, store.Commits(), "the commit that lost must not be sent again")
}

func TestEveryRequestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := pawltest.NewStore()
		scope := created(t, open(t, store))
		store.Every(pawltest.LostRequest)
		start := time.Now()
		_, err := scope.IncState(t.Context(), "n", 1)
		require.True(t, pawl.OutcomeUnknown(err), err)
		require.InDelta(t, 30, time.Since(start).Seconds(), 1) // the default budget
		store.Every(nil)
		_, err = scope.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		pawltest.RequireState(t, scope, counter{N: 1})
	})
}

func TestRefused(t *testing.T) {
	store := pawltest.NewStore()
	scope := created(t, open(t, store))
	store.Next(pawltest.Refused)
	_, err := scope.IncState(t.Context(), "n", 1)
	var unavailable *pawl.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.True(t, pawl.IsRetryable(err))
	pawltest.RequireVersion(t, scope, 1)
	_, err = scope.IncState(t.Context(), "n", 1)
	require.NoError(t, err)
}

func TestOutage(t *testing.T) {
	store := pawltest.NewStore()
	ctx, key := t.Context(), persist.Key{Kind: "counter", ID: "a"}
	write := persist.Commit{ID: "test.1", Writes: []persist.Write{{Key: key, Version: 1, Doc: []byte(`{}`)}}}
	watch := testkit.NewWatch(t, store)
	calls := map[string]func() error{
		"Load":     func() error { _, err := store.Load(ctx, key); return err },
		"Commit":   func() error { _, err := store.Commit(ctx, write); return err },
		"List":     func() error { _, err := store.List(ctx, persist.Query{}); return err },
		"LoadAll":  func() error { _, err := store.LoadAll(ctx, []persist.Key{key}); return err },
		"Versions": func() error { _, err := store.Versions(ctx, []persist.Key{key}); return err },
		"Take": func() error {
			_, err := store.Take(ctx, persist.Query{}, persist.Acquire{Holder: "h", For: time.Second}, nil)
			return err
		},
		"Purge":        func() error { _, err := store.Purge(ctx, persist.Query{}); return err },
		"Watch":        func() error { return store.Watch(ctx, func(persist.Hint) {}) },
		"ReadLog":      func() error { _, err := store.ReadLog(ctx, persist.LogQuery{Key: key}); return err },
		"ReadOrder":    func() error { _, err := store.ReadOrder(ctx, persist.OrderQuery{}); return err },
		"LastPosition": func() error { _, err := store.LastPosition(ctx); return err },
		"Restore":      func() error { return store.Restore(ctx, nil, 0) },
		"RestoreLog":   func() error { return store.RestoreLog(ctx, nil, 0) },
	}
	store.Next(pawltest.LostAnswer) // an outage comes before faults
	store.Down()
	store.Down()
	for name, call := range calls {
		err := call()
		require.ErrorIs(t, err, persist.ErrUnavailable, name)
		require.ErrorIs(t, err, persist.ErrNotApplied, name)
	}
	require.ErrorIs(t, watch.Ended(), persist.ErrUnavailable)

	store.Up()
	store.Up()
	store.Next(nil)
	require.ErrorIs(t, calls["Load"](), persist.ErrNotFound)
	require.ErrorContains(t, calls["Commit"](), "answer lost")
	require.NoError(t, calls["Load"]())
	require.ErrorIs(t, testkit.NewWatch(t, store).Stop(), context.Canceled)
	store.Down()
	require.NoError(t, store.Close())
}

// A watcher of a scope learns after an outage what happened meanwhile.
func TestWatchAcrossOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := pawltest.NewStore()
		scope := created(t, open(t, store))
		other := counters.Scope(open(t, store.Below()), "a")
		ctx, cancel := context.WithCancel(t.Context())
		versions := make(chan uint64)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for snap, err := range scope.Watch(ctx) {
				if err != nil {
					return
				}
				versions <- snap.Version
			}
		}()
		require.EqualValues(t, 1, <-versions)
		store.Down()
		_, err := other.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		select {
		case v := <-versions:
			t.Fatalf("version %d came through the outage", v)
		default:
		}
		store.Up()
		require.EqualValues(t, 2, <-versions)
		cancel()
		<-ended
	})
}

func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := pawltest.NewStore()
		scope := created(t, open(t, store))
		store.Next(pawltest.Slow(7 * time.Second))
		start := time.Now()
		_, err := scope.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		require.Equal(t, 7*time.Second, time.Since(start))

		store.Next(pawltest.Slow(time.Hour)) // longer than any budget: the answer is lost
		_, err = scope.IncState(t.Context(), "n", 1)
		require.True(t, pawl.OutcomeUnknown(err), err)
		pawltest.RequireState(t, scope, counter{N: 2}) // and the commit has landed
	})
}

func TestGate(t *testing.T) {
	for name, landed := range map[string]int{"before": 0, "after": 1} {
		t.Run(name, func(t *testing.T) {
			store, gate := pawltest.NewStore(), pawltest.NewGate()
			scope := created(t, open(t, store))
			store.Next(map[string]pawltest.Fault{"before": gate.Before, "after": gate.After}[name])
			answer := make(chan error, 1)
			go func() {
				_, err := scope.IncState(t.Context(), "n", 1)
				answer <- err
			}()
			gate.Wait(t)
			pawltest.RequireState(t, scope, counter{N: landed})
			select {
			case err := <-answer:
				t.Fatalf("answered before the gate was opened: %v", err)
			default:
			}
			gate.Open()
			gate.Open()
			require.NoError(t, testkit.Receive(t, answer))
			pawltest.RequireState(t, scope, counter{N: 1})
		})
	}
}

// A gate that is never opened: the budget of the call ends, and what Pawl can know differs.
func TestClosedGate(t *testing.T) {
	for _, landed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store, gate := pawltest.NewStore(), pawltest.NewGate()
			scope := created(t, open(t, store))
			fault := gate.Before
			if landed {
				fault = gate.After
			}
			store.Every(fault)
			_, err := scope.IncState(t.Context(), "n", 1)
			require.Error(t, err)
			require.Equal(t, landed, pawl.OutcomeUnknown(err), err)
			time.Sleep(time.Minute) // the commit leaves the gate at the end of its budget
			pawltest.RequireState(t, scope, counter{N: map[bool]int{true: 1}[landed]})
		})
	}
}

func TestGateWithoutCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		message := testkit.Failure(t, func(t testing.TB) { pawltest.NewGate().Wait(t) })
		require.Contains(t, message, "no commit at the gate within 30s")
	})
}

func TestEndLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := pawltest.NewStore()
		scope := created(t, open(t, store))
		other := counters.Scope(open(t, store.Below()), "a")
		lease, err := scope.Acquire(t.Context(), pawl.LeaseFor(30*time.Second))
		require.NoError(t, err)
		_, err = other.Acquire(t.Context())
		require.ErrorIs(t, err, pawl.ErrHeld)
		store.EndLease(t, scope.Key())

		_, err = scope.IncState(lease.Context(), "n", 1) // the store refuses it at once
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		next, err := other.Acquire(t.Context())
		require.NoError(t, err)
		start := time.Now()
		<-lease.Context().Done()
		require.ErrorIs(t, context.Cause(lease.Context()), pawl.ErrLeaseLost)
		require.LessOrEqual(t, time.Since(start), 10*time.Second) // a third of the lease
		require.NoError(t, next.Release(t.Context()))

		for _, key := range []pawl.Key{scope.Key(), {Kind: "counter", ID: "absent"}} {
			message := testkit.Failure(t, func(t testing.TB) { store.EndLease(t, key) })
			require.Contains(t, message, "end lease of "+key.String())
		}
	})
}

// The renewals of a lease take no fault. An outage that is longer than the lease ends it.
func TestRenewalsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events pawltest.Recorder
		store := pawltest.NewStore()
		scope := created(t, open(t, store, &events))
		lease, err := scope.Acquire(t.Context(), pawl.LeaseFor(30*time.Second))
		require.NoError(t, err)
		store.Next(pawltest.Refused)
		time.Sleep(10 * time.Minute)
		require.NoError(t, lease.Context().Err())
		_, err = scope.IncState(lease.Context(), "n", 1)
		require.ErrorIs(t, err, pawl.ErrUnavailable)
		store.Down()
		require.Equal(t, lease.Token(), events.Wait(t, pawl.EventLeaseLost).Version)
		store.Up()
	})
}

// Faults reach commits that run code of the application, too.
func TestNative(t *testing.T) {
	below, err := sqlite.Open(t.Context(), t.TempDir()+"/state.db", sqlite.Config{})
	require.NoError(t, err)
	store := pawltest.Wrap(below)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	rt := open(t, store)
	scope := created(t, rt)
	ran := 0
	insert := func() error {
		return pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			if _, err := counters.Scope(tx, "a").IncState(ctx, "n", 1); err != nil {
				return err
			}
			return pawl.WithNative(tx, func(context.Context, *sql.Tx) error { ran++; return nil })
		})
	}
	store.Next(pawltest.Refused)
	require.ErrorIs(t, insert(), pawl.ErrUnavailable)
	require.Zero(t, ran)
	require.NoError(t, insert())
	require.Equal(t, 1, ran)
	pawltest.RequireState(t, scope, counter{N: 1})

	inMemory := open(t, pawltest.NewStore())
	err = pawl.Transact(t.Context(), inMemory, func(_ context.Context, tx *pawl.Tx) error {
		return pawl.WithNative(tx, func(context.Context, *sql.Tx) error { return nil })
	})
	require.ErrorIs(t, err, pawl.ErrNoNative)
}

// The example that needs a *testing.T is run here.
func TestFakeTime(t *testing.T) { testSeats(t) }
