package pawl

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// A binding is the backend of all persisted scopes of one kind and type: the way from a draft to the store.

// load returns the store's version of key.
func (b *binding) load(ctx context.Context, key Key) (*doc, error) {
	r, err := b.rt.store.Load(ctx, key)
	if err != nil && !errors.Is(err, persist.ErrNotFound) {
		return nil, unavailable(key, err)
	}
	return docOf(r), nil
}

func docOf(r persist.Record) *doc {
	d := &doc{life: alive, version: r.Version, at: r.Updated, expires: r.Expires, raw: r.Doc, schema: r.Schema, born: r.Born, commits: r.Commits}
	if r.Held(r.Now) {
		d.held = &tenure{Lease: r.Lease, left: r.Lease.Until.Sub(r.Now)}
	}
	switch {
	case r.Absent():
		d.life = absent
	case r.Deleted && !r.Expires.IsZero(): // swept
		d.life, d.expires = expired, time.Time{}
	case r.Deleted:
		d.life = deleted
	case r.Expired(r.Now):
		d.life = expired
	}
	return d
}

// commit writes d under one version check.
func (b *binding) commit(ctx context.Context, call *call, d *draft) (landed, won *doc, err error) {
	w, next, err := b.write(call, d)
	if err != nil {
		return nil, nil, err
	}
	c := persist.Commit{ID: call.env.newCommitID(), Writes: []persist.Write{w}, Guards: d.fences, Insist: d.insist}
	v, err := b.rt.send(ctx, b.rt.plainly(), call.retry, c, []*doc{d.base})
	switch {
	case err != nil:
		return nil, nil, err
	case !v.landed:
		d.held = v.held
		return nil, docOf(v.others[0]), nil
	}
	next.landed(v, w, c.ID)
	return next, nil, nil
}

// landed completes d, which w, in the commit id, has made current, with what only the store could tell.
func (d *doc) landed(v verdict, w persist.Write, id string) {
	d.at = v.at
	if w.Recent != nil || w.Expected == 0 {
		d.commits = persist.Remember(w.Recent, id)
	}
	if w.TTL > 0 {
		d.expires = v.at.Add(w.TTL)
	}
	for _, r := range v.others {
		if r.Key == w.Key && r.Version == w.Version {
			d.expires = r.Expires
		}
	}
}

// write makes the write of d, and the document that it leaves when it lands.
func (b *binding) write(call *call, d *draft) (persist.Write, *doc, error) {
	w := persist.Write{
		Key: call.key, Expected: d.base.expected(), Gone: d.base.life == deleted || d.base.life == expired,
		Version: d.version, Schema: b.schema(), TTL: d.ttl, Deleted: d.life == deleted, Recent: d.base.commits,
	}
	if d.life == alive {
		w.EndLease, w.Acquire = d.over && d.base.life == alive, d.acquire
	}
	next := &doc{life: d.life, version: d.version, schema: w.Schema, born: d.base.born}
	if w.TTL == persist.KeepTTL && d.base.life == alive {
		next.expires = d.base.expires
	}
	if d.base.life == absent {
		next.born = d.version
	}
	if d.life != alive {
		return w, next, nil
	}
	raw, err := d.encode(call)
	if err != nil {
		return w, nil, err
	}
	w.Doc = raw
	if w.Label, w.Due, err = b.kind.indexed(call.key, d.view, raw); err != nil {
		return w, nil, err
	}
	next.raw = raw
	next.view.Store(&view{typ: d.view.typ, state: d.view.state, raw: raw, known: d.view.state, lossy: d.view.lossy})
	return w, next, nil
}

// renew puts off the expiry of the version that d was read at.
func (b *binding) renew(ctx context.Context, call *call, d *draft) (renewed, won *doc, err error) {
	c := persist.Commit{ID: call.env.newCommitID(), Guards: d.fences}
	g := guardOf(&c, call.key)
	g.Read, g.Version, g.TTL = true, d.base.version, d.ttl
	v, err := b.rt.send(ctx, b.rt.plainly(), call.retry, c, nil)
	switch {
	case err != nil:
		return nil, nil, err
	case !v.landed:
		return nil, docOf(v.others[0]), nil
	}
	return d.base.renewed(v.at.Add(d.ttl)), nil, nil
}

