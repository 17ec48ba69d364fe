package sqlite

import (
	"context"
	"database/sql"
	"errors"

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
