package sqlite

import (
	"context"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// Watch calls wake when records change, as persist.Watcher says, until ctx ends or the store is
// closed, and returns ctx's error or persist.ErrClosed. A commit of this store is hinted at once,
// with key and version. Commits of other processes and connections, those of Join included, are
// found by polling, see Config.PollInterval, and hinted by the zero Hint. Their changes of other
// tables in the same database are hinted too, because SQLite does not tell them apart.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	return s.listening.Watch(ctx, &s.changes, s.poll, wake)
}

// poll looks for foreign changes while there are watchers.
func (s *Store) poll(l *hints.Listener) {
	// Nothing is missed from here on: the first hint tells a watcher to read, and a change that
	// polling has not found yet will be found, however old it is.
	l.Ready()
	ticker := time.NewTicker(s.config.PollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-l.Life().Done():
			return
		case <-ticker.C:
			_ = s.look(l.Life())
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
