package persist

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
)

// Logs are copied by position. Both stores list their entries in the order of positions, and a
// position means the same entry in both, because entries never change and positions are used once.
// So one pass over both lists finds the entries that are missing and those that the source has
// removed.

// orderReader reads the entries of a store in the order of their positions.
type orderReader struct {
	logger Logger
	limit  int
	page   []LogEntry
	after  uint64 // the position of the last entry of page
	ended  bool   // page is the last one
}

// peek returns the next entry, and nil at the end.
func (r *orderReader) peek(ctx context.Context) (*LogEntry, error) {
	if len(r.page) == 0 && !r.ended {
		page, err := r.logger.ReadOrder(ctx, OrderQuery{After: r.after, Limit: r.limit})
		if err != nil {
			return nil, fmt.Errorf("read log entries after position %d: %w", r.after, err)
		}
		if r.page, r.ended = page, len(page) == 0; !r.ended {
			r.after = page[len(page)-1].Position
		}
	}
	if r.ended {
		return nil, nil
	}
	return &r.page[0], nil
}

// eachPosition calls fn for each position that has an entry in one of the stores, in order. The
// entry of the other store is nil if it has none there. Fn may write entries up to that position.
func (c *copier) eachPosition(ctx context.Context, fn func(from, to *LogEntry) error) error {
	source := &orderReader{logger: c.fromLogs, limit: c.opts.PageSize}
	destination := &orderReader{logger: c.toLogs, limit: c.opts.PageSize}
	for {
		from, err := source.peek(ctx)
		if err != nil {
			return err
		}
		to, err := destination.peek(ctx)
		if err != nil {
			return err
		}
		if from == nil && to == nil {
			return nil
		}
		if to == nil || from != nil && from.Position < to.Position {
			to = nil
		} else if from == nil || to.Position < from.Position {
			from = nil
		}
		if err := fn(from, to); err != nil {
			return err
		}
		if from != nil {
			source.page = source.page[1:]
		}
		if to != nil {
			destination.page = destination.page[1:]
		}
	}
}

// copyLogs writes the entries that the destination does not have, removes those that the source has
// removed, and raises the last position. The records were copied before, so a record that was
// written in the destination is known to be there.
func (c *copier) copyLogs(ctx context.Context) error {
	var missing, extra []LogEntry
	flush := func() error {
		if err := c.removeEntries(ctx, extra); err != nil {
			return err
		}
		if err := c.restoreEntries(ctx, missing); err != nil {
			return err
		}
		if c.opts.Progress != nil && len(missing)+len(extra) > 0 {
			c.opts.Progress(c.report)
		}
		missing, extra = nil, nil
		return nil
	}
	err := c.eachPosition(ctx, func(from, to *LogEntry) error {
		switch {
		case to == nil:
			missing = append(missing, *from)
		case from == nil:
			extra = append(extra, *to)
		default:
			if reason := entryDifference(from, to); reason != "" {
				return fmt.Errorf("%q: written in the destination: %s", to.Key, reason)
			}
			c.report.Logs.Unchanged++
		}
		if len(missing)+len(extra) < (Query{Limit: c.opts.PageSize}).PageSize() {
			return nil
		}
		return flush()
	})
	if err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	last, err := c.fromLogs.LastPosition(ctx)
	if err != nil || last == 0 {
		return err
	}
	restorer, err := c.logRestorer()
	if err != nil {
		return err
	}
	if err := restorer.RestoreLog(ctx, nil, last); err != nil {
		return fmt.Errorf("last position %d of log entries: %w", last, err)
	}
	return nil
}

func (c *copier) logRestorer() (LogRestorer, error) {
	restorer, ok := c.toLogs.(LogRestorer)
	if !ok {
		return nil, fmt.Errorf("%w: source has log entries, and destination %T is not a LogRestorer", ErrUnsupported, c.to)
	}
	return restorer, nil
}

// restoreEntries writes entries. If that fails, it writes them one by one to find the one that
// fails.
func (c *copier) restoreEntries(ctx context.Context, entries []LogEntry) error {
	if len(entries) == 0 {
		return nil
	}
	restorer, err := c.logRestorer()
	if err != nil {
		return err
	}
	if err := restorer.RestoreLog(ctx, entries, 0); err == nil {
		c.report.Logs.Copied += len(entries)
		return nil
	} else if ctx.Err() != nil {
		return err
	}
	for _, e := range entries {
		if err := restorer.RestoreLog(ctx, []LogEntry{e}, 0); err != nil {
			return fmt.Errorf("entry %d of the log of %q: %w", e.Number, e.Key, err)
		}
		c.report.Logs.Copied++
	}
	return nil
}

// removeEntries removes entries of the destination that the source has removed. An entry whose
// record the source does not have stays: it may have been written in the destination.
func (c *copier) removeEntries(ctx context.Context, entries []LogEntry) error {
	if len(entries) == 0 {
		return nil
	}
	keys := make([]Key, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	records, err := loadKeys(ctx, c.from, keys)
	if err != nil {
		return err
	}
	var removed []LogEntry
	for i, e := range entries {
		if !records[i].Absent() {
			removed = append(removed, LogEntry{Key: e.Key, Number: e.Number})
		}
	}
	if len(removed) == 0 {
		return nil
	}
	restorer, err := c.logRestorer()
	if err != nil {
		return err
	}
	if err := restorer.RestoreLog(ctx, removed, 0); err != nil {
		return fmt.Errorf("remove %d entries, the first is entry %d of the log of %q: %w", len(removed), removed[0].Number, removed[0].Key, err)
	}
	c.report.Logs.Removed += len(removed)
	return nil
}

// verifyLogs compares the entries of both stores, and returns their last positions.
func (c *copier) verifyLogs(ctx context.Context) (last, copied uint64, err error) {
	err = c.eachPosition(ctx, func(from, to *LogEntry) error {
		if reason := entryDifference(from, to); reason != "" {
			c.report.Logs.Differing++
			c.describe(cmp.Or(from, to).Key, reason)
			return nil
		}
		c.report.Logs.Verified++
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	if last, err = c.fromLogs.LastPosition(ctx); err != nil {
		return 0, 0, err
	}
	copied, err = c.toLogs.LastPosition(ctx)
	return last, copied, err
}

// entryDifference returns the reason why the entries that two stores have at one position are not
// the same. It returns "" if they are. An entry is nil if the store has none there.
func entryDifference(from, to *LogEntry) string {
	switch {
	case to == nil:
		return fmt.Sprintf("log entry %d only in the source", from.Number)
	case from == nil:
		return fmt.Sprintf("log entry %d only in the destination", to.Number)
	case from.Key != to.Key || from.Number != to.Number:
		return fmt.Sprintf("position %d is that of entry %d of the log of %q in the source, of entry %d of the log of %q in the destination",
			from.Position, from.Number, from.Key, to.Number, to.Key)
	case !bytes.Equal(from.Data, to.Data):
		return fmt.Sprintf("log entry %d has other data in the destination", from.Number)
	case !from.At.Equal(to.At):
		return fmt.Sprintf("log entry %d has another time in the destination", from.Number)
	}
	return ""
}
