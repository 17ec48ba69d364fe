package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/cursor"
)

// Load returns the current record of key. It returns persist.ErrNotFound, with the version floor
// in Record.Version, for an absent key; persist.ErrClosed after Close; ctx's error; and an error
// that wraps persist.ErrUnavailable when the database stayed locked.
func (s *Store) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed {
		return persist.Record{}, persist.ErrClosed
	}
	var found row
	err := s.load.QueryRowContext(ctx, key.Kind, key.ID).Scan(found.targets()...)
	if err == nil {
		return found.record(hostTime()), nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return persist.Record{}, readable(ctx, err)
	}
	// The floor may have risen since, which can only ask for a higher version than necessary.
	var floor int64
	if err := s.floor.QueryRowContext(ctx).Scan(&floor); err != nil {
		return persist.Record{}, readable(ctx, err)
	}
	return persist.Record{Key: key, Version: uint64(floor), Now: hostTime()}, persist.ErrNotFound
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
	pairs := make([][2]string, len(keys))
	for i, key := range keys {
		pairs[i] = [2]string{key.Kind, key.ID}
	}
	list, err := json.Marshal(pairs)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	rows, err := s.reader.QueryContext(ctx, s.sql.loadAll, string(list))
	if err != nil {
		return nil, readable(ctx, err)
	}
	now := hostTime()
	found, err := readAll(rows, now)
	if err != nil {
		return nil, readable(ctx, err)
	}
	// The floor may have risen since, which can only ask for a higher version than necessary.
	var floor int64
	if err := s.floor.QueryRowContext(ctx).Scan(&floor); err != nil {
		return nil, readable(ctx, err)
	}
	byKey := make(map[persist.Key]persist.Record, len(found))
	for _, r := range found {
		byKey[r.Key] = r
	}
	records := make([]persist.Record, len(keys))
	for i, key := range keys {
		r, ok := byKey[key]
		if !ok {
			r = persist.Record{Key: key, Version: uint64(floor), Now: now}
		}
		records[i] = r
	}
	return records, nil
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
	now, size := hostTime(), q.PageSize()
	text, args, err := s.sql.list(q, now, size+1) // one more, to know whether there is a next page
	if err != nil {
		return persist.Page{}, err
	}
	rows, err := s.reader.QueryContext(ctx, text, args...)
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
