package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/hints"
)

// All Watch calls of a store share one watch of etcd (see hints.Listening), on the records without their
// documents. A zero hint covers every change that may be missing:
//
//   - A change before the watch is in effect: Watch sends no hint before that.
//   - The watch is lost, or its member has no leader: it goes on at the revision after the last one
//     that it has delivered.
//   - That revision was compacted meanwhile: the zero hint is sent when a new watch is in effect.

// watchPause is the pause before a lost watch is begun again.
const watchPause = 50 * time.Millisecond

// Watch calls wake for each change as persist.Watcher describes. It returns ctx's error when that
// ends, and persist.ErrClosed when the store closes. While no majority answers, it waits.
func (s *Store) Watch(ctx context.Context, wake func(persist.Hint)) error {
	return s.listening.Watch(ctx, &s.hub, s.listen, wake)
}

// listen sends the hints of all changes until the life of l ends.
func (s *Store) listen(l *hints.Listener) {
	life := l.Life()
	next, missed := int64(0), false // the next revision, 0 if that is the current one
	for life.Err() == nil {
		ctx, cancel := context.WithCancel(life)
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
				l.Ready()
			}
			for _, event := range answer.Events {
				s.hint(event)
				next = event.Kv.ModRevision + 1
			}
		}
		cancel()
		pause(life, watchPause)
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
