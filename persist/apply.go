package persist

import (
	"slices"
	"strings"
	"time"
)

// Apply defines [Store.Commit]: given the current record of every key in c, it returns the records
// to store, in the order of [Commit.Keys]. It changes none of its arguments. The returned records
// may share documents with c and current. The records in errors share no memory with them.
//
// An absent key has an absent record in current (see [Record.Absent]) whose Version is the store's
// version floor. A key that is not in current is absent with the floor 0. Times are kept in UTC
// with microseconds, which every store can keep.
//
// Apply tests tokens before versions, because a holder must learn first that its lease is lost. It
// returns *[Fenced] when a guard's token is not that of the live lease. It returns *[Conflict] with
// one winner for each key that failed, in the order of Keys. All tests see the records before the
// commit. A guard's Extend, Release and TTL are applied after a write of the same key.
//
// A malformed commit gives an error that wraps [ErrNotApplied]. Apply does not test whether
// documents are JSON: [Commit.Validate] does, before a lock is taken.
func Apply(c Commit, current map[Key]Record, now time.Time) (next []Record, err error) {
	if err := c.validateForm(); err != nil {
		return nil, err
	}
	now = storedTime(now)
	steps := c.steps()
	for i := range steps {
		s := &steps[i]
		s.before = current[s.key]
		s.before.Key, s.before.Now = s.key, now
		if s.before.Absent() {
			s.before = Record{Key: s.key, Version: s.before.Version, Now: now}
		}
		if s.fenced(now) {
			return nil, &Fenced{Current: s.before.Clone(), Token: s.guard.Token}
		}
	}
	var conflict Conflict
	for _, s := range steps {
		if expected, ok := s.current(now); !ok {
			conflict.Winners = append(conflict.Winners, s.before.Clone())
			conflict.Expected = append(conflict.Expected, expected)
		}
	}
	if len(conflict.Winners) > 0 {
		return nil, &conflict
	}
	for _, s := range steps {
		if r, changed := s.after(c.ID, now); changed {
			next = append(next, r)
		}
	}
	return next, nil
}

// Keys returns every key that c writes or guards, once each, sorted by kind and id. Stores lock
// keys in this order.
func (c Commit) Keys() []Key {
	keys := make([]Key, 0, len(c.Writes)+len(c.Guards))
	for _, w := range c.Writes {
		keys = append(keys, w.Key)
	}
	for _, g := range c.Guards {
		keys = append(keys, g.Key)
	}
	slices.SortFunc(keys, Key.Compare)
	return slices.Compact(keys)
}

