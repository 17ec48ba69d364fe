package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pawl-go/pawl/persist"
)

// allRecords are the queries that together list every record.
var allRecords = []persist.Query{{}, {Expired: true}, {Deleted: true}}

// checkTarget returns an error with exit code 1 unless each record of the target was copied from the
// source: the source has it, not older, and with a writer in common. Then persist.Copy overwrites no
// record of another store. With exact, both must have the same version. Nothing is written.
func checkTarget(ctx context.Context, from, to persist.Store, exact bool) error {
	floor, _, err := floorOf(ctx, from)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	for _, q := range allRecords {
		err := each(ctx, to, q, func(copies []persist.Record) error {
			copies = slices.DeleteFunc(copies, func(r persist.Record) bool { return isLogKind(r.Kind) })
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
	case original.Absent():
		return "only in the target"
	case r.Version > original.Version || exact && r.Version != original.Version:
		return fmt.Sprintf("version %d in the target, %d in the source", r.Version, original.Version)
	case r.Version == original.Version && !r.Updated.Equal(original.Updated):
		return fmt.Sprintf("version %d was written at another time", r.Version)
	case original.Born != r.Born && original.Born <= r.Version:
		return fmt.Sprintf("born at version %d in the target, at %d in the source", r.Born, original.Born)
	case original.Born != r.Born: // purged and created again in the source
		return ""
	}
	mine, theirs := writers(r.Commits), writers(original.Commits)
	common := slices.ContainsFunc(mine, func(writer string) bool { return slices.Contains(theirs, writer) })
	if !common && len(mine) > 0 && len(theirs) > 0 && len(theirs) < persist.KeptWriters {
		return "written by other processes than in the source"
	}
	return ""
}

// writers returns the writers of commit ids, each once.
func writers(ids []string) (names []string) {
	for _, id := range ids {
		name := id[:max(0, strings.LastIndex(id, "."))]
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
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
