package pawl

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/persist"
)

// Transactions and the caller's own database: its SQL inside a commit of Pawl's (WithNative), and a
// commit of Pawl's inside its transaction (CommitThrough).

// nativeCall is code of the caller's that runs inside a commit, with the handle of its database
// transaction.
type nativeCall func(ctx context.Context, handle any) error

// WithNative registers fn to run inside the database transaction that commits tx, after all writes
// of tx. Fn gets the driver's own handle (pgx.Tx, *sql.Tx). An error or panic of fn rolls
// everything back, and Transact returns or raises it.
//
// Fn may run more than once when the commit is repeated. It must have no effects outside the
// database, must not end the transaction, and cannot use scopes (ErrOutsideTx, ErrClosed). While it
// runs it holds a connection, and with SQLite it blocks all other writers.
//
// WithNative returns ErrNoNative when the store has no transaction of type H, and ErrClosed when tx
// is over.
func WithNative[H any](tx *Tx, fn func(ctx context.Context, h H) error) error {
	if tx == nil {
		return &ArgumentError{Argument: "tx", Reason: "nil"}
	}
	if fn == nil {
		return &ArgumentError{Argument: "WithNative", Reason: "nil function"}
	}
	native, ok := tx.of.store.(persist.Native)
	if want := reflect.TypeFor[H](); !ok || native.NativeType() != want {
		return fmt.Errorf("%w: %s", ErrNoNative, want)
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if _, err := tx.find(Key{Kind: "transaction"}); err != nil {
		return err
	}
	tx.native = append(tx.native, func(ctx context.Context, handle any) error {
		h, ok := handle.(H)
		if !ok {
			return fmt.Errorf("%w: %T", ErrNoNative, handle)
		}
		return fn(ctx, h)
	})
	return nil
}

// route returns the route of the commit of tx, which runs calls inside it.
func (t *transaction) route(tx *Tx, calls []nativeCall) commit.Route {
	send := t.store.Commit
	if len(calls) > 0 {
		send = func(ctx context.Context, c persist.Commit) (time.Time, error) {
			return t.store.(persist.Native).CommitWith(ctx, c, func(ctx context.Context, handle any) error {
				return tx.callNative(ctx, calls, handle)
			})
		}
	}
	if !t.joined() {
		return commit.Route{Store: t.rt.store, Commit: send, Once: len(calls) > 0 || len(tx.ended) > 0}
	}
	joined := func(ctx context.Context, c persist.Commit) (time.Time, error) {
		at, err := send(ctx, c)
		if commit.Answered(err) || commit.NotApplied(err) || len(calls) > 0 {
			return at, err // calls may have ended the transaction
		}
		// A transaction that is still open has applied nothing.
		return at, fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	return commit.Route{Store: t.rt.store, Once: true, Last: true, Commit: joined}
}

// callNative runs calls inside the commit of tx. Verbs with their context are refused: they would
// wait for records that the commit has locked.
func (tx *Tx) callNative(ctx context.Context, calls []nativeCall, handle any) error {
	f := newFrame(ctx, tx.of.parent, tx.of.lease)
	f.tx = tx
	defer f.End()
	for _, call := range calls {
		var end ending
		end.panic = guarded(func() { end.err = call(f, handle) }, func() {})
		if end.failed() {
			return &commit.OwnError{Err: foreign{end}}
		}
	}
	return nil
}
