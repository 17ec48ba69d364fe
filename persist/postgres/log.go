package postgres

import (
	"context"
	"math"
	"slices"

	"github.com/pawl-go/pawl/persist"
)

// A commit inserts its entries without a position, and draws the next number of a sequence, seq, for
// each of them. Readers give positions: before ReadOrder reads, it numbers all committed entries
// that have none.
//
//	writer A   BEGIN  seq 1 ............................ COMMIT
//	writer B          BEGIN  seq 2  COMMIT
//	reader                           seq 2 -> position 1           seq 1 -> position 2
//
// So writers do not wait for each other, and a commit that becomes visible late gets a late
// position. Why the order is that of persist.Logger:
//
//   - Positions become visible in their order. One transaction at a time gives positions, because it
//     holds an advisory lock until its changes are visible. It gives only positions above all that
//     were given before. So a reader that sees a position sees all lower ones, and entries without
//     a position will get higher ones.
//   - A commit that was acknowledged before another one began has the lower positions. It has the
//     lower seq, because the other one drew its seq later. A numbering transaction that sees the
//     later commit sees the earlier one too, and takes entries in the order of seq.
//   - Within one record positions follow the numbers. A commit draws its seq while it has the record
//     locked, and the next commit of the record can only lock it when this one is visible: as above,
//     it has a higher seq and is not seen without this one. One commit draws in the order of its
//     numbers.
//
// A position is durable before it is returned. A position that was not committed is not used, or
// given again: no reader has seen it.
const numberStep = 10_000 // entries that one transaction numbers, which keeps it short

// orderLock is the number of the advisory lock for giving positions; no kind is empty.
func (n names) orderLock() int64 { return n.lockKey(persist.Key{ID: "order"}) }

// ReadLog returns entries of the log of one record, by number. It returns persist.ErrClosed after
// Close, the error of ctx, and an error that wraps persist.ErrUnavailable if the database cannot be
// reached now.
func (s *Store) ReadLog(ctx context.Context, q persist.LogQuery) ([]persist.LogEntry, error) {
	run := func(ctx context.Context, read *statement) (answer, error) { return s.readAfter(ctx, inOrder, read) }
	return reads{&s.sql, run}.ReadLog(ctx, q)
}

// ReadOrder returns entries in the order of their positions, as persist.Logger describes. It is one
// round trip without a lock if all committed entries have positions, or the page is full. Otherwise
// it first gives positions, which needs the right to update the tables and is one round trip more.
// Its errors are those of ReadLog. The error wraps persist.ErrUnavailable also if another
// transaction has locked entries without positions, because it removes them.
func (s *Store) ReadOrder(ctx context.Context, q persist.OrderQuery) ([]persist.LogEntry, error) {
	rows, err := s.readNumbered(ctx, s.sql.order(q), q.PageSize())
	return readEntries(rows, true), err
}

// LastPosition returns the highest position that was ever given, and gives positions first. Its
// costs and its errors are those of ReadOrder.
func (s *Store) LastPosition(ctx context.Context) (uint64, error) {
	rows, err := s.readNumbered(ctx, s.sql.logs.last.query(), math.MaxInt)
	if err != nil {
		return 0, err
	}
	return uint64(rows[0].int()), nil
}

// order returns the statement for the entries that match q.
func (t *statements) order(q persist.OrderQuery) *statement {
	after, limit := bigint(q.After), int64(q.PageSize())
	if len(q.Kinds) == 0 {
		return t.logs.order.query().int(after).int(limit)
	}
	kinds := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(q.Kinds))), func(kind string) bool { return !isText(kind) })
	return t.logs.orderOf.query().int(after).int(limit).strings(kinds)
}

