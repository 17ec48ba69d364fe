package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
)

// The fast way to commit is one round trip: an UPDATE or INSERT for one record, an UPDATE that renews
// or gives back a lease, a call of the SQL function write for a batch of commits of one record each, or
// a call of write_together for a commit that writes or guards several records, or deletes one. It
// creates records, and replaces or deletes live ones, with their lease, token, expiry and due time, and
// adds entries to their logs. It never waits for a record. Whatever it does not write, the transaction
// decides.

// isFast reports whether c can go the fast way.
func isFast(c *persist.Commit) bool {
	if isLease(c) {
		return true
	}
	if len(c.Writes) == 0 || len(c.Writes) > maxBatchKeys || len(c.Guards) > maxBatchAbsent { // a guard takes an advisory lock, too
		return false
	}
	absent := 0
	for i := range c.Writes {
		w := &c.Writes[i]
		if w.Gone || w.EndLease || w.Deleted && w.Expected == 0 || w.Expected > 0 && w.Recent == nil {
			return false
		}
		if _, cuts := cutsLog(w); cuts {
			return false
		}
		if w.Expected == 0 {
			absent++
		}
	}
	for i := range c.Guards {
		g := &c.Guards[i]
		switch w := writeOf(c, g.Key); {
		case w == nil && (changes(*g) || g.Read && (g.Version == 0 || g.Gone)):
			return false
		case w != nil && (g.Read || w.Expected == 0 || w.Acquire != nil):
			return false
		}
	}
	return absent <= maxBatchAbsent
}

// isLease reports whether c only renews or gives back a lease.
func isLease(c *persist.Commit) bool {
	if len(c.Writes) > 0 || len(c.Guards) != 1 {
		return false
	}
	g := &c.Guards[0]
	return (g.Extend > 0 || g.Release) && !g.Read && g.TTL == 0
}

// isAlone reports whether r is about one record, which it writes and does not delete.
func isAlone(r *request) bool {
	return len(r.keys) == 1 && len(r.commit.Writes) == 1 && !r.commit.Writes[0].Deleted
}

// isFastAlone reports whether r can go the fast way by the statements for one record.
func isFastAlone(r *request) bool { return isAlone(r) && isFast(&r.commit) }

// writeOf returns the write of c to key, or nil if there is none.
func writeOf(c *persist.Commit, key persist.Key) *persist.Write {
	for i := range c.Writes {
		if c.Writes[i].Key == key {
			return &c.Writes[i]
		}
	}
	return nil
}

// result is the outcome of a commit. A result without a time and an error is undecided.
type result struct {
	at  time.Time
	err error
}

func (r result) decided() bool { return r.err != nil || !r.at.IsZero() }

// writeOne sends r, which is fast and writes one record. If the statement wrote nothing, it reads the
// record to find out why.
//
// A statement that bounds the wait for the locks comes first.
func (s *Store) writeOne(ctx context.Context, conn *pgconn.PgConn, r *request) (result, error) {
	p := s.parameters(&r.commit, 0)
	replace, create, logged := s.sql.replaceOne, s.sql.createOne, addsToLog(p.Write)
	if logged {
		replace, create = s.sql.logs.replaceOne, s.sql.logs.createOne
	}
	brief, write := s.sql.brief.query(), replace.query()
	if p.Expected == 0 {
		brief, write = s.sql.briefFree.query().int(p.lockKey), create.query()
	}
	write.string(p.Kind).string(p.ID).int(int64(p.Expected)).int(int64(p.Version)).jsonText(p.Doc).int(int64(p.Schema)).
		string(p.Label).time(p.Due).duration(p.DueIn).duration(p.ttl).strings(p.ring).
		int(int64(p.guard.Token)).optionalString(p.holder).duration(p.lease).bool(p.release)
	if logged {
		write.int(int64(p.Log.First)).jsons(p.Log.Entries)
	}
	answers, err := sendCommit(ctx, conn, brief, write)
	if err != nil || len(answers[1]) == 1 {
		return timeOf(answers, err)
	}
	answers, err = roundTrip(ctx, conn, s.sql.load.query().string(p.Kind).string(p.ID))
	if err != nil {
		return result{}, notApplied(err)
	}
	return result{err: lostTo(r.commit, loaded(r.keys[0], answers[0][0]))}, nil
}

