package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl/internal/queue"
	"github.com/pawl-go/pawl/internal/schedule"
	"github.com/pawl-go/pawl/internal/testkit"
)

// Callers push, wait and leave, workers take, answer, put back and stop, a function is abandoned, the
// queue is claimed and closed: waiters are taken in order, each of them ends once, none is lost,
// deadlines are kept, and Close ends. Proves LOCK-1, LOCK-5, LOCK-7 and SCOPE-18.
func TestQueueSchedules(t *testing.T) {
	n := testkit.Times(6000, 6000, "PAWL_SCHEDULES")
	total := schedule.Explore(t, n, queueScenario)
	testkit.Figures(t, "%d schedules of the queue, %d of them different, %d steps", total.Schedules, total.Different, total.Steps)
}

// watched is a queue, and what is known about it from outside.
type watched struct {
	queue.Queue[*job]
	s     *schedule.Schedule
	limit int

	mu      sync.Mutex // protects the fields below and the jobs
	jobs    []*job
	pushes  int
	workers int    // that were started
	driver  string // "": none
	closed  bool
}

// job is one submission of a waiter.
type job struct {
	name     string
	waiter   *queue.Waiter[*job]
	within   time.Duration // 0: it waits as long as it takes
	deadline time.Time     // zero: none
	ctx      context.Context

	push      int  // number of its push; 0: not pushed
	taken     bool // since that push
	again     bool // it was put back or pushed again
	runs      int
	alone     bool // it has a turn of its own, and can be abandoned
	abandoned bool
	answered  bool // Answer found its caller
	awaited   bool // its caller is in Await
	ended     bool // Await has returned
}

func queueScenario(s *schedule.Schedule) {
	q := &watched{s: s, limit: 2 + s.Random.IntN(4)}
	for c := range 2 + s.Random.IntN(3) {
		name := fmt.Sprintf("caller %d", c+1)
		var plan []*job
		for i := range 1 + s.Random.IntN(2) {
			j := &job{name: fmt.Sprintf("%s.%d", name, i+1), ctx: s.Context()}
			switch s.Random.IntN(3) {
			case 0:
				j.within = time.Duration(1+s.Random.IntN(20_000)) * time.Microsecond
			case 1:
				ctx, cancel := context.WithCancel(s.Context())
				j.ctx = ctx
				s.Go("cancel "+j.name, cancel)
			}
			plan = append(plan, j)
		}
		s.Go(name, func() { q.call(name, plan) })
	}
	for i := range s.Random.IntN(3) {
		name := fmt.Sprintf("abandoner %d", i+1)
		s.Go(name, func() { q.abandon(name) })
	}
	if s.Random.IntN(2) == 0 {
		s.Go("claimer", q.claim)
	}
	if s.Random.IntN(2) == 0 {
		s.Go("closer", q.close)
	}
	s.Check(q.check)
	s.Run()
	if q.Len() != 0 || q.Driven() || q.Close() != nil {
		s.Failf("at the end %d wait, driven: %v, empty: %v", q.Len(), q.Driven(), q.Close() == nil)
	}
}

// call pushes the jobs one after the other, with one waiter as long as that may be used again.
func (q *watched) call(name string, plan []*job) {
	w := queue.NewWaiter[*job]()
	for _, j := range plan {
		q.s.Free(name + ": push")
		if j.within > 0 {
			j.deadline = time.Now().Add(j.within)
		}
		w.Value, w.Deadline, j.waiter = j, j.deadline, w
		if !q.push(j) {
			w = queue.NewWaiter[*job]()
			continue
		}
		q.s.Point(name + ": await")
		q.mu.Lock()
		j.awaited = true
		q.mu.Unlock()
		ending, reached := q.Await(j.ctx, w)
		q.ended(j, ending, reached)
		if ending == queue.GotAnswer && !j.abandoned {
			w.Clear()
		} else {
			w = queue.NewWaiter[*job]()
		}
	}
}

