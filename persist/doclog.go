package persist

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// The documents that docLogs keeps. Their ids are made of digits, letters a to f and hyphens, and
// have at most 98 bytes, so that the key of a record may have any length. The documents themselves
// name the record.
//
//	kind            id                                              document
//	pawl.log        SHA-256 of the key, epoch, number; hyphens      logDoc: an entry
//	pawl.log.order  position                                        logPlace: where the entry is
//	pawl.log.state  SHA-256 of the key                              logState: which entries count
//	pawl.log.next   "next"                                          logCount: the counter
//
// Numbers in ids have 16 hexadecimal digits, so the order of the ids is theirs. An entry counts if
// its epoch is that of the state, and its number is not below First. So Clear and Drop change one
// document, however many entries there are. A state begins an epoch: the version of the write that
// makes it, which is used once.
//
// Clear leaves a state of an epoch without entries, which says that there are documents to remove.
// It is deleted when they are gone, unless the log has begun again and the version has moved. So a
// log without a state has no documents.
const (
	logKind   = "pawl.log"
	orderKind = logKind + ".order"
	stateKind = logKind + ".state"
	nextKind  = logKind + ".next"
)

// logDoc is an entry. The time of the entry is Record.Updated.
type logDoc struct {
	Key
	Number   uint64 `json:"number"`
	Position uint64 `json:"position"`
	// Data is JSON in a string, because a store may change the spelling of a document.
	Data string `json:"data"`
}

// logPlace is the place of an entry in the order.
type logPlace struct {
	Key
	Epoch  uint64 `json:"epoch"`
	Number uint64 `json:"number"`
}

// logState says which entries of a log count. The record has the kind of Key as its label while
// Cleared is set.
type logState struct {
	Key
	Epoch uint64 `json:"epoch"`
	First uint64 `json:"first"`
	// Cleared says that no entry counts, and that the documents of earlier ones are to be removed.
	Cleared bool `json:"cleared,omitempty"`
}

// logCount is the highest position that was ever given.
type logCount struct {
	Last uint64 `json:"last"`
}

var counterKey = Key{Kind: nextKind, ID: "next"}

// IsLogKind reports whether a kind holds the documents of logs that [Logs] keeps in a store. They go with the
// records of the logs: a tool does not show, copy or delete them by themselves.
func IsLogKind(kind string) bool {
	return kind == logKind || kind == orderKind || kind == stateKind || kind == nextKind
}

// logID returns the id that stands for the log of key.
func logID(key Key) string {
	sum := sha256.Sum256([]byte(key.Kind + "\x00" + key.ID)) // neither contains U+0000
	return hex.EncodeToString(sum[:])
}

// sortable returns n as part of an id whose order is that of numbers.
func sortable(n uint64) string { return fmt.Sprintf("%016x", n) }

func stateKey(key Key) Key { return Key{Kind: stateKind, ID: logID(key)} }

func orderKey(position uint64) Key { return Key{Kind: orderKind, ID: sortable(position)} }

func entryKey(key Key, epoch, number uint64) Key {
	return Key{Kind: logKind, ID: strings.Join([]string{logID(key), sortable(epoch), sortable(number)}, "-")}
}

// idRange are the ids of entries of one log, from the first up to before.
type idRange struct {
	log    string // logID
	before string
}

// idsBelow returns the ids of the entries of earlier epochs, and of those below number. Such entries
// never count again.
func idsBelow(key Key, epoch, number uint64) idRange {
	return idRange{log: logID(key), before: entryKey(key, epoch, number).ID}
}

func newLogDoc(e LogEntry) logDoc {
	return logDoc{Key: e.Key, Number: e.Number, Position: e.Position, Data: string(e.Data)}
}

// entry returns the entry that d, which was written at a time, stands for.
func (d logDoc) entry(at time.Time) LogEntry {
	return LogEntry{Key: d.Key, Number: d.Number, Position: d.Position, At: at, Data: json.RawMessage(d.Data)}
}

// counts reports whether the entry at p counts.
func (s logState) counts(p logPlace) bool { return p.Epoch == s.Epoch && p.Number >= s.First }

// content decodes the document of r. It reports false if there is none.
func (r Record) content(into any) (alive bool, err error) {
	if r.Absent() || r.Deleted {
		return false, nil
	}
	if err := json.Unmarshal(r.Doc, into); err != nil {
		return false, fmt.Errorf("document %q: %w", r.Key, err)
	}
	return true, nil
}

// encode returns a document of a log as JSON.
func encode(content any) json.RawMessage {
	text, err := json.Marshal(content)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return text
}

