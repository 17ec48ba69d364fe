package sqlite

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/patience"
)

// Limits of one transaction, so that nobody waits for an endless one.
const (
	maxBatchRequests = 256
	maxBatchBytes    = 4 << 20
)

// queue orders the callers that want to write. There is no goroutine behind it: the first caller
// leads. It takes what waits into one transaction, answers everybody in it, and hands the lead to
// the first of those who arrived meanwhile. A lone writer therefore writes with no hand-over.
type queue struct {
	mu      sync.Mutex // protects what follows
	waiting []*request // in order of arrival; the leader is the first until it takes its batch
	led     bool
	crew    int // how many the last transaction has answered, with those who waited then
	vain    int // how many transactions do not wait for few, after that was in vain
	skip    int // of them, those to come
	closed  bool
	drained chan struct{} // closed when closed is set and nobody leads; nil before close is called
}

// request is one caller's work.
type request struct {
	commit  persist.Commit
	next    []any              // nextOf commit, until something was found to be in its way
	work    func(*batch) error // instead of commit: runs inside the transaction; an error leaves no trace in the batch
	alone   bool               // instead of both: the caller wants the lead, and to share nothing
	size    int                // bytes to be written, about
	arrived time.Time
	signal  chan signal // receives what the caller has waited for; buffered
	at      time.Time   // the answer
	err     error
}

// do does the work of r in b.
func (r *request) do(b *batch) error {
	if r.work != nil {
		return r.work(b)
	}
	return b.commit(r.commit, r.next)
}

type signal int

const (
	answered signal = iota
	lead
)

// enter puts r in the queue and reports whether its caller leads. It returns persist.ErrClosed
// after close.
func (q *queue) enter(r *request) (leads bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false, persist.ErrClosed
	}
	q.waiting = append(q.waiting, r)
	if q.led {
		return false, nil
	}
	q.led = true
	return true, nil
}

// tryLead leads without a request, and reports false if somebody else does.
func (q *queue) tryLead() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.led || q.closed {
		return false
	}
	q.led = true
	return true
}

// withdraw takes r, which does not lead, out of the queue. It reports false when r was signalled
// or is part of a transaction already.
func (q *queue) withdraw(r *request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := slices.Index(q.waiting, r)
	if at < 0 || len(r.signal) > 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, at, at+1)
	return true
}

// gather lets those come who were answered lately and are about to write again: they share the next one instead of
// waiting for its end. A lone writer does not pay for that. Few are waited for, where that was not in vain the last times: what they share, to make
// it durable, is most of what a transaction takes.
func (q *queue) gather() {
	const (
		yields      = 8
		few         = 4
		fewWait     = 50 * time.Microsecond // less than a disk takes as a rule,
		fewYields   = 512                   // or so often, where a test has stopped the clock
		longestSkip = 31
	)
	q.mu.Lock()
	defer q.mu.Unlock()
	patient := q.crew <= few && q.skip == 0
	q.skip = max(0, q.skip-1)
	until := time.Now().Add(fewWait)
	for n, before := 0, -1; len(q.waiting) < q.share(); n++ {
		switch {
		case patient && (n == fewYields || time.Now().After(until)):
			q.vain = min(2*q.vain+1, longestSkip)
			q.skip = q.vain
			return
		case !patient && (n == yields || len(q.waiting) == before):
			return
		}
		before = len(q.waiting)
		q.mu.Unlock()
		runtime.Gosched()
		q.mu.Lock()
	}
	if patient {
		q.vain = 0
	}
}

// share returns how many a transaction is for. Of many it is one half: while these are written, the others, who were answered before, make what
// they write next, and neither waits for the other.
func (q *queue) share() int {
	const many = 8
	n := q.crew
	switch {
	case len(q.waiting) > q.crew: // not all are of those who come again and again
		n = len(q.waiting)
	case q.crew > many:
		n = (q.crew + 1) / 2
	}
	return min(n, maxBatchRequests)
}

