package credits

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// open returns a runtime on a store, which ends with the test.
func open(t *testing.T, store persist.Store) *pawl.Runtime {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Accounts}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close(context.Background()) }) // t.Context has ended by then
	return rt
}

// give sets the credits of a user.
func give(t *testing.T, rt *pawl.Runtime, user string, n int64) {
	t.Helper()
	if _, err := Accounts.Scope(rt, user).SetState(t.Context(), Account{Credits: n}); err != nil {
		t.Fatal(err)
	}
}

// requireCredits fails the test if the user has another number of credits.
func requireCredits(t *testing.T, rt *pawl.Runtime, user string, want int64) {
	t.Helper()
	a, err := Accounts.Scope(rt, user).State(t.Context())
	if err != nil || a.Credits != want {
		t.Fatalf("got %d credits, %v, want %d", a.Credits, err, want)
	}
}

func TestSpend(t *testing.T) {
	rt := open(t, memory.New())
	give(t, rt, "ann", 3)
	if err := Spend(t.Context(), rt, "ann", 2); err != nil {
		t.Fatal(err)
	}
	if err := Spend(t.Context(), rt, "ann", 2); !errors.Is(err, ErrSpent) {
		t.Fatalf("got %v, want ErrSpent", err)
	}
	requireCredits(t, rt, "ann", 1)
}

// In a synctest bubble the clock moves when all goroutines wait, so 14 days take no time. The
// memory store uses the same clock.
func TestTrialExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := open(t, memory.New())
		if err := StartTrial(t.Context(), rt, "ann"); err != nil {
			t.Fatal(err)
		}
		if err := StartTrial(t.Context(), rt, "ann"); !errors.Is(err, pawl.ErrExists) {
			t.Fatalf("got %v, want ErrExists", err)
		}
		time.Sleep(14*24*time.Hour - time.Second)
		requireCredits(t, rt, "ann", 10)
		time.Sleep(time.Second)
		requireCredits(t, rt, "ann", 0)
	})
}

// Another process spends the credits between the read and the commit: the function runs again, on
// the state that won.
func TestSpendAfterConflict(t *testing.T) {
	store := memory.New()
	faulty := &faults{Store: store}
	rt, other := open(t, faulty), open(t, store)
	give(t, rt, "ann", 3)
	faulty.add(conflict(func() error { return Spend(t.Context(), other, "ann", 2) }))
	if err := Spend(t.Context(), rt, "ann", 2); !errors.Is(err, ErrSpent) {
		t.Fatalf("got %v, want ErrSpent", err)
	}
	requireCredits(t, rt, "ann", 1)
}

// A commit whose answer is lost is applied once, and so is a commit that was lost on its way.
func TestSpendOnceWhenAnswersAreLost(t *testing.T) {
	for name, lost := range map[string]fault{"answer": lostAnswer, "request": lostRequest} {
		t.Run(name, func(t *testing.T) {
			faulty := &faults{Store: memory.New()}
			rt := open(t, faulty)
			give(t, rt, "ann", 3)
			faulty.add(lost)
			if err := Spend(t.Context(), rt, "ann", 2); err != nil {
				t.Fatal(err)
			}
			requireCredits(t, rt, "ann", 1)
		})
	}
}

// During an outage the caller gets a retryable error at once, and nothing is applied.
func TestSpendDuringOutage(t *testing.T) {
	faulty := &faults{Store: memory.New()}
	rt := open(t, faulty)
	give(t, rt, "ann", 3)
	faulty.setDown(true)
	err := Spend(t.Context(), rt, "ann", 2)
	var unavailable *pawl.UnavailableError
	if !errors.As(err, &unavailable) || !pawl.IsRetryable(err) || errors.Is(err, ErrSpent) {
		t.Fatalf("got %v, want *pawl.UnavailableError", err)
	}
	faulty.setDown(false)
	requireCredits(t, rt, "ann", 3)
}

// A store that keeps losing answers: at the end of its budget, in fake time, the caller learns that
// the outcome is unknown.
func TestSpendWithUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty := &faults{Store: memory.New()}
		rt := open(t, faulty)
		give(t, rt, "ann", 3)
		for range 10_000 {
			faulty.add(lostRequest)
		}
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
