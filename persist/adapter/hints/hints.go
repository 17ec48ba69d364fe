// Package hints sends the hints of a store to its watchers. It implements persist.Watcher.
//
// Sending never waits. The hub keeps one hint per key for a watcher that is busy. Above a limit of
// keys it keeps only the zero hint, which stands for all of them.
package hints

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/pawl-go/pawl/persist"
)

// Most is the limit of keys kept for one watcher.
const Most = 1024

// Hub sends hints to all subscriptions. The zero value is ready to use.
type Hub struct {
	count atomic.Int64 // the number of subscriptions; Send returns early without any

	mu            sync.Mutex // protects the fields below
	closed        bool
	subscriptions map[*Subscription]struct{}
}

// Watched reports whether there is a subscription. If it is false after a change became visible,
// the change need not be sent: a later subscription starts with the zero hint.
func (h *Hub) Watched() bool { return h.count.Load() > 0 }

// Send sends hints to all subscriptions and does not wait. The caller sends a hint after the change
// is visible to readers.
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

// Subscribe returns a new subscription with the zero hint in it. The hub keeps hints for it until
// End. A closed hub keeps none.
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

// Watch is persist.Watcher.Watch for a store that sends all changes to the hub. It returns ctx's
// error when ctx ends, and persist.ErrClosed after Close.
func (h *Hub) Watch(ctx context.Context, wake func(persist.Hint)) error {
	s := h.Subscribe()
	defer s.End()
	return s.Deliver(ctx, wake)
}

// Close makes every current and later Deliver return persist.ErrClosed. It does not wait for them.
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

// Subscription holds the hints for one watcher.
type Subscription struct {
	hub   *Hub
	ready chan struct{} // has an element when there may be hints to deliver
	done  chan struct{} // closed with the hub

	mu      sync.Mutex // protects pending
	pending Pending
}

// Send sends hints to this subscription only and does not wait.
func (s *Subscription) Send(hints ...persist.Hint) {
	s.mu.Lock()
	s.pending.Add(hints...)
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// Deliver calls wake for each hint, starting with the zero hint. Keys are in the order of their
// first hint. It returns ctx's error when ctx ends, and persist.ErrClosed when the hub is closed.
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

// ended returns the error that ends Deliver, nil if there is none.
func (s *Subscription) ended(ctx context.Context) error {
	select {
	case <-s.done:
		return persist.ErrClosed
	default:
		return ctx.Err()
	}
}

// take removes the pending hints and returns them.
func (s *Subscription) take() []persist.Hint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending.Take()
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

// Pending are hints that wait to be delivered, at most one for each key. Above [Most] keys only the zero
// hint is left, which stands for all of them. The zero value is empty. It is not for concurrent use.
type Pending struct {
	any      bool                   // the zero hint; order and versions are empty then
	order    []persist.Key          // in order of arrival
	versions map[persist.Key]uint64 // of the keys in order; 0: not known
}

// Add adds hints. Two hints of one key are merged into one. If one of them has no version, the merged
// hint has none: a watcher that already has the version of the other hint would ignore it.
func (p *Pending) Add(hints ...persist.Hint) {
	for _, hint := range hints {
		if p.any {
			return
		}
		known, pending := p.versions[hint.Key]
		switch {
		case hint.Key == persist.Key{} || !pending && len(p.order) == Most:
			*p = Pending{any: true}
		case !pending:
			if p.versions == nil {
				p.versions = make(map[persist.Key]uint64)
			}
			p.order = append(p.order, hint.Key)
			p.versions[hint.Key] = hint.Version
		case known == 0 || hint.Version == 0:
			p.versions[hint.Key] = 0
		default:
			p.versions[hint.Key] = max(known, hint.Version)
		}
	}
}

// Take removes and returns the hints, in the order of their first arrival.
func (p *Pending) Take() []persist.Hint {
	hints := make([]persist.Hint, 0, len(p.order)+1)
	if p.any {
		hints = append(hints, persist.Hint{})
	}
	for _, key := range p.order {
		hints = append(hints, persist.Hint{Key: key, Version: p.versions[key]})
	}
	*p = Pending{}
	return hints
}

// Of returns the hint for a commit that replaced the record before by after. It returns false for a
// change that needs no hint: a lease was renewed, or an expiry put off. The release of a lease moves no version,
// so its hint has none.
func Of(before, after persist.Record) (persist.Hint, bool) {
	switch {
	case after.Version != before.Version: // that of an absent record is the floor, which is below
		return persist.Hint{Key: after.Key, Version: after.Version}, true
	case before.Lease.Token != 0 && after.Lease.Token == 0:
		return persist.Hint{Key: after.Key}, true
	}
	return persist.Hint{}, false
}
