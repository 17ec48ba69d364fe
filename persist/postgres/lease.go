package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// Take acquires records as persist.Leaser says, in one transaction: one round trip, or two with a
// change. It skips locked records. Its errors are those of Commit, without *persist.Conflict and
// *persist.Fenced.
func (s *Store) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	if err := a.ValidateTake(q); err != nil {
		return nil, err
	}
	q.Unheld = true
	take, err := s.sql.take(q, a)
	if change != nil {
		take, err = s.sql.pick(q)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	first := []*statement{begin, s.bounds(0)}
	if q.Due || ordered(q) {
		first = append(first, inOrder)
	}
	if change != nil {
		taken, err := s.takeChanged(ctx, append(first, take), a, change)
		sortTaken(q, taken)
		return taken, err
	}
	var rows answer
	err = s.detached(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		all := append(first, query(s.sql.durable), take, commit)
		answers, err := roundTrip(ctx, conn, all...)
		if err != nil {
			err = outcome(err, len(answers), len(all)-1)
			if !errors.Is(err, persist.ErrNotApplied) {
				s.hint(persist.Hint{}) // any record may have been taken
			}
			return err
		}
		rows = answers[len(all)-2]
		hints := make([]persist.Hint, len(rows))
		for i, row := range rows {
			row := cells(row[1:]) // after the time
			hints[i] = persist.Hint{Key: persist.Key{Kind: row.string(), ID: row.string()}, Version: uint64(row.int())}
		}
		s.hint(hints...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	taken := make([]persist.Record, len(rows))
	for i, row := range rows {
		taken[i] = timedRecord(row)
	}
	sortTaken(q, taken)
	return taken, nil
}

// sortTaken puts records into the order of the list of q.
func sortTaken(q persist.Query, taken []persist.Record) {
	order := cursor.Order(q)
	slices.SortFunc(taken, func(a, b persist.Record) int { return order(cursor.Of(q, a), cursor.Of(q, b)) })
}

// takeChanged is Take with a change. The first round trip ends with pick, which locks the records.
// The second stores them as change made them, and commits.
func (s *Store) takeChanged(ctx context.Context, pick []*statement, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	var taken []persist.Record
	err := s.detached(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		picked, err := roundTrip(ctx, conn, append(pick, query(s.sql.now.text).string(s.lifetime()))...)
		if err != nil {
			return notApplied(err)
		}
		clock := cells(picked[len(pick)][0])
		at := clock.time() // after the records were locked
		var hints []persist.Hint
		for _, row := range picked[len(pick)-1] {
			r := timedRecord(row)
			if r.Expired(at) {
				continue
			}
			if r, ok := a.Take(r, at, change); ok {
				taken, hints = append(taken, r), append(hints, persist.Hint{Key: r.Key, Version: r.Version})
			}
		}
		if len(taken) == 0 {
			return nil // detached ends the transaction
		}
		answers, err := roundTrip(ctx, conn, storing(query(s.sql.replace.text), at, taken), commit)
		if err != nil {
			err = outcome(err, len(answers), 1)
		}
		if !errors.Is(err, persist.ErrNotApplied) {
			s.hint(hints...)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return taken, nil
}

// pick returns the statement that locks the first records that match q. It leaves out records
// without a next version.
func (t statements) pick(q persist.Query) (*statement, error) {
	s, err := selected(q)
	if err != nil {
		return nil, err
	}
	s.statement.text = "SELECT pg_catalog.statement_timestamp(), " + columns + " FROM " + t.records +
		" r WHERE r.version < 9223372036854775807 AND " + s.conditions() + s.limit(q.PageSize()) + " FOR NO KEY UPDATE SKIP LOCKED"
	return s.statement, nil
}

// take returns the statement that acquires the records that match q. The time is read after they
// are locked. It leaves out records that expired since the statement began, and records without a
// next version.
func (t statements) take(q persist.Query, a persist.Acquire) (*statement, error) {
	s, err := selected(q)
	if err != nil {
		return nil, err
	}
	picked := "SELECT r.kind, r.id FROM " + t.records + " r WHERE r.version < 9223372036854775807 AND " + s.conditions() + s.limit(q.PageSize()) + " FOR NO KEY UPDATE SKIP LOCKED"
	s.statement.string(a.Holder).duration(a.For)
	holder, lease := len(s.statement.values)-1, len(s.statement.values)
	s.statement.text = fmt.Sprintf(`WITH picked AS MATERIALIZED (%s),
		clock AS MATERIALIZED (SELECT pg_catalog.clock_timestamp() AS at FROM (SELECT count(*) FROM picked) AS locked)
		UPDATE %s r SET version = r.version + 1, updated = clock.at, holder = $%d, token = r.version + 1, until = clock.at + $%d
		FROM picked, clock
		WHERE r.kind = picked.kind AND r.id = picked.id AND (r.expires IS NULL OR r.expires > clock.at)
		RETURNING clock.at, %s`, picked, t.records, holder, lease, columns)
	return s.statement, nil
}

// detached runs work, which writes, on a connection. If ctx ends meanwhile, detached returns and
// work continues in the background; Close waits for it.
func (s *Store) detached(ctx context.Context, work func(context.Context, *pgconn.PgConn) error) error {
	if err := s.queue.begin(); err != nil {
		return err
	}
	defer s.queue.end()
	if ctx.Err() != nil {
		return withdrawn(ctx)
	}
	conn, err := s.acquire(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return withdrawn(ctx)
		}
		return notApplied(err)
	}
	done := make(chan error, 1)
	s.queue.underWay.Go(func() {
		working, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.CommitTimeout)
		defer cancel()
		err := work(working, conn.Conn().PgConn())
		undo(working, conn.Conn().PgConn())
		release(conn, err)
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return leftBehind(ctx)
	}
}
