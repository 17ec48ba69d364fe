package pawl

import (
	"context"
	"errors"
	"time"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/persist"
)

// Taken is a scope whose lease Kind.Take acquired, with its state at that moment.
type Taken[T any] struct {
	Snapshot[T]
	Lease *Lease
}

// How Take finds and acquires scopes:
//
//	look (List) ─► every document found is readable ─► the store's Take: all in one step
//	     │
//	     └─► otherwise, without a persist.Leaser, or under a lease ─► List, then Acquire one by one
//
// Acquiring moves a version, and a document that this release cannot read must stay as it is. So
// Take looks before it acquires. One race remains: other workers take the records that were seen,
// and the store's Take goes on to one that was not. If that is unreadable, its lease is given back,
// and binding.unreadable makes all later calls of this process go one by one.

// Take acquires the leases of up to q.Limit (0: 1) scopes of this kind that match q and that are
// not held, skipping those that other workers are taking at the same moment. Workers share out due
// work this way. The leases are live, with contexts derived from ctx; release each, as Lease.Run
// does. LeaseFor and HeldBy apply; WaitForLease and WithMutation do not (*ArgumentError).
//
// A document that this release cannot read is left alone and reported (*SchemaError). A lease that
// ran out before the answer of the store arrived is reported (*LeaseLostError) and not returned.
// Take returns the scopes it took even when there is an error: ErrNotPersisted for an in-memory
// kind, ErrInTx on a transaction and ErrOutsideTx inside one, ErrNoStore, *KindError, *LimitError,
// *UnavailableError, *SchemaError, *LeaseLostError, ErrClosed, or *CanceledError.
func (k Kind[T]) Take(ctx context.Context, o Owner, q Query, opts ...LeaseOption) ([]Taken[T], error) {
	b, err := k.listable(ctx, o, q)
	if err != nil {
		return nil, err
	}
	rt := b.rt
	asked, err := rt.leaseCall(opts)
	if err != nil {
		return nil, err
	}
	if asked.wait || asked.applying {
		return nil, &ArgumentError{Argument: "option", Reason: "WaitForLease and WithMutation are for Acquire"}
	}
	sq := q.stored(k.Name)
	sq.Unheld, sq.Limit = true, max(q.Limit, 1)
	leaser, ok := rt.store.(persist.Leaser)
	if !ok || innermost(ctx).held() != nil { // only a commit can be fenced by the lease
		return k.takeOneByOne(ctx, b, sq, opts)
	}
	if found, err := b.look(ctx, sq); err != nil || !found {
		return nil, err
	}
	if b.unreadable.Load() {
		return k.takeOneByOne(ctx, b, sq, opts)
	}
	return k.takeAtOnce(ctx, b, leaser, sq, asked)
}

// look reports whether any record matches q, and sets b.unreadable if one of them cannot be read.
// Once that is set, it does not ask the store.
func (b *binding) look(ctx context.Context, q persist.Query) (found bool, err error) {
	if b.unreadable.Load() {
		return true, nil
	}
	page, err := b.rt.store.List(ctx, q)
	if err != nil {
		return false, b.readError(ctx, Key{Kind: q.Kind}, err)
	}
	for _, r := range page.Records {
		if _, err := b.view(document.Of(r), r.Key); err != nil {
			b.unreadable.Store(true)
		}
	}
	return len(page.Records) > 0, nil
}

// takeAtOnce is Take by one step of the store.
func (k Kind[T]) takeAtOnce(ctx context.Context, b *binding, leaser persist.Leaser, q persist.Query, asked leaseCall) ([]Taken[T], error) {
	rt := b.rt
	sent := time.Now()
	records, err := leaser.Take(ctx, q, persist.Acquire{Holder: asked.holder, For: asked.length})
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
			b.unreadable.Store(true)
			unreadable = append(unreadable, l)
			err = errors.Join(err, fault)
			continue
		}
		if lost := l.under(ctx).lost(); lost != nil {
			err = errors.Join(err, lost) // the answer came too late
			continue
		}
		taken = append(taken, Taken[T]{snap, l})
	}
	for _, l := range unreadable {
		err = errors.Join(err, l.giveBack(context.WithoutCancel(ctx)))
	}
	return taken, err
}

// takeOneByOne is Take by List and Acquire. It does not acquire a document that it cannot read.
func (k Kind[T]) takeOneByOne(ctx context.Context, b *binding, q persist.Query, opts []LeaseOption) (taken []Taken[T], err error) {
	for want := q.Limit; len(taken) < want; {
		page, failed := b.rt.store.List(ctx, q)
		if failed != nil {
			return taken, errors.Join(err, b.readError(ctx, Key{Kind: k.Name}, failed))
		}
		for _, r := range page.Records {
			if len(taken) == want {
				break
			}
			if _, fault := b.view(document.Of(r), r.Key); fault != nil {
				err = errors.Join(err, fault)
				continue
			}
			l, snap, failed := k.Scope(b.rt, r.ID).acquire(ctx, append(opts[:len(opts):len(opts)], WithMutation(All{}, IfVersion(r.Version))))
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
