package fs

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// How a store notices changes.
//
// Commit and Take send hints of their own commits, with versions. Commits of other processes, and
// of other stores on the directory, are noticed in the files, in one of two ways.
//
// On Linux, inotify reports each file that is renamed into a folder below records/, and the path of
// the file tells the key; see notify_linux.go. The commit may not be durable then. A watcher that
// reads the record waits for that, as every reader does.
//
// Elsewhere, and where inotify fails, the store polls the time of modification of tmp/ every
// pollPause: every new file of a record is made there. That is one stat each time. It does not tell
// the key, so it sends the zero hint. Two changes within one tick of the file system's clock look
// like one, and the first may have been noticed before the second. So every hint is sent a second
// time after the next pause, when the clock has moved on.

// pollPause is the time between two polls. It is longer than a tick of a file system's clock, which
// is 10 ms at most on the file systems that the package supports.
const pollPause = 50 * time.Millisecond

// Watch calls wake as persist.Watcher says. Hints of this store's commits have key and version.
// Hints of other commits have the key on Linux, as long as the kernel grants an inotify instance
// and watches (one for each kind, and for each id that is too long for one name). Otherwise, until no
// Watch is left, a zero hint comes within 50 ms, and watching costs a stat of a folder every 50 ms.
// Watch returns ctx's error, and persist.ErrClosed after Close, which does not wait for it.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	return s.listening.Watch(ctx, &s.hints, s.follow, wake)
}

// follow sends hints of changes in the files while there are watchers. It waits for the one before it,
// so that a store never has two inotify instances.
func (s *Store) follow(l *hints.Listener) {
	s.following.Lock()
	defer s.following.Unlock()
	if l.Life().Err() != nil {
		return
	}
	var n *notifier
	err := error(errors.ErrUnsupported)
	if !s.polls {
		n, err = newNotifier(s.records)
	}
	seen := s.modified()
	l.Ready()
	if err == nil {
		if n.run(l.Life(), &s.hints) == nil {
			return
		}
		seen = s.modified()
		s.hints.Send(persist.Hint{}) // for the events that it missed
	}
	s.poll(l.Life(), seen)
}

// poll sends the zero hint when tmp/ is modified, until ctx ends. Seen is the last known time of
// modification.
func (s *Store) poll(ctx context.Context, seen time.Time) {
	timer := time.NewTimer(pollPause) // not a ticker: after a late tick the next one comes early
	defer timer.Stop()
	again := true // another change may follow within the tick of seen
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		now := s.modified()
		changed := !now.Equal(seen)
		if changed || again {
			s.hints.Send(persist.Hint{})
		}
		seen, again = now, changed
		timer.Reset(pollPause)
	}
}

// modified returns the time of modification of tmp/. It is zero if that is not known, so that the
// return of a missing folder is a change.
func (s *Store) modified() time.Time {
	info, err := os.Stat(s.temps)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// hint sends hints of a commit that changed records from before to after, unless err says that
// nothing was written.
func (s *Store) hint(before map[persist.Key]persist.Record, after []persist.Record, err error) {
	if errors.Is(err, persist.ErrNotApplied) || !s.hints.Watched() {
		return
	}
	for _, r := range after {
		if hint, ok := hints.Of(before[r.Key], r); ok {
			s.hints.Send(hint)
		}
	}
}
