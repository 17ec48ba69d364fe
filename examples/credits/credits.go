// Package credits is a small module on Pawl, with the tests that such a module needs: the clock is
// fake, and the store loses commits, fails and forgets to answer. docs/testing.md explains them.
package credits

import (
	"context"
	"errors"
	"time"

	"github.com/pawl-go/pawl"
)

// Account is the state of a user.
type Account struct {
	Credits int64 `json:"credits"`
	Trial   bool  `json:"trial"`
}

// Accounts holds the accounts, by user.
var Accounts = pawl.Kind[Account]{Name: pawl.KindUser}

// Pot is leased while credits are handed out.
type Pot struct{}

// Pots holds the pot.
var Pots = pawl.Kind[Pot]{Name: "pot"}

// ErrSpent is returned when an account has too few credits.
var ErrSpent = errors.New("too few credits")

// Spend takes n credits from a user. It returns ErrSpent, or an error of Pawl.
func Spend(ctx context.Context, rt *pawl.Runtime, user string, n int64) error {
	_, err := Accounts.Scope(rt, user).AtomicState(ctx, func(_ context.Context, a *Account) error {
		if a.Credits < n {
			return ErrSpent
		}
		a.Credits -= n
		return nil
	})
	return err
}

// Grant gives a user n credits, and returns the account as it left it. It returns an error of Pawl.
func Grant(ctx context.Context, rt *pawl.Runtime, user string, n int64) (pawl.Snapshot[Account], error) {
	return Accounts.Scope(rt, user).IncState(ctx, "credits", n)
}

// Refill gives every user in the list n credits. While it runs, it holds the lease of the pot, so
// that one process refills at a time. It returns pawl.ErrHeld if another one does.
func Refill(ctx context.Context, rt *pawl.Runtime, n int64, users ...string) error {
	return Pots.Scope(rt, "refill").Hold(ctx, func(ctx context.Context, _ *pawl.Lease) error {
		for _, user := range users {
			if _, err := Grant(ctx, rt, user, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// StartTrial gives a new user 10 credits for 14 days. It returns pawl.ErrExists for a known user.
func StartTrial(ctx context.Context, rt *pawl.Runtime, user string) error {
	_, err := Accounts.Scope(rt, user).SetState(ctx, Account{Credits: 10, Trial: true},
		pawl.IfAbsent(), pawl.WithTTL(14*24*time.Hour))
	return err
}
