package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
)

// isPlain reports whether write can do c: one write without guards that keeps nothing of a record but
// its lease.
func isPlain(c persist.Commit) bool {
	if len(c.Writes) != 1 || len(c.Guards) > 0 {
		return false
	}
	w := &c.Writes[0]
	return !w.Swept && !w.EndLease && w.TTL != persist.KeepTTL
}

// write is a plain commit: one statement, which is its own transaction unless
// transactions are not READ COMMITTED by default, or it waits.
func (s *Store) write(ctx context.Context, conn *pgconn.PgConn, c persist.Commit, patience time.Duration) (time.Time, error) {
	explicit := s.explicit.Load() || milliseconds(patience) > 0
	if !explicit && isNext(&c.Writes[0]) {
		if at, err := s.replaceOne(ctx, conn, c); err != nil || !at.IsZero() {
			return at, err
		}
	}
	statements := []*statement{s.writing(c, patience)}
	if explicit {
		defer undo(ctx, conn)
		statements = []*statement{begin, s.bounds(patience), statements[0], commit}
	}
	answers, err := roundTrip(ctx, conn, statements...)
	switch {
	case sqlState(err) == codeWrongIsolation && !explicit:
		s.explicit.Store(true)
		return s.write(ctx, conn, c, patience)
	case sqlState(err) == codeNoSuchStatement: // by texts from now on
		undo(ctx, conn)
		return s.write(ctx, conn, c, patience)
	case err != nil && explicit:
		return time.Time{}, outcome(err, len(answers), 3)
	case err != nil:
		return time.Time{}, outcome(err, len(answers), 1)
	case explicit:
		answers = answers[2:]
	}
	return written(answers[0][0], &c.Writes[0])
}

// written returns what the function write says of w.
func written(values [][]byte, w *persist.Write) (time.Time, error) {
	row := cells(values)
	result, at, floor := row.string(), row.time(), row.int()
	switch result {
	case "written":
		return at, nil
	case "busy":
		return time.Time{}, notApplied(errBusy)
	}
	winner := row.record(at)
	if winner.Absent() {
		winner = persist.Record{Key: w.Key, Version: uint64(floor), Now: at}
	}
	return time.Time{}, &persist.Conflict{Winners: []persist.Record{winner}}
}

// isNext reports whether w is the next version of a document that is alive, and nothing else, and its caller knows the commit ids of the last.
func isNext(w *persist.Write) bool {
	return w.Recent != nil && w.Expected > 0 && !w.Gone && !w.Deleted && w.Acquire == nil && w.DueIn == 0
}

// replaceOne is a plain commit that isNext, which is most of them. It returns the zero time if it has written nothing, whatever the reason.
func (s *Store) replaceOne(ctx context.Context, conn *pgconn.PgConn, c persist.Commit) (time.Time, error) {
	w := &c.Writes[0]
	p := s.sql.replaceOne
	if w.TTL != 0 {
		p = s.sql.replaceWith
	}
	recent := persist.Remember(w.Recent, c.ID)
	size := len(w.Kind) + len(w.ID) + len(w.Doc) + len(w.Label) + 100 // and numbers
	for _, id := range recent {
		size += 4 + len(id)
	}
	replace := p.query()
	replace.bytes = make([]byte, 0, size)
	replace.string(w.Kind).string(w.ID).int(int64(w.Expected)).int(int64(w.Version)).json(w.Doc).int(int64(w.Schema)).string(w.Label).
		time(w.Due).strings(recent)
	if w.TTL != 0 {
		replace.duration(w.TTL, false)
	}
	statements := []*statement{s.sql.brief.query(), replace}
	if s.staysBrief(ctx, conn) {
		statements = statements[1:]
	}
	answers, err := roundTrip(ctx, conn, statements...)
	switch {
	case sqlState(err) == codeNoSuchStatement:
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, outcome(err, len(answers), len(statements))
	case len(answers[len(statements)-1]) == 0:
		return time.Time{}, nil
	}
	row := cells(answers[len(statements)-1][0])
	return row.time(), nil
}

