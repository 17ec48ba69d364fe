package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// reads are the methods that read, of a store and of a store that joined a transaction.
type reads struct {
	sql statements
	// open begins a call. It returns what runs the statements, and the function that ends the call.
	open func(ctx context.Context) (on executor, end func(), err error)
}

// Load returns the current record of key. It returns persist.ErrNotFound, with the version floor
// in Record.Version, for an absent key; persist.ErrClosed after Close; ctx's error; and an error
// that wraps persist.ErrUnavailable when the database stayed locked.
func (r reads) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	on, end, err := r.open(ctx)
	if err != nil {
		return persist.Record{}, err
	}
	defer end()
	return r.load(ctx, on, key)
}

// load is Load without a call of its own.
func (r reads) load(ctx context.Context, on executor, key persist.Key) (persist.Record, error) {
	record, err := r.sql.loadFrom(ctx, on, key, hostTime()) // before the read: the record may be renewed after it
	if err != nil {
		return persist.Record{}, readable(ctx, err)
	}
	if record.Absent() {
		return record, persist.ErrNotFound
	}
	return record, nil
}

// loadFrom returns the record of key as it is read at now. The absent record has the floor as its
// version.
func (s *statements) loadFrom(ctx context.Context, on executor, key persist.Key, now time.Time) (persist.Record, error) {
	record, err := scan(on.QueryRowContext(ctx, s.load, key.Kind, key.ID), now)
	if err == nil && record.Key != key {
		record = persist.Record{Key: key, Version: record.Version, Now: now}
	}
	return record, err
}

// LoadAll returns the records of keys as they are at one moment. It returns persist.ErrClosed after
// Close, ctx's error, and an error that wraps persist.ErrUnavailable when the database stayed
// locked.
func (r reads) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	on, end, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	list, err := keyList(keys)
	if err != nil {
		return nil, err
	}
	now := hostTime()
	found, err := queryRecords(ctx, on, now, r.sql.loadAll, list)
	if err != nil {
		return nil, readable(ctx, err)
	}
	byKey := make(map[persist.Key]persist.Record, len(found))
	for _, record := range found {
		byKey[record.Key] = record
		if record.Now.After(now) {
			now = record.Now
		}
	}
	records := make([]persist.Record, len(keys))
	for i, key := range keys {
		record, ok := byKey[key]
		if !ok {
			record = persist.Record{Key: key, Version: byKey[persist.Key{}].Version} // the floor
		}
		record.Now = now // one time for all
		records[i] = record
	}
	return records, nil
}

// Versions returns the current version of each key, 0 where there is no record. It reads no
// documents, and returns the errors of LoadAll.
func (r reads) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	on, end, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	list, err := keyList(keys)
	if err != nil {
		return nil, err
	}
	found := make(map[persist.Key]uint64, len(keys))
	_, err = queryAll(ctx, on, func(rows *sql.Rows) (key persist.Key, err error) {
		var version int64
		err = rows.Scan(&key.Kind, &key.ID, &version)
		found[key] = uint64(version)
		return key, err
	}, r.sql.versions, list)
	if err != nil {
		return nil, readable(ctx, err)
	}
	versions := make([]uint64, len(keys))
	for i, key := range keys {
		versions[i] = found[key]
	}
	return versions, nil
}

// keysGiven restricts a statement to the keys in a JSON text, see keyList. They are one parameter,
// because SQLite limits the number of parameters.
const keysGiven = "(kind, id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))"

// keyList returns keys as the parameter of keysGiven.
func keyList(keys []persist.Key) (string, error) {
	pairs := make([][2]string, len(keys))
	for i, key := range keys {
		pairs[i] = [2]string{key.Kind, key.ID}
	}
	list, err := json.Marshal(pairs)
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	return string(list), nil
}
