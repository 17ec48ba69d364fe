package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/queue"
	"github.com/pawl-go/pawl/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m.Run) }

// recorder is a worker that runs the function of each waiter.
type recorder struct {
	queue.Queue[func()]
}

func (r *recorder) Work() {
	for {
		r.Lock()
		w := r.Next()
		if w != nil {
			w.State = queue.Running
		}
		r.Unlock()
		if w == nil {
			return
		}
		w.Value()
		r.Lock()
		owner, present := r.Current() == w, false
		if owner {
			present = r.Answer(w)
		}
		r.Unlock()
		if present {
			w.Wake()
		}
		if !owner {
			return
		}
	}
}

// submit pushes fn and starts the worker.
func (r *recorder) submit(fn func(), within time.Duration, limit int) (*queue.Waiter[func()], error) {
	w := queue.NewWaiter[func()]()
	w.Value = fn
	if within > 0 {
		w.Deadline = time.Now().Add(within)
	}
	return w, r.Push(w, limit, r)
}

// answered returns a waiter whose answer is decided, and whose caller was not woken yet. Its function
// runs until release is called. It is for a bubble of synctest.
func (r *recorder) answered(t *testing.T, within time.Duration) (w *queue.Waiter[func()], release func()) {
	t.Helper()
	gate := make(chan struct{})
	w, err := r.submit(func() { <-gate }, within, 10)
	require.NoError(t, err)
	synctest.Wait()
	r.Lock()
	require.True(t, r.Answer(w))
	r.Release(r)
	r.Unlock()
	return w, func() { close(gate) }
}

// Waiters run in the order in which they arrived. Proves LOCK-1.
func TestOrder(t *testing.T) {
	var (
		r    recorder
		got  []int
		want []int
		last *queue.Waiter[func()]
	)
	gate := make(chan struct{})
	_, err := r.submit(func() { <-gate }, 0, 100)
	require.NoError(t, err)
	for i := range 50 {
		last, err = r.submit(func() { got = append(got, i) }, 0, 100)
		require.NoError(t, err)
		want = append(want, i)
	}
	close(gate)
	ending, _ := r.Await(t.Context(), last)
	require.Equal(t, queue.GotAnswer, ending)
	require.Equal(t, want, got)
}

// The limit counts only waiters: not the running one, nor those answered or withdrawn.
// Proves LOCK-14.
func TestLimit(t *testing.T) {
	var r recorder
	gate, runs := make(chan struct{}), make(chan struct{})
	_, err := r.submit(func() { close(runs); <-gate }, 0, 1)
	require.NoError(t, err)
	<-runs
	ctx, cancel := context.WithCancel(t.Context())
	waiting, err := r.submit(func() {}, 0, 1)
	require.NoError(t, err, "the running function does not count")
	_, err = r.submit(func() {}, 0, 1)
	var full *queue.FullError
	require.ErrorAs(t, err, &full)
	require.Equal(t, 1, full.Waiting)
	cancel()
	ending, reached := r.Await(ctx, waiting)
	require.Equal(t, queue.Canceled, ending)
	require.Equal(t, queue.Waiting, reached)
	last, err := r.submit(func() {}, 0, 1)
	require.NoError(t, err, "a withdrawn waiter does not count")
	close(gate)
	ending, _ = r.Await(t.Context(), last)
	require.Equal(t, queue.GotAnswer, ending)
}

// A deadline ends the wait of a caller, whether its function runs or waits. A function that was
// still waiting never runs. Proves LOCK-5, LOCK-7.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		gate, ran := make(chan struct{}), false
		running, err := r.submit(func() { <-gate }, time.Second, 10)
		require.NoError(t, err)
		waiting, err := r.submit(func() { ran = true }, time.Second, 10)
		require.NoError(t, err)
		began := time.Now()
		ending, reached := r.Await(t.Context(), running)
		require.Equal(t, queue.TimedOut, ending)
		require.Equal(t, queue.Running, reached)
		ending, reached = r.Await(t.Context(), waiting)
		require.Equal(t, queue.TimedOut, ending)
		require.Equal(t, queue.Waiting, reached)
		require.Equal(t, time.Second, time.Since(began))
		close(gate)
		synctest.Wait()
		require.False(t, ran)
		require.Nil(t, r.Close())
	})
}

// One alarm serves deadlines in any order, and those of waiters that arrive after its last ring.
// Proves LOCK-5.
func TestDeadlinesInAnyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recorder
		gate := make(chan struct{})
		_, err := r.submit(func() { <-gate }, 0, 10)
		require.NoError(t, err)
		for range 2 {
			var all sync.WaitGroup
			began := time.Now()
			for _, seconds := range []time.Duration{3, 1, 4, 2} {
				w, err := r.submit(func() { t.Error("a withdrawn waiter ran") }, seconds*time.Second, 10)
				require.NoError(t, err)
				all.Go(func() {
					ending, _ := r.Await(context.Background(), w)
					assert.Equal(t, queue.TimedOut, ending)
					assert.Equal(t, seconds*time.Second, time.Since(began))
				})
			}
			all.Wait()
			time.Sleep(time.Hour)
		}
		close(gate)
		synctest.Wait()
		require.Nil(t, r.Close())
	})
}