// renewed is d with another expiry.
func (d *doc) renewed(expires time.Time) *doc {
	next := &doc{life: d.life, version: d.version, at: d.at, expires: expires, raw: d.raw, schema: d.schema, born: d.born, commits: d.commits}
	next.view.Store(d.view.Load())
	return next
}

// unwritable reports whether a commit was never sent, because of what one of its mutations made of the document.
func unwritable(err error) bool {
	switch err.(type) { // as it is: what a Persist wraps says nothing of the kind
	case *LimitError, *FieldError:
		return true
	}
	return false
}

func (b *binding) schema() int { return len(b.kind.upgrades) }

func (b *binding) check(key Key, v *view) error {
	_, _, err := b.kind.indexed(key, v, v.doc)
	return err
}

// view decodes d for the binding's type, upgraded to its schema. It returns *SchemaError.
func (b *binding) view(d *doc, key Key) (*view, error) {
	if v := d.view.Load(); v != nil && v.typ == b.typ {
		return v, nil
	}
	known := b.schema()
	if d.schema > known {
		return nil, &SchemaError{Scope: key, Stored: d.schema, Known: known}
	}
	raw, err := b.kind.upgrade(d.raw, d.schema)
	if err != nil {
		return nil, &SchemaError{Scope: key, Stored: d.schema, Known: known, Cause: err}
	}
	dst := b.typ.Zero()
	lossy, err := b.typ.Decode(raw, dst)
	if err != nil {
		return nil, &SchemaError{Scope: key, Stored: d.schema, Known: known, Cause: err}
	}
	v := &view{typ: b.typ, state: dst, raw: raw, known: dst, lossy: lossy}
	d.view.Store(v)
	return v, nil
}

// custom is a Persist of the caller's own as a backend. It has no commit ids, so that a lost answer stays unknown.
type custom[T any] struct{ p Persist[T] }

func (c custom[T]) load(ctx context.Context, key Key) (*doc, error) {
	s, err := c.p.Load(ctx)
	if err != nil {
		return nil, unavailable(key, err)
	}
	return c.doc(s), nil
}

func (c custom[T]) doc(s Snapshot[T]) *doc {
	d := &doc{life: absent, version: s.Version, at: s.Time}
	switch {
	case s.Version == 0:
	case s.state == nil:
		d.life = deleted
	default:
		d.life = alive
		typ, _ := typeFor[T]()
		d.view.Store(&view{typ: typ, state: s.state, known: s.state})
	}
	return d
}

func (c custom[T]) commit(ctx context.Context, call *call, d *draft) (landed, won *doc, err error) {
	next := Snapshot[T]{ID: call.key.ID, Version: d.version}
	if d.life == alive {
		next.state = d.view.state.(*T)
	}
	stored, err := c.p.Commit(ctx, d.base.expected(), next)
	switch {
	case err == nil:
		return c.doc(stored), nil, nil
	case errors.Is(err, ErrConflict):
		if stored.Version == 0 || stored.Version == d.base.version { // it did not say who won
			won, err := c.load(ctx, call.key)
			return nil, won, err
		}
		return nil, c.doc(stored), nil
	case notApplied(err):
		return nil, nil, unavailable(call.key, err)
	}
	return nil, nil, &UnknownOutcomeError{Scope: call.key, Cause: err}
}

// renew only confirms that d.base is current: a Persist has no expiry.
func (c custom[T]) renew(ctx context.Context, call *call, d *draft) (renewed, won *doc, err error) {
	now, err := c.load(ctx, call.key)
	if err != nil || now.version != d.base.version || now.life != d.base.life {
		return nil, now, err
	}
	return d.base, nil, nil
}

func (c custom[T]) view(d *doc, key Key) (*view, error) {
	if v := d.view.Load(); v != nil {
		return v, nil
	}
	return nil, &SchemaError{Scope: key, Cause: errors.New("the Persist returned no state of " + reflect.TypeFor[T]().String())}
}

func (c custom[T]) schema() int { return 0 }

func (c custom[T]) check(Key, *view) error { return nil }
