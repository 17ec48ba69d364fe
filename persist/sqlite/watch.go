package sqlite

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Watch calls wake when records change, as persist.Watcher says, until ctx ends or the store is
// closed, and returns ctx's error or persist.ErrClosed. A commit of this store is hinted at once,
// with key and version. Commits of other processes and connections, those of Join included, are
// found by polling, see Config.PollInterval, and hinted by the zero Hint. Their changes of other
// tables in the same database are hinted too, because SQLite does not tell them apart.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	// Nothing is missed from here on: the first hint tells the watcher to read, and a change that
	// polling has not found yet will be found, however old it is.
	watcher := s.changes.Subscribe()
	defer watcher.End()
	s.polling.join(s)
	defer s.polling.leave()
	return watcher.Deliver(ctx, wake)
}

// polling is the goroutine that looks for foreign changes while there are watchers.
type polling struct {
	mu       sync.Mutex // protects the fields below
	watchers int
	stop     context.CancelFunc
	stopped  chan struct{} // closed when the goroutine has ended
}

// join starts the goroutine for the first watcher.
func (p *polling) join(s *Store) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watchers++; p.watchers > 1 {
		return
	}
	ctx, stop := context.WithCancel(background)
	stopped := make(chan struct{})
	p.stop, p.stopped = stop, stopped
	go func() {
		defer close(stopped)
		s.poll(ctx)
	}()
}

// leave ends the goroutine with the last watcher, and waits for its end.
func (p *polling) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watchers--; p.watchers == 0 {
		p.stop()
		<-p.stopped
	}
}

// poll looks for foreign changes until ctx ends or the store is closed.
func (s *Store) poll(ctx context.Context) {
	ticker := time.NewTicker(s.config.PollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if errors.Is(s.look(ctx), persist.ErrClosed) {
			return
		}
	}
}

// look looks for foreign changes once, on the connection that writes. A failure is left to the next
// look.
func (s *Store) look(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.leave()
	if err := s.queue.acquire(ctx); err != nil {
		return err
	}
	defer s.queue.release()
	if err := s.writer.ready(ctx); err != nil {
		return err
	}
	err := s.writer.noticeOthers()
	if err != nil && !isBusy(err) {
		s.writer.discard()
	}
	return err
}
