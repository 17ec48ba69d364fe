package pawl

import (
	"context"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/state"
)

// outcome is the result of one mutation on a draft, before the commit.
type outcome struct {
	draft   document.Draft // with the mutation, or as it was where the mutation failed
	ran     bool           // there is an outcome: the mutation was computed, or refused
	changed bool           // it changed something
	err     error          // it failed, or was refused
	panic   *PanicError    // it panicked, or called runtime.Goexit (goexit)
}

// evaluate applies ch to d. It may run code of the caller's. Careful makes it encode and check the
// document at once, so that an error concerns this mutation only.
func evaluate(
	ctx context.Context, call *call, ch *change, b backend, d *document.Draft, careful bool,
) (out outcome) {
	out.draft = *d
	if out.err = call.checkConditions(ch, d.Life, d.Version); out.err != nil {
		return out
	}
	if ch.takes != nil {
		if out.err = heldError(call.key, d); out.err != nil {
			return out
		}
	}
	next := *d
	if ch.deletes {
		if d.Life != alive {
			return out
		}
		next.Delete()
		out.draft, out.changed = next, true
		return out
	}
	var (
		from *document.View
		cur  any
	)
	if d.Life == alive {
		if from, out.err = decoded(d, call, ch.typ, b); out.err != nil {
			return out
		}
		cur = from.State
	}
	dst := ch.typ.Zero()
	ctx, log := call.logged(ctx, ch)
	changed, err := ch.apply(ctx, cur, dst)
	logs := log.end()
	if err != nil {
		out.err = refused(call.key, ch.verb, err)
		return out
	}
	dues := call.dueIn > 0 && d.Life == alive // a due time is a change of its own
	if !changed && !dues && !logs && ch.takes == nil && (d.Life == alive || !ch.creates && !call.absent) {
		if d.Life == alive {
			out.draft.Show(from)
			if call.ttl > 0 {
				out.draft.Renew(call.ttl)
			}
		}
		return out
	}
	switch {
	case changed:
		next.Replace(from, ch.typ, dst, call.ttl)
	case d.Life == alive: // only the lease, the due time or the log changes
		next.Touch(from)
	default:
		next.Replace(from, ch.typ, ch.typ.Zero(), call.ttl)
	}
	if call.dueIn > 0 {
		next.Due = document.Due{In: call.dueIn}
	}
	if ch.takes != nil {
		next.Take(ch.takes)
	}
	if logs && !next.Log.Add(log.drop, log.first, log.entries) {
		out.err = &ArgumentError{Argument: "AppendLog", Reason: "the number does not follow the last entry of the commit"}
		return out
	}
	if careful || ch.typ.Custom() { // encoding may be slow, fail, or run code of the caller's
		if err := next.EncodeNow(call.maxDoc); err != nil {
			out.err = unencodable(call.key, err)
		} else if careful {
			out.err = b.check(call.key, next.View)
		}
		if out.err != nil {
			return out
		}
	}
	out.draft, out.changed = next, true
	return out
}

// decoded returns the state of d so far as typ sees it.
func decoded(d *document.Draft, call *call, typ *state.Type, b backend) (*document.View, error) {
	if d.View == nil {
		return b.view(d.Base, call.key)
	}
	if d.View.Type == typ {
		return d.View, nil
	}
	// Two types share the scope: the state that the other one made passes through JSON.
	raw, err := d.Encode(call.maxDoc)
	if err != nil {
		return nil, unencodable(call.key, err)
	}
	return b.view(&document.Doc{Life: alive, Raw: raw, Schema: b.schema()}, call.key)
}
