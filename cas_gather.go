package pawl

import "time"

// Writers that were just answered often submit again at once. A batch waits for them a little, so
// that they share one commit instead of two.

const (
	// maxGather bounds how long a batch waits for writers that are about to submit again.
	maxGather = time.Millisecond
	// maxVain bounds how often the number of batches that do not wait is doubled.
	maxVain = 5
)

// company is what a queue knows of the writers that may submit again. It is protected by the
// queue's lock.
type company struct {
	expected int           // mutations that the last batch answered, with those that waited then
	took     time.Duration // how long its commit took
	vain     int           // batches that waited in vain since one did not
	skip     int           // batches that do not wait after that
	complete chan struct{} // closed when as many wait as are expected; nil: no batch waits
}

// gather waits until as many writers wait as are expected, for half of the last commit's time at
// most. If that was in vain, the next batch does not wait; each time it is in vain again, twice as
// many do not.
func (s *stored) gather() {
	c := &s.company
	s.queue.Lock()
	wait, n := min(c.took/2, maxGather), s.queue.Len()
	if n == 0 || n >= c.expected || wait <= 0 || s.queue.Closed() {
		s.queue.Unlock()
		return
	}
	if c.skip > 0 {
		c.skip--
		s.queue.Unlock()
		return
	}
	complete := make(chan struct{})
	c.complete = complete
	s.queue.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	vain := false
	select {
	case <-complete:
	case <-timer.C:
		vain = true
	}
	s.queue.Lock()
	defer s.queue.Unlock()
	c.complete = nil
	if !vain {
		c.vain = 0
		return
	}
	c.vain = min(c.vain+1, maxVain)
	c.skip = 1<<c.vain - 1
}

// arrived ends the wait of gather when waiting writers are as many as expected. The caller holds
// the queue's lock.
func (c *company) arrived(waiting int) {
	if c.complete != nil && waiting >= c.expected {
		close(c.complete)
		c.complete = nil
	}
}
