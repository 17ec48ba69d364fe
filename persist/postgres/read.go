package postgres

import (
	"context"
	"math"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Load returns the current record of key. It returns persist.ErrNotFound for an absent key, with
// the version floor in Record.Version; persist.ErrClosed after Close; the error of ctx; and an
// error that wraps persist.ErrUnavailable if the database cannot be reached now.
func (s *Store) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	return reads{&s.sql, s.read}.Load(ctx, key)
}

// LoadAll returns the records of keys as they are at one moment. Its errors are those of Load
// without persist.ErrNotFound.
func (s *Store) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	return reads{&s.sql, s.read}.LoadAll(ctx, keys)
}

// List returns one page of the records that match q, ordered by kind and id; with q.Due the longest
// due first, with q.Expired the longest expired first, with q.Deleted the longest deleted first; q.Reverse
// turns that around. It returns persist.ErrClosed after Close, the error of ctx, an error for an unknown
// q.After, and an error that wraps persist.ErrUnavailable if the database cannot be reached now.
func (s *Store) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	run := s.read
	if ordered(q) {
		run = func(ctx context.Context, list *statement) (answer, error) { return s.readAfter(ctx, inOrder, list) }
	}
	return reads{&s.sql, run}.List(ctx, q)
}

// reads are the methods of Store that read one page or less, for a Store and for a joined transaction.
type reads struct {
	sql *statements
	run func(context.Context, *statement) (answer, error)
}

func (s reads) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	rows, err := s.run(ctx, s.sql.load.query().string(sought(key.Kind)).string(sought(key.ID)))
	if err != nil {
		return persist.Record{}, err
	}
	r := loaded(key, rows[0])
	if r.Absent() {
		return r, persist.ErrNotFound
	}
	return r, nil
}

// loaded reads a row of the statement load or loadAll.
func loaded(key persist.Key, row cells) persist.Record {
	now, floor := row.time(), row.int()
	if r := row.content(key, now); !r.Absent() {
		return r
	}
	return absentAt(key, floor, now)
}

func (s reads) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	rows, err := s.run(ctx, soughtAll(s.sql.loadAll, keys))
	if err != nil {
		return nil, err
	}
	records := make([]persist.Record, len(keys))
	for i, row := range rows {
		records[i] = loaded(keys[i], row)
	}
	return records, nil
}

// Versions returns the current version of each key, 0 where there is no record, without reading
// documents. Its errors are those of Load without persist.ErrNotFound.
func (s *Store) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	rows, err := s.read(ctx, soughtAll(s.sql.versions, keys))
	if err != nil {
		return nil, err
	}
	versions := make([]uint64, len(keys))
	for i, row := range rows {
		versions[i] = uint64(row.int())
	}
	return versions, nil
}

// sought returns name, or "" for a name that is not a text in PostgreSQL. No record has either.
func sought(name string) string {
	if !isText(name) {
		return ""
	}
	return name
}

// soughtAll returns the statement with the parameters kinds and ids.
func soughtAll(text string, keys []persist.Key) *statement {
	kinds, ids := apart(keys)
	for i := range keys {
		kinds[i], ids[i] = sought(kinds[i]), sought(ids[i])
	}
	return query(text).strings(kinds).strings(ids)
}

// absentAt returns the record that stands for an absent key.
func absentAt(key persist.Key, floor int64, now time.Time) persist.Record {
	return persist.Record{Key: key, Version: uint64(floor), Now: now}
}

func (s reads) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	size := q.PageSize()
	size = min(size, math.MaxInt-1)
	statement, err := s.sql.list(q, size+1) // one more shows whether there is a next page
	if err != nil {
		return persist.Page{}, err
	}
	rows, err := s.run(ctx, statement)
	if err != nil {
		return persist.Page{}, err
	}
	var page persist.Page
	for _, row := range rows[:min(len(rows), size)] {
		page.Records = append(page.Records, timedRecord(row))
	}
	if len(rows) > size {
		page.Next = place(q, page.Records[size-1]).String()
	}
	return page, nil
}

// timedRecord reads a row with the time and columns.
func timedRecord(row cells) persist.Record {
	now := row.time()
	return row.record(now)
}

// read runs one statement that changes nothing.
func (s *Store) read(ctx context.Context, statement *statement) (answer, error) {
	return s.readAfter(ctx, statement)
}

// readAfter runs statements that change nothing, in one transaction, and returns the answer of the
// last.
func (s *Store) readAfter(ctx context.Context, statements ...*statement) (answer, error) {
	answers, err := s.readTogether(ctx, statements...)
	if err != nil {
		return nil, err
	}
	return answers[len(answers)-1], nil
}

// readTogether runs statements that change nothing, in one transaction.
func (s *Store) readTogether(ctx context.Context, statements ...*statement) ([]answer, error) {
	if err := s.queue.begin(); err != nil {
		return nil, err
	}
	defer s.queue.end()
	conn, err := s.acquire(ctx)
	if err != nil {
		return nil, failed(ctx, err)
	}
	defer conn.Release()
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	answers, err := roundTrip(bounded, conn.Conn().PgConn(), statements...)
	if err != nil {
		return nil, failed(ctx, err)
	}
	return answers, nil
}
