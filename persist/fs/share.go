package fs

import (
	"context"
	"sync"
	"time"
)

// tenure is how long those who come may join in a shared lock that the process has. Then all leave it,
// and pass the gate again, behind whoever waits there.
const tenure = 2 * time.Millisecond

// share is a lock that goroutines of one process have together, by one file, so that they do not meet at
// its gate: every commit of one record shares the names lock. It is for locks that nobody has for long: who comes
// after the tenure waits for those who have it.
type share struct {
	mu      sync.Mutex // protects what follows
	free    func()     // gives it back; nil: they do not have it
	members int        // who has it
	since   time.Time
	opening bool          // somebody is about to get it
	moved   chan struct{} // closed when that has ended, or the last member has left; nil: nobody waits
}

// join takes the lock, with the others or by open, until leave is called. It returns open's error, or the
// cause of ctx's end.
func (s *share) join(ctx context.Context, open func() (free func(), err error)) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.free != nil && time.Since(s.since) < tenure:
			s.members++
			return s.leave, nil
		case s.free == nil && !s.opening:
			s.opening = true
			s.mu.Unlock()
			free, err := open()
			s.mu.Lock()
			s.opening = false
			s.wake()
			if err != nil {
				return nil, err
			}
			s.free, s.members, s.since = free, 1, time.Now()
			return s.leave, nil
		}
		if s.moved == nil {
			s.moved = make(chan struct{})
		}
		moved := s.moved
		s.mu.Unlock()
		select {
		case <-moved:
			err = nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		s.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
}

func (s *share) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members--; s.members == 0 {
		s.free()
		s.free = nil
		s.wake()
	}
}

// wake lets those who wait look again. The caller has mu.
func (s *share) wake() {
	if s.moved != nil {
		close(s.moved)
		s.moved = nil
	}
}