// replacing returns the write that replaces r, which may be absent or a tombstone.
func replacing(r Record, content any, label string) Write {
	w := Write{Key: r.Key, Version: r.Version + 1, Doc: encode(content), Label: label}
	if !r.Absent() {
		w.Expected, w.Gone = r.Version, r.Deleted
	}
	return w
}

// deleting returns the write that deletes r.
func deleting(r Record) Write {
	return Write{Key: r.Key, Expected: r.Version, Version: r.Version + 1, Deleted: true}
}

// Limits of docLogs.remove.
const (
	removeBatch = 100   // the number of entries that one commit removes
	maxRemoved  = 1_000 // the number of entries that one Commit removes for each log
)

// clean removes the documents of the entries of key that do not count, up to limit entries, and then
// a state that only says so. Another process may do the same, or the log may begin again: then clean
// returns a conflict.
func (d *docLogs) clean(ctx context.Context, key Key, limit int) error {
	records, err := loadKeys(ctx, d.Store, []Key{stateKey(key)})
	if err != nil {
		return err
	}
	state := records[0]
	var s logState
	alive, err := state.content(&s)
	if err != nil || state.Absent() {
		return err
	}
	ids := idsBelow(key, s.Epoch, s.First)
	if !alive { // no entry counts; the next epoch is above this version
		ids = idsBelow(key, state.Version+1, 0)
	}
	removed, err := d.remove(ctx, ids, limit)
	if err != nil || removed >= limit { // there may be more
		return err
	}
	if s.Cleared {
		if _, err := d.Store.Commit(ctx, Commit{ID: d.commitID(), Writes: []Write{deleting(state)}}); err != nil {
			return err
		}
	} else if removed == 0 {
		return nil // no tombstone is new
	}
	return d.purge(ctx, ids)
}

// commitID returns the id of a commit that removes documents.
func (d *docLogs) commitID() string { return fmt.Sprintf("%s.%d", d.writer, d.commits.Add(1)) }

// remove removes the documents of entries, and of their positions, up to limit entries. It returns
// the number of entries.
func (d *docLogs) remove(ctx context.Context, ids idRange, limit int) (removed int, err error) {
	for removed < limit {
		page, err := d.List(ctx, Query{Kind: logKind, Prefix: ids.log, Before: ids.before, Limit: d.removeBatch()})
		if err != nil || len(page.Records) == 0 {
			return removed, err
		}
		if err := d.removeEntries(ctx, page.Records); err != nil {
			return removed, err
		}
		removed += len(page.Records)
	}
	return removed, nil
}

// removeBatch returns the number of entries that one commit removes.
func (d *docLogs) removeBatch() int {
	if most := d.Limits().MaxEntries; most > 0 {
		return min(removeBatch, most)
	}
	return removeBatch
}

// removeEntries removes the documents of entries, and of their positions, in one commit.
func (d *docLogs) removeEntries(ctx context.Context, entries []Record) error {
	positions := make([]Key, len(entries))
	for i, r := range entries {
		var doc logDoc
		if _, err := r.content(&doc); err != nil {
			return err
		}
		positions[i] = orderKey(doc.Position)
	}
	places, err := loadKeys(ctx, d.Store, positions)
	if err != nil {
		return err
	}
	c := Commit{ID: d.commitID()}
	for _, r := range append(entries, places...) {
		if !r.Absent() && !r.Deleted {
			c.Writes = append(c.Writes, deleting(r))
		}
	}
	_, err = d.Store.Commit(ctx, c)
	return err
}

// purge removes tombstones of entries, positions and the state. No commit is settled by them: the
// record of the log shows its commits.
func (d *docLogs) purge(ctx context.Context, ids idRange) error {
	purger, ok := d.Store.(Purger)
	if !ok {
		return nil
	}
	for _, q := range []Query{{Kind: logKind}, {Kind: orderKind}, {Kind: stateKind, Prefix: ids.log}} {
		if _, err := purger.Purge(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// CleanLog implements [LogCleaner].
func (d *docLogs) CleanLog(ctx context.Context, key Key) error {
	for {
		var conflict *Conflict
		if err := d.clean(ctx, key, math.MaxInt); !errors.As(err, &conflict) {
			return err
		}
	}
}

// CleanLogs implements [LogCleaner].
func (d *docLogs) CleanLogs(ctx context.Context, kind string) error {
	q := Query{Kind: stateKind, Labels: []string{kind}}
	for {
		page, err := d.List(ctx, q)
		if err != nil {
			return err
		}
		for _, r := range page.Records {
			var s logState
			if _, err := r.content(&s); err != nil {
				return err
			}
			if err := d.CleanLog(ctx, s.Key); err != nil {
				return err
			}
		}
		if page.Next == "" {
			return nil
		}
		q.After = page.Next
	}
}
