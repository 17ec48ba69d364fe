package erase

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// Erase makes passes over all parts, until one of them finds nothing more to delete:
//
//	pass ─► which units have a record that is held or busy? they are left
//	     ─► list the other records, live and expired ─► delete them with their logs, page by page
//
// A deletion is a tombstone that expects the listed version. Nothing else is stored, so a crash needs
// no repair: the next Erase lists what is left.
//
// Races, and what decides each:
//   - A writer changes a listed record: its version moves, so the deletion conflicts. The next pass
//     lists the new version and deletes that.
//   - A worker acquires a listed record: that moves the version too, and the next pass finds it held.
//     A lease that had run out when the record was listed cannot come back without a new version.
//   - A worker acquires a run after the first listing of a pass: its deletion conflicts, and its
//     signals, which come later in the order of the queries, are left with it.
//   - A worker acquires a position of a stream after the first listing of a pass: the deletion of the
//     stream, which comes first, expects the listed versions of its positions, and conflicts.
//   - A record is created, or a stream is appended to, while Erase runs: the pass that ends Erase has
//     found none. A record that is created after that pass has read its place is not found. So stop
//     the writers first, or run Erase again after they have ended.
//   - Two calls of Erase: one of two deletions conflicts, and each record is counted once.
//   - The answer to a deletion is lost: Erase returns the error, and the next one lists what is left.
//   - A record expires between the listing and the deletion: a conflict; the next pass finds it among
//     the expired ones.
//   - A crash between a deletion and the removal of log entries, on a store that keeps logs as
//     documents: the next Erase finds the tombstone and cleans its log.

// maxPasses bounds the passes. Writers that are as fast as Erase could otherwise keep it going.
const maxPasses = 20

// batchSize is the number of records that one commit deletes.
const batchSize = 100

// ErrLeft is wrapped by the error of an Erase that has left records, because they are held or busy.
var ErrLeft = errors.New("records left")

// Options change Erase; the zero value is the default.
type Options struct {
	// Force deletes records that are held or busy, too. Their holders lose the lease, and their commits
	// are refused. A batch job that is not over is never refunded then, and its artifacts stay.
	Force bool
	// Deleted is called for each deleted record after its commit; nil: it is not.
	Deleted func(part string, key persist.Key)
}

// Report says what Erase has done.
type Report struct {
	// Deleted counts the records that were deleted. One whose commit was not answered is not counted.
	Deleted int
	// Left are the records that were not deleted.
	Left []Found
}

// Found is a record of a part.
type Found struct {
	Part string
	persist.Record
	// Left says why Erase leaves the record; empty: it does not.
	Left string
}

// Erase deletes the records of parts with their logs, and returns what it has done. It returns nil as
// error only if all of them are gone, those that were expired included. A record that is held by a
// live lease, and the records of its unit, are left unless Options.Force is set.
//
// Erase can be stopped at any time, run again, and run in several processes at once. It returns the
// report also with an error: one that wraps ErrLeft if records are held or busy, or were written in
// each of 20 passes; *pawl.ArgumentError for a part that selects everything; and the errors of the
// store, after which the last deletion may have been made.
func Erase(ctx context.Context, store persist.Store, parts []Part, o Options) (Report, error) {
	if err := check(parts); err != nil {
		return Report{}, err
	}
	e := &erasure{logs: persist.Logs(store), options: o, writer: "pawl.erase-" + rand.Text()}
	for pass := 1; ; pass++ {
		e.report.Left, e.progress = nil, false
		for _, p := range parts {
			if err := e.part(ctx, p, pass == 1); err != nil {
				return e.report, fmt.Errorf("erase %s: %w", p.Name, err)
			}
		}
		switch {
		case !e.progress && len(e.report.Left) == 0:
			return e.report, nil
		case !e.progress || pass == maxPasses && len(e.report.Left) > 0:
			first := e.report.Left[0]
			return e.report, fmt.Errorf("erase: %d %w, the first is %q: %s", len(e.report.Left), ErrLeft, first.Key, first.Left)
		case pass == maxPasses:
			return e.report, fmt.Errorf("erase: %w: records were written in each of %d passes", ErrLeft, maxPasses)
		}
	}
}

// List yields the records of parts: what Erase would find now, and which of them it would leave. Errors
// are in the last pair: *pawl.ArgumentError for a part that selects everything, and those of the
// store.
func List(ctx context.Context, store persist.Store, parts []Part) iter.Seq2[Found, error] {
	return func(yield func(Found, error) bool) {
		if err := check(parts); err != nil {
			yield(Found{}, err)
			return
		}
		for _, p := range parts {
			left, _, err := p.left(ctx, store)
			if err != nil {
				yield(Found{Part: p.Name}, fmt.Errorf("list %s: %w", p.Name, err))
				return
			}
			shown := map[persist.Key]bool{} // queries may overlap
			for r, err := range p.records(ctx, store) {
				if err != nil {
					yield(Found{Part: p.Name}, fmt.Errorf("list %s: %w", p.Name, err))
					return
				}
				if !shown[r.Key] && !yield(Found{p.Name, r, left.reason(p, r)}, nil) {
					return
				}
				shown[r.Key] = true
			}
		}
	}
}

