package pawl

import (
	"context"
	"errors"
	"time"

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
	var taken []Taken[T]
	for _, r := range records {
		s := k.Scope(rt, r.ID)
		if s.err != nil { // closed meanwhile; the lease will run out
			err = errors.Join(err, s.err)
			continue
		}
		d := docOf(r)
		s.cell.advance(d)
		l := rt.newLease(ctx, s.cell, r.Key, asked, r.Lease.Token, sent)
		snap, unreadable := s.seen(d)
		if unreadable != nil {
			err = errors.Join(err, unreadable, l.giveBack(context.WithoutCancel(ctx)))
			continue
		}
		taken = append(taken, Taken[T]{snap, l.under(ctx)})
	}
	return taken, err
}

// takeOneByOne is Take on a store that cannot list and acquire in one step.
func (k Kind[T]) takeOneByOne(ctx context.Context, o Owner, b *binding, q persist.Query, opts []LeaseOption) (taken []Taken[T], err error) {
	for want := q.Limit; len(taken) < want; {
		page, err := b.rt.store.List(ctx, q)
		if err != nil {
			return taken, b.readError(ctx, Key{Kind: k.Name}, err)
		}
		for _, r := range page.Records {
			if len(taken) == want {
				break
			}
			l, snap, err := k.Scope(b.rt, r.ID).acquire(ctx, append(opts[:len(opts):len(opts)], Applying(All{}, IfVersion(r.Version))))
			var schema *SchemaError
			switch {
			case err == nil:
				taken = append(taken, Taken[T]{snap, l})
			case errors.Is(err, ErrHeld), errors.Is(err, ErrConflict), errors.Is(err, ErrDeleted), errors.Is(err, ErrExpired), errors.As(err, &schema):
			default:
				return taken, err
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	return taken, nil
}
