package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// An export is JSON lines: a head, the records, the log entries in the order of their positions, and
// an end that counts them. Without the end it is not complete.

// exportFormat is the version of the format.
const exportFormat = 1

// exportLine is one line of an export. One of its fields is set.
type exportLine struct {
	Head   *exportHead     `json:"pawl,omitempty"`
	Record *persist.Record `json:"record,omitempty"`
	Entry  *exportEntry    `json:"entry,omitempty"`
	End    *exportEnd      `json:"end,omitempty"`
}

// exportHead is the first line.
type exportHead struct {
	Format int       `json:"format"`
	At     time.Time `json:"at"`
	// Floor is the version floor, and Last the highest position that was given to a log entry.
	Floor uint64 `json:"floor"`
	Last  uint64 `json:"last_position"`
}

// exportEntry is a log entry. Its data is a string, because its spelling is kept.
type exportEntry struct {
	persist.Key
	Number   uint64    `json:"number"`
	Position uint64    `json:"position"`
	At       time.Time `json:"at"`
	Data     string    `json:"data"`
}

// exportEnd is the last line.
type exportEnd struct {
	Records int `json:"records"`
	Entries int `json:"entries"`
}

// withTemporary runs fn with an empty SQLite store, and removes it.
func withTemporary(ctx context.Context, fn func(*sqlite.Store) error) (err error) {
	folder, err := os.MkdirTemp("", "pawl-")
	if err != nil {
		return temporary(err)
	}
	defer func() { err = errors.Join(err, temporary(os.RemoveAll(folder))) }()
	store, err := sqlite.Open(ctx, filepath.Join(folder, "pawl.db"), sqlite.Config{})
	if err != nil {
		return temporary(err)
	}
	defer func() { err = errors.Join(err, temporary(store.Close())) }()
	return fn(store)
}

// writeLines writes the store as an export.
func writeLines(ctx context.Context, store persist.Logger, out *output) error {
	floor, now, err := floorOf(ctx, store)
	if err != nil {
		return err
	}
	last, err := store.LastPosition(ctx)
	if err != nil {
		return err
	}
	if err := out.value(exportLine{Head: &exportHead{exportFormat, now, floor, last}}); err != nil {
		return err
	}
	var end exportEnd
	expiring := make(map[persist.Key]bool) // what was alive may be listed again, as expired
	for _, q := range allRecords {
		err := each(ctx, store, q, func(records []persist.Record) error {
			records = slices.DeleteFunc(records, func(r persist.Record) bool { return expiring[r.Key] })
			for i := range records {
				if !records[i].Expires.IsZero() && !q.Expired {
					expiring[records[i].Key] = true
				}
				if err := out.value(exportLine{Record: &records[i]}); err != nil {
					return err
				}
			}
			end.Records += len(records)
			return nil
		})
		if err != nil {
			return err
		}
	}
	for after := uint64(0); ; {
		entries, err := store.ReadOrder(ctx, persist.OrderQuery{After: after})
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return out.value(exportLine{End: &end})
		}
		for _, e := range entries {
			line := exportEntry{e.Key, e.Number, e.Position, e.At, string(e.Data)}
			if err := out.value(exportLine{Entry: &line}); err != nil {
				return err
			}
			after = e.Position
		}
		end.Entries += len(entries)
	}
}

// lineReader reads an export into a store, page by page.
type lineReader struct {
	store   persist.LogRestorer
	restore persist.Restorer // store
	head    exportHead
	end     *exportEnd
	read    exportEnd
	records []persist.Record
	entries []persist.LogEntry
	numbers map[persist.Key]uint64 // the last entry of each log
}

// pageOfLines is the number of lines that are written to the temporary store at a time.
const pageOfLines = 500

// readLines reads a whole export into an empty store. It returns an error with exit code 1 if the
// export is damaged or not complete.
func readLines(ctx context.Context, in io.Reader, store *sqlite.Store) error {
	r := &lineReader{store: store, restore: store, numbers: make(map[persist.Key]uint64)}
	lines := bufio.NewReaderSize(in, 64<<10)
	for number := 1; ; number++ {
		text, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return negative("read line %d: %w", number, err)
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			if err := r.line(ctx, text); err != nil {
				return negative("line %d: %w", number, err)
			}
		}
		if err == io.EOF {
			break
		}
	}
	if err := r.flush(ctx); err != nil {
		return negative("%w", err)
	}
	if r.end == nil {
		return negative("the export is not complete: it has no end line, after %d records and %d log entries", r.read.Records, r.read.Entries)
	}
	d, err := store.Describe(ctx)
	if err != nil {
		return temporary(err)
	}
	stored := 0
	for _, k := range d.Kinds {
		stored += k.Records
	}
	if *r.end != r.read || stored != r.read.Records {
		return negative("the export was changed: %d records (%d different) and %d log entries, its end line says %d and %d",
			r.read.Records, stored, r.read.Entries, r.end.Records, r.end.Entries)
	}
	if err := r.restore.Restore(ctx, nil, r.head.Floor); err != nil {
		return temporary(err)
	}
	return temporary(r.store.RestoreLog(ctx, nil, r.head.Last))
}

// line takes one line.
func (r *lineReader) line(ctx context.Context, text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var line exportLine
	if err := decoder.Decode(&line); err != nil {
		return fmt.Errorf("not a line of an export: %w", err)
	}
	if decoder.More() {
		return errors.New("trailing data after the JSON value")
	}
	parts := 0
	for _, is := range []bool{line.Head != nil, line.Record != nil, line.Entry != nil, line.End != nil} {
		if is {
			parts++
		}
	}
	if parts != 1 {
		return errors.New("not a line of an export: it has not one part")
	}
	first := r.head.Format == 0
	switch {
	case first && (line.Head == nil || line.Head.Format == 0):
		return errors.New("not an export of pawl")
	case first && line.Head.Format != exportFormat:
		return fmt.Errorf("format %d of the export is not known, want %d", line.Head.Format, exportFormat)
	case first:
		r.head = *line.Head
	case r.end != nil:
		return errors.New("line after the end")
	case line.Record != nil:
		r.records = append(r.records, *line.Record)
		r.read.Records++
	case line.Entry != nil:
		e := line.Entry
		if last, ok := r.numbers[e.Key]; ok && e.Number <= last {
			return fmt.Errorf("entry %d of the log of %q comes after entry %d", e.Number, e.Key, last)
		}
		r.numbers[e.Key] = e.Number
		r.entries = append(r.entries, persist.LogEntry{Key: e.Key, Number: e.Number, Position: e.Position, At: e.At, Data: json.RawMessage(e.Data)})
		r.read.Entries++
	case line.End != nil:
		r.end = line.End
	default:
		return errors.New("not a line of an export")
	}
	if len(r.records)+len(r.entries) < pageOfLines {
		return nil
	}
	return r.flush(ctx)
}

// flush writes the lines that were read.
func (r *lineReader) flush(ctx context.Context) error {
	if len(r.records) > 0 {
		if err := r.restore.Restore(ctx, r.records, 0); err != nil {
			return err
		}
	}
	if len(r.entries) > 0 {
		if err := r.store.RestoreLog(ctx, r.entries, 0); err != nil {
			return err
		}
	}
	r.records, r.entries = nil, nil
	return nil
}