// check returns *pawl.ArgumentError for a part that selects all records of a kind.
func check(parts []Part) error {
	for _, p := range parts {
		for _, q := range p.Queries {
			if q.Kind == "" || persist.IsLogKind(q.Kind) || q.Prefix == "" && q.From == "" && len(q.Labels) == 0 && p.Match == nil {
				return &pawl.ArgumentError{Argument: "Part " + p.Name, Reason: "a query needs a Kind, and a Prefix, From, Labels or Match"}
			}
		}
	}
	return nil
}

// listed yields the records that match q.
func listed(ctx context.Context, store persist.Store, q persist.Query) iter.Seq2[persist.Record, error] {
	return func(yield func(persist.Record, error) bool) {
		for page, err := range pages(ctx, store, q) {
			if err != nil {
				yield(persist.Record{}, err)
				return
			}
			for _, r := range page {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}

// pages yields the records that match q, page by page.
func pages(ctx context.Context, store persist.Store, q persist.Query) iter.Seq2[[]persist.Record, error] {
	return func(yield func([]persist.Record, error) bool) {
		q.Limit, q.After = batchSize, ""
		for {
			page, err := store.List(ctx, q)
			if !yield(page.Records, err) || err != nil || page.Next == "" {
				return
			}
			q.After = page.Next
		}
	}
}

// selections returns the queries of p twice: for records that are alive, and for expired ones.
func (p Part) selections() (all []persist.Query) {
	for _, q := range p.Queries {
		q.Expired, q.Deleted = false, false
		expired := q
		expired.Expired = true
		all = append(all, q, expired)
	}
	return all
}

func (p Part) matches(r persist.Record) bool { return p.Match == nil || p.Match(r) }

// records yields the records of p, alive and expired. Queries that overlap yield a record twice.
func (p Part) records(ctx context.Context, store persist.Store) iter.Seq2[persist.Record, error] {
	return func(yield func(persist.Record, error) bool) {
		for _, q := range p.selections() {
			for r, err := range listed(ctx, store, q) {
				if err == nil && !p.matches(r) {
					continue
				}
				if !yield(r, err) || err != nil {
					return
				}
			}
		}
	}
}

func (p Part) unit(r persist.Record) string {
	if p.Unit == nil {
		return r.Key.String()
	}
	return p.Unit(r)
}

// why returns why r itself is left, "" if it is not.
func (p Part) why(r persist.Record) string {
	if r.Held(r.Now) {
		return fmt.Sprintf("held by %q until %s", r.Lease.Holder, r.Lease.Until.UTC().Format(time.RFC3339))
	}
	if p.Busy == nil {
		return ""
	}
	return p.Busy(r)
}

// units are the units of a part that are left, each with a record of it and the reason.
type units map[string]Found

// left returns the units of p that are left now, and the records of p.leased that are alive, by unit.
func (p Part) left(ctx context.Context, store persist.Store) (units, map[string][]persist.Record, error) {
	all, leased := units{}, map[string][]persist.Record{}
	for r, err := range p.records(ctx, store) {
		if err != nil {
			return nil, nil, err
		}
		unit := p.unit(r)
		if why := p.why(r); why != "" {
			all[unit] = Found{p.Name, r, why}
		}
		if p.leased != nil && p.leased(r) && !r.Expired(r.Now) {
			r.Doc = nil // only its key and version are needed
			leased[unit] = append(leased[unit], r)
		}
	}
	return all, leased, nil
}

// reason returns why r is left, "" if it is not.
func (u units) reason(p Part, r persist.Record) string {
	cause, ok := u[p.unit(r)]
	switch {
	case !ok:
		return ""
	case cause.Key == r.Key:
		return cause.Left
	}
	return fmt.Sprintf("belongs to %s, which is left: %s", cause.Key, cause.Left)
}

// erasure is a call of Erase.
type erasure struct {
	logs     persist.Logger
	options  Options
	writer   string // of the commits
	commits  int    // counts them
	report   Report
	progress bool // this pass has deleted a record, or has lost one to a writer

	leased map[string][]persist.Record // of the part of this pass: what Part.left returned, and is not deleted
}

// part makes a pass over a part.
func (e *erasure) part(ctx context.Context, p Part, first bool) error {
	left := units{}
	e.leased = map[string][]persist.Record{}
	if !e.options.Force {
		var err error
		if left, e.leased, err = p.left(ctx, e.logs); err != nil {
			return err
		}
	}
	for _, q := range p.selections() {
		for page, err := range pages(ctx, e.logs, q) {
			if err != nil {
				return err
			}
			if err := e.delete(ctx, p, page, left); err != nil {
				return err
			}
		}
	}
	if first {
		return e.cleanLogs(ctx, p)
	}
	return nil
}

// delete deletes those of a page of records that belong to p and are not left.
func (e *erasure) delete(ctx context.Context, p Part, page []persist.Record, left units) error {
	var records []persist.Record
	for _, r := range page {
		if !p.matches(r) {
			continue
		}
		if why := p.why(r); why != "" && !e.options.Force {
			left[p.unit(r)] = Found{p.Name, r, why}
		}
		records = append(records, r)
	}
	for {
		records = slices.DeleteFunc(records, func(r persist.Record) bool {
			why := left.reason(p, r)
			if why != "" && !slices.ContainsFunc(e.report.Left, func(f Found) bool { return f.Key == r.Key }) {
				e.report.Left = append(e.report.Left, Found{p.Name, r, why})
			}
			return why != ""
		})
		if len(records) == 0 {
			return nil
		}
		_, err := e.logs.Commit(ctx, e.deletion(p, records))
		var conflict *persist.Conflict
		switch half := len(records) / 2; {
		case err == nil:
			return e.deleted(ctx, p, records)
		case half > 0 && errors.As(err, new(*persist.LimitError)): // a store may allow fewer keys
			if err := e.delete(ctx, p, records[:half], left); err != nil {
				return err
			}
			return e.delete(ctx, p, records[half:], left)
		case !errors.As(err, &conflict) || len(conflict.Winners) == 0:
			return err
		}
		e.progress = true
		known := len(left)
		for _, r := range records {
			for _, tested := range append(slices.Clip(e.leased[p.unit(r)]), r) {
				if slices.ContainsFunc(conflict.Winners, func(w persist.Record) bool { return w.Key == tested.Key }) {
					left[p.unit(r)] = Found{p.Name, tested, "written meanwhile"}
				}
			}
		}
		if len(left) == known {
			return err // the conflict names none of the records
		}
	}
}

// deletion returns the commit that deletes records with their logs. It expects that no record of
// their units was acquired since the pass listed it.
func (e *erasure) deletion(p Part, records []persist.Record) persist.Commit {
	e.commits++
	c := persist.Commit{ID: fmt.Sprintf("%s.%d", e.writer, e.commits)}
	for _, r := range records {
		expired := r.Expired(r.Now)
		c.Writes = append(c.Writes, persist.Write{
			Key: r.Key, Expected: r.Version, Version: r.Version + 1, Deleted: true, Gone: expired, Swept: expired,
			Log: &persist.LogWrite{Clear: true}, Recent: r.Commits,
		})
		if p.leased == nil || p.leased(r) {
			continue
		}
		for _, l := range e.leased[p.unit(r)] {
			if !slices.ContainsFunc(c.Guards, func(g persist.Guard) bool { return g.Key == l.Key }) {
				c.Guards = append(c.Guards, persist.Guard{Key: l.Key, Read: true, Version: l.Version})
			}
		}
	}
	return c
}

// deleted notes that records were deleted, and cleans their logs.
func (e *erasure) deleted(ctx context.Context, p Part, records []persist.Record) error {
	e.report.Deleted += len(records)
	e.progress = true
	for _, r := range records {
		if p.leased != nil && p.leased(r) {
			unit := p.unit(r)
			e.leased[unit] = slices.DeleteFunc(e.leased[unit], func(l persist.Record) bool { return l.Key == r.Key })
		}
		if e.options.Deleted != nil {
			e.options.Deleted(p.Name, r.Key)
		}
		if err := e.cleanLog(ctx, r.Key); err != nil {
			return err
		}
	}
	return nil
}

// cleanLogs cleans the logs of tombstones, which an earlier call may not have done. A tombstone has no
// label and no document to match, and the logs of others lose nothing that counts.
func (e *erasure) cleanLogs(ctx context.Context, p Part) error {
	if _, ok := e.logs.(persist.LogCleaner); !ok {
		return nil
	}
	for _, q := range p.Queries {
		q.Expired, q.Deleted, q.Labels = false, true, nil
		for r, err := range listed(ctx, e.logs, q) {
			if err != nil {
				return err
			}
			if err := e.cleanLog(ctx, r.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *erasure) cleanLog(ctx context.Context, key persist.Key) error {
	if cleaner, ok := e.logs.(persist.LogCleaner); ok {
		return cleaner.CleanLog(ctx, key)
	}
	return nil
}
