package etcd

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// All Watch calls of a store share one watch of etcd, on the records without their documents. A zero
// hint covers every change that may be missing:
//
//   - A change before the watch is in effect: Watch sends no hint before that.
//   - The watch is lost, or its member has no leader: it goes on at the revision after the last one
//     that it has delivered.
//   - That revision was compacted meanwhile: the zero hint is sent when a new watch is in effect.

// watchPause is the pause before a lost watch is begun again.
const watchPause = 50 * time.Millisecond

// listening is the watch that the Watch calls of a store share.
type listening struct {
	running sync.WaitGroup // listeners

	mu      sync.Mutex // protects the fields below
	closed  bool
	current *listener // nil: no Watch call
}

// listener is a watch of etcd that is in effect, or will be.
type listener struct {
	life     context.Context // ends with the last watcher or the store
	end      context.CancelFunc
	ready    chan struct{} // closed when the watch is in effect for the first time
	watchers int           // protected by listening.mu
}

// Watch calls wake for each change as persist.Watcher describes. It returns ctx's error when that
// ends, and persist.ErrClosed when the store closes. While no majority answers, it waits.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	subscription := s.hub.Subscribe()
	defer subscription.End()
	l := s.listener()
	if l == nil {
		return persist.ErrClosed
	}
	defer s.listening.leave(l)
	select {
	case <-l.ready:
	case <-l.life.Done():
		return persist.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	return subscription.Deliver(ctx, wake)
}

// listener returns the common listener and counts one more watcher, which calls leave. It returns nil
// after Close.
func (s *Store) listener() *listener {
	s.listening.mu.Lock()
	defer s.listening.mu.Unlock()
	if s.listening.closed {
		return nil
	}
	l := s.listening.current
	if l == nil {
		l = &listener{ready: make(chan struct{})}
		l.life, l.end = context.WithCancel(context.Background())
		s.listening.current = l
		s.listening.running.Go(func() { s.listen(l) })
	}
	l.watchers++
	return l
}

// leave counts one watcher less. The last one ends the listener without waiting.
func (g *listening) leave(l *listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.watchers--; l.watchers > 0 {
		return
	}
	l.end()
	if g.current == l {
		g.current = nil
	}
}

// close ends the listener and waits for it.
func (g *listening) close() {
	g.mu.Lock()
	g.closed = true
	if g.current != nil {
		g.current.end()
	}
	g.mu.Unlock()
	g.running.Wait()
}

// listen sends the hints of all changes until the life of l ends.
func (s *Store) listen(l *listener) {
	next, missed := int64(0), false // the next revision, 0 if that is the current one
	for l.life.Err() == nil {
		ctx, cancel := context.WithCancel(l.life)
		watch := s.client.Watch(clientv3.WithRequireLeader(ctx), s.keys.of(spaceRecord, ""), clientv3.WithPrefix(),
			clientv3.WithPrevKV(), clientv3.WithCreatedNotify(), clientv3.WithRev(next))
		for answer := range watch {
			switch {
			case answer.CompactRevision > 0:
				next, missed = 0, true
			case answer.Created && answer.Err() == nil:
				if next == 0 { // otherwise the changes from next on are still to come
					next = answer.Header.Revision + 1
				}
				if missed {
					missed = false
					s.hub.Send(persist.Hint{})
				}
				select {
				case <-l.ready:
				default:
					close(l.ready)
				}
			}
			for _, event := range answer.Events {
				s.hint(event)
				next = event.Kv.ModRevision + 1
			}
		}
		cancel()
		pause(l.life, watchPause)
	}
}

// hint sends the hint for a change of a record, if it calls for one.
func (s *Store) hint(event *clientv3.Event) {
	if event.Type != clientv3.EventTypePut {
		return // a tombstone was purged
	}
	var before entry
	after, err := decode(event.Kv)
	if err == nil && event.PrevKv != nil {
		before, err = decode(event.PrevKv)
	}
	if err != nil { // damaged: readers will see
		s.hub.Send(persist.Hint{})
		return
	}
	hint, ok := hints.Of(before.record, after.record)
	if event.PrevKv == nil && !event.IsCreate() {
		hint.Version = 0 // compacted: the change may be the release of a lease, which moves no version
	}
	if ok {
		s.hub.Send(hint)
	}
}
