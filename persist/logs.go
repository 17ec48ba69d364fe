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
// at a time, and their tombstones too if the store is a [Purger]. Documents that a crash left
// behind are removed by the next Drop, and by the next append after a Clear.
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
	at, garbage, err := d.commitInTurn(ctx, c)
	if err != nil {
		return time.Time{}, err
	}
	for _, g := range garbage {
		_ = d.remove(ctx, g, maxRemoved) // the next removal of this log completes it
	}
	return at, nil
}

// commitInTurn commits c and returns the documents that are to be removed afterwards.
func (d *docLogs) commitInTurn(ctx context.Context, c Commit) (time.Time, []idRange, error) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return time.Time{}, nil, notApplied(ctx.Err())
	}
	for attempt := range logAttempts {
		if err := backOff(ctx, attempt); err != nil {
			return time.Time{}, nil, notApplied(err)
		}
		plan, err := d.plan(ctx, c)
		if err != nil {
			return time.Time{}, nil, err
		}
		at, err := d.Store.Commit(ctx, plan.commit)
		if err == nil {
			return at, plan.garbage, nil
		}
		if err := withoutLogs(err); err != nil {
			return time.Time{}, nil, err
		}
	}
	return time.Time{}, nil, fmt.Errorf("%w: %w: %d attempts lost to other commits with log entries", ErrNotApplied, ErrUnavailable, logAttempts)
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
		if isLogKind(winner.Kind) {
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
	garbage []idRange // documents that the commit makes superfluous
	added   []*LogEntry
	epochs  []uint64 // of the logs of added
}

// plan reads the documents that c needs and returns the commit that writes them. It returns the
// *Conflict or *Fenced of c if it cannot succeed.
func (d *docLogs) plan(ctx context.Context, c Commit) (logPlan, error) {
	own := c.Keys()
	keys := slices.Clone(own) // they are read first: the log of a record changes only with it
	for i := range c.Writes {
		if c.Writes[i].Log != nil {
			keys = append(keys, stateKey(c.Writes[i].Key))
		}
	}
	records, err := loadKeys(ctx, d.Store, append(keys, counterKey))
	if err != nil {
		return logPlan{}, notApplied(err)
	}
	current, now := make(map[Key]Record, len(own)), time.Time{}
	for i, r := range records {
		if i < len(own) {
			current[own[i]] = r
		}
		if r.Now.After(now) {
			now = r.Now
		}
	}
	if _, err := Apply(c, current, now); err != nil {
		return logPlan{}, err
	}
	p := logPlan{commit: c}
	p.commit.Writes = slices.Clone(c.Writes)
	states := records[len(own) : len(records)-1]
	for i := range c.Writes {
		w := &p.commit.Writes[i]
		if w.Log == nil {
			continue
		}
		if err := p.change(w.Key, w.Log, states[0]); err != nil {
			return logPlan{}, notApplied(err)
		}
		w.Log, states = nil, states[1:]
	}
	if len(p.added) == 0 {
		return p, nil
	}
	taken, err := d.add(ctx, &p, records[len(records)-1])
	if err != nil {
		return logPlan{}, notApplied(err)
	}
	return p, takenNumbers(c, taken, current, now)
}

// change plans the change of one log, whose state is in the record state.
func (p *logPlan) change(key Key, l *LogWrite, state Record) error {
	var s logState
	alive, err := state.content(&s)
	if err != nil {
		return err
	}
	begins := (l.Clear || !alive) && len(l.Entries) > 0
	drops := alive && !l.Clear && l.Drop > s.First
	switch {
	case begins:
		s = logState{Key: key, Epoch: state.Version + 1, First: l.Drop}
	case drops:
		s.First = l.Drop
	case alive && l.Clear:
		p.commit.Writes = append(p.commit.Writes, deleting(state))
		p.garbage = append(p.garbage, idsBelow(key, s.Epoch+1, 0))
	}
	if begins || drops {
		p.commit.Writes = append(p.commit.Writes, replacing(state, s, ""))
	}
	if drops || begins && !state.Absent() {
		p.garbage = append(p.garbage, idsBelow(key, s.Epoch, s.First))
	}
	for i, data := range l.Entries {
		p.added = append(p.added, &LogEntry{Key: key, Number: l.First + uint64(i), Data: data})
		p.epochs = append(p.epochs, s.Epoch)
	}
	return nil
}

// add plans the documents of the new entries. It returns the keys of logs that have a number of
// them already.
func (d *docLogs) add(ctx context.Context, p *logPlan, counter Record) (taken map[Key]bool, err error) {
	var count logCount
	if _, err := counter.content(&count); err != nil {
		return nil, err
	}
	var keys []Key
	for i, e := range p.added {
		count.Last++
		e.Position = count.Last
		keys = append(keys, entryKey(e.Key, p.epochs[i], e.Number), orderKey(e.Position))
	}
	records, err := loadKeys(ctx, d.Store, keys)
	if err != nil {
		return nil, err
	}
	taken = make(map[Key]bool)
	for i, e := range p.added {
		entry, order := records[2*i], records[2*i+1]
		if !entry.Absent() && !entry.Deleted {
			taken[e.Key] = true
		}
		if !order.Absent() {
			return nil, fmt.Errorf("position %d of log entries was used before: %q is damaged", e.Position, counterKey)
		}
		p.commit.Writes = append(p.commit.Writes,
			replacing(entry, newLogDoc(e), ""),
			replacing(order, logPlace{Key: e.Key, Epoch: p.epochs[i], Number: e.Number}, e.Kind))
	}
	p.commit.Writes = append(p.commit.Writes, replacing(counter, count, ""))
	return taken, nil
}

// takenNumbers returns the *Conflict of the writes of c whose log has a number already.
func takenNumbers(c Commit, taken map[Key]bool, current map[Key]Record, now time.Time) error {
	var conflict Conflict
	for _, w := range c.Writes {
		if !taken[w.Key] {
			continue
		}
		winner := current[w.Key].Clone()
		winner.Key, winner.Now = w.Key, now
		conflict.Winners = append(conflict.Winners, winner)
		conflict.Expected = append(conflict.Expected, Expected{w.Expected, w.Gone})
	}
	if len(conflict.Winners) > 0 {
		return &conflict
	}
	return nil
}
