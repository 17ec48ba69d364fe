package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pawl-go/pawl/persist"
)

// allRecords are the queries that together list every record.
var allRecords = []persist.Query{{}, {Expired: true}, {Deleted: true}}

// checkTarget returns an error with exit code 1 unless each record of the target was copied from the
// source: the source has it, not older, and made from it. Then persist.Copy overwrites no record that
// was written in the target. With exact, both must have the same version. Nothing is written.
func checkTarget(ctx context.Context, from, to persist.Store, exact bool) error {
	floor, _, err := floorOf(ctx, from)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	for _, q := range allRecords {
		err := each(ctx, to, q, func(copies []persist.Record) error {
			copies = slices.DeleteFunc(copies, func(r persist.Record) bool { return persist.IsLogKind(r.Kind) })
			originals, err := loadAll(ctx, from, copies)
			if err != nil {
				return fmt.Errorf("source: %w", err)
			}
			for i, r := range copies {
				if reason := foreign(originals[i], r, floor, exact); reason != "" {
					return negative("the target is not empty, and is no earlier copy of the source: %q: %s", r.Key, reason)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// foreign returns the reason why a record of the target was not copied from the source, or "".
func foreign(original, r persist.Record, floor uint64, exact bool) string {
	switch {
	case original.Absent() && r.Deleted && r.Version <= floor:
		return "" // purged in the source
	case original.Absent() && r.Version < floor:
		return "only in the target; if it was purged from the source after an earlier copy, delete it here too"
	case original.Absent():
		return "only in the target"
	case r.Version > original.Version || exact && r.Version != original.Version:
		return fmt.Sprintf("version %d in the target, %d in the source", r.Version, original.Version)
	case r.Version == original.Version && !r.Updated.Equal(original.Updated):
		return fmt.Sprintf("version %d was written at another time", r.Version)
	case r.Version == original.Version && isUsed(original, r):
		return fmt.Sprintf("version %d was renewed or released in the target", r.Version)
	case r.Version < original.Version && !original.Continues(r):
		return fmt.Sprintf("version %d was not written in the source", r.Version)
	}
	return ""
}

// isUsed reports whether a copy of the same version was used since: its expiry or its lease moved on,
// which leaves the version alone. A lease that the source no longer has was released there.
func isUsed(original, r persist.Record) bool {
	renewed := !original.Expires.IsZero() && (r.Expires.IsZero() || r.Expires.After(original.Expires))
	held, holds := original.Lease, r.Lease
	return renewed || held.Token != 0 && (holds.Token != held.Token || holds.Until.After(held.Until))
}

// loadAll returns the records of a store that have the keys of records, in the same order. An absent
// key has an absent record.
func loadAll(ctx context.Context, store persist.Store, records []persist.Record) ([]persist.Record, error) {
	if len(records) == 0 {
		return nil, nil
	}
	keys := make([]persist.Key, len(records))
	for i, r := range records {
		keys[i] = r.Key
	}
	if reader, ok := store.(persist.Reader); ok {
		return reader.LoadAll(ctx, keys)
	}
	loaded := make([]persist.Record, len(keys))
	for i, key := range keys {
		var err error
		if loaded[i], err = store.Load(ctx, key); err != nil && !errors.Is(err, persist.ErrNotFound) {
			return nil, fmt.Errorf("load %q: %w", key, err)
		}
	}
	return loaded, nil
}