// storedTime returns t as every store keeps it.
func storedTime(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// step is the part of a commit that concerns one key.
type step struct {
	key    Key
	write  *Write // nil: none
	guard  *Guard // nil: none
	before Record // the record before the commit
}

// steps returns one step per key, sorted by key.
func (c Commit) steps() []step {
	steps := make([]step, 0, len(c.Writes)+len(c.Guards))
	for i := range c.Writes {
		steps = append(steps, step{key: c.Writes[i].Key, write: &c.Writes[i]})
	}
	for i := range c.Guards {
		guard := &c.Guards[i]
		at := slices.IndexFunc(steps[:len(c.Writes)], func(s step) bool { return s.key == guard.Key })
		if at >= 0 {
			steps[at].guard = guard
			continue
		}
		steps = append(steps, step{key: guard.Key, guard: guard})
	}
	slices.SortFunc(steps, func(a, b step) int { return a.key.Compare(b.key) })
	return steps
}

// fenced reports whether the guard's token is not that of the live lease.
func (s step) fenced(now time.Time) bool {
	if s.guard == nil || s.guard.Token == 0 {
		return false
	}
	return !s.before.Held(now) || s.before.Lease.Token != s.guard.Token
}

// current reports whether the record is in the state that the guard and the write expect. If not,
// it returns that state.
func (s step) current(now time.Time) (Expected, bool) {
	if g := s.guard; g != nil && g.Read && !s.before.is(g.Version, g.Gone, now) {
		return Expected{g.Version, g.Gone}, false
	}
	w := s.write
	if w == nil {
		return Expected{}, true
	}
	// A version up to the floor may have been used by a purged tombstone.
	aboveFloor := !s.before.Absent() || w.Version > s.before.Version
	free := w.Acquire == nil || w.EndLease || !s.before.Held(now)
	return Expected{w.Expected, w.Gone}, s.before.is(w.Expected, w.Gone, now) && aboveFloor && free
}

// is reports whether r has this version and is gone or alive as stated. Version 0 means absent.
func (r Record) is(version uint64, gone bool, now time.Time) bool {
	if r.Absent() || version == 0 {
		return r.Absent() && version == 0
	}
	return r.Version == version && r.Gone(now) == gone
}

// after returns the record after the commit, and whether it differs from before.
func (s step) after(commitID string, now time.Time) (Record, bool) {
	r, changed := s.before, false
	if s.write != nil {
		r, changed = s.write.replace(r, commitID, now), true
	}
	g := s.guard
	if g == nil || r.Deleted {
		return r, changed // a tombstone has no lease and no expiry to change
	}
	if g.Extend > 0 {
		r.Lease.Until, changed = now.Add(g.Extend).Truncate(time.Microsecond), true
	}
	if g.Release {
		r.Lease, changed = Lease{}, true
	}
	if g.TTL > 0 {
		r.Expires, changed = now.Add(g.TTL).Truncate(time.Microsecond), true
	}
	return r, changed
}

// replace returns the record that w writes in place of r.
func (w *Write) replace(r Record, commitID string, now time.Time) Record {
	next := Record{
		Key:     r.Key,
		Version: w.Version,
		Born:    r.Born,
		Updated: now,
		Commits: Remember(r.Commits, commitID),
		Deleted: w.Deleted,
		Now:     now,
	}
	if r.Absent() {
		next.Born = w.Version
	}
	if w.Deleted {
		if w.Swept {
			next.Expires = r.Expires
		}
		return next
	}
	next.Doc, next.Schema, next.Label = w.Doc, w.Schema, w.Label
	if !w.Gone && !w.EndLease {
		next.Lease = r.Lease
	}
	if w.Acquire != nil {
		next.Lease = w.Acquire.lease(w.Version, now)
	}
	if !w.Due.IsZero() {
		next.Due = storedTime(w.Due)
	}
	if w.DueIn > 0 {
		next.Due = now.Add(w.DueIn).Truncate(time.Microsecond)
	}
	if w.TTL == KeepTTL && !w.Gone {
		next.Expires = r.Expires
	}
	if w.TTL > 0 {
		next.Expires = now.Add(w.TTL).Truncate(time.Microsecond)
	}
	return next
}

func (a *Acquire) lease(token uint64, now time.Time) Lease {
	return Lease{Holder: a.Holder, Token: token, Until: now.Add(a.For).Truncate(time.Microsecond)}
}

// Limits of Record.Commits; see Commit.ID.
const (
	KeptWriters   = 16 // the number of writers
	KeptPerWriter = 4  // the number of ids per writer
)

// Remember returns Record.Commits of a record after the commit id, given Record.Commits before it.
// It appends id and drops the ids beyond the limits. It does not change recent.
func Remember(recent []string, id string) []string {
	next := append(append(make([]string, 0, len(recent)+1), recent...), id)
	if len(recent) < KeptPerWriter {
		return next
	}
	var (
		writers [KeptWriters]string
		counts  [KeptWriters]int
		own     = strings.LastIndexByte(id, '.') + 1 // length of id's writer with the dot; 0: no dot
		known   = 0                                  // number of writers found so far
		kept    = len(next)                          // next[kept:] are the ids kept so far
	)
	for i := len(next) - 1; i >= 0; i-- {
		old, place := next[i], 0
		// Most ids have the same writer as id: compare with it before searching.
		if known == 0 || own == 0 || len(old) <= own || old[:own] != id[:own] || strings.IndexByte(old[own:], '.') >= 0 {
			writer := writerOf(old)
			if place = slices.Index(writers[:known], writer); place < 0 {
				if known == KeptWriters {
					continue
				}
				place, writers[known] = known, writer
				known++
			}
		}
		if counts[place] < KeptPerWriter {
			counts[place]++
			kept--
			next[kept] = old
		}
	}
	return next[kept:]
}

// writerOf returns the part of a commit id before its last dot.
func writerOf(id string) string {
	if dot := strings.LastIndexByte(id, '.'); dot >= 0 {
		return id[:dot]
	}
	return id
}
