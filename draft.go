package pawl

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/state"
	"github.com/pawl-go/pawl/persist"
)

// doc is one version of a persisted state as the store has it. It never changes, but for the decoded form kept beside it.
type doc struct {
	life    life
	version uint64 // of a tombstone or an expired record too; absent: the store's version floor
	at      time.Time
	expires time.Time
	raw     []byte
	schema  int
	born    uint64   // the version that its record was created with; it tells whether a later record continues it
	commits []string // the ids of the commits that made it and those before, as the store has them; nil: not known
	held    *tenure  // by whom, when it was read; nil: by nobody
	view    atomic.Pointer[view]
}

// tenure is a lease of somebody's as the store showed it.
type tenure struct {
	persist.Lease
	left time.Duration // of it, when it was read
}

// view is a document decoded into a state type, with what is needed to write it back without losing fields.
type view struct {
	typ   *state.Type
	state any    // *T; committed, immutable
	raw   []byte // the document that known was decoded from, upgraded
	known any    // *T; what of raw the type knows
	lossy bool   // raw may have fields that the type does not know
	doc   []byte // the document to write, if it is encoded already
}

// expected is the version a write onto d asserts.
func (d *doc) expected() uint64 {
	if d.life == absent {
		return 0
	}
	return d.version
}

// backend is the authority behind a cell: a store, or a Persist of the caller's own.
type backend interface {
	load(ctx context.Context, key Key) (*doc, error)
	// commit makes d current. It returns the new version; or the version that won; or an error after which
	// nothing was applied, or *UnknownOutcomeError.
	commit(ctx context.Context, call *call, d *draft) (landed, won *doc, err error)
	// renew puts off the expiry of d.base by d.ttl and returns d.base with the new one, or the version that won if d.base is not current.
	renew(ctx context.Context, call *call, d *draft) (renewed, won *doc, err error)
	// view decodes d for this backend's type.
	view(d *doc, key Key) (*view, error)
	// check tells why commit could not write v, whose document is encoded.
	check(key Key, v *view) error
	// schema is the schema version that commit writes.
	schema() int
}

// draft is a state under construction: base and the mutations of a round on top.
type draft struct {
	base    *doc // nil: not read yet
	life    life
	version uint64
	view    *view // of the state so far; nil: not decoded yet, or nothing to decode
	changed int   // mutations that changed something
	ttl     time.Duration
	renews  bool             // a mutation that changed nothing still puts the expiry off
	fresh   bool             // base was read for these mutations, so that its lease can be judged
	taken   *persist.Acquire // a mutation took the lease; nil: none did. One commit makes one token, so only one can
	acquire *persist.Acquire // taken, unless what was leased is deleted again
	over    bool             // a mutation deleted what was there: a lease on it ends
	fences  []persist.Guard  // leases that the commit is tested against
	insist  bool             // so many were lost before that this one is not to be, see persist.Commit
	held    bool             // it was, and the next one will not be
}

func newDraft(base *doc) draft { return draft{base: base, life: base.life, version: base.version} }

// outcome is what a mutation made of a draft, before anything is committed.
type outcome struct {
	draft   draft // the state after it
	ran     bool
	changed bool
	err     error
	panic   *PanicError
	exited  bool
}

// evaluate computes what the mutation of w makes of d. It may run code of the user's.
func evaluate(ctx context.Context, w *waiter, d *draft, careful bool) (out outcome) {
	call, ch := &w.call, w.change
	out.draft = *d
	if out.err = call.admit(ch, d.life, d.version); out.err != nil {
		return out
	}
	if ch.takes != nil {
		if out.err = d.heldBy(call.key); out.err != nil {
			return out
		}
	}
	next := *d
	if ch.deletes {
		if d.life != alive {
			return out
		}
		next.life, next.view, next.ttl = deleted, nil, 0
		next.over, next.acquire = true, nil
	} else {
		var cur any
		var from view
		if d.life == alive {
			v, err := d.decoded(w)
			if err != nil {
				out.err = err
				return out
			}
			from, cur = *v, v.state
		}
		dst := ch.typ.Zero()
		changed, err := ch.apply(ctx, cur, dst, nil)
		if err != nil {
			out.err = refused(call.key, ch.verb, err)
			return out
		}
		if !changed && ch.takes == nil && (d.life == alive || !ch.creates && !call.absent) {
			if d.life == alive && call.ttl > 0 {
				out.draft.renews, out.draft.ttl = true, call.ttl
			}
			if d.life == alive {
				from.keepDoc()
				out.draft.view = &from
			}
			return out
		}
		if !changed {
			dst = ch.typ.Zero()
		}
		if !changed && d.life == alive { // nothing but the lease moves
			from.keepDoc()
			if d.changed == 0 && !d.renews {
				next.ttl = persist.KeepTTL
			}
		} else {
			from.typ, from.state, from.doc = ch.typ, dst, nil
			next.ttl = call.ttl
		}
		next.life, next.view = alive, &from
		if ch.takes != nil {
			next.taken, next.acquire = ch.takes, ch.takes
		}
		if careful || ch.typ.Custom() { // encoding may be slow, wrong, or the user's: while it can be told whose
			if from.doc, out.err = next.encode(call); out.err == nil && careful {
				out.err = w.cas.backend.check(call.key, &from)
			}
			if out.err != nil {
				return out
			}
		}
	}
	next.version++
	next.changed++
	next.renews = false
	out.draft, out.changed = next, true
	return out
}

// keepDoc makes the document that v was decoded from the one to write: encoding it again could run code of its type in another's turn.
func (v *view) keepDoc() {
	if v.doc == nil && v.state == v.known {
		v.doc = v.raw
	}
}

// heldBy tells why the lease of d cannot be taken, as far as that is known before the commit.
func (d *draft) heldBy(key Key) error {
	switch {
	case d.taken != nil:
		return &HeldError{Scope: key, Holder: d.taken.Holder, Left: d.taken.For}
	case d.fresh && !d.over && d.base.held != nil:
		return &HeldError{Scope: key, Holder: d.base.held.Holder, Token: d.base.held.Token, Left: d.base.held.left}
	}
	return nil
}

// decoded returns the state so far as the type of w sees it.
func (d *draft) decoded(w *waiter) (*view, error) {
	if d.view == nil {
		return w.cas.backend.view(d.base, w.call.key)
	}
	if d.view.typ == w.change.typ {
		return d.view, nil
	}
	// Two types share the scope: what the other one made of it passes through JSON.
	raw, err := d.encode(&w.call)
	if err != nil {
		return nil, err
	}
	return w.cas.backend.view(&doc{life: alive, raw: raw, schema: w.cas.backend.schema()}, w.call.key)
}

// encode returns the document of an alive draft, with the fields that its type does not know.
func (d *draft) encode(call *call) ([]byte, error) {
	v := d.view
	if v.doc != nil {
		return v.doc, nil
	}
	raw, err := v.typ.Encode(v.state)
	if err == nil && v.lossy {
		var known []byte
		if known, err = v.typ.Encode(v.known); err == nil {
			raw, err = state.Merge(v.raw, known, raw)
		}
	}
	if err != nil {
		return nil, refused(call.key, "", err)
	}
	if len(raw) > call.env.maxDoc && len(raw) > len(d.base.raw) {
		return nil, &LimitError{Scope: call.key, What: "document", Limit: call.env.maxDoc, Got: len(raw)}
	}
	return raw, nil
}
