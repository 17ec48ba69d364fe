package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pawl-go/pawl/persist"
)

// transaction commits one or several commits without common keys in two round trips: the first
// locks and reads, persist.Apply decides, the second writes and commits.
//
// All transactions take locks in the same order, so they do not deadlock: first the advisory locks
// of keys that may be absent, by number, then the records, by key. An absent row cannot be locked:
// the advisory lock of its key stands for it, exclusive to create the record, shared to rely on its
// absence. Records that are only read are locked FOR SHARE.
type transaction struct {
	store    *Store
	conn     *pgconn.PgConn
	patience time.Duration // how long to wait for a lock; 0: not at all
	parts    []*part
	at       time.Time // of the commit, by the server's clock after all locks were taken

	// A transaction that CommitWith or the caller of Join began, and ends. It has one part, and its
	// settings are restored.
	begun  bool
	joined bool         // the caller began it, so it may have any isolation level
	settle *statement   // restores the settings; set by lock
	ending []*statement // sent after settle

	floor   uint64
	current map[persist.Key]persist.Record // the locked records, without their documents
	busy    map[persist.Key]uint64         // locked by another transaction; the committed version, 0: not known
	taken   map[persist.Key]bool           // a number of a new log entry is taken
}

// part is one commit of a transaction.
type part struct {
	commit persist.Commit
	keys   []persist.Key
	next   []persist.Record // to be stored
	err    error
}

func (t *transaction) add(r *request) {
	t.parts = append(t.parts, &part{commit: r.commit, keys: r.keys})
}

// run commits, and sets at and the error of each part. It returns the error of the transaction. A
// transaction that was begun before stays open.
func (t *transaction) run(ctx context.Context) error {
	if !t.begun {
		defer undo(ctx, t.conn)
	}
	if err := t.lock(ctx); err != nil {
		for _, p := range t.parts {
			p.err = notApplied(err) // COMMIT was not sent
		}
		return err
	}
	for _, p := range t.parts {
		t.apply(p)
	}
	return t.finish(ctx)
}

// lock begins the transaction, locks and reads.
func (t *transaction) lock(ctx context.Context) error {
	first := begin
	if t.begun {
		first = query(t.store.sql.settings)
	}
	statements := []*statement{first, t.store.bounds(t.patience)}
	numbers, absences := t.absences()
	statements = append(statements, absences)
	if t.joined {
		kinds, ids := apart(t.parts[0].keys)
		statements = append(statements, query(t.store.sql.confirmAbsent).strings(kinds).strings(ids))
	}
	locked := len(statements)
	statements = append(statements, t.lockRecords()...)
	found := len(statements)
	statements = append(statements, t.lookForNumbers(), t.store.sql.now.query().string(t.store.lifetime()))
	if t.begun {
		asTexts(statements) // an unknown name would end the transaction
	}
	answers, err := roundTrip(ctx, t.conn, statements...)
	if err != nil {
		return err
	}
	t.current, t.busy, t.taken = make(map[persist.Key]persist.Record), make(map[persist.Key]uint64), make(map[persist.Key]bool)
	if t.begun {
		t.settle = t.putBack(answers[0][0])
	}
	for _, row := range answers[2] {
		for _, key := range numbers[row.int()] {
			t.busy[key] = 0
		}
	}
	for _, rows := range answers[locked:found] {
		for _, row := range rows {
			t.readLocked(row)
		}
	}
	for _, row := range answers[found] {
		t.taken[persist.Key{Kind: row.string(), ID: row.string()}] = true
	}
	row := answers[found+1][0]
	t.at, t.floor = row.time(), uint64(row.int())
	return nil
}

// asTexts makes statements be sent as texts, inside a transaction. Statements without parameters
// are shared, and not changed.
func asTexts(statements []*statement) {
	for _, s := range statements {
		if s.prepared != nil {
			s.prepared = nil
		}
	}
}

// readLocked reads a row of lock_records.
func (t *transaction) readLocked(row cells) {
	locked, key := row.bool(), persist.Key{Kind: row.string(), ID: row.string()}
	if !locked {
		if _, ok := t.current[key]; !ok {
			t.busy[key] = uint64(row.int())
		}
		return
	}
	r := persist.Record{Key: key, Version: uint64(row.int()), Expires: row.time(), Updated: row.time(), Deleted: !row.time().IsZero()}
	r.Lease = persist.Lease{Holder: row.string(), Token: uint64(row.int()), Until: row.time()}
	r.Commits = splitCommits(row.string())
	t.current[key] = r
}

