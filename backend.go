package pawl

import (
	"context"
	"errors"
	"reflect"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/persist"
)

// backend keeps the versions of a stored container: a store, or a Persist of the caller's own.
type backend interface {
	// load returns the current version of key.
	load(ctx context.Context, key Key) (*document.Doc, error)
	// unwritten returns a version for a key that was never written, without asking; nil: load has to.
	unwritten() *document.Doc
	// commit makes d current. If no mutation changed anything, it puts off the expiry of d.Base, or
	// only confirms that d.Base is current. It returns the version that is current now, or the version
	// that won, or an error after which nothing was applied, or *UnknownOutcomeError.
	commit(ctx context.Context, call *call, d *document.Draft) (landed, won *document.Doc, err error)
	// view decodes d for this backend's type.
	view(d *document.Doc, key Key) (*document.View, error)
	// check returns the error that commit would return for v, whose document is encoded.
	check(key Key, v *document.View) error
	// schema is the schema version that commit writes.
	schema() int
}

// A binding is the backend of all persisted scopes of one kind and type.

// load returns the store's version of key.
func (b *binding) load(ctx context.Context, key Key) (*document.Doc, error) {
	r, err := b.rt.env.load(ctx, b.rt.store, key)
	if err != nil {
		return nil, unavailable(key, err)
	}
	d := document.Of(r)
	b.rt.learnFloor(d)
	return d, nil
}

// unwritten returns an absent version. Its number is at least that of all that were purged, as far
// as this process knows.
func (b *binding) unwritten() *document.Doc {
	return &document.Doc{Life: absent, Version: b.rt.floor.Load()}
}

// learnFloor remembers the version that an absent record has: those before it were purged.
func (rt *Runtime) learnFloor(d *document.Doc) {
	for d.Life == absent {
		known := rt.floor.Load()
		if d.Version <= known || rt.floor.CompareAndSwap(known, d.Version) {
			return
		}
	}
}

// confirm returns base if it is current, or the version that is.
func confirm(ctx context.Context, b backend, key Key, base *document.Doc) (landed, won *document.Doc, err error) {
	now, err := b.load(ctx, key)
	switch {
	case err != nil:
		return nil, nil, err
	case now.Same(base):
		return base, nil, nil
	}
	return nil, now, nil
}

// commit writes d under one version check, which a guard makes if only the expiry moves.
func (b *binding) commit(ctx context.Context, call *call, d *document.Draft) (landed, won *document.Doc, err error) {
	c := persist.Commit{Guards: d.Lease.Guards}
	var bases []commit.Base
	switch {
	case d.Changed > 0:
		var w persist.Write
		if w, landed, err = b.write(call, d); err != nil {
			return nil, nil, err
		}
		c.Writes, c.Insist, bases = []persist.Write{w}, d.Contention.Insist, []commit.Base{baseOf(d.Base)}
	case d.Expiry.Renew:
		g := guardOf(&c, call.key)
		g.Read, g.Version, g.TTL = true, d.Base.Version, d.Expiry.TTL
	default:
		return confirm(ctx, b, call.key, d.Base)
	}
	c.ID = call.env.newCommitID()
	v, err := b.rt.send(ctx, b.rt.route(), call.retry, c, bases)
	switch {
	case err != nil:
		return nil, nil, err
	case v.Kind == commit.Lost:
		d.Contention.Held = v.Held
		won = document.Of(v.Records[0])
		b.rt.learnFloor(won)
		return nil, won, nil
	case landed == nil:
		return d.Base.Renewed(v.At.Add(d.Expiry.TTL)), nil, nil
	}
	landed.Landed(c.Writes[0], c.ID, v.At, v.Records)
	return landed, nil, nil
}

// write returns the write of d, and the Doc that it leaves when it lands. It returns *LimitError,
// *FieldError, or an error of the type's own code.
func (b *binding) write(call *call, d *document.Draft) (persist.Write, *document.Doc, error) {
	w, next, err := d.Write(call.key, b.schema(), call.maxDoc)
	if err != nil {
		return w, nil, unencodable(call.key, err)
	}
	if b.kind.Log {
		w.Log = d.Log.Write(w)
	}
	if d.Life != alive {
		return w, next, nil
	}
	label, due, err := b.kind.indexed(call.key, d.View, w.Doc)
	if err != nil {
		return w, nil, err
	}
	w.Label = label
	// An upgrade may have set the field.
	if upgraded := b.kind.Due != "" && d.Base.Schema != b.schema(); d.Due == (document.Due{}) || d.Due.Keep && upgraded {
		w.Due = due
	}
	return w, next, nil
}

