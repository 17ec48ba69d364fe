package testkit

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Hints collects the hints of a store. It fails the test if Wake is called by two goroutines at once.
type Hints struct {
	t    testing.TB
	busy atomic.Bool // Wake is running

	mu    sync.Mutex // protects the rest
	hints []persist.Hint
	next  int           // index of the hint that Next returns
	news  chan struct{} // closed with the next hint
}

// NewHints returns an empty collection.
func NewHints(t testing.TB) *Hints { return &Hints{t: t, news: make(chan struct{})} }

// Wake adds a hint.
func (h *Hints) Wake(hint persist.Hint) {
	if h.busy.Swap(true) {
		h.t.Error("wake is called concurrently")
	}
	defer h.busy.Store(false)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hints = append(h.hints, hint)
	close(h.news)
	h.news = make(chan struct{})
}

// All returns the hints since the last Take.
func (h *Hints) All() []persist.Hint {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.hints)
}

// Take returns the hints since the last Take, and forgets them.
func (h *Hints) Take() []persist.Hint {
	h.mu.Lock()
	defer h.mu.Unlock()
	taken := h.hints
	h.hints, h.next = nil, 0
	return taken
}

// Until waits until the hints since the last Take are enough. what names the wanted hints.
func (h *Hints) Until(what string, enough func(hints []persist.Hint) bool) {
	h.t.Helper()
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	for {
		h.mu.Lock()
		done, news := enough(h.hints), h.news
		h.mu.Unlock()
		if done {
			return
		}
		select {
		case <-news:
		case <-timeout.C:
			h.t.Fatalf("no hint within %v: %s", Patience, what)
		}
	}
}

// Of waits for a hint that concerns key: one of key, or the zero hint.
func (h *Hints) Of(key persist.Key) {
	h.t.Helper()
	h.Until(key.String(), func(hints []persist.Hint) bool {
		return slices.ContainsFunc(hints, func(hint persist.Hint) bool { return hint.Key == key || hint == (persist.Hint{}) })
	})
}

// Named waits for a hint of key itself.
func (h *Hints) Named(key persist.Key) {
	h.t.Helper()
	h.Until(key.String()+" by name", func(hints []persist.Hint) bool {
		return slices.ContainsFunc(hints, func(hint persist.Hint) bool { return hint.Key == key })
	})
}

// Next waits for the next hint and returns it. Every hint is returned once.
func (h *Hints) Next() (hint persist.Hint) {
	h.t.Helper()
	h.Until("next", func(hints []persist.Hint) bool {
		if h.next >= len(hints) {
			return false
		}
		hint = hints[h.next]
		h.next++
		return true
	})
	return hint
}

// Watch is a call of a store's Watch in the background, and its hints.
type Watch struct {
	*Hints
	cancel context.CancelFunc
	done   chan struct{} // closed when Watch has returned
	err    error         // result of Watch
}

// StartWatch calls watch in the background. It fails t if the first hint is not the zero hint, or if
// a hint comes after watch has returned. The watch ends with t.
func StartWatch(t testing.TB, watch func(ctx context.Context, wake func(persist.Hint)) error) *Watch {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watch{Hints: NewHints(t), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		var begun, over atomic.Bool
		w.err = watch(ctx, func(hint persist.Hint) {
			if !begun.Swap(true) && hint != (persist.Hint{}) {
				t.Errorf("the first hint is %v, not the zero hint", hint)
			}
			if over.Load() {
				t.Error("wake is called after Watch has returned")
			}
			w.Wake(hint)
		})
		over.Store(true)
	}()
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	return w
}

// NewWatch watches a store, and returns when the first hint has come. That hint is taken.
func NewWatch(t testing.TB, store persist.Watcher) *Watch {
	t.Helper()
	w := StartWatch(t, store.Watch)
	w.Next()
	w.Take()
	return w
}

// Stop ends the watch and returns its error.
func (w *Watch) Stop() error {
	w.t.Helper()
	w.cancel()
	return w.Ended()
}

// Ended waits until the watch has ended and returns its error.
func (w *Watch) Ended() error {
	w.t.Helper()
	Receive(w.t, w.done, "Watch does not return")
	return w.err
}
