package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/cursor"
)

// reads are the reads of a store, on whatever runs its statements.
type reads struct {
	sql statements
	on  executor
}

// load is Store.Load.
func (r reads) load(ctx context.Context, key persist.Key) (persist.Record, error) {
	found, err := readOne(ctx, r.on, r.sql.load, key)
	if err == nil {
		r.sql.rows.note(key, found.number())
		return found.record(hostTime()), nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return persist.Record{}, readable(ctx, err)
	}
	floor, err := r.floor(ctx)
	if err != nil {
		return persist.Record{}, err
	}
	return persist.Record{Key: key, Version: floor, Now: hostTime()}, persist.ErrNotFound
}

// floor returns the version floor. It is read after the records: it may have risen since, which
// can only ask for a higher version than necessary.
func (r reads) floor(ctx context.Context) (uint64, error) {
	floor, err := readFloor(ctx, r.on, r.sql.floor)
	if err != nil {
		return 0, readable(ctx, err)
	}
	return floor, nil
}

// loadAll is Store.LoadAll.
func (r reads) loadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	list, err := keyList(keys)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	rows, err := r.on.QueryContext(ctx, r.sql.loadAll, list)
	if err != nil {
		return nil, readable(ctx, err)
	}
	now := hostTime()
	found, err := readAll(rows, now)
	if err != nil {
		return nil, readable(ctx, err)
	}
	floor, err := r.floor(ctx)
	if err != nil {
		return nil, err
	}
	byKey := make(map[persist.Key]persist.Record, len(found))
	for _, r := range found {
		byKey[r.Key] = r
	}
	records := make([]persist.Record, len(keys))
	for i, key := range keys {
		r, ok := byKey[key]
		if !ok {
			r = persist.Record{Key: key, Version: floor, Now: now}
		}
		records[i] = r
	}
	return records, nil
}

// versions is Store.Versions.
func (r reads) versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	list, err := keyList(keys)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	rows, err := r.on.QueryContext(ctx, r.sql.versions, list)
	if err != nil {
		return nil, readable(ctx, err)
	}
	found := make(map[persist.Key]uint64, len(keys))
	for rows.Next() {
		var key persist.Key
		var version int64
		if err := rows.Scan(&key.Kind, &key.ID, &version); err != nil {
			return nil, readable(ctx, errors.Join(err, rows.Close()))
		}
		found[key] = uint64(version)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, readable(ctx, err)
	}
	versions := make([]uint64, len(keys))
	for i, key := range keys {
		versions[i] = found[key]
	}
	return versions, nil
}

// list is Store.List.
func (r reads) list(ctx context.Context, q persist.Query) (persist.Page, error) {
	now, size := hostTime(), q.PageSize()
	text, args, err := r.sql.list(q, now, size+1) // one more, to know whether there is a next page
	if err != nil {
		return persist.Page{}, err
	}
	rows, err := r.on.QueryContext(ctx, text, args...)
	if err != nil {
		return persist.Page{}, readable(ctx, err)
	}
	records, err := readAll(rows, now)
	if err != nil {
		return persist.Page{}, readable(ctx, err)
	}
	page := persist.Page{Records: records}
	if len(records) > size {
		page.Records = records[:size]
		page.Next = cursor.Of(q, records[size-1]).String()
	}
	return page, nil
}

// Load returns the current record of key. It returns persist.ErrNotFound, with the version floor
// in Record.Version, for an absent key; persist.ErrClosed after Close; ctx's error; and an error
// that wraps persist.ErrUnavailable when the database stayed locked.
func (s *Store) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed {
		return persist.Record{}, persist.ErrClosed
	}
	if ctx.Err() == nil {
		if r, err, done := s.loadIdle(key); done {
			return r, err
		}
	}
	if s.lanes != nil {
		return s.lanes.load(ctx, key)
	}
	return s.reads.load(ctx, key)
}

// loadIdle loads by the connection that writes, if nobody uses it now: that one has in its cache what it has
// read and written, while others have to start over after every commit. It reports false if it did not.
func (s *Store) loadIdle(key persist.Key) (r persist.Record, err error, done bool) {
	if !s.queue.tryLead() {
		return persist.Record{}, nil, false
	}
	defer s.queue.resign(nil, 0)
	if s.writer.conn == nil {
		return persist.Record{}, nil, false
	}
	r, err = reads{sql: s.sql, on: s.writer.on}.load(background, key)
	return r, err, err == nil || errors.Is(err, persist.ErrNotFound) // others may have more luck
}

// LoadAll returns the records of keys as they are at one moment. It returns persist.ErrClosed after
// Close, ctx's error, and an error that wraps persist.ErrUnavailable when the database stayed
// locked.
func (s *Store) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed {
		return nil, persist.ErrClosed
	}
	return s.reads.loadAll(ctx, keys)
}

// Versions returns the current version of each key, 0 where there is no record. It reads no
// documents, and its errors are those of LoadAll.
func (s *Store) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed {
		return nil, persist.ErrClosed
	}
	return s.reads.versions(ctx, keys)
}

// List returns one page of the records that match q, by kind and id, or with q.Due the longest due
// first. It returns persist.ErrClosed after Close, ctx's error, an error for an unknown q.After,
// and an error that wraps persist.ErrUnavailable when the database stayed locked.
func (s *Store) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed {
		return persist.Page{}, persist.ErrClosed
	}
	return s.reads.list(ctx, q)
}
