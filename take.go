package pawl

import (
	"context"
	"errors"
	"sync/atomic"
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
//	     │                                                 ▲        │
//	     │          WithMutation of data verbs ────────────┘        └─► it left a document out
//	     │                                                                       │
//	     └─► otherwise, without a persist.Leaser, or under a lease ─► List, then Acquire one by one
//
// Acquiring moves a version, and a document that this release cannot read must stay as it is. So
// Take looks before it acquires. One race remains: other workers take the records that were seen,
// and the store's Take goes on to one that was not. If that is unreadable, its lease is given back,
// and binding.unreadable makes all later calls of this process go one by one.
//
// With a mutation Take need not look: the store's Take lets Pawl compute each document inside the
// step (taking). Code of the caller's must not run there: functions, JSON code of the state type,
// and upgrades go one by one, where two workers may try for one scope and one of them goes on.

// Take acquires the leases of up to q.Limit (0: 1) scopes of this kind that match q and that are
// not held, skipping those that other workers are taking at the same moment. Workers share out due
// work this way. The leases are live, with contexts derived from ctx; release each, as Lease.Run
// does. LeaseFor, HeldBy and WithMutation apply; WaitForLease does not (*ArgumentError).
//
// WithMutation commits its mutation together with each lease, so a scope moves by one version from
// "due" to "running". Its state in the result is the one after the mutation. A mutation of data
// verbs is as quick as a Take without one. For a function, or a state type with JSON code of its
// own, Take acquires one scope after the other. A scope on which the mutation fails is left alone.
// Its error is reported if Take found fewer scopes than q.Limit, and may be otherwise.
//
// A document that this release cannot read is left alone and reported (*SchemaError), also if an
// Upgrade or T's own JSON code panics on it. If a function of WithMutation panics or calls
// runtime.Goexit, Take gives back the leases that it took before. A lease that ran out before the
// answer of the store arrived is reported (*LeaseLostError) and not returned.
//
// Take returns the scopes it took even when there is an error: ErrNotPersisted for an in-memory
// kind, ErrInTx on a transaction and ErrOutsideTx inside one, ErrNoStore, *KindError,
// *ArgumentError, *LimitError, *UnavailableError, *SchemaError, *LeaseLostError, ErrClosed,
// *CanceledError, or errors of the mutation.
func (k Kind[T]) Take(ctx context.Context, o Owner, q Query, opts ...LeaseOption) ([]Taken[T], error) {
	all, err := settings(k).take(ctx, o, typed[T]{}, q, opts)
	var taken []Taken[T]
	for _, t := range all {
		taken = append(taken, Taken[T]{snapshotOf[T](t.snapshot), t.lease})
	}
	return taken, err
}

// taken is a Taken without its type.
type taken struct {
	snapshot
	lease *Lease
}

// take is Kind.Take.
func (k settings) take(ctx context.Context, o Owner, st stateType, q Query, opts []LeaseOption) ([]taken, error) {
	b, err := k.listable(ctx, o, st, q)
	if err != nil {
		return nil, err
	}
	rt := b.rt
	asked, err := rt.leaseCall(opts)
	if err != nil {
		return nil, err
	}
	if asked.wait {
		return nil, &ArgumentError{Argument: "option", Reason: "WaitForLease is for Acquire"}
	}
	t, err := b.taking(asked)
	if err != nil {
		return nil, err
	}
	sq := q.stored(k.Name)
	sq.Unheld, sq.Limit = true, max(q.Limit, 1)
	leaser, ok := rt.store.(persist.Leaser)
	if !ok || innermost(ctx).held() != nil || asked.applying && !t.inStore() { // only a commit can be fenced by the lease
		return b.takeOneByOne(ctx, nil, sq, asked, opts)
	}
	var change persist.Change
	if asked.applying {
		change = t.change
	} else if found, err := b.look(ctx, sq); err != nil || !found {
		return nil, err
	}
	if b.unreadable.Load() {
		return b.takeOneByOne(ctx, nil, sq, asked, opts)
	}
	all, err := b.takeAtOnce(ctx, leaser, sq, asked, change)
	if errors.Is(err, persist.ErrUnsupported) { // of a store in front of one that is no Leaser
		return b.takeOneByOne(ctx, nil, sq, asked, opts)
	}
	if sq.Limit -= len(all); err != nil || sq.Limit == 0 || !t.leftOut.Load() {
		return all, err
	}
	return b.takeOneByOne(ctx, all, sq, asked, opts)
}

// taking is the mutation of one Take, as the store's Take runs it.
type taking struct {
	bound *binding
	terms *terms
	data  change
	// leftOut is set when a record was left out that has to be acquired by itself. The store may
	// set it after the caller of Take has left.
	leftOut atomic.Bool
}

// taking returns the mutation of asked. It returns *ArgumentError, *FieldError or *LimitError.
func (b *binding) taking(asked leaseCall) (t *taking, err error) {
	t = &taking{bound: b}
	if t.terms, err = b.defaults.with(asked.opts); err != nil {
		return nil, err
	}
	if t.terms.joined {
		return nil, &ArgumentError{Argument: "CommitThrough", Reason: "is for Transact"}
	}
	if err := t.data.compile(Key{Kind: b.kind.Name}, b.typ, asked.mutation); err != nil {
		return nil, err
	}
	t.data.takes = &persist.Acquire{Holder: asked.holder, For: asked.length}
	return t, nil
}

// inStore reports whether the mutation runs no code of the caller's.
func (t *taking) inStore() bool { return t.data.bounded() && !t.bound.typ.Custom() }

// change is a persist.Change. It leaves out a document that would have to be upgraded, and one that
// the mutation fails on.
func (t *taking) change(r persist.Record) (persist.Record, bool) {
	w, ok := t.write(r)
	if !ok {
		t.leftOut.Store(true)
		return r, false
	}
	r.Doc, r.Schema, r.Label, r.Due = w.Doc, w.Schema, w.Label, w.Due
	if w.DueIn > 0 {
		r.Due = r.Now.Add(w.DueIn)
	}
	switch {
	case w.TTL > 0:
		r.Expires = r.Now.Add(w.TTL)
	case w.TTL == 0:
		r.Expires = time.Time{}
	}
	return r, true
}

// write returns what the mutation makes of r.
func (t *taking) write(r persist.Record) (persist.Write, bool) {
	if r.Schema != t.bound.schema() {
		return persist.Write{}, false
	}
	call, draft := call{terms: t.terms, key: r.Key}, document.NewDraft(document.Of(r))
	if _, err := mutate(context.Background(), &call, &t.data, t.bound, &draft, true); err != nil {
		return persist.Write{}, false
	}
	w, _, err := t.bound.write(&call, &draft)
	return w, err == nil
}

// NextDue returns how long it takes, by the store's clock, until the next scope falls due that
// matches q and is not held. Scopes that are due already do not count. It looks no further ahead
// than within, and returns 0 if none falls due in that time. It returns the errors of List.
func (k Kind[T]) NextDue(ctx context.Context, o Owner, q Query, within time.Duration) (time.Duration, error) {
	b, err := settings(k).listable(ctx, o, typed[T]{}, q)
	if err != nil {
		return 0, err
	}
	return b.nextDue(ctx, q, within)
}

// nextDue is Kind.NextDue.
func (b *binding) nextDue(ctx context.Context, q Query, within time.Duration) (time.Duration, error) {
	name := b.kind.Name
	sq := q.stored(name)
	sq.Due, sq.DueIn, sq.Unheld, sq.Limit = true, max(within, time.Microsecond), true, 1
	page, err := b.rt.list(ctx, sq)
	if err != nil {
		return 0, storeError(ctx, Key{Kind: name}, err)
	}
	if len(page.Records) == 0 {
		return 0, nil
	}
	r := page.Records[0]
	return r.Due.Sub(r.Now), nil
}

// look reports whether any record matches q, and sets b.unreadable if one of them cannot be read.
// Once that is set, it does not ask the store.
func (b *binding) look(ctx context.Context, q persist.Query) (found bool, err error) {
	if b.unreadable.Load() {
		return true, nil
	}
	page, err := b.rt.list(ctx, q)
	if err != nil {
		return false, storeError(ctx, Key{Kind: q.Kind}, err)
	}
	for _, r := range page.Records {
		if _, err := b.readable(document.Of(r), r.Key); err != nil {
			b.unreadable.Store(true)
		}
	}
	return len(page.Records) > 0, nil
}

// takeAtOnce is Take by one step of the store.
func (b *binding) takeAtOnce(ctx context.Context, leaser persist.Leaser, q persist.Query, asked leaseCall, change persist.Change) ([]taken, error) {
	rt := b.rt
	sent := time.Now()
	records, err := observeCall(ctx, rt.env, "Take", Key{Kind: q.Kind}, func() ([]persist.Record, error) {
		return leaser.Take(ctx, q, persist.Acquire{Holder: asked.holder, For: asked.length}, change)
	})
	if err != nil {
		err = storeError(ctx, Key{Kind: q.Kind}, err)
	}
	var (
		all   []taken
		spare []*Lease // not returned, so given back
	)
	for _, r := range records {
		s := b.open(owner{rt: b.rt}, r.ID)
		if s.err != nil { // closed meanwhile
			err = errors.Join(err, s.err)
			spare = append(spare, rt.newLease(ctx, &stored{}, r.Key, asked, r.Lease.Token, sent))
			continue
		}
		d := document.Of(r)
		s.stored.advance(d)
		l := rt.newLease(ctx, s.stored, r.Key, asked, r.Lease.Token, sent)
		v, fault := b.readable(d, r.Key)
		if fault != nil {
			b.unreadable.Store(true)
			spare = append(spare, l)
			err = errors.Join(err, fault)
			continue
		}
		if lost := l.under(ctx).lost(); lost != nil {
			err = errors.Join(err, lost)              // the answer came too late
			_ = l.Release(context.WithoutCancel(ctx)) // tells the store only where Close ended the lease
			continue
		}
		all = append(all, taken{snapshot{id: r.ID, version: d.Version, at: d.At, state: v.State}, l})
	}
	for _, l := range spare {
		err = errors.Join(err, l.giveBack(context.WithoutCancel(ctx)))
	}
	return all, err
}

// takeOneByOne is Take by List and Acquire. It does not acquire a document that it cannot read. It
// adds up to q.Limit scopes to all, and gives all leases back if it panics or calls runtime.Goexit.
func (b *binding) takeOneByOne(ctx context.Context, all []taken, q persist.Query, asked leaseCall, opts []LeaseOption) (_ []taken, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		for _, t := range all {
			_ = t.lease.Release(context.WithoutCancel(ctx)) // it runs out otherwise
		}
	}()
	err = b.addOneByOne(ctx, &all, q, asked, opts)
	returned = true
	return all, err
}

