package batch_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// untilBoth repeats a race at least least times and until each side has won, at most ten times as
// often. run returns the winner. It gets a delay for each side, which is random for the side that has
// won more often.
func untilBoth(t *testing.T, least int, sides [2]string, run func(n int, delays [2]time.Duration) string) {
	t.Helper()
	won := map[string]int{}
	for n := 0; n < least || n < 10*least && len(won) < 2; n++ {
		var delays [2]time.Duration
		favorite := 0
		if won[sides[1]] > won[sides[0]] {
			favorite = 1
		}
		delays[favorite] = time.Duration(rand.Int64N(int64(1) << (15 + rand.IntN(11)))) // below 34 ms
		won[run(n, delays)]++
	}
	t.Logf("%v", won)
	require.Len(t, won, 2)
	require.Positive(t, won[sides[0]], "%v", won)
	require.Positive(t, won[sides[1]], "%v", won)
}

// onRacers runs test with an open store of every kind: hundreds of times in memory, dozens of times
// on the others.
func onRacers(t *testing.T, test func(t *testing.T, store persist.Store, times int)) {
	stores.Each(t, func(t *testing.T, location string) {
		times := testkit.Times(50, 24)
		if stores.Name(location) == "memory" {
			times = testkit.Times(500, 200)
		}
		test(t, stores.OpenFor(t, location), times)
	})
}

// Cancel races the commit that completes the job. Either the job is completed and nothing is refunded,
// or it is canceled and everything is. Proves CANCEL-7, CANCEL-8.
func TestCancelRacesTheLastCompletion(t *testing.T) {
	onRacers(t, func(t *testing.T, store persist.Store, times int) {
		rt, s := open(t, store), newStudio()
		q, other := newQueue(t, rt, s), newQueue(t, rt, s)
		untilBoth(t, times, [2]string{"completed", "canceled"}, func(n int, delays [2]time.Duration) string {
			id := fmt.Sprint("j", n)
			give(t, rt, "ada", 100)
			submit(t, q, id, prompts(2, 5))
			answers := make(chan batch.Cancellation, 1)
			q.Hook(func(point, at string) {
				if point != "completing" {
					return
				}
				go func() {
					time.Sleep(delays[1])
					c, err := other.Cancel(context.Background(), at)
					if err != nil {
						t.Error(err)
					}
					answers <- c
				}()
				time.Sleep(delays[0])
			})
			once(t, q)
			c := testkit.Receive(t, answers)
			once(t, q) // the teardown, if the worker was asked for it
			p := progress(t, q, id)
			require.True(t, p.Final, "%+v", p)
			checkBooks(t, rt, q, 100, id)
			if p.Status == batch.Completed {
				require.Equal(t, batch.AlreadyCompleted, c.Answer)
				require.EqualValues(t, 90, balance(t, rt, "ada"))
				require.Zero(t, p.Refunded)
				return "completed"
			}
			require.Contains(t, []batch.Answer{batch.Accepted, batch.NowCanceled}, c.Answer)
			require.Equal(t, batch.Canceled, p.Status)
			require.EqualValues(t, 100, balance(t, rt, "ada"))
			require.Equal(t, batch.AlreadyCanceled, cancelJob(t, q, id).Answer)
			return "canceled"
		})
	})
}

// Several Cancels of a job that no worker has: one of them tears it down, and each item is refunded
// once. Proves CANCEL-3, CANCEL-7.
func TestCancelsRaceEachOther(t *testing.T) {
	onRacers(t, func(t *testing.T, store persist.Store, times int) {
		rt, s := open(t, store), newStudio()
		for n := range times / 4 {
			id := fmt.Sprint("j", n)
			give(t, rt, "ada", 12)
			q := newQueue(t, rt, s)
			submit(t, q, id, prompts(4, 5))
			once(t, q) // it fails with two items made
			answers := make(chan batch.Answer, 4)
			var group sync.WaitGroup
			for range cap(answers) {
				group.Go(func() {
					c, err := q.Cancel(context.Background(), id)
					if err != nil {
						t.Error(err)
					}
					answers <- c.Answer
				})
			}
			group.Wait()
			count := map[batch.Answer]int{}
			for range cap(answers) {
				count[<-answers]++
			}
			require.Equal(t, 1, count[batch.NowCanceled], "%v", count)
			require.Equal(t, 3, count[batch.Accepted]+count[batch.AlreadyCanceled], "%v", count)
			require.Equal(t, batch.Canceled, progress(t, q, id).Status)
			require.EqualValues(t, 12, balance(t, rt, "ada"))
			require.Empty(t, s.left())
			checkBooks(t, rt, q, 12, id)
		}
	})
}

