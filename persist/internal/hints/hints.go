// Package hints hands the hints of a store to those who watch it, each at its own pace, as
// persist.Watcher asks for.
//
// Sending never waits. What a watcher has not been told yet is kept for it, one hint per key, and if
// that is too much, as the zero hint alone.
package hints

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/pawl-go/pawl/persist"
)

// most is how many keys are kept for a watcher before they become the zero hint.
const most = 1024

// Hub sends hints to everybody who has subscribed. The zero value is ready to use.
type Hub struct {
	count atomic.Int64 // of subscriptions, so that sending to nobody costs next to nothing

	mu            sync.Mutex // protects what follows
	closed        bool
	subscriptions map[*Subscription]struct{}
}

// Watched reports whether anybody has subscribed. Whoever asks after a change can be seen need not
// send it if not: those who subscribe later begin with the zero hint, and see it.
func (h *Hub) Watched() bool { return h.count.Load() > 0 }

// Send sends hints to all subscriptions. They must be sent after what they tell of can be seen. It
// does not wait.
func (h *Hub) Send(hints ...persist.Hint) {
	if len(hints) == 0 || !h.Watched() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subscriptions {
		s.Send(hints...)
	}
}

// Subscribe begins to keep hints for one watcher, until its End. A closed hub keeps none.
func (h *Hub) Subscribe() *Subscription {
	s := &Subscription{hub: h, ready: make(chan struct{}, 1), done: make(chan struct{})}
	s.Send(persist.Hint{})
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		close(s.done)
		return s
	}
	if h.subscriptions == nil {
		h.subscriptions = make(map[*Subscription]struct{})
	}
	h.subscriptions[s] = struct{}{}
	h.count.Add(1)
	return s
}

// Watch is persist.Watcher.Watch for a store all of whose changes are sent to the hub: it subscribes
// and delivers. It returns ctx's error when that ends, and persist.ErrClosed after Close.
func (h *Hub) Watch(ctx context.Context, wake func(persist.Hint)) error {
	s := h.Subscribe()
	defer s.End()
	return s.Deliver(ctx, wake)
}

// Close lets every Deliver, also a later one, return persist.ErrClosed. It does not wait for them.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	for s := range h.subscriptions {
		close(s.done)
	}
	h.count.Add(-int64(len(h.subscriptions)))
	h.subscriptions = nil
}

// Subscription is what is kept for one watcher.
type Subscription struct {
	hub   *Hub
	ready chan struct{} // has an element when there may be something to deliver
	done  chan struct{} // closed with the hub

	mu       sync.Mutex // protects what follows
	any      bool       // the zero hint is to be delivered, which says it all
	order    []persist.Key
	versions map[persist.Key]uint64 // of the keys in order; 0: not told
}

// Send sends hints to this watcher only, from a source of its own. It does not wait.
//
// Two hints of one key become one. If one of them does not tell the version, neither does that one:
// a watcher that knows the version which the other tells would take it for old news.
func (s *Subscription) Send(hints ...persist.Hint) {
	s.mu.Lock()
	for _, hint := range hints {
		if s.any {
			break
		}
		known, pending := s.versions[hint.Key]
		switch {
		case hint.Key == persist.Key{} || !pending && len(s.order) == most:
			s.any, s.order, s.versions = true, nil, nil
		case !pending:
			if s.versions == nil {
				s.versions = make(map[persist.Key]uint64)
			}
			s.order = append(s.order, hint.Key)
			s.versions[hint.Key] = hint.Version
		case known == 0 || hint.Version == 0:
			s.versions[hint.Key] = 0
		default:
			s.versions[hint.Key] = max(known, hint.Version)
		}
	}
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Deliver calls wake for what was sent, in the order of the first hints of the keys, and begins with
// the zero hint. It returns ctx's error when that ends, and persist.ErrClosed when the hub is closed.
func (s *Subscription) Deliver(ctx context.Context, wake func(persist.Hint)) error {
	for {
		for _, hint := range s.take() {
			if err := s.ended(ctx); err != nil {
				return err
			}
			wake(hint)
		}
		select {
		case <-ctx.Done():
		case <-s.done:
		case <-s.ready:
		}
		if err := s.ended(ctx); err != nil {
			return err
		}
	}
}

// ended returns why nothing more is to be delivered, or nil.
func (s *Subscription) ended(ctx context.Context) error {
	select {
	case <-s.done:
		return persist.ErrClosed
	default:
		return ctx.Err()
	}
}

// take returns what is kept, and keeps it no longer.
func (s *Subscription) take() []persist.Hint {
	s.mu.Lock()
	defer s.mu.Unlock()
	hints := make([]persist.Hint, 0, len(s.order)+1)
	if s.any {
		hints = append(hints, persist.Hint{})
	}
	for _, key := range s.order {
		hints = append(hints, persist.Hint{Key: key, Version: s.versions[key]})
	}
	s.any, s.order, s.versions = false, nil, nil
	return hints
}

// End ends the subscription.
func (s *Subscription) End() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if _, ok := s.hub.subscriptions[s]; ok {
		delete(s.hub.subscriptions, s)
		s.hub.count.Add(-1)
	}
}

// Of returns the hint for a record that a commit has turned from before into after, and false if
// the change calls for none: a lease or an expiry was put off. A released lease moves no version, so
// that its hint does not tell one.
func Of(before, after persist.Record) (persist.Hint, bool) {
	switch {
	case after.Version != before.Version: // an absent record has the floor, which is below
		return persist.Hint{Key: after.Key, Version: after.Version}, true
	case before.Lease.Token != 0 && after.Lease.Token == 0:
		return persist.Hint{Key: after.Key}, true
	}
	return persist.Hint{}, false
}