// addOneByOne is takeOneByOne. What it took is in all when it panics.
func (b *binding) addOneByOne(ctx context.Context, all *[]taken, q persist.Query, asked leaseCall, opts []LeaseOption) (err error) {
	for left := q.Limit; left > 0; {
		page, failed := b.rt.list(ctx, q)
		if failed != nil {
			return errors.Join(err, storeError(ctx, Key{Kind: q.Kind}, failed))
		}
		for _, r := range page.Records {
			if left == 0 {
				break
			}
			if _, fault := b.readable(document.Of(r), r.Key); fault != nil {
				err = errors.Join(err, fault)
				continue
			}
			pinned := append(asked.opts[:len(asked.opts):len(asked.opts)], IfVersion(r.Version))
			s := b.open(owner{rt: b.rt}, r.ID)
			l, snap, failed := s.acquire(ctx, append(opts[:len(opts):len(opts)], WithMutation(asked.mutation, pinned...)))
			switch {
			case failed == nil:
				*all = append(*all, taken{snap, l})
				left--
			case errors.Is(failed, ErrHeld), errors.Is(failed, ErrConflict), errors.Is(failed, ErrDeleted), errors.Is(failed, ErrExpired):
			case ctx.Err() != nil, OutcomeUnknown(failed), errors.Is(failed, ErrUnavailable), errors.Is(failed, ErrClosed), errors.Is(failed, ErrLeaseLost):
				return errors.Join(err, failed)
			default: // of this document or of the mutation on it
				err = errors.Join(err, failed)
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	return err
}
