package stores

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/relay"
	"github.com/pawl-go/pawl/persist"
)

// Tap is a store in front of another one. It counts calls, and functions of the test can delay,
// replace or refuse them. It has the optional methods of relay.Store except those of persist.Native,
// persist.Restorer and persist.LogRestorer.
type Tap struct {
	persist.Store
	// Loads counts calls of Load and LoadAll.
	Loads atomic.Int64
	// Commits counts calls of Commit.
	Commits atomic.Int64

	mu           sync.Mutex // protects the rest
	beforeLoad   func(context.Context, ...persist.Key) error
	beforeCommit func(context.Context, persist.Commit) error
	aroundCommit func(persist.Commit, func() (time.Time, error)) (time.Time, error)
	afterCommit  func(persist.Commit, time.Time, error) (time.Time, error)
	relay        *relay.Store // nil: not used yet
}

// OnLoad makes f run before each Load and LoadAll. An error of f is returned instead. Nil removes f.
func (s *Tap) OnLoad(f func(ctx context.Context, keys ...persist.Key) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beforeLoad = f
}

// OnCommit makes f run before each commit. An error of f is returned instead. Nil removes f.
func (s *Tap) OnCommit(f func(context.Context, persist.Commit) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beforeCommit = f
}

// Refuse makes commits fail with persist.ErrUnavailable for which the function returns true, in place
// of the function of OnCommit. Nil lets all commits pass.
func (s *Tap) Refuse(which func(persist.Commit) bool) {
	if which == nil {
		s.OnCommit(nil)
		return
	}
	s.OnCommit(func(_ context.Context, c persist.Commit) error {
		if which(c) {
			return fmt.Errorf("%w: refused by the test", persist.ErrUnavailable)
		}
		return nil
	})
}

// RefuseAll makes every commit fail with persist.ErrUnavailable. Refuse(nil) ends that.
func (s *Tap) RefuseAll() { s.Refuse(func(persist.Commit) bool { return true }) }

// OnCommitted makes f run after each commit that reached the store. f gets the answer and returns
// the one for the caller. Nil removes f.
func (s *Tap) OnCommitted(f func(c persist.Commit, at time.Time, err error) (time.Time, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.afterCommit = f
}

// Around makes f run in place of each commit. f calls commit to reach the store, as often as it
// likes, and returns the answer for the caller. Nil removes f.
func (s *Tap) Around(f func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aroundCommit = f
}

// Hold blocks the next commit until release is called. entered is closed when it has arrived.
func (s *Tap) Hold() (entered <-chan struct{}, release func()) {
	in, out := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.OnCommit(func(context.Context, persist.Commit) error {
		once.Do(func() {
			close(in)
			<-out
		})
		return nil
	})
	return in, func() { close(out) }
}

// Load implements persist.Store.
func (s *Tap) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if err := s.loading(ctx, key); err != nil {
		return persist.Record{}, err
	}
	return s.Store.Load(ctx, key)
}

// loading counts a call and runs the function of OnLoad.
func (s *Tap) loading(ctx context.Context, keys ...persist.Key) error {
	s.Loads.Add(1)
	s.mu.Lock()
	before := s.beforeLoad
	s.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(ctx, keys...)
}

// Commit implements persist.Store.
func (s *Tap) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	s.Commits.Add(1)
	s.mu.Lock()
	before, around, after := s.beforeCommit, s.aroundCommit, s.afterCommit
	s.mu.Unlock()
	if before != nil {
		if err := before(ctx, c); err != nil {
			return time.Time{}, err
		}
	}
	commit := func() (time.Time, error) { return s.below().Commit(ctx, c) }
	var at time.Time
	var err error
	if around != nil {
		at, err = around(c, commit)
	} else {
		at, err = commit()
	}
	if after != nil {
		return after(c, at, err)
	}
	return at, err
}

// LoadAll implements persist.Reader.
func (s *Tap) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	if err := s.loading(ctx, keys...); err != nil {
		return nil, err
	}
	return s.below().LoadAll(ctx, keys)
}

// below returns the store below with all optional methods.
func (s *Tap) below() *relay.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.relay == nil {
		s.relay = relay.New(s.Store, nil)
	}
	return s.relay
}

// ReadLog implements persist.Logger.
func (s *Tap) ReadLog(ctx context.Context, q persist.LogQuery) ([]persist.LogEntry, error) {
	return s.below().ReadLog(ctx, q)
}

// ReadOrder implements persist.Logger.
func (s *Tap) ReadOrder(ctx context.Context, q persist.OrderQuery) ([]persist.LogEntry, error) {
	return s.below().ReadOrder(ctx, q)
}

// LastPosition implements persist.Logger.
func (s *Tap) LastPosition(ctx context.Context) (uint64, error) { return s.below().LastPosition(ctx) }

// Take implements persist.Leaser.
func (s *Tap) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	return s.below().Take(ctx, q, a, change)
}

// Purge implements persist.Purger.
func (s *Tap) Purge(ctx context.Context, q persist.Query) (int, error) {
	return s.below().Purge(ctx, q)
}

// Watch implements persist.Watcher.
func (s *Tap) Watch(ctx context.Context, wake func(persist.Hint)) error {
	return s.below().Watch(ctx, wake)
}

// Versions implements persist.Prober.
func (s *Tap) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	return s.below().Versions(ctx, keys)
}

// Bare hides the optional methods of a store.
type Bare struct{ persist.Store }