// unwritable reports whether a mutation made a document that cannot be written: the commit was not
// sent, or the store rejected it.
func unwritable(err error) bool {
	switch err.(type) { // not unwrapped: a Persist may return such an error inside its own
	case *LimitError, *FieldError:
		return true
	}
	return false
}

func (b *binding) schema() int { return len(b.kind.Upgrades) }

func (b *binding) check(key Key, v *document.View) error {
	_, _, err := b.kind.indexed(key, v, v.Encoded)
	return err
}

// readable is view for a caller that keeps leases: a panic of an upgrade or of the type's own JSON
// code is the cause of the *SchemaError.
func (b *binding) readable(d *document.Doc, key Key) (v *document.View, err error) {
	if p := caught(func() { v, err = b.view(d, key) }); p != nil {
		return nil, &SchemaError{Scope: key, Stored: d.Schema, Known: b.schema(), Cause: p}
	}
	return v, err
}

// view decodes d for the binding's type, upgraded to its schema. It returns *SchemaError. A panic of
// an upgrade or of the type's own JSON code passes through, to the caller of the verb.
func (b *binding) view(d *document.Doc, key Key) (*document.View, error) {
	if v := d.View(); v != nil && v.Type == b.typ {
		return v, nil
	}
	known := b.schema()
	if d.Schema > known {
		return nil, &SchemaError{Scope: key, Stored: d.Schema, Known: known}
	}
	raw, err := b.kind.upgrade(d.Raw, d.Schema)
	if err != nil {
		return nil, &SchemaError{Scope: key, Stored: d.Schema, Known: known, Cause: err}
	}
	v, err := document.Decode(b.typ, raw)
	if err != nil {
		return nil, &SchemaError{Scope: key, Stored: d.Schema, Known: known, Cause: err}
	}
	d.Cache(v)
	return v, nil
}

// custom is a Persist of the caller's own as a backend. It has no commit ids, so a commit in doubt
// cannot be settled.
type custom[T any] struct{ p Persist[T] }

func (c custom[T]) load(ctx context.Context, key Key) (*document.Doc, error) {
	s, err := c.p.Load(ctx)
	if err != nil {
		return nil, unavailable(key, err)
	}
	return c.doc(s), nil
}

func (c custom[T]) unwritten() *document.Doc { return nil }

func (c custom[T]) doc(s Snapshot[T]) *document.Doc {
	d := &document.Doc{Life: absent, Version: s.Version, At: s.Time}
	switch {
	case s.Version == 0:
	case s.state == nil:
		d.Life = deleted
	default:
		d.Life = alive
		typ, _ := typeFor[T]()
		d.Cache(document.NewView(typ, s.state))
	}
	return d
}

// commit passes a change to the Persist, which has no expiry: without a change it confirms d.Base.
func (c custom[T]) commit(ctx context.Context, call *call, d *document.Draft) (landed, won *document.Doc, err error) {
	if d.Changed == 0 {
		return confirm(ctx, c, call.key, d.Base)
	}
	next := Snapshot[T]{ID: call.key.ID, Version: d.Version}
	if d.Life == alive {
		next.state = d.View.State.(*T)
	}
	stored, err := c.p.Commit(ctx, d.Base.Expected(), next)
	switch {
	case err == nil:
		return c.doc(stored), nil, nil
	case errors.Is(err, ErrConflict):
		if stored.Version == 0 || stored.Version == d.Base.Version { // it did not return the version that won
			won, err := c.load(ctx, call.key)
			return nil, won, err
		}
		return nil, c.doc(stored), nil
	case commit.NotApplied(err):
		return nil, nil, unavailable(call.key, err)
	}
	return nil, nil, &UnknownOutcomeError{Scope: call.key, Cause: err}
}

func (c custom[T]) view(d *document.Doc, key Key) (*document.View, error) {
	if v := d.View(); v != nil {
		return v, nil
	}
	cause := errors.New("the Persist returned no state of " + reflect.TypeFor[T]().String())
	return nil, &SchemaError{Scope: key, Cause: cause}
}

func (c custom[T]) schema() int { return 0 }

func (c custom[T]) check(Key, *document.View) error { return nil }