// Several Cancels of a job that a worker has are all accepted, and the worker tears it down once.
// Proves CANCEL-3, CANCEL-9.
func TestCancelsOfARunningJob(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s)
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(4, 5))
		calling, goOn := make(chan struct{}), make(chan struct{})
		s.during = func(context.Context, string) error {
			calling <- struct{}{}
			<-goOn
			return nil
		}
		start(t, q)
		testkit.Receive(t, calling)
		var group sync.WaitGroup
		for range 5 {
			group.Go(func() {
				c, err := q.Cancel(context.Background(), "j")
				if err != nil || c.Answer != batch.Accepted {
					t.Errorf("%+v, %v", c, err)
				}
			})
		}
		group.Wait()
		close(goOn)
		require.Equal(t, batch.Canceled, finished(t, q, "j").Status)
		require.Equal(t, 1, s.count())
		require.EqualValues(t, 100, balance(t, rt, "ada"))
		checkBooks(t, rt, q, 100, "j")
	})
}

// Finalize races Cancel: the item is either accepted and paid for, or refunded and removed. Proves
// CANCEL-10.
func TestFinalizeRacesCancel(t *testing.T) {
	onRacers(t, func(t *testing.T, store persist.Store, times int) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s)
		untilBoth(t, times, [2]string{"accepted", "refunded"}, func(n int, delays [2]time.Duration) string {
			id := fmt.Sprint("j", n)
			give(t, rt, "ada", 7)
			submit(t, q, id, prompts(2, 5))
			once(t, q) // it fails with one item made
			begin, refused := make(chan struct{}), make(chan error, 1)
			go func() {
				<-begin
				time.Sleep(delays[0])
				refused <- q.Finalize(context.Background(), id, 0)
			}()
			close(begin)
			time.Sleep(delays[1])
			require.Equal(t, batch.NowCanceled, cancelJob(t, q, id).Answer)
			err := testkit.Receive(t, refused)
			checkBooks(t, rt, q, 7, id)
			defer func() { s.images = map[string]bool{} }()
			if err == nil {
				require.Equal(t, "finalized canceled", states(t, q, id))
				require.EqualValues(t, 2, balance(t, rt, "ada"))
				require.Len(t, s.left(), 1)
				return "accepted"
			}
			requireCode(t, err, "JOB_STATUS", 409)
			require.Equal(t, "canceled canceled", states(t, q, id))
			require.EqualValues(t, 7, balance(t, rt, "ada"))
			require.Empty(t, s.left())
			return "refunded"
		})
	})
}

// A worker hears of a cancel from the store, without a poll. With Interrupt the context of the call
// ends, with a cause. Proves CANCEL-9.
func TestCancelInterruptsByHint(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) { testInterrupt(t, store, time.Hour) })
}

// A worker hears of a cancel on a store that gives no hints. Proves CANCEL-9.
func TestCancelInterruptsWithoutHints(t *testing.T) {
	store := memory.New()
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	testInterrupt(t, stores.Bare{Store: store}, 10*time.Millisecond)
}

func testInterrupt(t *testing.T, store persist.Store, poll time.Duration) {
	rt, other, s := open(t, store), open(t, store), newStudio()
	calling, causes := make(chan struct{}), make(chan error, 1)
	s.during = func(ctx context.Context, _ string) error {
		close(calling)
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return context.Cause(ctx)
	}
	set := func(c *config) { c.Interrupt, c.Poll = true, poll }
	q := newQueue(t, rt, s, set)
	give(t, rt, "ada", 100)
	submit(t, q, "j", prompts(3, 5))
	start(t, q)
	testkit.Receive(t, calling)
	require.Equal(t, batch.Accepted, cancelJob(t, newQueue(t, other, s, set), "j").Answer)
	require.ErrorContains(t, testkit.Receive(t, causes), "to be canceled")
	testkit.Eventually(t, func() bool { return progress(t, q, "j").Status == batch.Canceled })
	require.Equal(t, 1, s.count())
	require.Empty(t, s.left())
	require.Zero(t, progress(t, q, "j").Failed, "the call has not failed")
	checkBooks(t, rt, q, 100, "j")
}