// push pushes j, and reports whether it was accepted.
func (q *watched) push(j *job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.Push(j.waiter, q.limit, q)
	var full *queue.FullError
	switch {
	case err == nil && q.closed:
		q.s.Failf("%s was accepted by a closed queue", j.name)
	case errors.Is(err, queue.ErrClosed) && !q.closed:
		q.s.Failf("%s was refused by an open queue", j.name)
	case errors.As(err, &full) && full.Waiting < q.limit:
		q.s.Failf("%s: %v, but the limit is %d", j.name, err, q.limit)
	}
	if err != nil {
		return false
	}
	q.pushes++
	if j.push == 0 {
		q.jobs = append(q.jobs, j)
	}
	j.push, j.taken = q.pushes, false
	return true
}

// ended judges how the caller of j ended.
func (q *watched) ended(j *job, ending queue.Ending, reached queue.State) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	switch {
	case q.s.Context().Err() != nil: // the schedule has failed
	case j.answered != (ending == queue.GotAnswer):
		q.s.Failf("%s ended with %d, and was answered: %v", j.name, ending, j.answered)
	case ending == queue.TimedOut && (j.deadline.IsZero() || now.Before(j.deadline)):
		q.s.Failf("%s timed out at %v, deadline %v", j.name, now, j.deadline)
	case ending == queue.Canceled && j.ctx.Err() == nil:
		q.s.Failf("%s was canceled without a reason", j.name)
	case ending != queue.GotAnswer && reached == queue.Waiting && j.runs > 0 && !j.again:
		q.s.Failf("%s was withdrawn, and ran", j.name)
	case ending != queue.GotAnswer && reached != queue.Waiting && j.runs == 0:
		q.s.Failf("%s left in state %d, and never ran", j.name, reached)
	}
	j.ended = true
}

// check runs at every rest. It looks at the waiters if no goroutine holds the lock.
func (q *watched) check() {
	if q.Len() < 0 {
		q.s.Failf("%d wait", q.Len())
	}
	q.checkDeadlines()
	if !q.TryLock() {
		return
	}
	defer q.Unlock()
	if n := len(q.waiting()); n != q.Len() {
		q.s.Failf("%d wait, the queue counts %d", n, q.Len())
	}
}

func (q *watched) checkDeadlines() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for _, j := range q.jobs {
		if j.awaited && !j.ended && !j.answered && !j.deadline.IsZero() && !now.Before(j.deadline) {
			q.s.Failf("%s still waits at %v, deadline %v", j.name, now, j.deadline)
		}
	}
}

// waiting returns the jobs that wait, in their order. The caller holds the queue's lock.
func (q *watched) waiting() (waiting []*job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, j := range q.jobs {
		if j.push > 0 && !j.taken && !j.waiter.Left() {
			waiting = append(waiting, j)
		}
	}
	slices.SortFunc(waiting, func(a, b *job) int { return a.push - b.push })
	return waiting
}

// Work serves the queue as the containers of the library do: a turn for each waiter, or a batch of
// all that wait.
func (q *watched) Work() {
	defer q.s.Recover()
	q.mu.Lock()
	q.workers++
	name := fmt.Sprintf("worker %d", q.workers)
	q.mu.Unlock()
	var awake sync.WaitGroup
	for {
		awake.Wait()
		batch := q.s.Choose(name+": next", 3) == 0
		q.Lock()
		q.drive(name)
		members := q.take(name, batch)
		q.s.Locked(name + ": has taken")
		q.Unlock()
		switch {
		case len(members) == 0:
			return
		case batch:
			q.workBatch(name, members, &awake)
		case q.workTurn(name, members[0], &awake) == queue.Passed:
			return
		}
	}
}

// drive notes that name drives the queue. The caller holds the queue's lock.
func (q *watched) drive(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.driver != "" && q.driver != name {
		q.s.Failf("%s and %s drive the queue", q.driver, name)
	}
	q.driver = name
}

// let notes that the queue has no driver. The caller holds the queue's lock.
func (q *watched) let() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.driver = ""
}

