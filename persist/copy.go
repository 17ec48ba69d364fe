package persist

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"
)

// CopyOptions configures Copy. The zero value is ready to use.
type CopyOptions struct {
	// PageSize is the number of records that are read and written at a time. 0 means DefaultLimit.
	PageSize int
	// MaxSkew is the largest allowed difference between the clocks of the stores. 0 means one
	// second.
	MaxSkew time.Duration
	// SkipVerify leaves out the comparison at the end. It is for a first run while the writers of
	// the source are still running.
	SkipVerify bool
	// Progress is called after every page, on the goroutine of Copy. Nil means that it is not
	// called.
	Progress func(CopyReport)
}

// CopyReport counts the records and log entries that Copy has processed so far.
type CopyReport struct {
	// Copied records were written to the destination.
	Copied int
	// Unchanged records were in the destination already.
	Unchanged int
	// Verified records were compared after copying and are equal.
	Verified int
	// Differing records were compared after copying and are not equal.
	Differing int
	// Logs counts the entries of logs.
	Logs CopiedLogs
	// Differences describes the first 100 differing records and entries.
	Differences []CopyDifference
}

// CopiedLogs counts the log entries that Copy has processed so far, as [CopyReport] counts records.
type CopiedLogs struct {
	Copied, Unchanged, Verified, Differing int
	// Removed entries were removed from the destination, because the source has removed them.
	Removed int
}

// CopyDifference describes a record, or an entry of its log, that is not the same in both stores.
type CopyDifference struct {
	Key
	// Reason says what differs.
	Reason string
}

// maxDifferences is the number of differences that a report describes.
const maxDifferences = 100

// Copy copies every record with its log, and the version floor, from one store to another and then
// compares both. The destination must be a [Restorer]. If the source has log entries, [Logs] of the
// destination must be a [LogRestorer]. Otherwise Copy returns ErrUnsupported. A nil error means that
// both stores have the same records and logs, unless opts.SkipVerify is set.
//
// Records keep all fields: versions, Born, documents, labels, due times, expiry, schema versions,
// commit ids, leases, and whether a tombstone was deleted or swept. Documents are compared as JSON
// values, because a store may change their spelling.
//
// Copy can be interrupted at any moment, also by a crash, and run again. It compares each record
// before it writes, so a second run writes only the records that differ.
//
// No process may write to the destination meanwhile. The writers of the source are stopped before
// the last run: a run beside them misses changes, which the next run copies. Copy neither removes a
// record of the destination nor replaces it by an older version. It stops with an error at a record
// that was written in the destination, and reports a record that only the destination has. A
// tombstone that only the destination has is ignored if the source has purged it.
//
// Log entries keep their numbers, positions, times and spelling, and the destination continues with
// positions above all that the source has given. So a reader can go on after the last position it
// has read. Logs are read and written through [Logs], also if one store keeps them as documents and
// the other does not. The documents of such logs are therefore not copied as records. A second run
// removes entries from the destination that the source has removed since. An entry whose record the
// source does not have is reported instead.
//
// A live lease is copied with its holder, token and end. So it is exclusive in the destination too,
// also if its holder died or is still running. The next run copies a renewal or a release.
//
// Due times, expiry and leases are times of the source's clock. The destination judges them by its
// own clock. Copy therefore refuses stores whose clocks differ by more than opts.MaxSkew.
//
// An error names the record that could not be copied or the first record that differs.
func Copy(ctx context.Context, from, to Store, opts CopyOptions) (CopyReport, error) {
	restorer, ok := to.(Restorer)
	if !ok {
		return CopyReport{}, fmt.Errorf("persist: copy: %w: destination %T is not a Restorer", ErrUnsupported, to)
	}
	c := &copier{from: from, to: to, fromLogs: Logs(from), toLogs: Logs(to), restorer: restorer, opts: opts}
	if err := c.run(ctx); err != nil {
		return c.report, fmt.Errorf("persist: copy: %w", err)
	}
	return c.report, nil
}

// copier is one run of Copy.
type copier struct {
	from, to         Store
	fromLogs, toLogs Logger
	restorer         Restorer // to
	opts             CopyOptions
	report           CopyReport
}

