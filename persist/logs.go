package persist

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// Logs returns store itself if it is a [Logger]. Otherwise it returns a Logger that keeps logs as
// documents of the store, in the kinds "pawl.log", "pawl.log.order", "pawl.log.state" and
// "pawl.log.next". It is a [LogRestorer] if the store is a [Restorer], and no [Native]. The store
// must commit several keys at a time. Several processes may share it.
//
// An append writes two documents for each entry and one counter beside the record. Commits with
// entries therefore conflict with each other, whatever their records are. Commit makes up to 64
// attempts, and then returns an error that wraps ErrNotApplied and ErrUnavailable. A removal of
// entries takes effect with its commit. Their documents are removed after it, up to 1,000 entries
// at a time, and their tombstones too if the store is a [Purger]. What is left then, or after a crash,
// is removed by the next Drop and by the methods of [LogCleaner], and after a Clear also by the next
// append.
//
// It is a [Limiter]: the limits of the store count these documents too, so a limit of keys limits the
// entries of a commit.
//
// A listing of all kinds shows the documents of logs.
func Logs(store Store) Logger {
	if logger, ok := store.(Logger); ok {
		return logger
	}
	d := &docLogs{Store: store, turn: make(chan struct{}, 1), writer: "pawl.log-" + rand.Text()}
	if restorer, ok := store.(Restorer); ok {
		return &docLogRestorer{d, restorer}
	}
	return d
}

// docLogs keeps logs as documents; doclog.go describes them.
//
// Commit sends the writes of the caller and those of the documents of logs as one commit of the
// store, under the caller's id:
//
//	records of the caller   as the caller wrote them, without Log
//	pawl.log.state          of a record whose log begins, is dropped from or is cleared
//	pawl.log                one for each entry
//	pawl.log.order          one for each entry, under its position
//	pawl.log.next           the counter of positions
//
// Every log change comes with a write of its record, the head. This decides the races:
//
//   - Two commits with entries: both write the counter, so one of them gets a conflict. A conflict
//     that names only documents of logs has written nothing and is tried again.
//   - The log changes between the reading of its documents and the commit: so does the head, which
//     is read first. The commit expects the head's version, so it conflicts.
//   - A commit is sent again after its answer was lost, by the caller or while an earlier attempt
//     is still on its way to the store: all attempts expect the same version of the head and
//     replace it. Versions are never used twice, so one attempt at most succeeds. Every other one
//     conflicts with the head, whose Commits shows whether an attempt succeeded. An attempt whose
//     outcome is unknown is not repeated here: the error goes to the caller.
//   - Positions: the counter is part of the commit, so commits become visible in the order of their
//     positions, and a list that shows a position shows all lower ones.
type docLogs struct {
	Store
	turn    chan struct{} // held while this process commits entries: its commits would conflict
	writer  string        // of the commits that remove documents
	commits atomic.Uint64 // counts them
}

const (
	logAttempts = 64                    // of a commit that conflicts with other logs only
	logBackoff  = 32 * time.Millisecond // the longest wait between two attempts
)

// Commit is that of the store, and accepts Write.Log.
func (d *docLogs) Commit(ctx context.Context, c Commit) (time.Time, error) {
	if !slices.ContainsFunc(c.Writes, func(w Write) bool { return w.Log != nil }) {
		return d.Store.Commit(ctx, c)
	}
	if err := c.Validate(); err != nil {
		return time.Time{}, err
	}
	if err := d.Limits().Check(c); err != nil {
		return time.Time{}, err
	}
	at, garbage, err := d.commitInTurn(ctx, c)
	if err != nil {
		return time.Time{}, err
	}
	for _, key := range garbage {
		_ = d.clean(ctx, key, maxRemoved) // the next removal completes it
	}
	return at, nil
}