// absences returns the statement that takes the advisory locks of keys that may be absent, and the
// keys by the numbers of their locks. A transaction that waits takes the advisory locks of all its
// keys; one that does not wait lets writers go first that wait for a record it only reads.
func (t *transaction) absences() (map[int64][]persist.Key, *statement) {
	keys, exclusive, read := make(map[int64][]persist.Key), make(map[int64]bool), make(map[int64]bool)
	waits := milliseconds(t.patience) > 0
	add := func(key persist.Key, changed bool) {
		number := t.store.names.lockKey(key)
		keys[number] = append(keys[number], key)
		exclusive[number] = exclusive[number] || changed
	}
	for _, p := range t.parts {
		written := make(map[persist.Key]bool, len(p.commit.Writes))
		for _, w := range p.commit.Writes {
			written[w.Key] = true
			if w.Expected == 0 || waits {
				add(w.Key, true)
			}
		}
		for _, g := range p.commit.Guards {
			switch number := t.store.names.lockKey(g.Key); {
			case g.Read && g.Version == 0 || waits:
				add(g.Key, changes(g))
			case !written[g.Key] && !changes(g):
				read[number] = true
				keys[number] = append(keys[number], g.Key)
			}
		}
	}
	numbers := slices.Sorted(maps.Keys(exclusive))
	shared := make([]bool, len(numbers))
	for i, number := range numbers {
		shared[i] = !exclusive[number]
	}
	return keys, query(t.store.sql.lockAbsent).ints(numbers).bools(shared).
		ints(slices.Sorted(maps.Keys(read))).int4(milliseconds(t.patience))
}

// lockRecords returns the statements that lock the records in key order: one for each run of keys
// with the same kind of lock.
func (t *transaction) lockRecords() []*statement {
	changed := make(map[persist.Key]bool) // every key
	for _, p := range t.parts {
		for _, g := range p.commit.Guards {
			changed[g.Key] = changes(g)
		}
		for _, w := range p.commit.Writes {
			changed[w.Key] = true
		}
	}
	keys := slices.SortedFunc(maps.Keys(changed), persist.Key.Compare)
	var statements []*statement
	for len(keys) > 0 {
		end := 1
		for end < len(keys) && changed[keys[end]] == changed[keys[0]] {
			end++
		}
		kinds, ids := apart(keys[:end])
		statements = append(statements, t.store.sql.lockRecords.query().
			strings(kinds).strings(ids).bool(!changed[keys[0]]).int4(milliseconds(t.patience)))
		keys = keys[end:]
	}
	return statements
}

// changes reports whether g changes the record.
func changes(g persist.Guard) bool { return g.Extend > 0 || g.Release || g.TTL > 0 }

// apart returns the kinds and the ids of keys.
func apart(keys []persist.Key) (kinds, ids []string) {
	for _, key := range keys {
		kinds, ids = append(kinds, key.Kind), append(ids, key.ID)
	}
	return kinds, ids
}

// runOne is run for r alone.
func (t *transaction) runOne(ctx context.Context, r *request) (time.Time, error) {
	t.add(r)
	_ = t.run(ctx)
	return t.at, t.parts[0].err
}

// apply decides about p.
func (t *transaction) apply(p *part) {
	if len(p.keys) == 0 {
		return // only a function has to run
	}
	current := make(map[persist.Key]persist.Record, len(p.keys))
	for _, key := range p.keys {
		if version, busy := t.busy[key]; busy {
			p.err = whileBusy(p, persist.Record{Key: key, Version: version})
			return
		}
		r, ok := t.current[key]
		if !ok {
			r.Version = t.floor
		}
		current[key] = r
	}
	p.next, p.err = persist.Apply(p.commit, current, t.at)
	if p.err == nil {
		p.err = t.numbersTaken(p, current)
	}
	if p.err != nil {
		p.next = nil
	}
}

// whileBusy returns the error of p if another transaction has locked r: a conflict if p has lost
// already, because its only write expects an older version than the committed one.
func whileBusy(p *part, r persist.Record) error {
	if len(p.commit.Writes) == 1 && len(p.commit.Guards) == 0 && p.commit.Writes[0].Expected < r.Version {
		return &persist.Conflict{Winners: []persist.Record{r}}
	}
	return notApplied(errBusy)
}

// finish writes the records of all parts, reads the winners of conflicts, and commits. It returns the
// error of that.
func (t *transaction) finish(ctx context.Context) error {
	losers, writes := t.losers(), t.writes()
	var statements []*statement
	if len(losers) > 0 {
		kinds, ids := apart(column(losers, func(r *persist.Record) persist.Key { return r.Key }))
		statements = append(statements, query(t.store.sql.loadAll).strings(kinds).strings(ids))
	}
	switch {
	case t.begun && t.parts[0].err == nil:
		statements = append(append(writes, t.settle), t.ending...)
	case len(writes) > 0:
		statements = append(append(statements, writes...), commit)
	}
	if t.begun {
		asTexts(statements)
	}
	if len(statements) == 0 {
		return nil // nothing to write; the guards hold while the records are locked
	}
	answers, err := roundTrip(ctx, t.conn, statements...)
	if len(losers) > 0 && len(answers) > 0 {
		for i, row := range answers[0] {
			if r := loaded(losers[i].Key, row); !r.Absent() {
				if _, locked := t.current[r.Key]; locked {
					r.Now = t.at // when it was judged; its lease may have run out since
				}
				*losers[i] = r // which lacked its document
			}
		}
	}
	for _, p := range t.parts {
		switch {
		case t.begun && p.err == nil && err != nil:
			p.err = notApplied(err)
		case len(p.next) > 0 && err != nil:
			p.err = outcome(err, len(answers), len(statements)-1)
		case len(lost(p.err)) > 0 && len(losers) > 0 && len(answers) == 0:
			p.err = notApplied(err) // a conflict whose winner is not known
		}
	}
	return err
}

