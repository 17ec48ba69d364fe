package document

import (
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Life says whether a scope has state, and if not, why.
type Life uint8

const (
	// Absent means that the record was never written, or that its tombstone was purged.
	Absent Life = iota
	// Alive means that there is state.
	Alive
	// Deleted means a tombstone.
	Deleted
	// Expired means that the state outlived its expiry.
	Expired
)

// Doc is one version of a record as the store has it. It never changes, apart from the View cached
// in it.
type Doc struct {
	Life Life
	// Version is that of the record, tombstones and expired records included. Where there is no
	// record it is the store's version floor.
	Version uint64
	// At is when the version was committed, by the store's clock.
	At time.Time
	// Expires is when the state expires, by the store's clock. Zero means never.
	Expires time.Time
	// Due is when the state is due, by the store's clock. Zero means never.
	Due time.Time
	// Raw is the JSON document. Nil means that there is none.
	Raw []byte
	// Schema is the schema version of Raw.
	Schema int
	// Born is the version that the record was created with.
	Born uint64
	// Commits are the ids of recent commits, as the store has them. Nil means not known.
	Commits []string
	// Held is the lease that was live when the record was read. Nil means none.
	Held *Holding

	view atomic.Pointer[View]
}

// Holding is a live lease as the store showed it.
type Holding struct {
	Holder string
	// Token is the fencing token. Zero means not known.
	Token uint64
	// Left is the time left when the record was read.
	Left time.Duration
}

// Of returns r as a Doc. An absent record becomes an Absent one.
func Of(r persist.Record) *Doc {
	d := &Doc{Life: Alive, Version: r.Version, At: r.Updated, Expires: r.Expires, Due: r.Due, Raw: r.Doc, Schema: r.Schema, Born: r.Born, Commits: r.Commits}
	if r.Held(r.Now) {
		d.Held = &Holding{Holder: r.Lease.Holder, Token: r.Lease.Token, Left: r.Lease.Until.Sub(r.Now)}
	}
	switch {
	case r.Absent():
		d.Life = Absent
	case r.Deleted && !r.Expires.IsZero(): // swept
		d.Life, d.Expires = Expired, time.Time{}
	case r.Deleted:
		d.Life = Deleted
	case r.Expired(r.Now):
		d.Life = Expired
	}
	return d
}

// View returns the cached view. Nil means that there is none.
func (d *Doc) View() *View { return d.view.Load() }

// Cache keeps v as the view of d.
func (d *Doc) Cache(v *View) { d.view.Store(v) }

// CacheFrom keeps the cached view of other, the same version, unless d has a view already.
func (d *Doc) CacheFrom(other *Doc) { d.view.CompareAndSwap(nil, other.view.Load()) }

// Same reports whether d and other are the same version in the same life.
func (d *Doc) Same(other *Doc) bool { return d.Version == other.Version && d.Life == other.Life }

// Expected returns the version that a commit on top of d expects.
func (d *Doc) Expected() uint64 {
	if d.Life == Absent {
		return 0
	}
	return d.Version
}

// Gone reports whether d is a tombstone or has expired.
func (d *Doc) Gone() bool { return d.Life == Deleted || d.Life == Expired }

// Guard returns the test that d is the current version of key.
func (d *Doc) Guard(key persist.Key) persist.Guard {
	return persist.Guard{Key: key, Read: true, Version: d.Expected(), Gone: d.Gone()}
}

// Renewed returns d with another expiry.
func (d *Doc) Renewed(expires time.Time) *Doc {
	next := &Doc{Life: d.Life, Version: d.Version, At: d.At, Expires: expires, Due: d.Due, Raw: d.Raw, Schema: d.Schema, Born: d.Born, Commits: d.Commits}
	next.view.Store(d.view.Load())
	return next
}

// Landed completes d, the result of the write w in commit id, with the facts that only the store
// has. At is the time of the commit. Records are current records of the commit's keys, as far as
// they are known.
func (d *Doc) Landed(w persist.Write, id string, at time.Time, records []persist.Record) {
	d.At, d.Due = at, w.Due
	if w.Recent != nil || w.Expected == 0 {
		d.Commits = persist.Remember(w.Recent, id)
	}
	if w.TTL > 0 {
		d.Expires = at.Add(w.TTL)
	}
	if w.DueIn > 0 {
		d.Due = at.Add(w.DueIn)
	}
	for _, r := range records {
		if r.Key == w.Key && r.Version == w.Version {
			d.Expires, d.Due = r.Expires, r.Due
		}
	}
}
