package credits

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/pawltest"
	"github.com/pawl-go/pawl/persist"
)

// open returns a runtime on a store, which ends with the test.
func open(t *testing.T, store persist.Store, observers ...pawl.Observer) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{
		Store: store, Kinds: []pawl.AnyKind{Accounts, Pots}, Observer: pawl.Observers(observers...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close(context.Background()) }) // t.Context has ended by then
	return rt
}

// give sets the credits of a user, and returns the account.
func give(t *testing.T, rt *pawl.Runtime, user string, n int64) pawl.Scope[Account] {
	t.Helper()
	account := Accounts.Scope(rt, user)
	if _, err := account.SetState(t.Context(), Account{Credits: n}); err != nil {
		t.Fatal(err)
	}
	return account
}

func TestSpend(t *testing.T) {
	rt := open(t, pawltest.NewStore())
	ann := give(t, rt, "ann", 3)
	if err := Spend(t.Context(), rt, "ann", 2); err != nil {
		t.Fatal(err)
	}
	if err := Spend(t.Context(), rt, "ann", 2); !errors.Is(err, ErrSpent) {
		t.Fatalf("got %v, want ErrSpent", err)
	}
	pawltest.RequireState(t, ann, Account{Credits: 1})
	pawltest.RequireVersion(t, ann, 2) // the refused call wrote nothing
}

// In a synctest bubble the clock moves when all goroutines wait, so 14 days take no time.
func TestTrialExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := open(t, pawltest.NewStore())
		ann := Accounts.Scope(rt, "ann")
		if err := StartTrial(t.Context(), rt, "ann"); err != nil {
			t.Fatal(err)
		}
		if err := StartTrial(t.Context(), rt, "ann"); !errors.Is(err, pawl.ErrExists) {
			t.Fatalf("got %v, want ErrExists", err)
		}
		time.Sleep(14*24*time.Hour - time.Second)
		pawltest.RequireState(t, ann, Account{Credits: 10, Trial: true})
		time.Sleep(time.Second)
		pawltest.RequireAbsent(t, ann)
	})
}

// Another process spends the credits between the read and the commit: the function runs again, on
// the state that won.
func TestSpendAfterConflict(t *testing.T) {
	store := pawltest.NewStore()
	rt, other := open(t, store), open(t, store.Below())
	ann := give(t, rt, "ann", 3)
	store.Next(pawltest.Rival(func() error { return Spend(t.Context(), other, "ann", 2) }))
	if err := Spend(t.Context(), rt, "ann", 2); !errors.Is(err, ErrSpent) {
		t.Fatalf("got %v, want ErrSpent", err)
	}
	pawltest.RequireState(t, ann, Account{Credits: 1})
}

// A commit whose answer is lost is applied once, and so is a commit that was lost on its way.
func TestSpendOnceWhenAnswersAreLost(t *testing.T) {
	for name, lost := range map[string]pawltest.Fault{"answer": pawltest.LostAnswer, "request": pawltest.LostRequest} {
		t.Run(name, func(t *testing.T) {
			store := pawltest.NewStore()
			rt := open(t, store)
			ann := give(t, rt, "ann", 3)
			store.Next(lost)
			if err := Spend(t.Context(), rt, "ann", 2); err != nil {
				t.Fatal(err)
			}
			pawltest.RequireState(t, ann, Account{Credits: 1})
		})
	}
}

// During an outage the caller gets a retryable error at once, and nothing is applied.
func TestSpendDuringOutage(t *testing.T) {
	store := pawltest.NewStore()
	rt := open(t, store)
	ann := give(t, rt, "ann", 3)
	store.Down()
	err := Spend(t.Context(), rt, "ann", 2)
	var unavailable *pawl.UnavailableError
	if !errors.As(err, &unavailable) || !pawl.IsRetryable(err) || errors.Is(err, ErrSpent) {
		t.Fatalf("got %v, want *pawl.UnavailableError", err)
	}
	store.Up()
	pawltest.RequireState(t, ann, Account{Credits: 3})
}

