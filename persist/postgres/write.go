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

// The fast way to commit is one round trip: an UPDATE or INSERT for one commit, a call of the SQL
// function write for a batch. It writes commits of one record each that create a record or replace
// a live one, with their lease, token, expiry and due time, and add entries to its log. It never waits for a record. Whatever
// it does not write, the transaction decides.

// isFast reports whether c can go the fast way.
func isFast(c *persist.Commit) bool {
	if len(c.Writes) != 1 || len(c.Guards) > 1 {
		return false
	}
	w := &c.Writes[0]
	if w.Gone || w.Deleted || w.EndLease || w.Expected > 0 && w.Recent == nil {
		return false
	}
	if _, cuts := cutsLog(w); cuts {
		return false
	}
	if len(c.Guards) == 0 {
		return true
	}
	g := &c.Guards[0]
	return g.Key == w.Key && !g.Read && w.Expected > 0 && w.Acquire == nil
}

// result is the outcome of a commit. A result without a time and an error is undecided.
type result struct {
	at  time.Time
	err error
}

func (r result) decided() bool { return r.err != nil || !r.at.IsZero() }

// writeOne sends r, which is fast. If the statement wrote nothing, it reads the record to find out
// why.
//
// A statement that bounds the wait for the locks comes first.
func (s *Store) writeOne(ctx context.Context, conn *pgconn.PgConn, r *request) (result, error) {
	p := s.parameters(r)
	replace, create, logged := s.sql.replaceOne, s.sql.createOne, addsToLog(p.Write)
	if logged {
		replace, create = s.sql.logs.replaceOne, s.sql.logs.createOne
	}
	brief, write := s.sql.brief.query(), replace.query()
	if p.Expected == 0 {
		brief, write = s.sql.briefFree.query().int(p.lockKey), create.query()
	}
	write.bytes = make([]byte, 0, p.size)
	write.string(p.Kind).string(p.ID).int(int64(p.Expected)).int(int64(p.Version)).jsonText(p.Doc).int(int64(p.Schema)).
		string(p.Label).time(p.Due).duration(p.DueIn).duration(p.ttl).strings(p.ring).
		int(int64(p.guard.Token)).optionalString(p.holder).duration(p.lease).bool(p.guard.Release)
	if logged {
		write.int(int64(p.Log.First)).jsons(p.Log.Entries)
	}
	answers, err := roundTrip(ctx, conn, brief, write)
	switch {
	case sqlState(err) == codeNoSuchStatement: // nothing was done; the text is sent from now on
		return s.writeOne(ctx, conn, r)
	case err != nil:
		return result{}, outcome(err, len(answers), 2)
	case len(answers[1]) == 1:
		row := cells(answers[1][0])
		return result{at: row.time()}, nil
	}
	answers, err = repeatable(ctx, conn, s.sql.load.query().string(p.Kind).string(p.ID))
	if err != nil {
		return result{}, notApplied(err)
	}
	return result{err: lostTo(r.commit, loadedOne(r.keys[0], answers[0][0]))}, nil
}

// write sends a batch of requests, all of them fast and with different keys, and returns a result
// for each. An error is about all of them; see outcome.
func (s *Store) write(ctx context.Context, conn *pgconn.PgConn, requests []*request) ([]result, error) {
	statements := []*statement{s.writing(requests)}
	if addToLogs(requests) {
		statements = []*statement{s.sql.brief.query(), statements[0]} // the function write bounds only its own waits
	}
	answers, err := roundTrip(ctx, conn, statements...)
	switch {
	case sqlState(err) == codeNoSuchStatement:
		return s.write(ctx, conn, requests)
	case err != nil:
		return nil, outcome(err, len(answers), len(statements))
	}
	return written(requests, answers[len(answers)-1]), nil
}

// written returns the results that the rows of the function write contain.
func written(requests []*request, rows answer) []result {
	results := make([]result, len(requests))
	places := make(map[persist.Key]int, len(requests))
	for i, r := range requests {
		places[r.keys[0]] = i
	}
	for _, row := range rows {
		row := cells(row)
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

// writing returns the call of the function write for requests.
func (s *Store) writing(requests []*request) *statement {
	all, size := make([]parameters, len(requests)), 16*20 // the heads of the arrays
	for i, r := range requests {
		all[i] = s.parameters(r)
		size += all[i].size
	}
	q, logged := s.sql.write.query(), addToLogs(requests)
	if logged {
		q = s.sql.logs.write.query()
	}
	q.bytes = make([]byte, 0, size)
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
	q.bools(column(all, func(p parameters) bool { return p.guard.Release }))
	q.ints(column(all, func(p parameters) int64 { return p.lockKey }))
	if !logged {
		return q
	}
	var added additions
	for _, p := range all {
		added.add(p.Write)
	}
	return added.to(q)
}

// parameters are those of one commit that is fast.
type parameters struct {
	*persist.Write
	guard   persist.Guard // zero: none
	ttl     time.Duration // negative: the expiry stays
	ring    []string      // the commit ids to keep
	holder  *string       // nil: the lease is not acquired
	lease   time.Duration // of a lease that is acquired or extended
	lockKey int64         // of a record that is created
	size    int           // bytes, about
}

func (s *Store) parameters(r *request) parameters {
	w := &r.commit.Writes[0]
	p := parameters{Write: w, ttl: w.TTL}
	if len(r.commit.Guards) > 0 {
		p.guard = r.commit.Guards[0]
		p.lease = p.guard.Extend
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
	p.ring = persist.Remember(recent, r.commit.ID)
	const numbers, lengths = 200, 4 // bytes
	p.size = len(w.Kind) + len(w.ID) + len(w.Doc) + len(w.Label) + numbers + logSize(w)
	for _, id := range p.ring {
		p.size += lengths + len(id)
	}
	return p
}
