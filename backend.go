package pawl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
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
	d := &doc{life: alive, version: r.Version, at: r.Updated, expires: r.Expires, raw: r.Doc, schema: r.Schema, commits: r.Commits}
	switch {
	case r.Absent():
		d.life = absent
	case r.Deleted:
		d.life = deleted
	case r.Expired(r.Now):
		d.life = expired
	}
	return d
}

// commit writes d under one version check. An answer that is lost leaves the outcome open: the same commit, frozen, is sent again until
// the store shows its id, or a version that it can no longer land on.
func (b *binding) commit(ctx context.Context, call *call, d *draft) (landed, won *doc, err error) {
	w, next, err := b.write(call, d)
	if err != nil {
		return nil, nil, err
	}
	frozen := persist.Commit{ID: call.env.newCommitID(), Writes: []persist.Write{w}}
	var doubt error // what the store said when it left the outcome open
	for resent := 1; ; resent++ {
		at, err := b.rt.store.Commit(ctx, frozen)
		var conflict *persist.Conflict
		switch {
		case err == nil:
			next.at, next.commits = at, []string{frozen.ID}
			if w.TTL > 0 {
				next.expires = at.Add(w.TTL)
			}
			return next, nil, nil
		case errors.As(err, &conflict) && len(conflict.Winners) > 0:
			won := conflict.Winners[0]
			if doubt == nil {
				return nil, docOf(won), nil
			}
			switch evidence(d.base, w.Version, won, frozen.ID) {
			case landedThen:
				next.at, next.commits = won.Updated, []string{frozen.ID}
				if won.Version == next.version {
					next.expires = won.Expires
				}
				return next, nil, nil
			case neverLanded:
				return nil, docOf(won), nil
			}
			return nil, nil, &UnknownOutcomeError{Scope: call.key, Commit: frozen.ID, Cause: doubt}
		case doubt == nil && notApplied(err):
			return nil, nil, unavailable(call.key, err)
		case !notApplied(err):
			doubt = err
		}
		if !sleep(ctx, rand.N(backoff(call.retry, resent))) {
			return nil, nil, &UnknownOutcomeError{Scope: call.key, Commit: frozen.ID, Cause: doubt}
		}
	}
}

// write makes the write of d, and the document that it leaves when it lands.
func (b *binding) write(call *call, d *draft) (persist.Write, *doc, error) {
	w := persist.Write{
		Key: call.key, Expected: d.base.expected(), Gone: d.base.life == deleted || d.base.life == expired,
		Version: d.version, Schema: b.schema(), TTL: d.ttl, Deleted: d.life == deleted,
	}
	next := &doc{life: d.life, version: d.version, schema: w.Schema}
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

// The evidence that a record's recent commit ids give about one of them.
const (
	landedThen = iota + 1
	neverLanded
	evidenceGone
)

// evidence says whether the commit id has landed, from a record whose version is not the one it expected. A record keeps the last few ids
// of its recent writers, so that not finding one proves something only while it would still be there. Nor does it where the record
// may have been purged since, and made anew by others: base is what the commit was made for, version what it would have made.
func evidence(base *doc, version uint64, won persist.Record, id string) int {
	if won.Absent() {
		return evidenceGone // purged, and its ids with it
	}
	writer, number := splitCommitID(id)
	later, writers, earlier := 0, map[string]bool{}, false
	for _, c := range won.Commits {
		if c == id {
			return landedThen
		}
		w, n := splitCommitID(c)
		writers[w] = true
		if w != writer {
			continue
		}
		if n > number {
			later++
		} else {
			earlier = true // this writer was never forgotten since
		}
	}
	if later >= persist.KeptPerWriter || !earlier && len(writers) >= persist.KeptWriters {
		return evidenceGone
	}
	// A tombstone on top of the commit has at least the next version, and what comes after a purge the one after that.
	continued := won.Version <= version+1 || slices.ContainsFunc(base.commits, func(c string) bool { return slices.Contains(won.Commits, c) })
	if !earlier && !continued {
		return evidenceGone
	}
	return neverLanded
}

func splitCommitID(id string) (writer string, number uint64) {
	i := strings.LastIndexByte(id, '.')
	if i < 0 {
		return id, 0
	}
	number, _ = strconv.ParseUint(id[i+1:], 10, 64)
	return id[:i], number
}

// renew puts off the expiry of the version that d was read at.
func (b *binding) renew(ctx context.Context, call *call, d *draft) (renewed, won *doc, err error) {
	g := persist.Guard{Key: call.key, Read: true, Version: d.base.version, TTL: d.ttl}
	at, err := b.rt.store.Commit(ctx, persist.Commit{ID: call.env.newCommitID(), Guards: []persist.Guard{g}})
	var conflict *persist.Conflict
	switch {
	case err == nil:
		base := d.base
		renewed = &doc{life: base.life, version: base.version, at: base.at, expires: at.Add(d.ttl), raw: base.raw, schema: base.schema, commits: base.commits}
		renewed.view.Store(base.view.Load())
		return renewed, nil, nil
	case errors.As(err, &conflict) && len(conflict.Winners) > 0:
		return nil, docOf(conflict.Winners[0]), nil
	}
	return nil, nil, unavailable(call.key, err) // renewing twice is the same as once
}

// notApplied reports whether err promises that nothing was written.
func notApplied(err error) bool {
	return errors.Is(err, persist.ErrNotApplied) || errors.Is(err, persist.ErrClosed) || errors.Is(err, persist.ErrUnsupported)
}

func unavailable(key Key, err error) error {
	if errors.Is(err, persist.ErrClosed) {
		return fmt.Errorf("%w: %s: the store is", ErrClosed, key)
	}
	return &UnavailableError{Scope: key, Cause: err}
}

// unwritable reports whether a commit was never sent, because of what one of its mutations made of the document.
func unwritable(err error) bool {
	switch err.(type) { // as it is: what a Persist wraps says nothing of the kind
	case *LimitError, *FieldError:
		return true
	}
	return false
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
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
