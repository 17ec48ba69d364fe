package batch

import (
	"context"
	"fmt"
	"reflect"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/state"
)

// Ledger keeps the balances of accounts.
type Ledger interface {
	// Add adds points to the balance of an account, as an increment and as part of tx. A charge is
	// negative. It returns *InsufficientError rather than let a charge make the balance negative, and
	// pawl.ErrNotFound if there is no such account; for 0 points too. Either error may come from the
	// commit of tx instead.
	Add(ctx context.Context, tx *pawl.Tx, account string, points int64) error
}

// ScopeLedger returns a ledger that keeps each balance in a scope of kind, whose id is the account,
// in a field that is an integer. The accounts have to exist.
func ScopeLedger[T any](kind pawl.Kind[T], balance pawl.Field) Ledger {
	return scopeLedger[T]{kind, balance}
}

type scopeLedger[T any] struct {
	kind  pawl.Kind[T]
	field pawl.Field
}

func (l scopeLedger[T]) Add(ctx context.Context, tx *pawl.Tx, account string, points int64) error {
	snap, err := l.kind.Scope(tx, account).IncState(ctx, l.field, points, pawl.IfExists())
	if pawl.IsAbsent(err) {
		return fmt.Errorf("%w: account %.80q", pawl.ErrNotFound, account)
	}
	if err != nil || points > 0 {
		return err
	}
	balance, err := l.balance(snap.ReadOnly()) // for 0 points, too: Submit refuses a field of another type
	if err == nil && points < 0 && balance < 0 {
		err = &InsufficientError{Account: account, Have: balance - points, Need: -points}
	}
	return err
}

// balance returns the balance in a state.
func (l scopeLedger[T]) balance(s *T) (int64, error) {
	typ, err := state.Of(reflect.TypeFor[T]())
	if err != nil {
		return 0, err
	}
	value, ok := typ.Lookup(s, string(l.field))
	if v := reflect.ValueOf(value); ok && v.CanInt() {
		return v.Int(), nil
	}
	return 0, &pawl.ArgumentError{Argument: "ScopeLedger", Reason: fmt.Sprintf("field %s of kind %s is no signed integer", l.field, l.kind.Name)}
}

// NativeLedger returns a ledger in a table of the program's own, in the database of the store. H is
// the driver's transaction: pgx.Tx, or *sql.Tx for SQLite. Add does what Ledger says, in one
// statement that tests the balance for a charge, with the points as its first argument and the account as its
// second:
//
//	UPDATE wallet SET points = points + $1 WHERE id = $2 AND (points + $1 >= 0 OR $1 > 0)
//
// SQLite counts such arguments in the order of their appearance, whatever their numbers.
//
// It may run more than once, when the commit is repeated; only the last run counts.
func NativeLedger[H any](add func(ctx context.Context, h H, account string, points int64) error) Ledger {
	return nativeLedger[H](add)
}

type nativeLedger[H any] func(ctx context.Context, h H, account string, points int64) error

func (add nativeLedger[H]) Add(_ context.Context, tx *pawl.Tx, account string, points int64) error {
	return pawl.WithNative(tx, func(ctx context.Context, h H) error { return add(ctx, h, account, points) })
}
