package hints

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/notify"
	"github.com/pawl-go/pawl/persist"
)

const (
	checkEvery     = 5 * time.Second        // all watched scopes, where hints arrive
	checkEveryDeaf = 250 * time.Millisecond // all watched scopes, where no hints arrive
	rereadEvery    = time.Minute            // although versions have not moved: an expiry may have
	minPause       = 10 * time.Millisecond  // between two batches
	pauseFactor    = 10                     // the pause is this many times as long as the batch took, at most checkEvery
	checkBatch     = 500                    // scopes in one batch
	loadBatch      = 32                     // records in one read
)

// candidate is a dirty scope in a batch.
type candidate struct {
	key    persist.Key
	scope  Scope
	reread bool
}

// check keeps the watched scopes current until ctx ends.
func (h *Hub) check(ctx context.Context, hearing *atomic.Bool, due notify.Signal) {
	failures := 0
	for last, whole := time.Now(), time.Now(); ; {
		every := checkEveryDeaf
		if hearing.Load() {
			every = checkEvery
		}
		if !wait(ctx, due, time.Until(last.Add(every))) {
			return
		}
		// Also while scopes are dirty: one that fails again and again must not keep the rest from being checked.
		if time.Since(last) >= every {
			last = time.Now()
			all := last.Sub(whole) >= rereadEvery
			if all {
				whole = last
			}
			h.markAll(all)
		}
		began := time.Now()
		more, err := h.checkSome(ctx)
		pause := min(max(minPause, pauseFactor*time.Since(began)), checkEvery)
		if failures++; err == nil {
			failures = 0
		} else {
			pause = max(pause, h.config.Backoff(failures))
		}
		if !more {
			continue
		}
		if !commit.Sleep(ctx, pause) {
			return
		}
		due.Set()
	}
}

// wait returns when due is set or d has passed. It reports false when ctx has ended.
func wait(ctx context.Context, due notify.Signal, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-due:
	case <-timer.C:
	}
	return true
}

// markAll makes all watched scopes dirty, because a hint may have been lost.
func (h *Hub) markAll(reread bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.watched {
		w.dirty, w.reread = true, w.reread || reread
	}
}

// checkSome checks a batch of dirty scopes, and reports whether there may be more. Scopes that could
// not be read stay dirty.
func (h *Hub) checkSome(ctx context.Context) (more bool, err error) {
	some := h.takeDirty()
	if len(some) == 0 {
		return false, nil
	}
	failed := some
	err = caught(func() (err error) {
		failed, err = h.refresh(ctx, some)
		return err
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range failed {
		if w := h.watched[s.key]; w != nil {
			w.dirty, w.reread = true, w.reread || s.reread
		}
	}
	return true, err
}

// takeDirty returns a batch of dirty scopes, which count as clean from then on.
func (h *Hub) takeDirty() (some []candidate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, w := range h.watched {
		if !w.dirty {
			continue
		}
		some = append(some, candidate{key, w.scope, w.reread})
		w.dirty, w.reread = false, false
		if len(some) == checkBatch {
			break
		}
	}
	return some
}

// refresh reads the scopes whose version has moved. It returns those that could not be read, with an
// error.
func (h *Hub) refresh(ctx context.Context, some []candidate) (failed []candidate, err error) {
	for some = h.moved(ctx, some); len(some) > 0; {
		batch := some[:min(len(some), loadBatch)]
		some = some[len(batch):]
		bad, why := h.read(ctx, batch)
		if failed = append(failed, bad...); why != nil {
			err = why
		}
		if len(bad) == len(batch) { // the store fails, not a record
			return append(failed, some...), err
		}
	}
	return failed, err
}

// moved returns the scopes that have to be read, as far as the store can tell.
func (h *Hub) moved(ctx context.Context, some []candidate) (out []candidate) {
	prober, ok := h.config.Store.(persist.Prober)
	if !ok || len(some) == 1 {
		return some
	}
	limited, cancel := context.WithTimeout(ctx, h.config.Timeout)
	defer cancel()
	versions, err := prober.Versions(limited, keysOf(some))
	if err != nil {
		return some // reading them shows which one fails
	}
	for i, s := range some {
		version, absent, known := s.scope.Seen()
		if s.reread || !known || versions[i] > version || versions[i] == 0 && !absent {
			out = append(out, s)
		}
	}
	return out
}

// read reads all of some, one by one if they fail together. It returns those that could not be read,
// with an error. Each call of the store has a time limit of its own, so a record that hangs leaves
// time for the others.
func (h *Hub) read(ctx context.Context, some []candidate) (failed []candidate, err error) {
	limited, cancel := context.WithTimeout(ctx, h.config.Timeout)
	defer cancel()
	records, err := h.config.Load(limited, keysOf(some))
	if err == nil {
		for i, r := range records {
			some[i].scope.Adopt(r)
		}
		return nil, nil
	}
	if len(some) == 1 {
		return some, err
	}
	for i := range some {
		bad, _ := h.read(ctx, some[i:i+1])
		failed = append(failed, bad...)
	}
	return failed, err
}

func keysOf(some []candidate) []persist.Key {
	keys := make([]persist.Key, len(some))
	for i, s := range some {
		keys[i] = s.key
	}
	return keys
}

// caught runs fn, which calls the store, and returns a panic of it as an error.
func caught(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("pawl: the store panicked: %v\n\n%s", v, debug.Stack())
		}
	}()
	return fn()
}
