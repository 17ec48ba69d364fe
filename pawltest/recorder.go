package pawltest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
)

// Recorder is a pawl.Observer that keeps events. The zero value is ready to use:
//
//	var events pawltest.Recorder
//	rt, err := pawl.Open(pawl.Config{Store: store, Observer: &events})
type Recorder struct {
	mu     sync.Mutex // protects the rest
	events []pawl.Event
	news   chan struct{} // closed with the next event; nil: no caller waits
}

// Observe implements pawl.Observer.
func (r *Recorder) Observe(_ context.Context, e pawl.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	if r.news != nil {
		close(r.news)
		r.news = nil
	}
}

// Events returns the events so far, in the order in which they were observed.
func (r *Recorder) Events() []pawl.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Count returns the number of events of a type so far.
func (r *Recorder) Count(typ pawl.EventType) int {
	n := 0
	for _, e := range r.Events() {
		if e.Type == typ {
			n++
		}
	}
	return n
}

// Reset forgets the events so far.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = nil
}

// Wait returns the first event of a type since Reset. If there is none yet, it waits for one, and
// fails t after 30 seconds.
func (r *Recorder) Wait(t testing.TB, typ pawl.EventType) pawl.Event {
	t.Helper()
	return r.WaitFor(t, typ.String(), func(e pawl.Event) bool { return e.Type == typ })
}

// WaitFor is Wait for the first event that match accepts. what names it in the failure.
func (r *Recorder) WaitFor(t testing.TB, what string, match func(e pawl.Event) bool) pawl.Event {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		events, news := r.soFar()
		if i := slices.IndexFunc(events, match); i >= 0 {
			return events[i]
		}
		select {
		case <-news:
		case <-timeout.C:
			t.Fatalf("pawltest: no event within %v: %s; events so far: %s", patience, what, r)
		}
	}
}

// soFar returns the events so far, and a channel that is closed with the next one.
func (r *Recorder) soFar() ([]pawl.Event, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.news == nil {
		r.news = make(chan struct{})
	}
	return slices.Clone(r.events), r.news
}

// String lists the events so far, one name and scope each.
func (r *Recorder) String() string {
	var list []string
	for _, e := range r.Events() {
		list = append(list, fmt.Sprintf("%s %s", e.Type, e.Key))
	}
	return "[" + strings.Join(list, ", ") + "]"
}
