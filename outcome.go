package pawl

import (
	"context"

	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/state"
)

// outcome is the result of one mutation on a draft, before the commit.
type outcome struct {
	ran     bool           // there is an outcome: the mutation was computed, or refused
	changed bool           // it changed something
	version uint64         // that it left
	view    *document.View // the state that it left; nil: none, or it failed
	err     error          // it failed, or was refused
	panic   *PanicError    // it panicked, or called runtime.Goexit (goexit)
}

// evaluate applies ch to d, which stays as it is if ch fails. It may run code of the caller's. Careful
// makes it encode and check the document at once, so that an error concerns this mutation only.
func evaluate(ctx context.Context, call *call, ch *change, b backend, d *document.Draft, careful bool) outcome {
	changed, err := mutate(ctx, call, ch, b, d, careful)
	out := outcome{ran: true, changed: changed, version: d.Version, err: err}
	if err == nil && d.Life == alive {
		out.view = d.View
	}
	return out
}

// mutate is evaluate. It reports whether ch changed something.
func mutate(
	ctx context.Context, call *call, ch *change, b backend, d *document.Draft, careful bool,
) (changed bool, err error) {
	if err := call.checkConditions(ch, d.Life, d.Version); err != nil {
		return false, err
	}
	if ch.takes != nil {
		if err := heldError(call.key, d); err != nil {
			return false, err
		}
	}
	if ch.deletes {
		if d.Life != alive {
			return false, nil
		}
		d.Delete()
		return true, nil
	}
	var (
		from *document.View
		cur  any
	)
	if d.Life == alive {
		if from, err = decoded(d, call, ch.typ, b); err != nil {
			return false, err
		}
		cur = from.State
	}
	dst := ch.typ.Zero()
	ctx, log := call.logged(ctx, ch)
	changed, err = ch.apply(ctx, cur, dst)
	logs := log.end()
	if err != nil {
		return false, refused(call.key, ch.verb, err)
	}
	dues := call.dueIn > 0 && d.Life == alive // a due time is a change of its own
	if !changed && !dues && !logs && ch.takes == nil && (d.Life == alive || !ch.creates && !call.absent) {
		if d.Life == alive {
			d.Show(from)
			if call.ttl > 0 {
				d.Renew(call.ttl)
			}
		}
		return false, nil
	}
	next := *d
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
		return false, &ArgumentError{Argument: "AppendLog", Reason: "the number does not follow the last entry of the commit"}
	}
	if careful || ch.typ.Custom() { // encoding may be slow, fail, or run code of the caller's
		if err := next.EncodeNow(call.maxDoc); err != nil {
			return false, unencodable(call.key, err)
		}
		if careful {
			if err := b.check(call.key, next.View); err != nil {
				return false, err
			}
		}
	}
	*d = next
	return true, nil
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
