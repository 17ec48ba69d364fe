package etcd

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The store's clock is the value of one key. Its value is the time: no process adds to it what has
// passed since. So a moment that one process has seen has come for all of them, and a moment that the
// value has not reached has come for none.
//
//   - Two processes move the clock at once: both compare its revision, so one of them does.
//   - A process hears of the clock late: its next step is too short by that. The clock never runs
//     ahead of the time that has passed, except by the correction below.
//   - The hosts' clocks differ: only the process that moves the clock corrects it, by a thousandth of
//     the time that has passed, towards the clock of its host.
//   - No process was there for a while: the first that opens the store finds a clock that is far from
//     its host's and does not move. It sets the clock to that of its host, if that is later.
//   - The cluster could not be written for a while: the clock stands still, and its next step is as
//     long as that. A commit with a duration makes this step first, if it comes first (wakeClock).

const (
	// idle is how far the clock may be from that of the host that opens the store. A clock that is
	// farther away is watched, and set if it does not move.
	idle = 500 * time.Millisecond
	// silence is the least time for which it is watched: a process whose step waits for an answer of a
	// frozen member, or that was paused for a moment, is not gone.
	silence = 5 * time.Second
	// correction is the part of a step by which the clock is corrected.
	correction = 1000
)

// clock is what a process knows of the store's clock.
type clock struct {
	host func() time.Time // the host's clock

	mu      sync.Mutex // protects the fields below
	time    time.Time
	mod     int64         // the revision at which time was written
	heard   time.Time     // when this process heard of it, by the monotonic clock
	changed chan struct{} // closed when time changes
}

// now returns the last time that this process has heard of.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time
}

// hear learns the value of the clock, which is known at the moment at, and returns it.
func (c *clock) hear(kv *mvccpb.KeyValue, at time.Time) (time.Time, error) {
	t, err := parseTime(kv.Value)
	if err != nil {
		return time.Time{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if kv.ModRevision > c.mod {
		c.time, c.mod, c.heard = t, kv.ModRevision, at
		close(c.changed)
		c.changed = make(chan struct{})
	}
	return t, nil
}

// heardIn learns the value of the clock from the answer to a read of its key.
func (c *clock) heardIn(found []*mvccpb.KeyValue) (time.Time, error) {
	if len(found) == 0 {
		return time.Time{}, errRemoved
	}
	return c.hear(found[0], time.Now())
}

// step returns the next time of the clock, and the revision that it follows.
func (c *clock) step(at time.Time) (next time.Time, mod int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := max(at.Sub(c.heard), 0)
	next = c.time.Add(passed)
	most := passed / correction
	return next.Add(min(max(c.host().Sub(next), -most), most)), c.mod
}

// startClock learns the time and starts to keep it. The store was created.
func (s *Store) startClock(ctx context.Context) error {
	var answer *clientv3.GetResponse
	err := s.patiently(ctx, func() (err error) {
		answer, err = s.get(ctx, s.keys.clock())
		return err
	})
	if err != nil {
		return err
	}
	if _, err := s.clock.heardIn(answer.Kvs); err != nil {
		return err
	}
	s.running.Go(func() { s.followClock(answer.Header.Revision + 1) })
	if err := s.setIdleClock(ctx); err != nil {
		return err
	}
	s.running.Go(s.keepClock)
	return nil
}

// setIdleClock sets the clock to that of the host if the clock is far from it and does not move. While
// it watches, it asks by writes that take no effect. After one that fails it begins anew: the cluster
// could not be written, so that no process could move the clock.
func (s *Store) setIdleClock(ctx context.Context) error {
	s.clock.mu.Lock()
	t, mod, changed := s.clock.time, s.clock.mod, s.clock.changed
	s.clock.mu.Unlock()
	if s.clock.host().Sub(t).Abs() < idle {
		return nil
	}
	const never = -1 // no key has this revision
	watch := max(silence, 2*s.config.AttemptTimeout) + 5*s.config.Tick
	for since := time.Now(); ; {
		timer := time.NewTimer(5 * s.config.Tick)
		select {
		case <-changed:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return ended(ctx)
		case <-timer.C:
		}
		err := s.patiently(ctx, func() error {
			_, err := s.moveClock(ctx, t, never)
			if err != nil {
				since = time.Now()
			}
			return err
		})
		if err != nil {
			return err
		}
		if time.Since(since) < watch {
			continue
		}
		if host := s.clock.host(); host.After(t) {
			t = host
		}
		if _, err := s.moveClock(ctx, t, mod); err == nil { // also if another process has moved it
			return nil
		}
		since = time.Now()
	}
}

// wakeClock moves the clock if it is late by more than clockLag ticks, as after an outage of the
// cluster. A duration that counts from a time read afterwards is not too short by the outage.
func (s *Store) wakeClock(ctx context.Context) error {
	if next, _ := s.clock.step(time.Now()); next.Sub(s.clock.now()) <= clockLag*s.config.Tick {
		return nil
	}
	return s.patiently(ctx, func() error { // a step that was sent twice fails the second time
		next, mod := s.clock.step(time.Now())
		_, err := s.moveClock(ctx, next, mod)
		return err
	})
}

// moveClock sets the clock to t, unless it was moved after the revision mod. It reports whether it
// was set.
func (s *Store) moveClock(ctx context.Context, t time.Time, mod int64) (bool, error) {
	at, key := time.Now(), s.keys.clock()
	value := sortable(t)
	answer, err := s.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", mod)},
		[]clientv3.Op{clientv3.OpPut(key, value)}, []clientv3.Op{clientv3.OpGet(key)})
	switch {
	case err != nil:
		return false, err
	case !answer.Succeeded:
		_, err = s.clock.heardIn(kvs(answer.Responses[0]))
		return false, err
	}
	_, err = s.clock.hear(&mvccpb.KeyValue{Value: []byte(value), ModRevision: answer.Header.Revision}, at)
	return true, err
}

// keepClock moves the clock every tick, while no other process does.
func (s *Store) keepClock() {
	ours := false // this process moved the clock last
	for s.life.Err() == nil {
		s.clock.mu.Lock()
		before := s.clock.mod
		s.clock.mu.Unlock()
		wait := s.config.Tick
		if !ours {
			wait = 2*wait + rand.N(wait) // so that processes do not all begin at once
		}
		pause(s.life, wait)
		next, mod := s.clock.step(time.Now())
		if mod != before { // another process moves it
			ours = false
			continue
		}
		ours, _ = s.moveClock(s.life, next, mod)
	}
}

// followClock hears of the clock from the revision on. A lost or compacted revision does no harm,
// because reads hear of the clock too.
func (s *Store) followClock(revision int64) {
	for s.life.Err() == nil {
		ctx, cancel := context.WithCancel(s.life)
		for answer := range s.client.Watch(clientv3.WithRequireLeader(ctx), s.keys.clock(), clientv3.WithRev(revision)) {
			for _, event := range answer.Events {
				revision = event.Kv.ModRevision + 1
				if event.Type == clientv3.EventTypePut {
					_, _ = s.clock.hear(event.Kv, time.Now())
				}
			}
			if answer.CompactRevision > 0 {
				revision = answer.CompactRevision
			}
		}
		cancel()
		pause(s.life, s.config.Tick)
	}
}
