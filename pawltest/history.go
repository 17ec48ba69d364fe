package pawltest

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/pawl-go/pawl"
)

// History records calls on one scope and checks that they took effect one after the other: each
// acknowledged write once, on the state that the one before it left, and each call between its
// start and its end. That is linearizability. Checking it needs no search, because the versions of
// the answers say in which order the calls took effect.
//
// Record all writes of the scope from NewHistory to Check. Each must answer with the snapshot that
// it left, as the verbs of a scope do. Acquire, Delete and Transact move versions without such an
// answer, so a History cannot tell them from lost updates. Methods are safe for concurrent use.
type History[T any] struct {
	scope pawl.Scope[T]

	mu      sync.Mutex // protects the rest
	clock   int        // counts starts and ends of calls
	calls   []call[T]  // acknowledged
	unknown []call[T]  // writes whose outcome is unknown, without an answer
}

// call is one call of a history.
type call[T any] struct {
	name       string
	model      func(state T) T // nil: a read
	start, end int             // on the clock of the history
	pawl.Snapshot[T]
}

// text returns the answered state as JSON.
func (c *call[T]) text() string { return text(c.State()) }

// changes reports whether the call is a write that would change the state that it answered.
func (c *call[T]) changes() bool { return c.model != nil && text(c.model(c.State())) != c.text() }

// NewHistory returns a history that starts with the current state of the scope. It fails t if that
// cannot be read.
func NewHistory[T any](t testing.TB, scope pawl.Scope[T]) *History[T] {
	t.Helper()
	start := call[T]{name: "the start", Snapshot: read(t, scope)}
	return &History[T]{scope: scope, calls: []call[T]{start}}
}

// Write records a call that changes the scope. model says what it is meant to do: it returns the
// state that the call makes of a state. It is called during Check, with a copy, and must depend on
// nothing else. name stands in the failures of Check. Write returns the answer of do.
//
// An error means that do changed nothing, except where pawl.OutcomeUnknown says otherwise.
func (h *History[T]) Write(name string, model func(state T) T, do func() (pawl.Snapshot[T], error)) (pawl.Snapshot[T], error) {
	return h.record(call[T]{name: name, model: model}, do)
}

// Read records a call that reads the scope. It returns the answer of do.
func (h *History[T]) Read(name string, do func() (pawl.Snapshot[T], error)) (pawl.Snapshot[T], error) {
	return h.record(call[T]{name: name}, do)
}

func (h *History[T]) record(c call[T], do func() (pawl.Snapshot[T], error)) (pawl.Snapshot[T], error) {
	c.start = h.tick()
	snap, err := do()
	c.end = h.tick()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		c.Snapshot = snap
		h.calls = append(h.calls, c)
	case c.model != nil && pawl.OutcomeUnknown(err):
		h.unknown = append(h.unknown, c)
	}
	return snap, err
}

// tick returns the next moment of the history's clock.
func (h *History[T]) tick() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	return h.clock
}

// Check reads the scope, and fails t unless the calls so far took effect one after the other. Call
// it when all of them have returned. Versions that no answer names are allowed for writes whose
// outcome is unknown, one for each, if their models explain the next state that was answered. More than
// maxSearched of them in a row are counted, but not compared.
func (h *History[T]) Check(t testing.TB) {
	t.Helper()
	if _, err := h.Read("the end", func() (pawl.Snapshot[T], error) { return h.scope.Snapshot(t.Context()) }); err != nil {
		t.Fatalf("pawltest: history of %s: %v", h.scope.Key(), err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.replay(); err != nil {
		t.Fatalf("pawltest: history of %s: %v", h.scope.Key(), err)
	}
}

// replay goes through the calls in the order of their versions.
func (h *History[T]) replay() error {
	first, calls := &h.calls[0], slices.Clone(h.calls)
	slices.SortStableFunc(calls, func(a, b call[T]) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.start, b.start))
	})
	if c := &calls[0]; c.Version < first.Version {
		return fmt.Errorf("%s answered version %d, below version %d at the start", c.name, c.Version, first.Version)
	}
	r := replay[T]{last: first, unknown: h.unknown, left: len(h.unknown)}
	for n := 0; len(calls) > 0; calls = calls[n:] {
		for n = 0; n < len(calls) && calls[n].Version == calls[0].Version; {
			n++
		}
		if err := r.step(calls[:n]); err != nil {
			return err
		}
	}
	return nil
}

