package document

import (
	"encoding/json"
	"time"

	"github.com/pawl-go/pawl/internal/state"
	"github.com/pawl-go/pawl/persist"
)

// Draft is a base with the mutations of a batch on top. The zero Draft has no base.
type Draft struct {
	// Base is the version that the mutations are computed on. Nil means that it is not read yet.
	Base *Doc
	// Fresh says that Base was read for these mutations, so that its lease can be judged.
	Fresh bool
	// Life and Version are those after the mutations so far.
	Life    Life
	Version uint64
	// View is the state so far. Nil means that it is not decoded yet, or that there is none.
	View *View
	// Changed counts the mutations that changed something.
	Changed int

	Expiry     Expiry
	Due        Due
	Lease      Lease
	Log        Log
	Contention Contention
}

// Expiry says when the state expires after the commit.
type Expiry struct {
	// TTL is the time from the commit to the expiry. Zero means that it never expires.
	TTL time.Duration
	// Renew says that a mutation which changed nothing still puts the expiry off by TTL.
	Renew bool
}

// Due says when the state is due after the commit. The zero value leaves that to the caller of Write.
type Due struct {
	// In is the time from the commit to the due time. Zero means that it is not set this way.
	In time.Duration
	// Keep says that the due time of Base stays.
	Keep bool
}

// Lease says what the commit does to the record's lease, and which leases guard it.
type Lease struct {
	// Taken is the lease that a mutation took. Nil means none. One commit makes one token, so only
	// one mutation of a batch can take it.
	Taken *persist.Acquire
	// Acquire is Taken, unless a later mutation deleted the leased state.
	Acquire *persist.Acquire
	// Over says that a mutation deleted the state, which ends an existing lease.
	Over bool
	// Guards are the leases that the commit is tested against.
	Guards []persist.Guard
}

// Contention says how the commit meets other writers. See persist.Commit.Insist.
type Contention struct {
	// Insist asks the store to hold the winners if the commit is lost.
	Insist bool
	// Held is the answer: the winners are held for the next commit.
	Held bool
}

// Log says what the mutations do to the record's log.
type Log struct {
	// Clear says that a mutation deleted the state, which ends the log.
	Clear bool
	// Drop is the number below which entries are removed.
	Drop uint64
	// First is the number of the first of Entries.
	First   uint64
	Entries []json.RawMessage
}

// Add adds what one mutation does to the log. It reports false if its entries do not follow those of
// the mutations before it.
func (l *Log) Add(drop, first uint64, entries []json.RawMessage) bool {
	l.Drop = max(l.Drop, drop)
	switch n := len(l.Entries); {
	case len(entries) == 0:
	case n == 0:
		l.First, l.Entries = first, entries
	case first != l.First+uint64(n):
		return false
	default:
		// Drafts share Entries, so they are never appended to in place.
		l.Entries = append(l.Entries[:n:n], entries...)
	}
	return true
}

// Write returns the change of the log that goes with w, nil if there is none.
func (l *Log) Write(w persist.Write) *persist.LogWrite {
	next := &persist.LogWrite{Clear: l.Clear || w.Deleted || w.Gone, Drop: l.Drop, First: l.First, Entries: l.Entries}
	if !next.Clear && next.Drop == 0 && len(next.Entries) == 0 {
		return nil
	}
	return next
}

// NewDraft returns base without mutations.
func NewDraft(base *Doc) Draft { return Draft{Base: base, Life: base.Life, Version: base.Version} }

// HeldBy returns the lease that keeps the next mutation from taking one, as far as it is known
// before the commit. It reports false where there is none.
func (d *Draft) HeldBy() (Holding, bool) {
	switch {
	case d.Lease.Taken != nil:
		return Holding{Holder: d.Lease.Taken.Holder, Left: d.Lease.Taken.For}, true
	case d.Fresh && !d.Lease.Over && d.Base.Held != nil:
		return *d.Base.Held, true
	}
	return Holding{}, false
}