// lone reports whether nobody but the leader wants to write.
func (q *queue) lone() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) == 1
}

// take removes a batch from the queue, the leader's own request first.
func (q *queue) take() []*request {
	q.mu.Lock()
	defer q.mu.Unlock()
	count, size, share := 0, 0, min(len(q.waiting), q.share())
	for count < share && !q.waiting[count].alone && (count == 0 || size+q.waiting[count].size <= maxBatchBytes) {
		size += q.waiting[count].size
		count++
	}
	batch := slices.Clone(q.waiting[:count])
	q.waiting = slices.Delete(q.waiting, 0, count)
	return batch
}

// resign hands the lead of r, or nil, which has answered so many, to the next in the queue, and reports whether there is one. Where r could not
// begin, it is still there.
func (q *queue) resign(r *request, done int) (handed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if at := slices.Index(q.waiting, r); at >= 0 {
		q.waiting = slices.Delete(q.waiting, at, at+1)
	}
	if r != nil { // a load says nothing of those who write
		q.crew = done + len(q.waiting)
	}
	if len(q.waiting) > 0 {
		q.waiting[0].signal <- lead
		return true
	}
	q.led = false
	if q.closed {
		close(q.drained)
	}
	return false
}

// close lets nobody in any more and waits until everybody is out.
func (q *queue) close() {
	q.mu.Lock()
	if q.drained == nil {
		q.closed, q.drained = true, make(chan struct{})
		if !q.led {
			close(q.drained)
		}
	}
	q.mu.Unlock()
	<-q.drained
}

// write does r's work in a transaction and returns its time.
func (s *Store) write(ctx context.Context, r *request) (time.Time, error) {
	got, err := s.queueUp(ctx, r)
	if err != nil {
		return time.Time{}, err
	}
	if got == answered {
		return r.at, r.err
	}
	s.queue.gather()
	if r.next != nil && s.queue.lone() && s.writer.single(r) {
		s.queue.resign(r, 1)
		return r.at, r.err
	}
	err = s.writer.begin(ctx, r.arrived)
	if err != nil {
		s.queue.resign(r, 0)
		return time.Time{}, notApplied(err)
	}
	batch := s.queue.take()
	s.writer.run(batch)
	for _, other := range batch[1:] {
		other.signal <- answered
	}
	if s.queue.resign(r, len(batch)) {
		runtime.Gosched() // the lead was handed over last, so this one is next: everybody waits for it, and not for those who were answered
	}
	return r.at, r.err
}

// queueUp waits until r is answered or leads. A request that is alone always leads in the end, unless
// there is an error.
func (s *Store) queueUp(ctx context.Context, r *request) (signal, error) {
	if ctx.Err() != nil {
		return 0, notApplied(context.Cause(ctx))
	}
	if ctx.Value(insideOf{s}) != nil {
		return 0, notApplied(errInside)
	}
	r.arrived, r.signal = time.Now(), make(chan signal, 1)
	leads, err := s.queue.enter(r)
	if err != nil {
		return 0, err
	}
	if leads {
		return lead, nil
	}
	return s.await(ctx, r)
}

// await waits until r is answered or leads. A caller whose context ends leaves the queue, unless
// its work is in a transaction already: then the answer is near, and worth more than leaving.
func (s *Store) await(ctx context.Context, r *request) (signal, error) {
	if got, ok := patience.Wait(ctx, &s.waits, r.signal); ok {
		return got, nil
	}
	if s.queue.withdraw(r) {
		return 0, notApplied(context.Cause(ctx))
	}
	patience := time.NewTimer(s.config.BusyTimeout)
	defer patience.Stop()
	select {
	case got := <-r.signal:
		return got, nil
	case <-patience.C:
	}
	select {
	case got := <-r.signal: // it was there, too; a lead that nobody takes would hold up everybody for ever
		return got, nil
	default:
		return 0, errNoAnswer
	}
}