// bubble runs test in virtual time, with a store in memory.
func bubble(t *testing.T, test func(t *testing.T, store persist.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		t.Cleanup(func() { require.NoError(t, store.Close()) })
		test(t, store)
	})
}

// A worker whose watch has failed hears of a cancel by its poll. Proves CANCEL-9.
func TestCancelInterruptsByPoll(t *testing.T) {
	bubble(t, func(t *testing.T, store persist.Store) {
		tap, s := &stores.Tap{Store: store}, newStudio()
		rt, other := open(t, tap), open(t, store)
		ended := make(chan struct{})
		s.during = func(ctx context.Context, _ string) error {
			select {
			case <-ctx.Done():
			case <-ended:
			}
			return context.Cause(ctx)
		}
		set := func(c *config) { c.Interrupt, c.Poll = true, time.Minute }
		q := newQueue(t, rt, s, set)
		q.Hook(func(point, _ string) {
			if point == "claimed" { // the watch cannot begin, and the first charge waits
				tap.OnLoad(func(context.Context, ...persist.Key) error { return persist.ErrUnavailable })
			}
		})
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(3, 5))
		start(t, q)
		t.Cleanup(func() { close(ended) })
		time.Sleep(time.Second)
		tap.OnLoad(nil)
		time.Sleep(time.Second)
		require.Equal(t, 1, s.count())
		require.Equal(t, batch.Accepted, cancelJob(t, newQueue(t, other, s, set), "j").Answer)
		time.Sleep(2 * time.Minute)
		require.Equal(t, batch.Canceled, progress(t, q, "j").Status)
		checkBooks(t, rt, q, 100, "j")
	})
}

// Without Interrupt the calls in progress end by themselves, and their results are stored before the
// teardown. Proves CANCEL-9.
func TestCancelLetsCallsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		goOn := make(chan struct{})
		s.during = func(ctx context.Context, _ string) error {
			<-goOn
			return ctx.Err()
		}
		q := newQueue(t, rt, s, func(c *config) { c.Items = 2 })
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(5, 5))
		start(t, q)
		time.Sleep(time.Second)
		require.Equal(t, batch.Accepted, cancelJob(t, q, "j").Answer)
		time.Sleep(time.Minute) // the worker knows
		close(goOn)
		p := finished(t, q, "j")
		require.Equal(t, []int{2, 0, 5}, []int{p.Done, p.Failed, p.Canceled})
		require.Equal(t, 2, s.count())
		checkBooks(t, rt, q, 100, "j")
	})
}

// Stop hands the job back at the next item. Another queue completes it, and makes no call twice.
// Proves CANCEL-1, CANCEL-11.
func TestStopHandsTheJobBack(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		calling, goOn := make(chan struct{}), make(chan struct{})
		s.during = func(ctx context.Context, text string) error {
			if text == "p1" {
				close(calling)
				<-goOn
			}
			return ctx.Err()
		}
		q := newQueue(t, rt, s)
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(4, 5))
		require.NoError(t, q.Start(context.Background()))
		testkit.Receive(t, calling)
		stopped := make(chan error, 1)
		go func() { stopped <- q.Stop(context.Background()) }()
		testkit.Eventually(t, func() bool { return errors.Is(q.Start(context.Background()), job.ErrStopped) })
		close(goOn)
		require.NoError(t, testkit.Receive(t, stopped))
		require.Equal(t, batch.Queued, progress(t, q, "j").Status)
		require.Equal(t, "made made waiting waiting", states(t, q, "j"))
		_, err := q.Once(t.Context())
		require.ErrorIs(t, err, job.ErrStopped)

		other := newQueue(t, rt, s)
		once(t, other)
		require.Equal(t, batch.Completed, progress(t, other, "j").Status)
		require.Equal(t, 4, s.count())
		for key, calls := range s.calls {
			require.Equal(t, 1, calls, key)
		}
		checkBooks(t, rt, q, 100, "j")
	})
}