// writes returns the statements that store the records and logs of all parts.
func (t *transaction) writes() []*statement {
	var created, replaced, touched []persist.Record
	for _, p := range t.parts {
		for _, r := range p.next {
			_, exists := t.current[r.Key]
			switch {
			case writeOf(&p.commit, r.Key) == nil:
				touched = append(touched, r)
			case exists:
				replaced = append(replaced, r)
			default:
				created = append(created, r)
			}
		}
	}
	var statements []*statement
	if len(created) > 0 {
		statements = append(statements, storing(query(t.store.sql.create), t.at, created))
	}
	if len(replaced) > 0 {
		statements = append(statements, storing(query(t.store.sql.replace), t.at, replaced))
	}
	if len(touched) > 0 {
		statements = append(statements, touching(t.store.sql.touch, touched))
	}
	if logs := t.changeLogs(); logs != nil {
		statements = append(statements, logs)
	}
	return statements
}

// storing returns the statement that stores whole records.
func storing(s *statement, at time.Time, records []persist.Record) *statement {
	s.time(at)
	s.strings(column(records, func(r persist.Record) string { return r.Kind }))
	s.strings(column(records, func(r persist.Record) string { return r.ID }))
	s.ints(column(records, func(r persist.Record) int64 { return int64(r.Version) }))
	s.jsons(column(records, func(r persist.Record) json.RawMessage { return r.Doc }))
	s.ints(column(records, func(r persist.Record) int64 { return int64(r.Schema) }))
	s.strings(column(records, func(r persist.Record) string { return r.Label }))
	s.times(column(records, func(r persist.Record) time.Time { return r.Due }))
	s.times(column(records, func(r persist.Record) time.Time { return r.Expires }))
	s.times(column(records, func(r persist.Record) time.Time {
		if r.Deleted {
			return at
		}
		return time.Time{}
	}))
	s.lease(records)
	return s.strings(column(records, func(r persist.Record) string { return strings.Join(r.Commits, "\n") }))
}

// touching returns the statement that stores the expiry and the lease of records.
func touching(text string, records []persist.Record) *statement {
	s := query(text)
	s.strings(column(records, func(r persist.Record) string { return r.Kind }))
	s.strings(column(records, func(r persist.Record) string { return r.ID }))
	s.times(column(records, func(r persist.Record) time.Time { return r.Expires }))
	return s.lease(records)
}

// lease adds the leases of records.
func (s *statement) lease(records []persist.Record) *statement {
	s.strings(column(records, func(r persist.Record) string { return r.Lease.Holder }))
	s.ints(column(records, func(r persist.Record) int64 { return int64(r.Lease.Token) }))
	return s.times(column(records, func(r persist.Record) time.Time { return r.Lease.Until }))
}

// column returns one field of all records.
func column[R, T any](records []R, of func(R) T) []T {
	values := make([]T, len(records))
	for i, r := range records {
		values[i] = of(r)
	}
	return values
}

// losers returns the records in conflicts and lost leases, absent ones too: they were not locked.
func (t *transaction) losers() (records []*persist.Record) {
	for _, p := range t.parts {
		records = append(records, lost(p.err)...)
	}
	return records
}

// lost returns the records in err if that is a *persist.Conflict or a *persist.Fenced.
func lost(err error) (records []*persist.Record) {
	var conflict *persist.Conflict
	var fenced *persist.Fenced
	switch {
	case errors.As(err, &conflict):
		for i := range conflict.Winners {
			records = append(records, &conflict.Winners[i])
		}
	case errors.As(err, &fenced):
		records = append(records, &fenced.Current)
	}
	return records
}

// bounds returns the statement that follows BEGIN. It replaces the statement_timeout of the role,
// and bounds the wait for locks as a whole: lock_timeout applies to each lock holder separately. It
// leaves time for the answer; see insist.
func (s *Store) bounds(patience time.Duration) *statement {
	limit := s.lifetime()
	if wait := milliseconds(patience); wait > 0 {
		limit = strconv.Itoa(min(int(wait)+int(wait)/4, math.MaxInt32))
	}
	return query(s.sql.bounds).string(limit)
}

// milliseconds is patience as a parameter of the SQL functions.
func milliseconds(patience time.Duration) int32 {
	return int32(min(max(0, patience).Milliseconds(), math.MaxInt32))
}