// readNumbered runs a statement that reads positions, and gives positions first if entries have
// none. If it returns limit rows, it does not: they would come after these.
func (s *Store) readNumbered(ctx context.Context, read *statement, limit int) (answer, error) {
	// Entries without positions are looked for first: if there are none, read sees all entries that
	// were committed until then.
	answers, err := s.readTogether(ctx, inOrder, s.sql.logs.waiting.query(), read)
	if err != nil {
		return nil, err
	}
	if rows := answers[2]; len(answers[1]) == 0 || len(rows) >= limit {
		return rows, nil
	}
	waiting, cancel := s.bounded(ctx)
	defer cancel()
	select { // one at a time: others would wait for the lock, each on a connection
	case s.numbering <- struct{}{}:
		defer func() { <-s.numbering }()
	case <-waiting.Done():
		return nil, failed(ctx, context.Cause(waiting))
	}
	for {
		rows, numbered, err := s.number(ctx, read)
		if err != nil || numbered < numberStep || len(rows) >= limit {
			return rows, err
		}
	}
}

// number gives positions to up to numberStep entries and returns how many. Then it runs a statement
// that reads. That comes after COMMIT, so that a caller that takes a page slowly does not keep the
// lock.
func (s *Store) number(ctx context.Context, read *statement) (rows answer, numbered int64, err error) {
	if err := s.queue.begin(); err != nil {
		return nil, 0, err
	}
	defer s.queue.end()
	conn, err := s.acquire(ctx)
	if err != nil {
		return nil, 0, failed(ctx, err)
	}
	defer func() { release(conn, err) }()
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	for {
		answers, err := roundTrip(bounded, conn.Conn().PgConn(), begin, s.bounds(s.config.CommitTimeout/2), query(s.sql.durable), inOrder,
			query(s.sql.logs.lock).int(s.names.orderLock()), s.sql.logs.number.query().int(numberStep), commit, inOrder, read)
		if err == nil {
			for _, row := range answers[5] { // none if no entry was there any more
				numbered = row.int()
			}
			return answers[8], numbered, nil
		}
		undo(bounded, conn.Conn().PgConn())
		// A transaction that removes entries may lock them in another order.
		if !worthRetrying(err) || !pause(bounded, firstPause) {
			return nil, 0, failed(ctx, err)
		}
	}
}

// ReadOrder returns the entries that match q and have positions. It gives none: the transaction
// could be rolled back after the caller has seen them. So entries that no ReadOrder of the store
// has returned may be missing, and entries of the transaction itself always are. Its errors are
// those of ReadLog.
func (j *joined) ReadOrder(ctx context.Context, q persist.OrderQuery) ([]persist.LogEntry, error) {
	rows, err := j.read(ctx, j.store.sql.order(q))
	return readEntries(rows, true), err
}

// LastPosition returns the highest position that was given so far. It gives none; see ReadOrder.
func (j *joined) LastPosition(ctx context.Context) (uint64, error) {
	rows, err := j.read(ctx, j.store.sql.logs.last.query())
	if err != nil {
		return 0, err
	}
	return uint64(rows[0].int()), nil
}

func (s reads) ReadLog(ctx context.Context, q persist.LogQuery) ([]persist.LogEntry, error) {
	read := s.sql.logs.forward
	if q.Reverse {
		read = s.sql.logs.backward
	}
	before := bigint(q.Before)
	if before == 0 {
		before = math.MaxInt64
	}
	rows, err := s.run(ctx, read.query().string(sought(q.Kind)).string(sought(q.ID)).int(bigint(q.From)).int(before).int(int64(q.PageSize())))
	return readEntries(rows, false), err
}

// bigint returns n, or the highest bigint, which no entry has.
func bigint(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// readEntries reads rows with kind, id, number, position, at and data.
func readEntries(rows answer, positions bool) []persist.LogEntry {
	entries := make([]persist.LogEntry, len(rows))
	for i, row := range rows {
		e := persist.LogEntry{Key: persist.Key{Kind: row.string(), ID: row.string()}, Number: uint64(row.int())}
		if position := row.int(); positions {
			e.Position = uint64(position)
		}
		e.At, e.Data = row.time(), row.next()
		entries[i] = e
	}
	return entries
}