// Stop whose context ends interrupts the call. It is made again under the same key, without a second
// charge, and is not counted as failed. Proves CANCEL-11.
func TestStopInterruptsTheCall(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		var causes []error
		calling := make(chan struct{})
		s.during = func(ctx context.Context, text string) error {
			if text == "p1" && len(causes) == 0 {
				close(calling)
				<-ctx.Done()
				causes = append(causes, context.Cause(ctx))
				return context.Cause(ctx)
			}
			return nil
		}
		attempts := func(c *config) { c.Retry.Attempts = 1 }
		q := newQueue(t, rt, s, attempts)
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(3, 5))
		require.NoError(t, q.Start(context.Background()))
		testkit.Receive(t, calling)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, q.Stop(ended), context.Canceled)
		require.NoError(t, q.Stop(t.Context()))
		require.ErrorIs(t, causes[0], job.ErrStopped)
		require.Equal(t, batch.Queued, progress(t, q, "j").Status)
		require.Equal(t, "made charged waiting", states(t, q, "j"))
		checkBooks(t, rt, q, 100, "j")

		other := newQueue(t, rt, s, attempts)
		once(t, other)
		require.Equal(t, "made made made", states(t, other, "j"))
		require.Len(t, s.calls, 3)
		require.Equal(t, 4, s.count())
		require.EqualValues(t, 85, balance(t, rt, "ada"))
		checkBooks(t, rt, q, 100, "j")
	})
}

// As many calls as Config.Items run at a time, and not more.
func TestParallelItems(t *testing.T) {
	bubble(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		next := make(chan struct{})
		s.during = func(context.Context, string) error { <-next; return nil }
		q := newQueue(t, rt, s, func(c *config) { c.Items = 3 })
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(10, 5))
		start(t, q)
		t.Cleanup(func() { close(next) })
		for done := range 10 {
			time.Sleep(time.Second)
			require.Equal(t, min(done+3, 10), s.count())
			next <- struct{}{}
		}
		require.Equal(t, batch.Completed, finished(t, q, "j").Status)
		checkBooks(t, rt, q, 100, "j")
	})
}

// The progress of a job can be watched by another process while it is worked on.
func TestWatch(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, other, s := open(t, store), open(t, store), newStudio()
		next := make(chan struct{})
		s.during = func(context.Context, string) error { <-next; return nil }
		q, watcher := newQueue(t, rt, s), newQueue(t, other, s)
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(3, 5))
		start(t, q)
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		var last batch.Progress
		asked := -1
		for p, err := range watcher.Watch(ctx, "j") {
			require.NoError(t, err)
			require.GreaterOrEqual(t, p.Done, last.Done)
			if last = p; p.Done > asked && p.Done < 3 { // each one is seen before the next is made
				asked = p.Done
				go func() { next <- struct{}{} }()
			}
		}
		require.Equal(t, batch.Completed, last.Status)
		require.Equal(t, 2, asked)
	})
}

// Concurrent Submits of one id create one job. Proves CANCEL-1.
func TestSubmitsRace(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s, func(c *config) { c.Chunk = 2 })
		give(t, rt, "ada", 100)
		var created atomic.Int32
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				_, first, err := q.Submit(context.Background(), aJob{ID: "j", Account: "ada", Items: prompts(5, 5)})
				if err != nil {
					t.Error(err)
				}
				if first {
					created.Add(1)
				}
			})
		}
		group.Wait()
		require.EqualValues(t, 1, created.Load())
		once(t, q)
		require.Equal(t, 5, s.count())
		require.Equal(t, 5, progress(t, q, "j").Done)
		checkBooks(t, rt, q, 100, "j")
	})
}

// Two workers on one job: one of them gets it. Proves CANCEL-1.
func TestWorkersRace(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, other, s := open(t, store), open(t, store), newStudio()
		q := newQueue(t, rt, s)
		give(t, rt, "ada", 100)
		ids := []string{"j0", "j1", "j2", "j3", "j4"}
		for _, id := range ids {
			submit(t, q, id, prompts(3, 5))
		}
		var group sync.WaitGroup
		for _, rt := range []*pawl.Runtime{rt, other} {
			worker := newQueue(t, rt, s)
			group.Go(func() {
				if _, err := worker.Once(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		for _, id := range ids {
			require.Equal(t, batch.Completed, progress(t, q, id).Status)
		}
		require.Equal(t, 15, s.count())
		checkBooks(t, rt, q, 100, ids...)
	})
}