// smallDoc is the size of a document that arrives at once. The statements that create one record lock
// its key and then read the document. If the process is frozen or cut off between the two, the lock
// stays. A function locks only when all of its arguments have arrived.
const smallDoc = 4 << 10

// writeFast sends r, which is fast.
func (s *Store) writeFast(ctx context.Context, conn *pgconn.PgConn, r *request) (result, error) {
	switch w := r.commit.Writes; {
	case isAlone(r) && (w[0].Expected > 0 || len(w[0].Doc) <= smallDoc):
		return s.writeOne(ctx, conn, r)
	case len(w) == 0:
		return s.writeLease(ctx, conn, r)
	}
	return s.writeTogether(ctx, conn, r)
}

// writeLease sends r, which renews or gives back a lease. If the server writes nothing, the result is
// undecided.
func (s *Store) writeLease(ctx context.Context, conn *pgconn.PgConn, r *request) (result, error) {
	g := &r.commit.Guards[0]
	return timeOf(sendCommit(ctx, conn, s.sql.brief.query(),
		s.sql.leaseOne.query().string(g.Kind).string(g.ID).int(int64(g.Token)).duration(g.Extend).bool(g.Release)))
}

// timeOf returns the result of statements, the last of which returns the time of the commit, or no
// row: then the result is undecided.
func timeOf(answers []answer, err error) (result, error) {
	if err != nil || len(answers[len(answers)-1]) == 0 {
		return result{}, err
	}
	return result{at: answers[len(answers)-1][0].time()}, nil
}

// writeTogether sends r, which is fast. If the server writes nothing or refuses the statement, the
// result is undecided.
func (s *Store) writeTogether(ctx context.Context, conn *pgconn.PgConn, r *request) (result, error) {
	result, err := timeOf(sendCommit(ctx, conn, s.briefly(s.writingTogether(r), r)...))
	if errors.Is(err, persist.ErrNotApplied) && !conn.IsClosed() {
		err = nil
	}
	return result, err
}

// write sends a batch of requests, all of them fast, of one record each and with different keys, and
// returns a result for each. An error is about all of them; see outcome.
func (s *Store) write(ctx context.Context, conn *pgconn.PgConn, requests []*request) ([]result, error) {
	answers, err := sendCommit(ctx, conn, s.briefly(s.writingAll(requests), requests...)...)
	if err != nil {
		return nil, err
	}
	return written(requests, answers[len(answers)-1]), nil
}

// briefly returns the statements for the call of a function that writes requests. The function bounds
// its own waits, but not those of the log entries that are inserted after it.
func (s *Store) briefly(call *statement, requests ...*request) []*statement {
	if addToLogs(requests...) {
		return []*statement{s.sql.brief.query(), call}
	}
	return []*statement{call}
}

// written returns the results that the rows of the function write contain.
func written(requests []*request, rows answer) []result {
	results := make([]result, len(requests))
	places := make(map[persist.Key]int, len(requests))
	for i, r := range requests {
		places[r.keys[0]] = i
	}
	for _, row := range rows {
		ok, at, floor := row.bool(), row.time(), row.int()
		current := row.record(at)
		i := places[current.Key]
		if ok {
			results[i].at = at
			continue
		}
		if current.Absent() {
			current.Version = uint64(floor)
		}
		results[i].err = lostTo(requests[i].commit, current)
	}
	return results
}

// lostTo returns the *persist.Conflict of c, which is fast, if current proves it: the version has
// moved, or the record is absent. It returns nil otherwise. The lease and the expiry of a record
// that was read without a lock prove nothing: another transaction may be about to change them.
func lostTo(c persist.Commit, current persist.Record) error {
	w := &c.Writes[0]
	_, err := persist.Apply(c, map[persist.Key]persist.Record{w.Key: current}, current.Now)
	var conflict *persist.Conflict
	moved := current.Absent() || current.Version != w.Expected
	if moved && errors.As(err, &conflict) {
		return conflict
	}
	return nil
}

// writingAll returns the call of the function write for requests.
func (s *Store) writingAll(requests []*request) *statement {
	all := make([]parameters, len(requests))
	for i, r := range requests {
		all[i] = s.parameters(&r.commit, 0)
	}
	q := s.sql.write.query()
	if addToLogs(requests...) {
		q = s.sql.logs.write.query()
	}
	writing(q, all)
	return addEntries(q, all)
}