// A store that keeps losing requests: at the end of its budget, in fake time, the caller learns
// that the outcome is unknown.
func TestSpendWithUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := pawltest.NewStore()
		rt := open(t, store)
		give(t, rt, "ann", 3)
		store.Every(pawltest.LostRequest)
		start := time.Now()
		err := Spend(t.Context(), rt, "ann", 2)
		if !pawl.OutcomeUnknown(err) || pawl.IsRetryable(err) {
			t.Fatalf("got %v, want an unknown outcome", err)
		}
		if took := time.Since(start); took < 29*time.Second || took > 31*time.Second {
			t.Fatalf("took %v, want the default budget of 30s", took)
		}
	})
}

// The lease is lost in the middle of a refill. The store refuses the grants that follow.
func TestRefillLosesItsLease(t *testing.T) {
	store := pawltest.NewStore()
	rt := open(t, store)
	ann, bob := give(t, rt, "ann", 0), give(t, rt, "bob", 0)
	gate := pawltest.NewGate()
	store.Nth(2, gate.After) // the first commit takes the lease, the second is the grant to ann
	answer := make(chan error, 1)
	go func() { answer <- Refill(t.Context(), rt, 5, "ann", "bob") }()
	gate.Wait(t)
	store.EndLease(t, Pots.Scope(rt, "refill").Key())
	gate.Open()
	if err := <-answer; !errors.Is(err, pawl.ErrLeaseLost) {
		t.Fatalf("got %v, want ErrLeaseLost", err)
	}
	pawltest.RequireState(t, ann, Account{Credits: 5})
	pawltest.RequireState(t, bob, Account{Credits: 0})
}

// Grants that arrive while a commit is under way share the next one. The recorder shows it, and
// synctest.Wait returns when all callers wait: no sleep decides the test.
func TestGrantsShareACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events pawltest.Recorder
		store, gate := pawltest.NewStore(), pawltest.NewGate()
		rt := open(t, store, &events)
		ann := give(t, rt, "ann", 0)
		store.Next(gate.Before)
		answers := make(chan error, 3)
		grant := func() { _, err := Grant(t.Context(), rt, "ann", 1); answers <- err }
		go grant()
		gate.Wait(t)
		go grant()
		go grant()
		synctest.Wait()
		gate.Open()
		for range 3 {
			if err := <-answers; err != nil {
				t.Fatal(err)
			}
		}
		pawltest.RequireState(t, ann, Account{Credits: 3})
		events.WaitFor(t, "a commit of two grants", func(e pawl.Event) bool {
			return e.Type == pawl.EventCommitted && e.Batch == 2
		})
		if n := events.Count(pawl.EventConflicted); n != 0 {
			t.Fatalf("got %d conflicts, want none", n)
		}
	})
}

// Callers of two processes spend at the same time: no credit is spent twice, and none is lost.
func TestSpendRace(t *testing.T) {
	store := pawltest.NewStore()
	runtimes := []*pawl.Runtime{open(t, store), open(t, store)}
	ann := give(t, runtimes[0], "ann", 100)
	spend := func(ctx context.Context, caller int) (spent int, err error) {
		for {
			err := Spend(ctx, runtimes[caller%2], "ann", 1)
			switch {
			case errors.Is(err, ErrSpent):
				return spent, nil
			case err != nil:
				return spent, err
			}
			spent++
		}
	}
	pawltest.Race(t, 8, spend, func(ctx context.Context) (int, error) {
		a, err := ann.State(ctx)
		return 100 - int(a.Credits), err
	})
}

// Each grant is applied once, in an order that fits the answers that the callers got.
func TestGrantHistory(t *testing.T) {
	store := pawltest.NewStore()
	runtimes := []*pawl.Runtime{open(t, store), open(t, store)}
	ann := give(t, runtimes[0], "ann", 0)
	h := pawltest.NewHistory(t, ann)
	store.Nth(5, pawltest.LostAnswer)
	pawltest.Race(t, 4, func(ctx context.Context, caller int) (granted int, err error) {
		for n := range int64(20) {
			model := func(a Account) Account { a.Credits += n; return a }
			_, err := h.Write("grant", model, func() (pawl.Snapshot[Account], error) {
				return Grant(ctx, runtimes[caller%2], "ann", n)
			})
			if err != nil {
				return granted, err
			}
			granted += int(n)
		}
		return granted, nil
	}, func(ctx context.Context) (int, error) {
		a, err := h.Read("balance", func() (pawl.Snapshot[Account], error) { return ann.Snapshot(ctx) })
		return int(a.State().Credits), err
	})
	h.Check(t)
}
