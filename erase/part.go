package erase

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/persist"
)

// Part selects records that belong to a user or tenant, for [List] and [Erase].
type Part struct {
	// Name is shown in listings.
	Name string
	// Queries select the records. They are deleted in the order of the queries. Each query has a Kind,
	// and a Prefix, From or Labels unless Match is set. After, Limit, Expired and Deleted are not used.
	Queries []persist.Query
	// Match selects among the records of Queries; nil: all. It gets tombstones too, which have no
	// document.
	Match func(persist.Record) bool
	// Unit returns a name that is the same for records that are deleted or left together, such as a run
	// and its signals; nil: each record is a unit.
	Unit func(persist.Record) string
	// Busy returns why a record is left for now, "" if it can be deleted; nil: it always can. A record
	// with a live lease is left in any case.
	Busy func(persist.Record) string

	// leased selects the records of a unit that workers acquire, if others of the unit are deleted before
	// them; nil: none.
	leased func(persist.Record) bool
}

// Labeled returns the part of the records of a kind that have one of the labels.
func Labeled(kind string, labels ...string) Part {
	return Part{Name: kind, Queries: []persist.Query{{Kind: kind, Labels: labels}}}
}

// Subject says which names a user or tenant has in a store.
type Subject struct {
	// IDs are whole ids of scopes, streams, runs, batch jobs, and of the entities of after-effects.
	IDs []string
	// Prefixes are what such ids start with. A prefix usually ends with a separator: "ann" is also the
	// start of "anna".
	Prefixes []string
	// Workspaces are those of runs; see run.InWorkspace.
	Workspaces []string
	// Principals are those of idempotency records; see idempotency.Config.Principal.
	Principals []string
}

// check returns *pawl.ArgumentError if s selects nothing, or everything.
func (s Subject) check() error {
	all := slices.Concat(s.IDs, s.Prefixes, s.Workspaces, s.Principals)
	if len(all) == 0 {
		return &pawl.ArgumentError{Argument: "Subject", Reason: "empty"}
	}
	for _, name := range all {
		if name == "" || !utf8.ValidString(name) || strings.Contains(name, "\x00") {
			return &pawl.ArgumentError{Argument: "Subject", Reason: fmt.Sprintf("%q is no name: it is empty, not UTF-8, or contains U+0000", name)}
		}
	}
	return nil
}

// has reports whether an id belongs to s.
func (s Subject) has(id string) bool {
	return slices.Contains(s.IDs, id) || slices.ContainsFunc(s.Prefixes, func(p string) bool { return strings.HasPrefix(id, p) })
}

// Parts returns the parts of a store that belong to a subject: those of the given kinds, or of all
// kinds without any. Kinds that a layer keeps beside another one, such as "run.signal", come with it.
// It returns *pawl.ArgumentError for a subject without names or with one that no record can have, and the errors of
// the store.
func Parts(ctx context.Context, store persist.Store, s Subject, kinds ...string) ([]Part, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	stored, err := kindsOf(ctx, store)
	if err != nil {
		return nil, fmt.Errorf("erase: list the kinds: %w", err)
	}
	wanted := stored
	if len(kinds) > 0 {
		wanted = kinds
	}
	var parts []Part
	for _, kind := range bases(wanted) {
		if p := s.part(kind, stored); len(p.Queries) > 0 {
			parts = append(parts, p)
		}
	}
	return parts, nil
}

// kindsOf returns the names of the kinds of a store. It reads all records of a store that is no
// persist.Describer.
func kindsOf(ctx context.Context, store persist.Store) (kinds []string, err error) {
	if describer, ok := store.(persist.Describer); ok {
		d, err := describer.Describe(ctx)
		if !errors.Is(err, persist.ErrUnsupported) {
			for _, k := range d.Kinds {
				kinds = append(kinds, k.Kind)
			}
			return kinds, err
		}
	}
	for _, q := range []persist.Query{{}, {Expired: true}, {Deleted: true}} {
		for r, err := range listed(ctx, store, q) {
			if err != nil {
				return nil, err
			}
			if !slices.Contains(kinds, r.Kind) {
				kinds = append(kinds, r.Kind)
			}
		}
	}
	slices.Sort(kinds)
	return kinds, nil
}

// The kinds of the layers. The tests of this package write with the layers and compare.
const (
	runKind        = "run"
	signalKind     = "run.signal"
	effectKind     = "machine.effect"
	batchPrefix    = "batch."
	itemSuffix     = ".item"
	positionSuffix = ".position"
	snapshotSuffix = ".snapshot"
	cursorSuffix   = ".cursor"
	cursorID       = "routed" // how far reactions have read the log: it names no stream
)

// bases returns the kinds that have a part, each once: the kinds that a layer keeps beside another one
// stand for that one.
func bases(kinds []string) (names []string) {
	for _, kind := range kinds {
		switch {
		case persist.IsLogKind(kind):
			continue
		case kind == signalKind:
			kind = runKind
		case strings.HasPrefix(kind, batchPrefix):
			kind = strings.TrimSuffix(kind, itemSuffix)
		default:
			kind = strings.TrimSuffix(strings.TrimSuffix(kind, positionSuffix), snapshotSuffix)
		}
		if kind != "" && !slices.Contains(names, kind) {
			names = append(names, kind)
		}
	}
	return names
}

