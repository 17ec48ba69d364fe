package postgres

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// A commit that only adds entries goes the fast way; see write.go. If a number is taken, the server
// refuses the statement, because (kind, id, number) is the primary key. Such a commit continues as a
// transaction. That locks the records, looks for taken numbers, and returns the conflict. So there
// is one place that decides about numbers, and the other commits of a batch are written.

// addsToLog reports whether w has entries.
func addsToLog(w *persist.Write) bool { return w.Log != nil && len(w.Log.Entries) > 0 }

// cutsLog reports whether w removes entries, and returns the number that they are below.
func cutsLog(w *persist.Write) (below int64, cuts bool) {
	switch {
	case w.Log == nil:
		return 0, false
	case w.Log.Clear:
		return math.MaxInt64, true
	}
	return int64(w.Log.Drop), w.Log.Drop > 0
}

// additions are new entries, one element for each in every slice.
type additions struct {
	kinds, ids []string
	numbers    []int64
	entries    []json.RawMessage
}

// add adds the entries of w.
func (a *additions) add(w *persist.Write) {
	if w.Log == nil {
		return
	}
	for i, e := range w.Log.Entries {
		a.kinds, a.ids = append(a.kinds, w.Kind), append(a.ids, w.ID)
		a.numbers, a.entries = append(a.numbers, int64(w.Log.First)+int64(i)), append(a.entries, e)
	}
}

// to adds the entries to the parameters of s.
func (a *additions) to(s *statement) *statement {
	return s.strings(a.kinds).strings(a.ids).ints(a.numbers).jsons(a.entries)
}

// lookForNumbers returns the statement that finds the keys of t whose new numbers are taken. After
// Clear no number is taken; Drop removes only lower numbers.
func (t *transaction) lookForNumbers() *statement {
	var kinds, ids []string
	var firsts, lasts []int64
	for _, p := range t.parts {
		for i := range p.commit.Writes {
			w := &p.commit.Writes[i]
			if !addsToLog(w) || w.Log.Clear {
				continue
			}
			kinds, ids = append(kinds, w.Kind), append(ids, w.ID)
			firsts = append(firsts, int64(w.Log.First))
			lasts = append(lasts, int64(w.Log.First)+int64(len(w.Log.Entries))-1)
		}
	}
	return query(t.store.sql.logs.taken).strings(kinds).strings(ids).ints(firsts).ints(lasts)
}

// numbersTaken returns the *persist.Conflict of p if numbers of its entries are taken. The documents
// of the winners are read later; see finish.
func (t *transaction) numbersTaken(p *part, current map[persist.Key]persist.Record) error {
	var conflict persist.Conflict
	for i := range p.commit.Writes {
		w := &p.commit.Writes[i]
		if !t.taken[w.Key] {
			continue
		}
		winner := current[w.Key]
		winner.Key, winner.Now = w.Key, t.at
		conflict.Winners = append(conflict.Winners, winner)
		conflict.Expected = append(conflict.Expected, persist.Expected{Version: w.Expected, Gone: w.Gone})
	}
	if len(conflict.Winners) == 0 {
		return nil
	}
	return &conflict
}

// changeLogs returns the statement that changes the logs of all parts that are written, or nil if
// none is changed.
func (t *transaction) changeLogs() *statement {
	var cut []persist.Key
	var below []int64
	var added additions
	for _, p := range t.parts {
		if p.err != nil {
			continue
		}
		for i := range p.commit.Writes {
			w := &p.commit.Writes[i]
			if n, cuts := cutsLog(w); cuts {
				cut, below = append(cut, w.Key), append(below, n)
			}
			added.add(w)
		}
	}
	if len(cut)+len(added.kinds) == 0 {
		return nil
	}
	kinds, ids := apart(cut)
	return added.to(query(t.store.sql.logs.change).time(t.at).strings(kinds).strings(ids).ints(below))
}

// RestoreLog writes entries as persist.LogRestorer describes, all or none of them, in one
// transaction. Its errors are those of Take. They wrap persist.ErrNotApplied also if an entry is
// malformed, if its position is that of another entry, or if its key has more than 2048 bytes.
func (s *Store) RestoreLog(ctx context.Context, entries []persist.LogEntry, last uint64) error {
	if err := persist.ValidateRestoreLog(entries, last); err != nil {
		return err
	}
	for i := range entries {
		e := &entries[i]
		if len(e.Kind)+len(e.ID) > maxKey {
			return unfit("a key has %d bytes, more than %d", len(e.Kind)+len(e.ID), maxKey)
		}
		if e.Data != nil {
			last = max(last, e.Position)
		}
	}
	remove, restore := restoring(query(s.sql.logs.remove), entries), restoring(query(s.sql.logs.restore), entries).
		ints(column(entries, func(e persist.LogEntry) int64 { return int64(e.Position) })).
		times(column(entries, func(e persist.LogEntry) time.Time { return e.At })).
		jsons(column(entries, func(e persist.LogEntry) json.RawMessage { return e.Data }))
	_, err := s.change(ctx, remove, restore, query(s.sql.logs.raise).int(int64(last)))
	return err
}

// restoring adds the keys and numbers of entries to the parameters of a statement.
func restoring(s *statement, entries []persist.LogEntry) *statement {
	s.strings(column(entries, func(e persist.LogEntry) string { return e.Kind }))
	s.strings(column(entries, func(e persist.LogEntry) string { return e.ID }))
	return s.ints(column(entries, func(e persist.LogEntry) int64 { return int64(e.Number) }))
}

// addToLogs reports whether one of the requests has log entries.
func addToLogs(requests ...*request) bool {
	return slices.ContainsFunc(requests, func(r *request) bool {
		return slices.ContainsFunc(r.commit.Writes, func(w persist.Write) bool { return addsToLog(&w) })
	})
}
