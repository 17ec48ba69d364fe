package pawl

import (
	"context"
	"errors"
	"time"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/persist"
)

// Taken is a scope of which Kind.Take has got the lease, with its state then.
type Taken[T any] struct {
	Snapshot[T]
	Lease *Lease
}

// Take acquires the leases of up to q.Limit (0: 1) scopes of this kind that match q and that nobody holds, skipping those that others are taking at the same
// moment: the way to share out work that is due among workers. The leases are live, with contexts derived from ctx; release each, as Lease.Run does.
// LeaseFor and HeldBy apply; Wait and Applying do not (*ArgumentError).
//
// What was taken is returned even when there is an error: ErrNotPersisted for an in-memory kind, ErrInTx on a transaction and ErrOutsideTx inside one,
// ErrNoStore, *KindError, *UnavailableError, *SchemaError for what this release cannot read (its lease is given back), ErrClosed, or *CanceledError.
func (k Kind[T]) Take(ctx context.Context, o Owner, q Query, opts ...LeaseOption) ([]Taken[T], error) {
	b, err := k.listable(ctx, o)
	if err != nil {
		return nil, err
	}
	rt := b.rt
	asked, err := rt.leaseCall(opts)
	if err != nil {
		return nil, err
	}
	if asked.wait || asked.applying {
		return nil, &ArgumentError{Argument: "option", Reason: "Wait and Applying are for Acquire"}
	}
	sq := q.stored(k.Name)
	sq.Unheld, sq.Limit = true, max(q.Limit, 1)
	leaser, ok := rt.store.(persist.Leaser)
	if !ok || innermost(ctx).held() != nil { // that it is fenced by a lease can be said of a commit only
		return k.takeOneByOne(ctx, o, b, sq, opts)
	}
	sent := time.Now()
	records, err := leaser.Take(ctx, sq, persist.Acquire{Holder: asked.holder, For: asked.length})
	if err != nil {
		err = b.readError(ctx, Key{Kind: k.Name}, err)
	}
	var (
		taken      []Taken[T]
		unreadable []*Lease
	)
	for _, r := range records {
		s := k.Scope(rt, r.ID)
		if s.err != nil { // closed meanwhile; the lease will run out
			err = errors.Join(err, s.err)
			continue
		}
		d := document.Of(r)
		s.stored.advance(d)
		l := rt.newLease(ctx, s.stored, r.Key, asked, r.Lease.Token, sent)
		snap, fault := s.seen(d)
		if fault != nil {
			err, unreadable = errors.Join(err, fault), append(unreadable, l)
			continue
		}
		taken = append(taken, Taken[T]{snap, l.under(ctx)})
	}
	if len(unreadable) == 0 {
		return taken, err
	}
	// Asked again, the store would give the same again: the rest is found without taking what cannot be read.
	if sq.Limit -= len(taken); sq.Limit > 0 {
		more, failed := k.takeOneByOne(ctx, o, b, sq, opts)
		taken, err = append(taken, more...), errors.Join(err, failed)
	}
	for _, l := range unreadable {
		err = errors.Join(err, l.giveBack(context.WithoutCancel(ctx)))
	}
	return taken, err
}

// takeOneByOne is Take on a store that cannot list and acquire in one step.
func (k Kind[T]) takeOneByOne(ctx context.Context, o Owner, b *binding, q persist.Query, opts []LeaseOption) (taken []Taken[T], err error) {
	for want := q.Limit; len(taken) < want; {
		page, failed := b.rt.store.List(ctx, q)
		if failed != nil {
			return taken, errors.Join(err, b.readError(ctx, Key{Kind: k.Name}, failed))
		}
		for _, r := range page.Records {
			if len(taken) == want {
				break
			}
			l, snap, failed := k.Scope(b.rt, r.ID).acquire(ctx, append(opts[:len(opts):len(opts)], Applying(All{}, IfVersion(r.Version))))
			var schema *SchemaError
			switch {
			case failed == nil:
				taken = append(taken, Taken[T]{snap, l})
			case errors.Is(failed, ErrHeld), errors.Is(failed, ErrConflict), errors.Is(failed, ErrDeleted), errors.Is(failed, ErrExpired):
			case errors.As(failed, &schema):
				err = errors.Join(err, failed)
			default:
				return taken, errors.Join(err, failed)
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	return taken, err
}
