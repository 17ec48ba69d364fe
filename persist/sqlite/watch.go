package sqlite

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Watch calls wake when records change, as persist.Watcher says, until ctx ends or the store is
// closed, and returns ctx's error or persist.ErrClosed. What this store commits is told at once, with
// key and version. What other processes and connections commit, those of Join included, is found by
// polling, see Config.PollInterval, and told as the zero Hint; their changes of other tables in the
// same database cannot be told apart from that.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	// From here on nothing is missed: a change of others that has not been noticed yet will be,
	// however long ago it was last looked, and one that was noticed can be seen.
	watcher := s.changes.Subscribe()
	defer watcher.End()
	s.polling.join(s)
	defer s.polling.leave()
	return watcher.Deliver(ctx, wake)
}

// polling is the one goroutine that looks for changes of others, for as long as anybody watches.
type polling struct {
	mu       sync.Mutex // protects what follows
	watchers int
	stop     context.CancelFunc
	stopped  chan struct{}
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

// leave ends the goroutine, and waits for that, with the last watcher.
func (p *polling) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watchers--; p.watchers == 0 {
		p.stop()
		<-p.stopped
	}
}

// poll looks for changes of others until ctx ends or the store is closed.
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

// look looks for changes of others once. The connection that is asked is the writer's, so it is done
// in the queue's lead, but without a transaction; a failure is left to the next look.
func (s *Store) look(ctx context.Context) error {
	r := &request{alone: true}
	if _, err := s.queueUp(ctx, r); err != nil {
		return err
	}
	defer s.queue.resign(r, 1)
	if err := s.writer.ready(ctx); err != nil {
		return err
	}
	err := s.writer.noticeOthers()
	if err != nil && !isBusy(err) {
		s.writer.discard()
	}
	return err
}