// Delete is a mutation that deletes the state.
func (d *Draft) Delete() {
	d.Life, d.View = Deleted, nil
	d.Expiry.TTL, d.Due = 0, Due{}
	d.Lease.Over, d.Lease.Acquire = true, nil
	d.Log = Log{Clear: true}
	d.count()
}

// Replace is a mutation that makes s, a *T of typ, the state. From is the view that s was computed
// from. Nil means that there was none.
func (d *Draft) Replace(from *View, typ *state.Type, s any, ttl time.Duration) {
	v := View{source: &noSource}
	if from != nil {
		v = *from
	}
	d.Life, d.View = Alive, v.replaced(typ, s)
	d.Expiry.TTL, d.Due = ttl, Due{}
	d.count()
}

// Touch is a mutation that moves the version of an alive state and leaves the state v as it is.
func (d *Draft) Touch(v *View) {
	d.View = v.unchanged()
	if d.Changed == 0 && !d.Expiry.Renew {
		d.Expiry.TTL = persist.KeepTTL
	}
	if d.Changed == 0 {
		d.Due = Due{Keep: true}
	}
	d.count()
}

// Take lets the commit take the lease.
func (d *Draft) Take(a *persist.Acquire) { d.Lease.Taken, d.Lease.Acquire = a, a }

// Show keeps v as the view of an alive state that a mutation left as it is.
func (d *Draft) Show(v *View) { d.View = v.unchanged() }

// Renew puts off the expiry of an alive state that a mutation left as it is.
func (d *Draft) Renew(ttl time.Duration) { d.Expiry = Expiry{TTL: ttl, Renew: true} }

// count adds a mutation that changed something. Each has a version of its own.
func (d *Draft) count() {
	d.Version++
	d.Changed++
	d.Expiry.Renew = false
}

// Encode returns the document of an alive draft, with the fields that its type does not know. It
// returns *SizeError for a document above limit, in bytes, and errors of the state type.
func (d *Draft) Encode(limit int) ([]byte, error) {
	if d.View.Encoded != nil {
		return d.View.Encoded, nil
	}
	raw, err := d.View.encode()
	if err != nil {
		return nil, err
	}
	if len(raw) > limit && len(raw) > len(d.Base.Raw) {
		return nil, &SizeError{Limit: limit, Size: len(raw)}
	}
	return raw, nil
}

// EncodeNow encodes the state of an alive draft while the mutation that made it is known. It
// returns the errors of Encode.
func (d *Draft) EncodeNow(limit int) error {
	if d.View.Encoded != nil {
		return nil
	}
	raw, err := d.Encode(limit)
	if err != nil {
		return err
	}
	v := *d.View
	v.Encoded = raw
	d.View = &v
	return nil
}

// Write returns the write of key that d makes, and the Doc that it leaves when it lands; see
// Doc.Landed. The label is left to the caller, and so is the due time if d.Due is zero. It returns
// the errors of Encode.
func (d *Draft) Write(key persist.Key, schema, limit int) (persist.Write, *Doc, error) {
	w := persist.Write{
		Key: key, Expected: d.Base.Expected(), Gone: d.Base.Gone(),
		Version: d.Version, Schema: schema, TTL: d.Expiry.TTL, Deleted: d.Life == Deleted, Recent: d.Base.Commits,
	}
	next := &Doc{Life: d.Life, Version: d.Version, Schema: schema, Born: d.Base.Born}
	if w.TTL == persist.KeepTTL && d.Base.Life == Alive {
		next.Expires = d.Base.Expires
	}
	if d.Base.Life == Absent {
		next.Born = d.Version
	}
	if d.Life != Alive {
		return w, next, nil
	}
	if w.DueIn = d.Due.In; d.Due.Keep {
		w.Due = d.Base.Due
	}
	w.EndLease, w.Acquire = d.Lease.Over && d.Base.Life == Alive, d.Lease.Acquire
	raw, err := d.Encode(limit)
	if err != nil {
		return w, nil, err
	}
	w.Doc, next.Raw = raw, raw
	next.view.Store(d.View.committed(raw))
	return w, next, nil
}