// run copies the records, then the logs, then the floor, then compares. The floor comes after the
// records, because a purge in the source may raise it meanwhile.
func (c *copier) run(ctx context.Context) error {
	if err := c.compareClocks(ctx); err != nil {
		return err
	}
	if err := c.each(ctx, c.from, c.copyPage); err != nil {
		return err
	}
	if err := c.copyLogs(ctx); err != nil {
		return err
	}
	floor, _, err := floorOf(ctx, c.from)
	if err != nil {
		return err
	}
	if err := c.restorer.Restore(ctx, nil, floor); err != nil {
		return fmt.Errorf("version floor %d: %w", floor, err)
	}
	if c.opts.SkipVerify {
		return nil
	}
	return c.verify(ctx)
}

// compareClocks returns an error if the clocks of the stores differ by more than MaxSkew. It reads
// the source's clock before and after the destination's clock, so slow answers cause no error.
func (c *copier) compareClocks(ctx context.Context) error {
	limit := c.opts.MaxSkew
	if limit == 0 {
		limit = time.Second
	}
	var times [3]time.Time
	for i, store := range []Store{c.from, c.to, c.from} {
		var err error
		if _, times[i], err = floorOf(ctx, store); err != nil {
			return err
		}
	}
	behind, ahead := times[0].Sub(times[1]), times[1].Sub(times[2])
	if skew := max(behind, ahead); skew > limit {
		return fmt.Errorf("clocks of the stores differ by %s, limit %s", skew, limit)
	}
	return nil
}

// floorOf returns the version floor and the time of a store. An absent key shows both.
func floorOf(ctx context.Context, store Store) (floor uint64, now time.Time, err error) {
	r, err := store.Load(ctx, Key{Kind: "pawl.copy", ID: rand.Text()})
	if !errors.Is(err, ErrNotFound) {
		return 0, time.Time{}, fmt.Errorf("version floor: %w", err)
	}
	return r.Version, r.Now, nil
}

// each calls fn with every record of a store, page by page, except the documents of logs. Without
// writers a record can only go from alive to expired, so no record is missed between the queries.
func (c *copier) each(ctx context.Context, store Store, fn func(context.Context, []Record) error) error {
	for _, q := range []Query{{}, {Expired: true}, {Deleted: true}} {
		q.Limit = c.opts.PageSize
		for {
			page, err := store.List(ctx, q)
			if err != nil {
				return fmt.Errorf("list: %w", err)
			}
			records := slices.DeleteFunc(page.Records, func(r Record) bool { return IsLogKind(r.Kind) })
			if err := fn(ctx, records); err != nil {
				return err
			}
			if c.opts.Progress != nil {
				c.opts.Progress(c.report)
			}
			if page.Next == "" {
				break
			}
			q.After = page.Next
		}
	}
	return nil
}

// copyPage writes the records of the source that the destination does not have.
func (c *copier) copyPage(ctx context.Context, records []Record) error {
	current, err := loadAll(ctx, c.to, records)
	if err != nil {
		return err
	}
	var missing []Record
	for i, r := range records {
		reason := difference(r, current[i])
		switch {
		case reason == "":
			c.report.Unchanged++
		case current[i].Absent() || r.follows(current[i]):
			missing = append(missing, r)
		default:
			return fmt.Errorf("%q: written in the destination: %s", r.Key, reason)
		}
	}
	return c.restore(ctx, missing)
}

// follows reports whether r can be a later state of the record old. At the same version only a
// guard's changes can differ: the lease, and the expiry of a document.
func (r Record) follows(old Record) bool {
	if r.Version == old.Version && !r.Deleted {
		old.Lease, old.Expires = r.Lease, r.Expires
	}
	return r.Version > old.Version && r.Continues(old) || difference(r, old) == ""
}

// Continues reports whether r, of a higher version than old, can have been made from old: r knows the
// last commit of old, or so many came after it that it was forgotten. A record without commit ids, and
// one that was purged and created again after old, is believed.
func (r Record) Continues(old Record) bool {
	if r.Born != old.Born {
		return r.Born > old.Version
	}
	if len(old.Commits) == 0 {
		return true
	}
	last := old.Commits[len(old.Commits)-1]
	if slices.Contains(r.Commits, last) {
		return true
	}
	ids := make(map[string]int) // by writer
	for _, id := range r.Commits {
		ids[writerOf(id)]++
	}
	return len(ids) == KeptWriters || ids[writerOf(last)] == KeptPerWriter
}