// Limits returns the limits of the store, and the limit of entries that follows from them: a commit
// writes two documents for each entry, and the record, the state of its log and the counter.
func (d *docLogs) Limits() Limits {
	limiter, ok := d.Store.(Limiter)
	if !ok {
		return Limits{}
	}
	l := limiter.Limits()
	if l.MaxKeys > 0 {
		l.MaxEntries = max((l.MaxKeys-3)/2, 1)
	}
	return l
}

// commitInTurn commits c and returns the logs that have documents to remove afterwards.
func (d *docLogs) commitInTurn(ctx context.Context, c Commit) (time.Time, []Key, error) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return time.Time{}, nil, notApplied(ctx.Err())
	}
	var err error
	for attempt := range logAttempts {
		if err := backOff(ctx, attempt); err != nil {
			return time.Time{}, nil, notApplied(err)
		}
		var p logPlan
		var at time.Time
		if p, err = d.plan(ctx, c); err == nil {
			if at, err = d.Store.Commit(ctx, p.commit); err == nil {
				return at, p.garbage, nil
			}
		}
		if rest := withoutLogs(err); rest != nil {
			return time.Time{}, nil, rest
		}
	}
	return time.Time{}, nil, fmt.Errorf("%w: %w: %d attempts lost to other commits with log entries: %v", ErrNotApplied, ErrUnavailable, logAttempts, err)
}

// notApplied returns an error of a commit that was not sent.
func notApplied(err error) error {
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrNotApplied) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNotApplied, err)
}

