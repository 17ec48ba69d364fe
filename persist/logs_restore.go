package persist

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// docLogRestorer is docLogs on a store that is a Restorer.
type docLogRestorer struct {
	*docLogs
	Restorer
}

// RestoreLog writes entries as [LogRestorer] describes. It removes entries by commits, each together
// with its position: no list would find a position that was left. The time of a new entry is that of
// its documents, so it uses Restore for these, the position first. If that is interrupted, no read shows
// an entry that has only its position, and a repeated [Copy] writes it again; if the log has ended in the
// source meanwhile, the position stays. It returns the errors of Load except ErrNotFound, and those of
// Commit and Restore.
func (d *docLogRestorer) RestoreLog(ctx context.Context, entries []LogEntry, last uint64) error {
	if err := ValidateRestoreLog(entries, last); err != nil {
		return err
	}
	r := logRestore{docs: make(map[Key]Record), changed: make(map[Key]bool)}
	if err := r.begin(ctx, d.docLogs, entries, last); err != nil {
		return notApplied(err)
	}
	added, err := r.remove(ctx, d.docLogs, entries)
	if err != nil {
		return err
	}
	if err := r.plan(ctx, d.Store, added); err != nil {
		if len(added) == len(entries) { // no entry was removed
			err = notApplied(err)
		}
		return err
	}
	if len(r.written) == 0 {
		return nil
	}
	records := make([]Record, 0, len(r.written))
	for _, key := range r.written {
		records = append(records, r.docs[key])
	}
	return d.Restore(ctx, records, 0)
}

// logRestore is one call of RestoreLog.
type logRestore struct {
	docs    map[Key]Record   // the documents by key, as they are to be
	states  map[Key]logState // of the logs
	written []Key            // the documents that have changed, in this order
	changed map[Key]bool     // the same
	now     time.Time        // of the store
}

// begin raises the counter, and gives each log with a new entry a state that lets it count.
func (r *logRestore) begin(ctx context.Context, d *docLogs, entries []LogEntry, last uint64) error {
	lowest := make(map[Key]uint64) // the lowest number to be written, by record
	keys := []Key{counterKey}
	for _, e := range entries {
		if e.Data != nil {
			last = max(last, e.Position)
		}
		if _, known := lowest[e.Key]; !known {
			lowest[e.Key] = math.MaxUint64
			keys = append(keys, stateKey(e.Key))
		}
		if e.Data != nil {
			lowest[e.Key] = min(lowest[e.Key], e.Number)
		}
	}
	if err := r.read(ctx, d.Store, keys); err != nil {
		return err
	}
	var count logCount
	if _, err := r.docs[counterKey].content(&count); err != nil {
		return err
	}
	if last > count.Last {
		r.write(counterKey, logCount{last}, "", r.now)
	}
	r.states = make(map[Key]logState)
	for key, number := range lowest {
		doc := r.docs[stateKey(key)]
		var s logState
		alive, err := doc.content(&s)
		switch {
		case err != nil:
			return err
		case number == math.MaxUint64: // no entry to write
		case !alive || s.Cleared:
			s = logState{Key: key, Epoch: doc.Version + 1}
			r.write(doc.Key, s, "", r.now)
		case number < s.First:
			if err := d.clean(ctx, key, math.MaxInt); err != nil {
				return err
			}
			s.First = number
			r.write(doc.Key, s, "", r.now)
		}
		r.states[key] = s
	}
	return nil
}

// remove removes the entries without Data, and returns the others.
func (r *logRestore) remove(ctx context.Context, d *docLogs, entries []LogEntry) (added []LogEntry, err error) {
	var keys []Key
	for _, e := range entries {
		if e.Data != nil {
			added = append(added, e)
		} else {
			keys = append(keys, entryKey(e.Key, r.states[e.Key].Epoch, e.Number))
		}
	}
	for some := range slices.Chunk(keys, d.removeBatch()) {
		records, err := loadKeys(ctx, d.Store, some)
		if err != nil {
			return nil, err
		}
		records = slices.DeleteFunc(records, func(r Record) bool { return r.Absent() || r.Deleted })
		if len(records) == 0 {
			continue
		}
		if err := d.removeEntries(ctx, records); err != nil {
			return nil, err
		}
	}
	return added, nil
}

// plan reads the documents of new entries and of their positions, before and after, and changes them.
func (r *logRestore) plan(ctx context.Context, store Store, entries []LogEntry) error {
	var keys, places []Key
	for _, e := range entries {
		keys = append(keys, entryKey(e.Key, r.states[e.Key].Epoch, e.Number))
		places = append(places, orderKey(e.Position))
	}
	if err := r.read(ctx, store, keys); err != nil {
		return err
	}
	for _, key := range keys {
		var doc logDoc
		alive, err := r.docs[key].content(&doc)
		if err != nil {
			return err
		}
		if alive {
			places = append(places, orderKey(doc.Position))
		}
	}
	if err := r.read(ctx, store, places); err != nil {
		return err
	}
	for _, e := range entries {
		if err := r.restore(e); err != nil {
			return err
		}
	}
	return nil
}

func (r *logRestore) read(ctx context.Context, store Store, keys []Key) error {
	records, err := loadKeys(ctx, store, keys)
	if err != nil {
		return err
	}
	for i, record := range records {
		r.docs[keys[i]] = record
		if record.Now.After(r.now) {
			r.now = storedTime(record.Now)
		}
	}
	return nil
}

// restore changes the documents of one new entry.
func (r *logRestore) restore(e LogEntry) error {
	s := r.states[e.Key]
	key := entryKey(e.Key, s.Epoch, e.Number)
	var old logDoc
	alive, err := r.docs[key].content(&old)
	if err != nil {
		return err
	}
	if alive && old.Position != e.Position {
		r.delete(orderKey(old.Position))
	}
	place := logPlace{Key: e.Key, Epoch: s.Epoch, Number: e.Number}
	var other logPlace
	used, err := r.docs[orderKey(e.Position)].content(&other)
	if err != nil {
		return err
	}
	if used && other != place {
		return fmt.Errorf("position %d is that of entry %d of the log of %q", e.Position, other.Number, other.Key)
	}
	// In this order: no list would find an entry that was left without its position.
	r.write(orderKey(e.Position), place, e.Kind, e.At)
	r.write(key, newLogDoc(e), "", e.At)
	return nil
}

// write replaces a document.
func (r *logRestore) write(key Key, content any, label string, at time.Time) {
	r.replace(key, Record{Doc: encode(content), Label: label, Updated: at})
}

// delete leaves a tombstone if there is a document.
func (r *logRestore) delete(key Key) {
	if old := r.docs[key]; !old.Absent() && !old.Deleted {
		r.replace(key, Record{Deleted: true, Updated: r.now})
	}
}

// replace changes a record. A record that is changed twice moves by one version.
func (r *logRestore) replace(key Key, next Record) {
	old := r.docs[key]
	next.Key, next.Version, next.Born = key, old.Version, old.Born
	if !r.changed[key] {
		next.Version++
		r.changed[key] = true
		r.written = append(r.written, key)
	}
	if old.Absent() {
		next.Born = next.Version
	}
	r.docs[key] = next
}
