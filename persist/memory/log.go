package memory

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// logs are the logs of all records. Entries are never changed in place.
type logs struct {
	last       uint64                              // the highest position that was ever given
	byKey      map[persist.Key][]*persist.LogEntry // in the order of their numbers; no log is empty
	byPosition map[uint64]*persist.LogEntry
	order      map[string]*index // of the positions of the entries of a kind; none is empty
}

func newLogs() logs {
	return logs{
		byKey:      make(map[persist.Key][]*persist.LogEntry),
		byPosition: make(map[uint64]*persist.LogEntry),
		order:      make(map[string]*index),
	}
}

// place returns where a position is in the index of its kind.
func place(position uint64) cursor.Position { return cursor.Position{Due: int64(position)} }

// find returns the place of a number in a log, and whether an entry has it.
func find(log []*persist.LogEntry, number uint64) (at int, found bool) {
	return slices.BinarySearchFunc(log, number, func(e *persist.LogEntry, number uint64) int { return cmp.Compare(e.Number, number) })
}

// taken reports whether a number of the new entries is that of an entry that stays.
func (l *logs) taken(key persist.Key, w *persist.LogWrite) bool {
	if w.Clear || len(w.Entries) == 0 {
		return false
	}
	log := l.byKey[key]
	at, _ := find(log, w.First)
	return at < len(log) && log[at].Number < w.First+uint64(len(w.Entries))
}

// write applies w, none of whose numbers are taken.
func (l *logs) write(key persist.Key, w *persist.LogWrite, at time.Time) {
	end := len(l.byKey[key])
	if !w.Clear {
		end, _ = find(l.byKey[key], w.Drop)
	}
	l.removeFirst(key, end)
	for i, data := range w.Entries {
		l.last++
		l.add(&persist.LogEntry{Key: key, Number: w.First + uint64(i), Position: l.last, At: at, Data: data})
	}
}

// add adds an entry whose number and position are free.
func (l *logs) add(e *persist.LogEntry) {
	at, _ := find(l.byKey[e.Key], e.Number)
	l.byKey[e.Key] = slices.Insert(l.byKey[e.Key], at, e)
	l.byPosition[e.Position] = e
	if l.order[e.Kind] == nil {
		l.order[e.Kind] = &index{}
	}
	l.order[e.Kind].add(place(e.Position))
}

// removeFirst removes the first n entries of a log.
func (l *logs) removeFirst(key persist.Key, n int) {
	log := l.byKey[key]
	for _, e := range log[:n] {
		l.forget(e)
	}
	clear(log[:n]) // the entries that stay keep the array alive
	if l.byKey[key] = log[n:]; len(log) == n {
		delete(l.byKey, key)
	}
}

// remove removes the entry with a number, if there is one.
func (l *logs) remove(key persist.Key, number uint64) {
	at, found := find(l.byKey[key], number)
	if !found {
		return
	}
	l.forget(l.byKey[key][at])
	if l.byKey[key] = slices.Delete(l.byKey[key], at, at+1); len(l.byKey[key]) == 0 {
		delete(l.byKey, key)
	}
}

// forget removes an entry from the order.
func (l *logs) forget(e *persist.LogEntry) {
	delete(l.byPosition, e.Position)
	l.order[e.Kind].remove(place(e.Position))
	if len(l.order[e.Kind].chunks) == 0 {
		delete(l.order, e.Kind)
	}
}

// takenNumbers returns *persist.Conflict if numbers in the log writes of c are taken. The caller
// holds mu.
func (s *Store) takenNumbers(c persist.Commit, current map[persist.Key]persist.Record, at time.Time) error {
	var conflict persist.Conflict
	for i := range c.Writes {
		w := &c.Writes[i]
		if w.Log == nil || !s.logs.taken(w.Key, w.Log) {
			continue
		}
		winner := current[w.Key].Clone()
		winner.Now = at
		conflict.Winners = append(conflict.Winners, winner)
		conflict.Expected = append(conflict.Expected, persist.Expected{Version: w.Expected, Gone: w.Gone})
	}
	if len(conflict.Winners) > 0 {
		return &conflict
	}
	return nil
}

// ReadLog returns entries of the log of one record as persist.Logger describes. It returns
// persist.ErrClosed after Close, and ctx's error.
func (s *Store) ReadLog(ctx context.Context, q persist.LogQuery) ([]persist.LogEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, persist.ErrClosed
	}
	log := s.logs.byKey[q.Key]
	if q.Before > 0 {
		end, _ := find(log, q.Before)
		log = log[:end]
	}
	start, _ := find(log, q.From)
	log = log[start:]
	n := min(len(log), q.PageSize())
	entries := make([]persist.LogEntry, n)
	for i := range entries {
		from := log[i]
		if q.Reverse {
			from = log[len(log)-1-i]
		}
		entries[i] = *from
		entries[i].Position, entries[i].Data = 0, bytes.Clone(from.Data)
	}
	return entries, nil
}

// ReadOrder returns entries in the order of their positions as persist.Logger describes. It reads
// up to q.Limit entries of each kind. It returns persist.ErrClosed after Close, and ctx's error.
func (s *Store) ReadOrder(ctx context.Context, q persist.OrderQuery) ([]persist.LogEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.closed:
		return nil, persist.ErrClosed
	case q.After >= s.logs.last:
		return nil, nil
	}
	kinds := slices.Compact(slices.Sorted(slices.Values(q.Kinds)))
	if len(kinds) == 0 {
		kinds = slices.Collect(maps.Keys(s.logs.order))
	}
	var found []*persist.LogEntry
	for _, kind := range kinds {
		if s.logs.order[kind] == nil {
			continue
		}
		n := 0
		for p := range s.logs.order[kind].from(place(q.After + 1)) {
			if n++; n > q.PageSize() {
				break
			}
			found = append(found, s.logs.byPosition[uint64(p.Due)])
		}
	}
	slices.SortFunc(found, func(a, b *persist.LogEntry) int { return cmp.Compare(a.Position, b.Position) })
	entries := make([]persist.LogEntry, min(len(found), q.PageSize()))
	for i := range entries {
		entries[i] = *found[i]
		entries[i].Data = bytes.Clone(found[i].Data)
	}
	return entries, nil
}

// LastPosition returns the highest position that was ever given. It returns persist.ErrClosed after
// Close, and ctx's error.
func (s *Store) LastPosition(ctx context.Context) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return 0, persist.ErrClosed
	}
	return s.logs.last, nil
}

// RestoreLog writes all entries or none, as persist.LogRestorer describes. It returns
// persist.ErrClosed after Close, and an error that wraps persist.ErrNotApplied when an entry is
// malformed, when its position is that of another entry, or when ctx has ended.
func (s *Store) RestoreLog(ctx context.Context, entries []persist.LogEntry, last uint64) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	if err := persist.ValidateRestoreLog(entries, last); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return persist.ErrClosed
	}
	for _, e := range entries {
		old := s.logs.byPosition[e.Position]
		if e.Data != nil && old != nil && (old.Key != e.Key || old.Number != e.Number) {
			return fmt.Errorf("%w: position %d is that of entry %d of the log of %q", persist.ErrNotApplied, e.Position, old.Number, old.Key)
		}
	}
	for _, e := range entries {
		if s.logs.remove(e.Key, e.Number); e.Data != nil {
			s.logs.add(&e)
			s.logs.last = max(s.logs.last, e.Position)
		}
	}
	s.logs.last = max(s.logs.last, last)
	return nil
}