// replaceSome is replaceOne for several requests, if all are of that sort. It answers those that it has written, or all if the outcome is
// not known, and returns the rest, of which nothing was written.
func (s *Store) replaceSome(ctx context.Context, conn *pgconn.PgConn, requests []*request) (rest []*request, err error) {
	if s.explicit.Load() || len(requests) < 2 || slices.ContainsFunc(requests, func(r *request) bool {
		return !isPlain(r.commit) || !isNext(&r.commit.Writes[0])
	}) {
		return requests, nil
	}
	slices.SortFunc(requests, func(a, b *request) int { return a.commit.Writes[0].Key.Compare(b.commit.Writes[0].Key) }) // as all do who lock several
	answers, err := roundTrip(ctx, conn, s.replacing(requests))
	if err != nil {
		if err = outcome(err, len(answers), 1); errors.Is(err, persist.ErrNotApplied) {
			return requests, nil // one of them may be to blame
		}
		for _, r := range requests {
			s.conclude(r, time.Time{}, err)
		}
		return nil, err
	}
	written := make([]bool, len(requests))
	for _, row := range answers[0] {
		row := cells(row)
		i, at := row.int()-1, row.time()
		s.conclude(requests[i], at, nil)
		written[i] = true
	}
	for i, r := range requests {
		if !written[i] {
			rest = append(rest, r)
		}
	}
	return rest, nil
}

// replacing returns the statement for the writes of requests, one each.
func (s *Store) replacing(requests []*request) *statement {
	writes := make([]*persist.Write, len(requests))
	rings := make([]string, len(requests))
	size, expiring := 0, false
	for i, r := range requests {
		writes[i] = &r.commit.Writes[0]
		expiring = expiring || writes[i].TTL != 0
		rings[i] = strings.Join(persist.Remember(writes[i].Recent, r.commit.ID), "\n")
		const numbers = 100 // and lengths, about
		size += len(writes[i].Kind) + len(writes[i].ID) + len(writes[i].Doc) + len(writes[i].Label) + len(rings[i]) + numbers
	}
	statement := s.sql.replaceMany.query()
	if expiring {
		statement = s.sql.replaceSome.query()
	}
	statement.bytes = make([]byte, 0, size)
	statement.strings(column(writes, func(w *persist.Write) string { return w.Kind }))
	statement.strings(column(writes, func(w *persist.Write) string { return w.ID }))
	statement.ints(column(writes, func(w *persist.Write) int64 { return int64(w.Expected) }))
	statement.ints(column(writes, func(w *persist.Write) int64 { return int64(w.Version) }))
	statement.jsons(column(writes, func(w *persist.Write) json.RawMessage { return w.Doc }))
	statement.ints(column(writes, func(w *persist.Write) int64 { return int64(w.Schema) }))
	statement.strings(column(writes, func(w *persist.Write) string { return w.Label }))
	statement.times(column(writes, func(w *persist.Write) time.Time { return w.Due }))
	if expiring {
		statement.durations(column(writes, func(w *persist.Write) time.Duration { return w.TTL }))
	}
	return statement.strings(rings)
}

// writing returns the statement for the one write of c.
func (s *Store) writing(c persist.Commit, patience time.Duration) *statement {
	w := c.Writes[0]
	if w.Deleted { // of a tombstone nothing is kept
		w.Schema, w.Label, w.Due, w.DueIn, w.TTL = 0, "", time.Time{}, 0, 0
	}
	var lease persist.Acquire
	if w.Acquire != nil {
		lease = *w.Acquire
	}
	return s.sql.write.query().
		string(w.Kind).string(w.ID).int(int64(w.Expected)).bool(w.Gone).int(int64(w.Version)).
		json(w.Doc).int(int64(w.Schema)).string(w.Label).
		time(w.Due).duration(w.DueIn, w.DueIn == 0).duration(w.TTL, w.TTL == 0).bool(w.Deleted).
		string(lease.Holder).duration(lease.For, w.Acquire == nil).
		string(c.ID).int(s.names.lockKey(w.Key)).int4(milliseconds(patience))
}

// bounds returns the statement that follows BEGIN. It ends what a role's settings would do to the
// transaction, and bounds a wait as a whole: lock_timeout bounds the wait for each of those only who
// share a lock. There is time for an answer after that, see insist.
func (s *Store) bounds(patience time.Duration) *statement {
	limit := s.lifetime()
	if wait := milliseconds(patience); wait > 0 {
		limit = strconv.Itoa(min(int(wait)+int(wait)/4, math.MaxInt32))
	}
	return query(s.sql.bounds).string(limit)
}

// milliseconds is how functions are told for how long to wait for a lock.
func milliseconds(patience time.Duration) int32 {
	return int32(min(max(0, patience).Milliseconds(), math.MaxInt32))
}