// An abandoned function does not drive the queue when it returns. Proves LOCK-11.
func TestRelease(t *testing.T) {
	var r recorder
	gate, runs := make(chan struct{}), make(chan struct{})
	stuck, err := r.submit(func() { close(runs); <-gate }, 0, 10)
	require.NoError(t, err)
	<-runs
	next, err := r.submit(func() {}, 0, 10)
	require.NoError(t, err)
	r.Lock()
	require.Same(t, stuck, r.Current())
	require.True(t, r.Answer(stuck))
	r.Release(&r)
	r.Unlock()
	stuck.Wake()
	ending, _ := r.Await(t.Context(), next)
	require.Equal(t, queue.GotAnswer, ending)
	ending, _ = r.Await(t.Context(), stuck)
	require.Equal(t, queue.GotAnswer, ending)
	close(gate)
}

// Close refuses new waiters and waits for the running function. Proves SCOPE-18.
func TestClose(t *testing.T) {
	var r recorder
	gate := make(chan struct{})
	w, err := r.submit(func() { <-gate }, 0, 10)
	require.NoError(t, err)
	drained := r.Close()
	require.NotNil(t, drained)
	_, err = r.submit(func() {}, 0, 10)
	require.ErrorIs(t, err, queue.ErrClosed)
	select {
	case <-drained:
		t.Fatal("drained while a function runs")
	default:
	}
	close(gate)
	<-drained
	ending, _ := r.Await(t.Context(), w)
	require.Equal(t, queue.GotAnswer, ending)
	require.Nil(t, r.Close())
}

// A worker that waits for the callers it answered goes on when each of them has its answer, and not
// before. Proves CAS-4.
func TestWakeFor(t *testing.T) {
	for name, leaves := range map[string]bool{"in Await": false, "with a context that has ended": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var (
					r     recorder
					awake sync.WaitGroup
					goes  atomic.Bool
				)
				w, release := r.answered(t, 0)
				go func() {
					w.WakeFor(&awake)
					awake.Wait()
					goes.Store(true)
				}()
				synctest.Wait()
				require.False(t, goes.Load(), "the caller does not have its answer")
				ctx, cancel := context.WithCancel(t.Context())
				if leaves {
					cancel()
				}
				ending, _ := r.Await(ctx, w)
				require.Equal(t, queue.GotAnswer, ending)
				synctest.Wait()
				require.True(t, goes.Load())
				release()
				cancel()
			})
		})
	}
}

// Callers that wake each other all get their answers, whether or not the contexts of some have ended.
// Proves CAS-4.
func TestWakeInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			q     queue.Queue[int]
			awake sync.WaitGroup
			all   []*queue.Waiter[int]
			got   = make(chan queue.Ending, 10)
		)
		queue.WakeInTurn(all, &awake)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for range cap(got) {
			w := queue.NewWaiter[int]()
			require.NoError(t, q.Push(w, 10, idle{}))
			all = append(all, w)
		}
		q.Lock()
		for q.First() != nil {
			require.True(t, q.Answer(q.Take()))
		}
		q.Unlock()
		await := func(i int) {
			ctx := t.Context()
			if i%2 == 1 {
				ctx = ended
			}
			ending, _ := q.Await(ctx, all[i])
			got <- ending
		}
		for i := 1; i < len(all); i++ {
			go await(i)
		}
		var goes atomic.Bool
		go func() {
			queue.WakeInTurn(all, &awake)
			awake.Wait()
			goes.Store(true)
		}()
		synctest.Wait()
		require.Empty(t, got)
		require.False(t, goes.Load(), "the callers do not have their answers")
		await(0)
		synctest.Wait()
		require.True(t, goes.Load())
		for range all {
			require.Equal(t, queue.GotAnswer, <-got)
		}
	})
}

// idle is a worker that leaves the queue to the test.
type idle struct{}

func (idle) Work() {}

// Claim takes only an idle queue, and Release starts a worker for waiters that arrived since.
func TestClaim(t *testing.T) {
	var r recorder
	holder := &queue.Waiter[func()]{}
	r.Lock()
	require.True(t, r.Claim(holder))
	require.False(t, r.Claim(&queue.Waiter[func()]{}))
	r.Unlock()
	w, err := r.submit(func() {}, 0, 10)
	require.NoError(t, err)
	r.Lock()
	require.Equal(t, 1, r.Len())
	r.Release(&r)
	r.Unlock()
	ending, _ := r.Await(t.Context(), w)
	require.Equal(t, queue.GotAnswer, ending)
}

