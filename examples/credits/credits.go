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

// StartTrial gives a new user 10 credits for 14 days. It returns pawl.ErrExists for a known user.
func StartTrial(ctx context.Context, rt *pawl.Runtime, user string) error {
	_, err := Accounts.Scope(rt, user).SetState(ctx, Account{Credits: 10, Trial: true},
		pawl.IfAbsent(), pawl.WithTTL(14*24*time.Hour))
	return err
}