// take takes the first waiter, or a batch. The caller holds the queue's lock.
func (q *watched) take(name string, batch bool) (members []*job) {
	expected := q.waiting()
	w := q.Next()
	if w == nil {
		if len(expected) > 0 {
			q.s.Failf("%s stops, and %s waits", name, expected[0].name)
		}
		q.let()
		return nil
	}
	members = append(members, w.Value)
	for batch && q.First() != nil {
		members = append(members, q.Take().Value)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, j := range members {
		if i >= len(expected) || j != expected[i] {
			q.s.Failf("%s took %s out of turn", name, j.name)
			return members
		}
		j.taken, j.alone = true, !batch
	}
	if !batch {
		w.State = queue.Running
		q.run(w.Value)
	}
	return members
}

// run notes that the function of j runs. The caller holds both locks.
func (q *watched) run(j *job) {
	if j.ended || j.waiter.Left() {
		q.s.Failf("%s runs, its caller has left", j.name)
	}
	j.runs++
}

// workTurn gives j a turn of its own, as in-memory scopes do.
func (q *watched) workTurn(name string, j *job, awake *sync.WaitGroup) queue.Ownership {
	q.s.Point(name + ": runs " + j.name)
	q.Lock()
	if q.Current() != j.waiter {
		q.Unlock()
		return queue.Passed
	}
	present := q.answer(j)
	q.EndTurn()
	q.s.Locked(name + ": answered " + j.name)
	q.Unlock()
	if q.s.Point(name + ": wakes " + j.name); present {
		j.waiter.WakeFor(awake)
	}
	return queue.Kept
}

// answer answers j. The caller holds the queue's lock.
func (q *watched) answer(j *job) (present bool) {
	present = q.Answer(j.waiter)
	q.mu.Lock()
	defer q.mu.Unlock()
	if present && (j.ended || j.answered) {
		q.s.Failf("%s is answered, and has ended: %v, was answered: %v", j.name, j.ended, j.answered)
	}
	j.answered = j.answered || present
	return present
}

// workBatch takes a batch to its end, as persisted scopes do: after a conflict, members are put back
// and run again, and a member may go to the end of the queue.
func (q *watched) workBatch(name string, members []*job, awake *sync.WaitGroup) {
	for {
		q.s.Point(name + ": computes")
		q.Lock()
		q.mu.Lock()
		for _, j := range members {
			if !j.waiter.Left() {
				j.waiter.State = queue.Committing
				q.run(j)
			}
		}
		q.mu.Unlock()
		q.Unlock()
		if q.s.Choose(name+": commits", 4) > 0 {
			break
		}
		q.Lock()
		members = slices.DeleteFunc(members, func(j *job) bool { return j.waiter.Left() })
		for _, j := range members {
			j.waiter.State, j.again = queue.Waiting, true
		}
		if len(members) > 1 && q.push(members[0]) {
			members = members[1:]
		}
		q.s.Locked(name + ": has put back")
		q.Unlock()
	}
	q.Lock()
	var present []*job
	for _, j := range members {
		if q.answer(j) {
			present = append(present, j)
		}
	}
	q.s.Locked(name + ": answered")
	q.Unlock()
	for _, j := range present {
		q.s.Point(name + ": wakes " + j.name)
		j.waiter.WakeFor(awake)
	}
}

// abandon answers the function that runs, and passes the queue to a new worker.
func (q *watched) abandon(name string) {
	q.Lock()
	w := q.Current()
	if w == nil || w.State != queue.Running || !w.Value.alone {
		q.Unlock()
		return
	}
	j := w.Value
	j.abandoned = true
	present := q.answer(j)
	q.let()
	q.Release(q)
	q.s.Locked(name + ": released")
	q.Unlock()
	if q.s.Point(name + ": wakes " + j.name); present {
		w.Wake()
	}
}

// claim holds the queue for a while, as a transaction does.
func (q *watched) claim() {
	w := queue.NewWaiter[*job]()
	q.Lock()
	ok := q.Claim(w)
	if ok {
		q.drive("claimer")
	}
	q.s.Locked("claimer: claimed")
	q.Unlock()
	if !ok {
		return
	}
	q.s.Point("claimer: holds")
	q.Lock()
	if q.Current() != w {
		q.s.Failf("the claimed queue has another turn")
	}
	q.let()
	q.Release(q)
	q.s.Locked("claimer: released")
	q.Unlock()
}

// close closes the queue and waits until it is empty.
func (q *watched) close() {
	drained := q.Close()
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	if drained != nil {
		select {
		case <-drained:
		case <-q.s.Context().Done():
			return
		}
	}
	if q.Len() != 0 || q.Driven() {
		q.s.Failf("the closed queue is not empty: %d wait, driven: %v", q.Len(), q.Driven())
	}
}