// A waiter that claimed the queue and is put back waits before those that arrived meanwhile, and can
// leave like them. Proves STORE-13.
func TestPutBack(t *testing.T) {
	var r recorder
	var served []string
	waiter := func(name string) *queue.Waiter[func()] {
		w := queue.NewWaiter[func()]()
		w.Value = func() { served = append(served, name) }
		return w
	}
	for _, leaves := range []bool{false, true} {
		served = nil
		first, second := waiter("first"), waiter("second")
		r.Lock()
		require.True(t, r.Claim(first))
		require.NoError(t, r.Push(second, 10, &r))
		r.PutBack(first, &r)
		require.Equal(t, 2, r.Len())
		r.Unlock()
		if leaves {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, _ = r.Await(ctx, first)
		} else {
			_, _ = r.Await(t.Context(), first)
		}
		ending, _ := r.Await(t.Context(), second)
		require.Equal(t, queue.GotAnswer, ending)
		if leaves { // the worker may have been faster
			served = append([]string{"first"}, served[len(served)-1])
		}
		require.Equal(t, []string{"first", "second"}, served)
		testkit.Eventually(t, func() bool { r.Lock(); defer r.Unlock(); return !r.Driven() })
		require.Zero(t, r.Len())
	}
}

// again is a worker that pushes each waiter again at its first turn, and answers it at its second.
type again struct {
	queue.Queue[int]
	gate chan struct{} // each turn takes one value
}

func (a *again) Work() {
	for {
		a.Lock()
		w := a.Next()
		if w != nil {
			w.State = queue.Running
		}
		a.Unlock()
		if w == nil {
			return
		}
		<-a.gate
		if w.Value++; w.Value == 1 {
			a.Lock()
			err := a.Push(w, 10, a)
			a.Unlock()
			if err != nil {
				panic(err)
			}
			continue
		}
		a.Lock()
		present := a.Answer(w)
		a.Unlock()
		if present {
			w.Wake()
		}
	}
}

// A waiter that was taken and pushed again is answered if its caller still waits, and keeps its
// deadline.
func TestPushedAgain(t *testing.T) {
	type end struct {
		ending queue.Ending
		state  queue.State
	}
	for name, want := range map[string]end{
		"answered":  {queue.GotAnswer, queue.Answered},
		"timed out": {queue.TimedOut, queue.Running},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, began := again{gate: make(chan struct{})}, time.Now()
				w := queue.NewWaiter[int]()
				w.Deadline = began.Add(time.Minute)
				require.NoError(t, a.Push(w, 10, &a))
				got := make(chan end, 1)
				go func() {
					ending, state := a.Await(t.Context(), w)
					got <- end{ending, state}
				}()
				synctest.Wait() // the caller waits before the waiter is pushed again
				a.gate <- struct{}{}
				if want.ending == queue.GotAnswer {
					a.gate <- struct{}{}
				}
				require.Equal(t, want, <-got)
				if want.ending == queue.GotAnswer {
					require.Zero(t, time.Since(began), "the answer must wake the caller, not its deadline")
					return
				}
				require.Equal(t, time.Minute, time.Since(began))
				a.gate <- struct{}{}
			})
		})
	}
}

// When callers leave at random moments, a withdrawn waiter never ran, an answered one ran, and the
// queue ends empty. Proves LOCK-7, LOCK-14.
func TestLeaveAtRandomMoments(t *testing.T) {
	const callers, each, limit = 64, 50, 32
	var (
		r   recorder
		all sync.WaitGroup
	)
	for c := range callers {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(c)))
			for range each {
				var ran atomic.Bool
				w, err := r.submit(func() { ran.Store(true) }, time.Duration(1+random.IntN(200))*time.Microsecond, limit)
				if err != nil {
					continue
				}
				switch ending, reached := r.Await(context.Background(), w); {
				case ending == queue.GotAnswer:
					if !ran.Load() {
						t.Error("an answered waiter did not run")
					}
				case reached == queue.Waiting:
					if ran.Load() {
						t.Error("a withdrawn waiter ran")
					}
				}
			}
		})
	}
	all.Wait()
	if drained := r.Close(); drained != nil {
		<-drained
	}
	r.Lock()
	defer r.Unlock()
	require.Zero(t, r.Len())
	require.True(t, r.Idle())
}

// printer is a worker that prints its waiters.
type printer struct{ queue.Queue[string] }

func (p *printer) Work() {
	for {
		p.Lock()
		w := p.Next()
		p.Unlock()
		if w == nil {
			return
		}
		fmt.Println(w.Value)
		p.Lock()
		present := p.Answer(w)
		p.Unlock()
		if present {
			w.Wake()
		}
	}
}

func Example() {
	var p printer
	w := queue.NewWaiter[string]()
	w.Value, w.Deadline = "hello", time.Now().Add(time.Minute)
	if err := p.Push(w, 100, &p); err != nil {
		return
	}
	if ending, _ := p.Await(context.Background(), w); ending == queue.GotAnswer {
		fmt.Println("answered")
	}
	// Output:
	// hello
	// answered
}