// backOff waits before an attempt, the longer the more there were. It does not wait before the
// first one.
func backOff(ctx context.Context, attempt int) error {
	if attempt == 0 {
		return ctx.Err()
	}
	longest := min(time.Millisecond<<min(attempt, 10), logBackoff)
	timer := time.NewTimer(mathrand.N(longest))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withoutLogs returns the error of a commit without the documents of logs. It returns nil for a
// conflict that names no others.
func withoutLogs(err error) error {
	var conflict *Conflict
	if !errors.As(err, &conflict) {
		return err
	}
	rest := Conflict{Held: conflict.Held}
	for i, winner := range conflict.Winners {
		if IsLogKind(winner.Kind) {
			continue
		}
		rest.Winners = append(rest.Winners, winner)
		if i < len(conflict.Expected) {
			rest.Expected = append(rest.Expected, conflict.Expected[i])
		}
	}
	switch len(rest.Winners) {
	case 0:
		return nil
	case len(conflict.Winners):
		return err
	}
	return &rest
}

// logPlan is a commit with the documents of its logs.
type logPlan struct {
	commit  Commit
	garbage []Key // logs of which documents are to be removed after the commit
	added   []addedEntry
}

// addedEntry is an entry in the epoch of its log.
type addedEntry struct {
	LogEntry
	epoch uint64
}

// plan reads the documents that c needs and returns the commit that writes them. It returns the
// *Conflict or *Fenced of c if that cannot succeed, and a *Conflict with a document of a log if
// another commit has changed it meanwhile.
func (d *docLogs) plan(ctx context.Context, c Commit) (logPlan, error) {
	var docs []Key
	for i := range c.Writes {
		if c.Writes[i].Log != nil {
			docs = append(docs, stateKey(c.Writes[i].Key))
		}
	}
	_, docRecords, err := d.test(ctx, c, append(docs, counterKey)...)
	if err != nil {
		return logPlan{}, err
	}
	p := logPlan{commit: c}
	p.commit.Writes = slices.Clone(c.Writes)
	for i := range p.commit.Writes {
		p.commit.Writes[i].Log = nil
	}
	states, counter := docRecords[:len(docs)], docRecords[len(docs)]
	for _, w := range c.Writes {
		if w.Log == nil {
			continue
		}
		if err := p.change(w.Key, w.Log, states[0]); err != nil {
			return logPlan{}, notApplied(err)
		}
		states = states[1:]
	}
	if len(p.added) == 0 {
		return p, nil
	}
	taken, err := d.add(ctx, &p, counter)
	if err != nil || len(taken) == 0 {
		return p, err
	}
	current, _, err := d.test(ctx, c) // another commit may have added the entries after the first test
	if err != nil {
		return logPlan{}, err
	}
	return logPlan{}, takenNumbers(c, taken, current)
}

// test returns the records of c, and those of documents of logs. It reads the records of c first,
// because a log changes only with its record. It returns the *Conflict or *Fenced of c, and an error
// that wraps ErrNotApplied.
func (d *docLogs) test(ctx context.Context, c Commit, docs ...Key) (current map[Key]Record, docRecords []Record, err error) {
	own := c.Keys()
	records, err := loadKeys(ctx, d.Store, slices.Concat(own, docs))
	if err != nil {
		return nil, nil, notApplied(err)
	}
	now := time.Time{}
	for _, r := range records {
		if r.Now.After(now) {
			now = r.Now
		}
	}
	current = make(map[Key]Record, len(own))
	for i, key := range own {
		current[key] = records[i]
	}
	_, err = Apply(c, current, now)
	return current, records[len(own):], err
}

// change plans the change of one log, whose state is in the record state.
func (p *logPlan) change(key Key, l *LogWrite, state Record) error {
	var s logState
	alive, err := state.content(&s)
	if err != nil {
		return err
	}
	counts := alive && !s.Cleared
	begins := (l.Clear || !counts) && len(l.Entries) > 0
	ends := l.Clear && counts && !begins
	drops := counts && !l.Clear && l.Drop > s.First
	label := ""
	switch {
	case begins:
		s = logState{Key: key, Epoch: state.Version + 1, First: l.Drop}
	case ends:
		s, label = logState{Key: key, Epoch: state.Version + 1, Cleared: true}, key.Kind
	case drops:
		s.First = l.Drop
	}
	if begins || ends || drops {
		p.commit.Writes = append(p.commit.Writes, replacing(state, s, label))
		if !state.Absent() {
			p.garbage = append(p.garbage, key)
		}
	}
	for i, data := range l.Entries {
		p.added = append(p.added, addedEntry{LogEntry{Key: key, Number: l.First + uint64(i), Data: data}, s.Epoch})
	}
	return nil
}

// add plans the documents of the new entries. It returns the keys of logs that have a number of
// them already. It returns a *Conflict if a position was used after the counter was read.
func (d *docLogs) add(ctx context.Context, p *logPlan, counter Record) (taken map[Key]bool, err error) {
	var count logCount
	if _, err := counter.content(&count); err != nil {
		return nil, notApplied(err)
	}
	var keys []Key
	for i := range p.added {
		count.Last++
		e := &p.added[i]
		e.Position = count.Last
		keys = append(keys, entryKey(e.Key, e.epoch, e.Number), orderKey(e.Position))
	}
	records, err := loadKeys(ctx, d.Store, keys)
	if err != nil {
		return nil, notApplied(err)
	}
	taken = make(map[Key]bool)
	for i, e := range p.added {
		entry, order := records[2*i], records[2*i+1]
		if !entry.Absent() && !entry.Deleted {
			taken[e.Key] = true
		}
		if !order.Absent() {
			return nil, &Conflict{Winners: []Record{order}, Expected: []Expected{{}}}
		}
		p.commit.Writes = append(p.commit.Writes,
			replacing(entry, newLogDoc(e.LogEntry), ""),
			replacing(order, logPlace{Key: e.Key, Epoch: e.epoch, Number: e.Number}, e.Kind))
	}
	p.commit.Writes = append(p.commit.Writes, replacing(counter, count, ""))
	return taken, nil
}

// takenNumbers returns the *Conflict of the writes of c whose logs have a number of theirs already.
func takenNumbers(c Commit, taken map[Key]bool, current map[Key]Record) error {
	var conflict Conflict
	for _, w := range c.Writes {
		if !taken[w.Key] {
			continue
		}
		conflict.Winners = append(conflict.Winners, current[w.Key])
		conflict.Expected = append(conflict.Expected, Expected{w.Expected, w.Gone})
	}
	return &conflict
}