// replay is the state of one check.
type replay[T any] struct {
	last    *call[T] // a call that answered the version before
	began   int      // latest start of a call that answered an earlier version
	unknown []call[T]
	left    int // writes of unknown outcome that have not explained a version yet
}

// maxSearched is how many writes of unknown outcome in a row are put in every order.
const maxSearched = 4

// step checks the calls that answered one version: the write that made it, and calls that saw its
// state and changed nothing. They are in the order of their starts.
func (r *replay[T]) step(same []call[T]) error {
	made, err := r.maker(same)
	if err != nil {
		return err
	}
	first := &same[0]
	for i := range same {
		c := &same[i]
		switch {
		case c.text() != first.text():
			return fmt.Errorf("%s and %s answered version %d with two states, %s and %s", first.name, c.name, c.Version, first.text(), c.text())
		case c.end < r.began:
			return fmt.Errorf("%s answered version %d before a call began that answered an earlier version", c.name, c.Version)
		case c != made && c.changes():
			return fmt.Errorf("%s is missing in version %d, which it answered: the state is %s", c.name, c.Version, c.text())
		case made != nil && len(r.unknown) == 0 && c.end < made.start:
			return fmt.Errorf("%s answered version %d before %s began, which made it", c.name, c.Version, made.name)
		}
	}
	for i := range same {
		r.began = max(r.began, same[i].start)
	}
	r.last = first
	return nil
}

// maker returns the write that made the version of the calls. It returns nil for the version at the
// start, and for one that a write of unknown outcome made.
func (r *replay[T]) maker(same []call[T]) (*call[T], error) {
	version, before := same[0].Version, r.last.Version
	if version == before {
		return nil, nil
	}
	missing := version - before - 1
	made := find(same, (*call[T]).changes) // no other call may change the state
	switch {
	case made != nil && !r.follows(same, missing, made):
		return nil, fmt.Errorf("%s made %s of %s at version %d, its model makes %s",
			made.name, made.text(), r.last.text(), version, text(made.model(r.last.State())))
	case made == nil:
		made = find(same, func(c *call[T]) bool { return c.model != nil && r.follows(same, missing, c) })
	}
	if made == nil {
		if missing++; missing <= uint64(r.left) && !r.follows(same, missing, nil) {
			return nil, fmt.Errorf("no write explains %s at version %d, after %s at version %d", same[0].text(), version, r.last.text(), before)
		}
	}
	if missing > uint64(r.left) {
		return nil, fmt.Errorf("of the versions %d to %d, %d belong to no acknowledged write", before+1, version, missing)
	}
	r.left -= int(missing)
	return made, nil
}

// follows reports whether some order of writes of unknown outcome, as many as versions are missing,
// and then made, unless it is nil, leads from the last state to that of the calls.
func (r *replay[T]) follows(same []call[T], missing uint64, made *call[T]) bool {
	if missing > maxSearched || missing > uint64(r.left) {
		return true // too many to try, or to be refused for their number
	}
	end := same[0].end
	for i := range same {
		end = min(end, same[i].end)
	}
	var try func(order []*call[T]) bool
	try = func(order []*call[T]) bool {
		if len(order) == int(missing) {
			state := r.last.State()
			for _, c := range order {
				state = c.model(state)
			}
			if made != nil {
				state = made.model(state)
			}
			return text(state) == same[0].text()
		}
		for i := range r.unknown {
			c := &r.unknown[i]
			if c.start < end && !slices.Contains(order, c) && try(append(slices.Clip(order), c)) {
				return true
			}
		}
		return false
	}
	return try(nil)
}

// find returns the first of the calls for which ok returns true, nil if there is none.
func find[T any](calls []call[T], ok func(*call[T]) bool) *call[T] {
	for i := range calls {
		if ok(&calls[i]) {
			return &calls[i]
		}
	}
	return nil
}
