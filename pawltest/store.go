package pawltest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/relay"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// Store is a persist.Store in front of another one, with faults. It implements every optional
// interface of package persist. Where the store behind it lacks one, Pawl works as without it. All
// methods are safe for concurrent use.
//
// Faults apply to commits that write a document. A commit of guards alone passes: it renews or
// releases a lease, or confirms what a transaction read. An outage (Down) applies to all calls.
//
// Two runtimes on one Store behave like two processes. A runtime on Below is a process that the
// faults do not reach.
type Store struct {
	*passing

	mu      sync.Mutex    // protects the fields below
	queue   []Fault       // of the next commits; nil: none
	every   Fault         // of the commits after those; nil: none
	down    chan struct{} // closed by Down; a new one by Up
	commits int
}

// passing passes calls on. It is not exported with Store.
type passing = relay.Store

// NewStore returns an empty store in memory.
func NewStore() *Store { return Wrap(memory.New()) }

// Wrap returns a Store in front of below. Close closes below.
func Wrap(below persist.Store) *Store {
	s := &Store{down: make(chan struct{})}
	s.passing = relay.New(below, s.around)
	return s
}

// Below returns the store behind the faults.
func (s *Store) Below() persist.Store { return s.passing.Below() }

// Next adds faults: each of the next commits takes one, in order. Nil lets a commit pass.
func (s *Store) Next(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, faults...)
}

// Nth sets the fault of one commit: the next one is 1, the one after it is 2. It panics if n is below 1.
func (s *Store) Nth(n int, f Fault) {
	if n < 1 {
		panic(fmt.Sprintf("pawltest: commit %d is in the past; the next one is 1", n))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) < n {
		s.queue = append(s.queue, nil)
	}
	s.queue[n-1] = f
}

// Every sets the fault of all commits that Next and Nth do not name. Nil ends that.
func (s *Store) Every(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.every = f
}

// errDown promises that nothing was written.
var errDown = fmt.Errorf("%w: %w: pawltest: outage", persist.ErrUnavailable, persist.ErrNotApplied)

// Down starts an outage. Until Up, every call except Close returns an error that wraps
// persist.ErrUnavailable and persist.ErrNotApplied, and writes nothing. Watches end. A call that is
// in progress goes on: see LostAnswer for a commit that is cut off.
func (s *Store) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isDown() {
		close(s.down)
	}
}

// Up ends an outage.
func (s *Store) Up() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isDown() {
		s.down = make(chan struct{})
	}
}

// isDown reports whether there is an outage. The caller holds s.mu.
func (s *Store) isDown() bool {
	select {
	case <-s.down:
		return true
	default:
		return false
	}
}

// Commits returns the number of commits with a write that have arrived, also of those that failed.
// Pawl sends a commit again that lost, or whose answer was lost.
func (s *Store) Commits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

// EndLease ends the live lease of key in the store, behind the back of its holder. The holder
// notices it with its next commit, or with the next renewal, which comes after a third of the
// lease. EndLease fails t if there is no live lease.
func (s *Store) EndLease(t testing.TB, key pawl.Key) {
	t.Helper()
	r, err := s.Below().Load(t.Context(), key)
	switch {
	case err != nil:
		t.Fatalf("pawltest: end lease of %s: %v", key, err)
	case !r.Held(r.Now):
		t.Fatalf("pawltest: end lease of %s: no live lease", key)
	}
	_, err = s.Below().Commit(t.Context(), persist.Commit{
		ID:     newCommitID(),
		Guards: []persist.Guard{{Key: key, Token: r.Lease.Token, Release: true}},
	})
	if err != nil {
		t.Fatalf("pawltest: end lease of %s: %v", key, err)
	}
}

// around is the hook of all calls.
func (s *Store) around(ctx context.Context, call relay.Call, next func(context.Context) error) error {
	s.mu.Lock()
	down, isDown := s.down, s.isDown()
	var fault Fault
	if call.Commit != nil && len(call.Commit.Writes) > 0 {
		s.commits++
		if !isDown {
			fault = s.nextFault()
		}
	}
	s.mu.Unlock()
	switch {
	case isDown:
		return errDown
	case call.Method == "Watch":
		return watchUntil(ctx, down, next)
	case fault != nil:
		return fault(ctx, s, *call.Commit, func() error { return next(ctx) })
	}
	return next(ctx)
}

// nextFault returns the fault of a commit, nil if there is none. The caller holds s.mu.
func (s *Store) nextFault() Fault {
	if len(s.queue) == 0 {
		return s.every
	}
	f := s.queue[0]
	s.queue = s.queue[1:]
	return f
}

// watchUntil watches until the outage that down stands for.
func watchUntil(ctx context.Context, down <-chan struct{}, watch func(context.Context) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	defer func() { <-ended }()
	defer cancel(nil)
	go func() {
		defer close(ended)
		select {
		case <-down:
			cancel(errDown)
		case <-inner.Done():
		}
	}()
	err := watch(inner)
	if ctx.Err() == nil && errors.Is(context.Cause(inner), errDown) {
		return errDown
	}
	return err
}