// restore writes records. If that fails, it writes them one by one to find the one that fails.
func (c *copier) restore(ctx context.Context, records []Record) error {
	if len(records) == 0 {
		return nil
	}
	err := c.restorer.Restore(ctx, records, 0)
	if err == nil {
		c.report.Copied += len(records)
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	for _, r := range records {
		if err := c.restorer.Restore(ctx, []Record{r}, 0); err != nil {
			return fmt.Errorf("%q: %w", r.Key, err)
		}
		c.report.Copied++
	}
	return nil
}

// verify compares the records, the logs and the floors of both stores.
func (c *copier) verify(ctx context.Context) error {
	if err := c.each(ctx, c.from, c.verifyPage); err != nil {
		return err
	}
	floor, _, err := floorOf(ctx, c.from)
	if err != nil {
		return err
	}
	copied, _, err := floorOf(ctx, c.to)
	if err != nil {
		return err
	}
	err = c.each(ctx, c.to, func(ctx context.Context, records []Record) error {
		return c.verifySource(ctx, records, floor)
	})
	if err != nil {
		return err
	}
	last, copiedLast, err := c.verifyLogs(ctx)
	if err != nil {
		return err
	}
	differing := func(n int, what string) error {
		first := c.report.Differences[0]
		return fmt.Errorf("%d %s differ, the first is %q: %s", n, what, first.Key, first.Reason)
	}
	switch {
	case c.report.Differing > 0:
		return differing(c.report.Differing, "records")
	case c.report.Logs.Differing > 0:
		return differing(c.report.Logs.Differing, "log entries")
	case copiedLast < last:
		return fmt.Errorf("last position %d of log entries in the source, %d in the destination", last, copiedLast)
	case copied < floor:
		return fmt.Errorf("version floor %d in the source, %d in the destination", floor, copied)
	}
	return nil
}

// verifyPage compares records of the source with the destination.
func (c *copier) verifyPage(ctx context.Context, records []Record) error {
	copies, err := loadAll(ctx, c.to, records)
	if err != nil {
		return err
	}
	for i, r := range records {
		if reason := difference(r, copies[i]); reason != "" {
			c.differs(r.Key, reason)
			continue
		}
		c.report.Verified++
	}
	return nil
}

// verifySource reports records of the destination that the source does not have. The source may
// have purged a tombstone up to its version floor.
func (c *copier) verifySource(ctx context.Context, copies []Record, floor uint64) error {
	originals, err := loadAll(ctx, c.from, copies)
	if err != nil {
		return err
	}
	for i, r := range copies {
		purged := r.Deleted && r.Version <= floor
		if originals[i].Absent() && !purged {
			c.differs(r.Key, difference(originals[i], r))
		}
	}
	return nil
}

// differs adds a record that differs to the report.
func (c *copier) differs(key Key, reason string) {
	c.report.Differing++
	c.describe(key, reason)
}

// describe adds a difference to the report.
func (c *copier) describe(key Key, reason string) {
	if len(c.report.Differences) < maxDifferences {
		c.report.Differences = append(c.report.Differences, CopyDifference{Key: key, Reason: reason})
	}
}

// loadAll returns the records of the store that have the keys of records, in the same order. An
// absent key has an absent record.
func loadAll(ctx context.Context, store Store, records []Record) ([]Record, error) {
	keys := make([]Key, len(records))
	for i, r := range records {
		keys[i] = r.Key
	}
	return loadKeys(ctx, store, keys)
}

// loadKeys returns the records of keys, in the same order. An absent key has an absent record. They
// are read at one moment if the store is a Reader, and otherwise one after the other.
func loadKeys(ctx context.Context, store Store, keys []Key) ([]Record, error) {
	loaded := make([]Record, len(keys))
	var err error
	if reader, ok := store.(Reader); ok && len(keys) > 0 {
		if loaded, err = reader.LoadAll(ctx, keys); err != nil {
			return nil, fmt.Errorf("load %d records: %w", len(keys), err)
		}
	} else {
		for i, key := range keys {
			if loaded[i], err = store.Load(ctx, key); err != nil && !errors.Is(err, ErrNotFound) {
				return nil, fmt.Errorf("load %q: %w", key, err)
			}
		}
	}
	for i, key := range keys {
		loaded[i].Key = key // an absent record may lack it
	}
	return loaded, nil
}
