package fs

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/hints"
)

// How a store notices what changes.
//
// Its own commits are told to those who watch by Commit and Take, with their versions. Those of other
// processes, and of other stores on the directory, are seen in the files, in one of two ways.
//
// Where the kernel tells of renames (inotify, on Linux), each folder below records/ is watched, and
// the name of a file that was renamed into it tells the key. A folder that appears is watched as
// well, and after that the zero hint is sent, for what came into it before. Whoever looks at a hint's
// record while its commit is not durable yet waits for that, as every reader does. See notify_linux.go.
//
// Elsewhere, and where that fails, somebody looks every pollPause whether tmp/ was modified:
// every file comes from there by the rename that changes its record.
// That is one stat each time. What has changed is not seen that way, so that each hint is the zero
// one. Two changes within one tick of the file system's clock look like one, and the first may have
// been seen without the second: therefore every hint is given a second time at the next look, when the
// clock has moved on.

var _ persist.Watcher = (*Store)(nil)

// pollPause is how long a watcher that polls does not look. The clock by which a file system notes
// modifications ticks more often than that, with 10 ms at most where the package says that it works.
const pollPause = 50 * time.Millisecond

// Watch calls wake as persist.Watcher says. Changes by this store come with key and version; those by
// others with the key on Linux, as long as it has an inotify instance and watches to give (one for
// each kind, and for each id that is too long for one name), and otherwise within 50 ms as the zero
// hint, which costs a stat of a folder every 50 ms. It returns ctx's error, and persist.ErrClosed
// after Close, which does not wait for it.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	subscription := s.hints.Subscribe()
	defer subscription.End()
	stop := s.follow(subscription)
	defer stop()
	return subscription.Deliver(ctx, wake)
}

// follow begins to send hints of what changes in the files, and notices every change from when it
// has returned until stop is called.
func (s *Store) follow(to *hints.Subscription) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	stop = func() {
		cancel()
		<-ended
	}
	var n *notifier
	err := error(errors.ErrUnsupported)
	if !s.polls {
		n, err = newNotifier(s.records)
	}
	seen := s.modified()
	go func() {
		defer close(ended)
		if err == nil {
			if n.run(ctx, to) == nil {
				return
			}
			seen = s.modified()
			to.Send(persist.Hint{}) // for what it has missed
		}
		s.poll(ctx, to, seen)
	}()
	return stop
}

// poll sends the zero hint when tmp/ is modified, until ctx ends. Seen is when that was last.
func (s *Store) poll(ctx context.Context, to *hints.Subscription, seen time.Time) {
	timer := time.NewTimer(pollPause) // not a ticker, whose ticks are closer together after a late one
	defer timer.Stop()
	again := true // seen may be from within a tick in which something is modified yet
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		now := s.modified()
		changed := !now.Equal(seen)
		if changed || again {
			to.Send(persist.Hint{})
		}
		seen, again = now, changed
		timer.Reset(pollPause)
	}
}

// modified returns when a record was last about to change, or has changed. If that cannot be told it is the zero time,
// so that its coming back is a change.
func (s *Store) modified() time.Time {
	info, err := os.Stat(s.temps)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// hint tells those who watch what a commit made of records, unless err says that nothing was written.
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

// place is a folder below records/, or records/ itself, as the pieces of names that it stands for.
type place struct {
	kind  []string // the pieces of a kind; the last of a complete one does not end with a plus sign
	id    []string // the pieces of an id so far
	whole bool     // the kind is complete
}

// below returns the place of the folder of this name, and false if no record is ever in it.
func (p place) below(name string) (place, bool) {
	goesOn := strings.HasSuffix(name, continued)
	switch {
	case !p.whole:
		p.kind, p.whole = append(slices.Clone(p.kind), name), !goesOn
		return p, true
	case goesOn:
		p.id = append(slices.Clone(p.id), name)
		return p, true
	}
	return place{}, false
}

// key returns the key of the record whose file has this name, and false if there is none.
func (p place) key(name string) (persist.Key, bool) {
	piece, ok := strings.CutSuffix(name, extension)
	if !ok || !p.whole {
		return persist.Key{}, false
	}
	kind, isKind := decode(p.kind)
	id, isID := decode(append(slices.Clone(p.id), piece))
	return persist.Key{Kind: kind, ID: id}, isKind && isID && id != ""
}

var _ persist.Prober = (*Store)(nil)

// Versions returns the current versions of keys, 0 where there is no record. It reads their files, and
// waits for commits that are under way only at these. Its errors are those of Load, without
// persist.ErrNotFound.
func (s *Store) Versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.calls.Done()
	versions, err := s.versions(s.locks.patient(ctx), keys)
	if err != nil {
		return nil, explain(err)
	}
	return versions, nil
}

// versions reads all files before it looks into journal/ once, as load does for one. What has a
// commit under way there, or is tentative, is read again; so is what was damaged, for a journal may replace it.
func (s *Store) versions(ctx context.Context, keys []persist.Key) ([]uint64, error) {
	records, failures := make([]stored, len(keys)), make([]error, len(keys))
	var set stripeSet
	for i, key := range keys {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		set.add(stripeOf(key))
		records[i], failures[i] = s.look(ctx, key)
	}
	found, err := s.pending(set)
	if err != nil {
		return nil, err
	}
	var busy stripeSet
	for _, j := range found {
		for i := range busy {
			busy[i] |= j.stripes[i]
		}
	}
	versions := make([]uint64, len(keys))
	for i, key := range keys {
		r, err := records[i].Record, failures[i]
		if records[i].tentative || busy.has(stripeOf(key)) {
			r, err = s.settled(ctx, key)
		}
		if err != nil {
			return nil, err
		}
		if !r.Absent() {
			versions[i] = r.Version
		}
	}
	return versions, nil
}
