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

// Take acquires records as persist.Leaser says, in one transaction of two round trips: the first
// locks the records, the second stores them as change made them, and commits. It skips locked
// records. Its errors are those of Commit, without *persist.Conflict and *persist.Fenced.
func (s *Store) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	if err := a.ValidateTake(q); err != nil {
		return nil, err
	}
	q.Unheld = true
	pick, err := s.sql.pick(q)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	first := []*statement{begin, s.bounds(0)}
	if q.Due || ordered(q) {
		first = append(first, inOrder)
	}
	first = append(first, pick, query(s.sql.now.text).string(s.lifetime()))
	var taken []persist.Record
	err = s.detached(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		picked, err := roundTrip(ctx, conn, first...)
		if err != nil {
			return notApplied(err)
		}
		at := picked[len(first)-1][0].time() // after the records were locked
		var hints []persist.Hint
		for _, row := range picked[len(first)-2] {
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
		_, err = sendCommit(ctx, conn, storing(query(s.sql.replace), at, taken), commit)
		if err != nil {
			for i := range hints {
				hints[i].Version = 0 // it may not be reached
			}
		}
		if !errors.Is(err, persist.ErrNotApplied) {
			s.hint(hints...)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	order := cursor.Order(q)
	slices.SortFunc(taken, func(a, b persist.Record) int { return order(cursor.Of(q, a), cursor.Of(q, b)) })
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

// change runs statements in a durable transaction of its own, as detached does, and returns their
// answers. Its waits end early enough for the outcome to be known.
func (s *Store) change(ctx context.Context, statements ...*statement) ([]answer, error) {
	head := []*statement{begin, s.bounds(s.config.CommitTimeout / 2), query(s.sql.durable)}
	all := append(append(head, statements...), commit)
	var answers []answer
	err := s.detached(ctx, func(ctx context.Context, conn *pgconn.PgConn) (err error) {
		answers, err = sendCommit(ctx, conn, all...)
		return err
	})
	if err != nil {
		return nil, err // work may still write to answers
	}
	return answers[len(head):], nil
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
		return notAcquired(ctx, err)
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
	return outcomeOf(ctx, done)
}

// outcomeOf waits for the error of work in the background. If ctx ends before it is there, the
// outcome is unknown.
func outcomeOf(ctx context.Context, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done: // both were there
		return err
	default:
		return leftBehind(ctx)
	}
}