// part returns the part of a kind that belongs to s, without queries if there is none.
func (s Subject) part(kind string, stored []string) Part {
	p := Part{Name: kind}
	switch {
	case kind == idempotency.Kind:
		for _, principal := range s.Principals {
			p.Queries = append(p.Queries, persist.Query{Kind: kind, Prefix: idempotency.IDPrefix(principal)})
		}
	case kind == runKind:
		s.runs(&p)
	case kind == effectKind:
		if len(s.IDs)+len(s.Prefixes) > 0 {
			p.Queries = []persist.Query{{Kind: kind}}
			p.Match = func(r persist.Record) bool { return s.has(text(r, "entity")) }
		}
	case strings.HasPrefix(kind, batchPrefix):
		s.batches(&p)
	case slices.Contains(stored, kind+positionSuffix) || slices.Contains(stored, kind+snapshotSuffix):
		s.streams(&p)
	default:
		p.Queries = s.queries(kind)
		if strings.HasSuffix(kind, cursorSuffix) {
			p.Match = func(r persist.Record) bool { return r.ID != cursorID }
		}
	}
	return p
}

// queries select the records of a kind whose ids belong to s.
func (s Subject) queries(kind string) (all []persist.Query) {
	for _, prefix := range s.Prefixes {
		all = append(all, persist.Query{Kind: kind, Prefix: prefix})
	}
	for _, id := range s.IDs {
		// No id contains U+0000, so there is none between the two.
		all = append(all, persist.Query{Kind: kind, From: id, Before: id + "\x01"})
	}
	return all
}

// runs selects runs, and then their signals. The id of a run is that of its workspace, a slash and a
// name without one.
func (s Subject) runs(p *Part) {
	for _, workspace := range s.Workspaces {
		s.Prefixes = append(slices.Clip(s.Prefixes), url.QueryEscape(workspace)+"/")
	}
	p.Queries = s.queries(runKind)
	for _, prefix := range s.Prefixes {
		p.Queries = append(p.Queries, persist.Query{Kind: signalKind, Prefix: prefix})
	}
	for _, id := range s.IDs {
		p.Queries = append(p.Queries, persist.Query{Kind: signalKind, Prefix: id + "/"})
	}
	p.Unit = func(r persist.Record) string {
		parts := strings.SplitN(r.ID, "/", 3)
		return strings.Join(parts[:min(2, len(parts))], "/")
	}
	p.Match = func(r persist.Record) bool { return r.Kind == runKind || s.has(p.Unit(r)) }
}

// batches selects the jobs of a batch queue, and then their items. What an unfinished job has made and
// charged is known to its records only, so it is left until it was canceled.
func (s Subject) batches(p *Part) {
	jobs, items := p.Name, p.Name+itemSuffix
	p.Queries = s.queries(jobs)
	for _, prefix := range s.Prefixes {
		p.Queries = append(p.Queries, persist.Query{Kind: items, Prefix: url.QueryEscape(prefix)})
	}
	for _, id := range s.IDs {
		p.Queries = append(p.Queries, persist.Query{Kind: items, Prefix: url.QueryEscape(id) + "/"})
	}
	p.Unit = func(r persist.Record) string {
		if r.Kind == jobs {
			return r.ID
		}
		job, err := url.QueryUnescape(r.ID[:max(strings.LastIndexByte(r.ID, '/'), 0)])
		if err != nil {
			return r.ID
		}
		return job
	}
	p.Busy = func(r persist.Record) string {
		if status := batch.Status(r.Label); r.Kind == jobs && !status.Final() {
			return fmt.Sprintf("job is %s: cancel it first, so that it is refunded and its artifacts are removed", status)
		}
		return ""
	}
}

// streams selects the heads of streams, whose events go with them, then the positions of reactions
// and the snapshots. A stream that stays keeps its positions: without them, reactions would handle
// its events again. Positions and snapshots name their stream, because their ids may have a hash in
// its place.
func (s Subject) streams(p *Part) {
	p.Queries = s.queries(p.Name)
	for _, kind := range []string{p.Name + positionSuffix, p.Name + snapshotSuffix} {
		for _, start := range slices.Concat(s.Prefixes, s.IDs, []string{"#"}) {
			if len(s.IDs)+len(s.Prefixes) > 0 {
				p.Queries = append(p.Queries, persist.Query{Kind: kind, Prefix: start})
			}
		}
	}
	head := p.Name
	p.leased = func(r persist.Record) bool { return r.Kind == head+positionSuffix }
	p.Unit = func(r persist.Record) string {
		if r.Kind == head {
			return r.ID
		}
		return streamOf(r)
	}
	p.Match = func(r persist.Record) bool { return r.Kind == head || s.has(streamOf(r)) }
}

// streamOf returns the stream of a position or a snapshot, and the id of a record that is neither.
func streamOf(r persist.Record) string {
	name := text(r, "stream")
	if name != "" && (strings.HasPrefix(r.ID, name+"/") || strings.HasPrefix(r.ID, "#")) {
		return name
	}
	if i := strings.LastIndexByte(r.ID, '/'); i >= 0 && text(r, "life") != "" { // a snapshot of an older release
		return r.ID[:i]
	}
	return r.ID
}

// text returns a field of the document of r, "" if there is none.
func text(r persist.Record, name string) string {
	var fields map[string]any
	_ = json.Unmarshal(r.Doc, &fields) // a document of another form has no such field
	value, _ := fields[name].(string)
	return value
}
