package postgres

import (
	"context"
	"math"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// restoreText stores whole records unless the current ones are newer. Its first parameters are
// those of storing; Born and Updated follow. It locks the newer records too.
const restoreText = `INSERT INTO {records} AS r (
		kind, id, version, born, doc, schema, label, due, expires, updated, deleted, holder, token, until, commits)
	SELECT n.kind, n.id, n.version, n.born, nullif(n.doc, '')::jsonb, n.schema, n.label, n.due, n.expires, n.updated,
		CASE WHEN n.deleted IS NOT NULL THEN n.updated END, n.holder, n.token, n.until, pg_catalog.string_to_array(n.commits, E'\n')
	FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
		AS n (kind, id, version, doc, schema, label, due, expires, deleted, holder, token, until, commits, born, updated)
	ON CONFLICT (kind, id) DO UPDATE SET
		version = excluded.version, born = excluded.born, doc = excluded.doc, schema = excluded.schema, label = excluded.label,
		due = excluded.due, expires = excluded.expires, updated = excluded.updated, deleted = excluded.deleted,
		holder = excluded.holder, token = excluded.token, until = excluded.until, commits = excluded.commits
	WHERE r.version <= excluded.version`

// newerText returns the records that are newer than the given versions.
const newerText = `SELECT pg_catalog.clock_timestamp(), ` + columns + ` FROM unnest($1, $2, $3) AS k (kind, id, version)
	JOIN {records} r ON r.kind = k.kind AND r.id = k.id AND r.version > k.version`

// raiseText raises the version floor.
const raiseText = `UPDATE {meta} SET value = $1 WHERE name = 'floor' AND value < $1`

// Restore writes records as persist.Restorer describes, in one transaction. It returns
// *persist.Conflict after it has written the records that are not newer in the store, and raised
// the floor. Its other errors are those of Take. They wrap persist.ErrNotApplied also if PostgreSQL
// cannot store a record; the package comment names the limits.
func (s *Store) Restore(ctx context.Context, records []persist.Record, floor uint64) error {
	if err := validateRestore(records, floor); err != nil {
		return err
	}
	kinds, ids := apart(column(records, func(r persist.Record) persist.Key { return r.Key }))
	versions := column(records, func(r persist.Record) int64 { return int64(r.Version) })
	// The time only marks tombstones.
	store := storing(query(s.names.expand(restoreText)), time.Now(), records).
		ints(column(records, func(r persist.Record) int64 { return int64(r.Born) })).
		times(column(records, func(r persist.Record) time.Time { return r.Updated }))
	newer := query(s.names.expand(newerText)).strings(kinds).strings(ids).ints(versions)
	answers, err := s.change(ctx, store, newer, query(s.names.expand(raiseText)).int(int64(floor)))
	if err != nil || len(answers[1]) == 0 {
		return err
	}
	var conflict persist.Conflict
	for _, row := range answers[1] {
		conflict.Winners = append(conflict.Winners, timedRecord(row))
	}
	return &conflict
}

// validateRestore returns an error that wraps persist.ErrNotApplied if a record or the floor can
// never be written.
func validateRestore(records []persist.Record, floor uint64) error {
	if err := persist.ValidateRestore(records); err != nil {
		return err
	}
	if floor > math.MaxInt64 {
		return unfit("version floor %d is larger than %d", floor, int64(math.MaxInt64))
	}
	for i := range records {
		switch r := &records[i]; {
		case r.Version > math.MaxInt64:
			return unfit("version %d of %q is larger than %d", r.Version, r.Key, int64(math.MaxInt64))
		case tooManyDigits(r.Doc):
			return unfit("the numbers in the document of %q have too many digits", r.Key)
		case len(r.Kind)+len(r.ID) > maxKey:
			return unfit("a key has %d bytes, more than %d", len(r.Kind)+len(r.ID), maxKey)
		}
	}
	return nil
}
