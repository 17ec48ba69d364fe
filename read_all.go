package pawl

import (
	"context"
	"errors"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/persist"
)

// Read is one scope of ReadAll, made by Scope.Into.
type Read interface {
	// scope returns the key and the runtime of the scope, or why it cannot be read.
	scope() (Key, *Runtime, error)
	// fill keeps the state of r.
	fill(r persist.Record) error
	// fillIn reads the scope inside tx.
	fillIn(ctx context.Context, tx *Tx) error
}

type read[T any] struct {
	from Scope[T]
	into *Snapshot[T]
}

// Into returns the read of s for ReadAll, which keeps the snapshot in *dst.
func (s Scope[T]) Into(dst *Snapshot[T]) Read { return read[T]{s, dst} }

func (r read[T]) scope() (Key, *Runtime, error) {
	switch err := r.from.fault(); {
	case err != nil:
		return Key{}, nil, err
	case r.into == nil:
		return Key{}, nil, &ArgumentError{Argument: "Into", Reason: "nil"}
	case r.from.stored == nil:
		return Key{}, nil, wrapKey(ErrNotPersisted, r.from.key)
	case r.from.tx != nil:
		return Key{}, nil, wrapKey(ErrInTx, r.from.key)
	}
	return r.from.key, r.from.bound.rt, nil
}

func (r read[T]) fill(record persist.Record) error {
	d := document.Of(record)
	r.from.stored.advance(d)
	snap, err := r.from.seen(d)
	*r.into = snapshotOf[T](snap)
	return err
}

func (r read[T]) fillIn(ctx context.Context, tx *Tx) (err error) {
	*r.into, err = r.from.In(tx).Snapshot(ctx)
	return err
}

// ReadAll reads several persisted scopes, of any kinds, as they are at one moment: it shows no
// commit in part. It asks the store once. Scopes without state have a Snapshot that does not exist.
//
//	var cart pawl.Snapshot[Cart]
//	var user pawl.Snapshot[User]
//	err := pawl.ReadAll(ctx, Carts.Scope(rt, "c").Into(&cart), Users.Scope(rt, "u").Into(&user))
//
// A document that this release cannot read gives *SchemaError, and the others are read. Scopes in
// memory share no moment with the store and are refused (ErrNotPersisted), as are scopes of a
// transaction (ErrInTx), a context of one (ErrOutsideTx), scopes of two runtimes (*ArgumentError)
// and more than MaxScopes scopes (*LimitError). Other errors are those of Scope.Snapshot. A store
// that is no persist.Reader is read by a transaction, which returns the errors of Transact.
func ReadAll(ctx context.Context, reads ...Read) error {
	if ctx == nil {
		return &ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	if len(reads) == 0 {
		return nil
	}
	var rt *Runtime
	keys := make([]Key, len(reads))
	for i, r := range reads {
		if r == nil {
			return &ArgumentError{Argument: "read", Reason: "nil"}
		}
		key, of, err := r.scope()
		switch {
		case err != nil:
			return err
		case rt != nil && of != rt:
			return &ArgumentError{Argument: "read", Reason: "scopes of two runtimes"}
		}
		keys[i], rt = key, of
	}
	switch {
	case len(keys) > MaxScopes:
		return &LimitError{Scope: keys[0], What: "scopes", Limit: MaxScopes, Got: len(keys), Reason: "in one ReadAll"}
	case frameOf(ctx).outerTx() != nil:
		return wrapKey(ErrOutsideTx, keys[0])
	case rt.closed.Load():
		return wrapKey(ErrClosed, keys[0])
	}
	if _, ok := rt.store.(persist.Reader); !ok {
		return Transact(ctx, rt, func(ctx context.Context, tx *Tx) error {
			for _, r := range reads {
				if err := r.fillIn(ctx, tx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	records, err := rt.env.loadAll(ctx, rt.store, keys)
	if err != nil {
		return storeError(ctx, keys[0], err)
	}
	for i, r := range reads {
		err = errors.Join(err, r.fill(records[i]))
	}
	return err
}