// writingTogether returns the call of the function write_together for r.
func (s *Store) writingTogether(r *request) *statement {
	c := &r.commit
	all := make([]parameters, len(c.Writes))
	for i := range all {
		all[i] = s.parameters(c, i)
	}
	var guards []persist.Guard // of records that are not written
	for _, g := range c.Guards {
		if writeOf(c, g.Key) == nil {
			guards = append(guards, g)
		}
	}
	q := s.sql.together.query()
	if addToLogs(r) {
		q = s.sql.logs.together.query()
	}
	writing(q, all)
	q.bools(column(all, func(p parameters) bool { return p.Deleted }))
	q.strings(column(guards, func(g persist.Guard) string { return g.Kind }))
	q.strings(column(guards, func(g persist.Guard) string { return g.ID }))
	q.ints(column(guards, func(g persist.Guard) int64 { return int64(g.Version) }))
	q.ints(column(guards, func(g persist.Guard) int64 { return int64(g.Token) }))
	q.ints(column(guards, func(g persist.Guard) int64 { return s.names.lockKey(g.Key) }))
	return addEntries(q, all)
}

// writing adds the arrays of writes to q.
func writing(q *statement, all []parameters) {
	q.strings(column(all, func(p parameters) string { return p.Kind }))
	q.strings(column(all, func(p parameters) string { return p.ID }))
	q.ints(column(all, func(p parameters) int64 { return int64(p.Expected) }))
	q.ints(column(all, func(p parameters) int64 { return int64(p.Version) }))
	q.jsons(column(all, func(p parameters) json.RawMessage { return p.Doc }))
	q.ints(column(all, func(p parameters) int64 { return int64(p.Schema) }))
	q.strings(column(all, func(p parameters) string { return p.Label }))
	q.times(column(all, func(p parameters) time.Time { return p.Due }))
	q.durations(column(all, func(p parameters) time.Duration { return p.DueIn }))
	q.durations(column(all, func(p parameters) time.Duration { return p.ttl }))
	q.strings(column(all, func(p parameters) string { return strings.Join(p.ring, "\n") }))
	q.ints(column(all, func(p parameters) int64 { return int64(p.guard.Token) }))
	q.optionalStrings(column(all, func(p parameters) *string { return p.holder }))
	q.durations(column(all, func(p parameters) time.Duration { return p.lease }))
	q.bools(column(all, func(p parameters) bool { return p.release }))
	q.ints(column(all, func(p parameters) int64 { return p.lockKey }))
}

// addEntries adds the new log entries of writes to q, if there are any.
func addEntries(q *statement, all []parameters) *statement {
	var added additions
	for _, p := range all {
		added.add(p.Write)
	}
	if len(added.entries) == 0 {
		return q
	}
	return added.to(q)
}

// parameters are those of one write of a commit that is fast.
type parameters struct {
	*persist.Write
	guard   persist.Guard // zero: none
	ttl     time.Duration // negative: the expiry stays
	ring    []string      // the commit ids to keep
	holder  *string       // nil: the lease is not acquired
	lease   time.Duration // of a lease that is acquired or extended
	release bool          // the lease ends
	lockKey int64         // of a record that is created
}

func (s *Store) parameters(c *persist.Commit, i int) parameters {
	w := &c.Writes[i]
	if w.Deleted { // a tombstone has nothing but a version
		w = &persist.Write{Key: w.Key, Expected: w.Expected, Version: w.Version, Deleted: true, Recent: w.Recent, Log: w.Log}
	}
	p := parameters{Write: w, ttl: w.TTL, release: w.Deleted}
	for _, g := range c.Guards {
		if g.Key == w.Key {
			p.guard, p.lease, p.release = g, g.Extend, g.Release || w.Deleted
		}
	}
	if w.Acquire != nil {
		p.holder, p.lease = &w.Acquire.Holder, w.Acquire.For
	}
	if w.TTL == persist.KeepTTL {
		p.ttl = -time.Second
	}
	recent := w.Recent
	if w.Expected == 0 {
		recent, p.lockKey = nil, s.names.lockKey(w.Key)
	}
	p.ring = persist.Remember(recent, c.ID)
	return p
}
