package job_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// Three workers share jobs. Each job is handled once, and what it commits is committed once. Proves
// JOB-1.
func TestWorkersShareJobs(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		const jobs = 60
		var handled [jobs]atomic.Int32
		var first *pawl.Runtime
		for i := range 3 {
			rt := open(t, stores.OpenFor(t, location))
			if i == 0 {
				first = rt
				for n := range jobs {
					put(t, rt, fmt.Sprint(n), -time.Second)
				}
			}
			start(t, rt, func(ctx context.Context, j *job.Job[reminder]) error {
				var n int
				_, err := fmt.Sscan(j.State.Text, &n)
				handled[n].Add(1)
				return errors.Join(err, send(ctx, j))
			}, func(c *job.Config[reminder]) { c.Poll = 50 * time.Millisecond })
		}
		testkit.Eventually(t, func() bool { return sent(t, first) == jobs }, "all jobs are done")
		for n := range jobs {
			require.EqualValues(t, 1, handled[n].Load(), "job %d", n)
			_, exists := get(t, first, fmt.Sprint(n))
			require.False(t, exists, "job %d", n)
		}
	})
}

// bubble runs a test on a memory store, in virtual time.
func bubble(t *testing.T, test func(t *testing.T, rt *pawl.Runtime)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{reminders, totals}})
		require.NoError(t, err)
		test(t, rt)
		require.NoError(t, rt.Close(context.Background()))
		require.NoError(t, store.Close())
	})
}

// A failing job is repeated by its policy, with its next due time and its error stored. Its last
// attempt parks it with its reason. A parked job is listed, and Retry gives it all its attempts
// again. Proves JOB-2.
func TestFailingJobIsRetriedAndParked(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		var attempts []time.Time
		fail := true
		var parked []string
		w := newWorker(t, rt, func(ctx context.Context, j *job.Job[reminder]) error {
			attempts = append(attempts, time.Now())
			require.Equal(t, len(attempts), j.Attempt)
			require.Equal(t, "reminder/1", j.Key())
			if fail {
				return fmt.Errorf("no mail server, attempt %d", j.Attempt)
			}
			return send(ctx, j)
		}, func(c *job.Config[reminder]) {
			c.Retry = pawl.Retry{Attempts: 4, First: time.Minute, Max: 3 * time.Minute}
			c.Parked = func(id string, state reminder) { parked = append(parked, id+": "+state.Error) }
			c.Poll = time.Hour
		})
		require.NoError(t, w.Start(t.Context()))
		put(t, rt, "1", 0)
		synctest.Wait()
		require.Len(t, attempts, 1)
		doc, _ := get(t, rt, "1")
		require.Equal(t, "no mail server, attempt 1", doc.Error)
		require.Equal(t, job.Ready, doc.Label)
		require.True(t, doc.Due.After(time.Now().Add(-1)) && !doc.Due.After(time.Now().Add(time.Minute)), "due %v", doc.Due)

		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, attempts, 4)
		for i, bound := range []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute} {
			require.LessOrEqual(t, attempts[i+1].Sub(attempts[i]), bound+time.Millisecond)
		}
		require.Equal(t, []string{"1: no mail server, attempt 4"}, parked)
		var listed []string
		for snap, err := range w.Parked(t.Context()) {
			require.NoError(t, err)
			listed = append(listed, snap.ID)
		}
		require.Equal(t, []string{"1"}, listed)
		require.ErrorIs(t, w.Retry(t.Context(), "2"), pawl.ErrNotFound)

		fail, attempts = false, nil
		require.NoError(t, w.Retry(t.Context(), "1"))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, attempts, 1)
		require.Equal(t, 1, sent(t, rt))
		require.ErrorIs(t, w.Retry(t.Context(), "1"), pawl.ErrNotFound, "it is done")
		require.NoError(t, w.Stop(t.Context()))
	})
}

// A final error, and a job whose attempts were all spent by processes that died, are parked at once.
// Proves JOB-2.
func TestFinalErrorParksAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		handled := 0
		w := newWorker(t, rt, func(context.Context, *job.Job[reminder]) error {
			handled++
			return pawl.NonRetryable(errors.New("no such user"))
		}, func(c *job.Config[reminder]) { c.Retry.Attempts = 3 })
		put(t, rt, "final", 0)
		_, err := w.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, handled)
		doc, _ := get(t, rt, "final")
		require.Equal(t, job.State{Label: job.Parked, Attempts: 1, Error: "no such user"}, doc.State)

		state := job.At(time.Now())
		state.Attempts = 20 // of processes that died
		_, err = reminders.Scope(rt, "deadly").SetState(t.Context(), reminder{State: state})
		require.NoError(t, err)
		_, err = w.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, handled)
		doc, _ = get(t, rt, "deadly")
		require.Equal(t, job.State{Label: job.Parked, Attempts: 21, Error: "attempts spent: the last one did not end"}, doc.State)
	})
}

// A panic and runtime.Goexit fail the attempt, not the process. Proves JOB-2.
func TestPanicAndGoexitFailTheAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		w := newWorker(t, rt, func(_ context.Context, j *job.Job[reminder]) error {
			switch j.ID {
			case "panic":
				panic("no")
			case "commit":
				j.OnCommit(func(context.Context, *pawl.Tx) error { panic("late") })
				return nil
			}
			runtime.Goexit()
			return nil
		}, func(c *job.Config[reminder]) { c.Retry.Attempts = 1 })
		for _, id := range []string{"panic", "exit", "commit"} {
			put(t, rt, id, 0)
		}
		_, err := w.Once(t.Context())
		require.NoError(t, err)
		for id, want := range map[string]string{"panic": "panicked: no", "exit": "runtime.Goexit", "commit": "late"} {
			doc, _ := get(t, rt, id)
			require.Equal(t, job.Parked, doc.Label, id)
			require.Contains(t, doc.Error, want)
		}
	})
}

// A job is done at its due time, not at the next poll: one that this process writes, one that it
// writes while the worker sleeps for another, and one that an attempt makes due. Proves JOB-3.
func TestJobIsDoneWhenItFallsDue(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		begin := time.Now()
		done := map[string][]time.Duration{}
		w := newWorker(t, rt, func(_ context.Context, j *job.Job[reminder]) error {
			done[j.ID] = append(done[j.ID], time.Since(begin).Truncate(time.Second))
			if j.ID == "again" && len(done[j.ID]) < 3 {
				j.Again(10 * time.Minute)
			}
			return nil
		}, func(c *job.Config[reminder]) { c.Poll = 24 * time.Hour })
		require.NoError(t, w.Start(t.Context()))
		put(t, rt, "late", 50*time.Minute)
		put(t, rt, "early", 5*time.Minute)
		put(t, rt, "again", 7*time.Minute)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		require.Equal(t, map[string][]time.Duration{
			"early": {5 * time.Minute}, "late": {50 * time.Minute}, "again": {7 * time.Minute, 17 * time.Minute, 27 * time.Minute},
		}, done)
		require.NoError(t, w.Stop(t.Context()))
	})
}

// A job that falls due between two polls is done then, also shortly after one poll interval, which
// the loop extends. A job that falls due while the worker looks for jobs is not overlooked. Proves
// JOB-3.
func TestJobFallsDueBetweenLooks(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		w := newWorker(t, rt, send, func(c *job.Config[reminder]) { c.Poll = time.Hour })
		require.NoError(t, w.Start(t.Context()))
		for i := range 10 {
			put(t, rt, fmt.Sprint(i), time.Hour+time.Minute)
			time.Sleep(time.Hour + 2*time.Minute)
			require.Equal(t, i+1, sent(t, rt))
		}
		require.NoError(t, w.Stop(t.Context()))
	})
	synctest.Test(t, func(t *testing.T) {
		store := &slow{Store: memory.New()}
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		w := newWorker(t, rt, send, func(c *job.Config[reminder]) { c.Poll = time.Hour })
		put(t, rt, "1", time.Second)
		require.NoError(t, w.Start(t.Context()))
		time.Sleep(10 * time.Minute)
		require.Equal(t, 1, sent(t, rt))
		require.NoError(t, w.Stop(t.Context()))
		require.NoError(t, errors.Join(rt.Close(t.Context()), store.Close()))
	})
}

// A job that is written for later while the worker has all hands full is done when it falls due.
// Proves JOB-3.
func TestJobFallsDueAfterABusyTime(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		w := newWorker(t, rt, func(ctx context.Context, j *job.Job[reminder]) error {
			if j.ID == "1" {
				put(t, rt, "2", 10*time.Minute)
				j.OnCommit(func(_ context.Context, tx *pawl.Tx) error {
					tx.AfterCommit(func() { time.Sleep(time.Minute) }) // its own hint comes before its end
					return nil
				})
			}
			return send(ctx, j)
		}, func(c *job.Config[reminder]) { c.Poll, c.Concurrency = time.Hour, 1 })
		put(t, rt, "1", 0)
		require.NoError(t, w.Start(t.Context()))
		time.Sleep(11 * time.Minute)
		require.Equal(t, 2, sent(t, rt))
		require.NoError(t, w.Stop(t.Context()))
	})
}

// slow is a store whose lists of due records take a minute to arrive.
type slow struct{ persist.Store }

func (s *slow) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	page, err := s.Store.List(ctx, q)
	if q.Due {
		time.Sleep(time.Minute)
	}
	return page, err
}

// A job of another process is done within the poll interval, also if its hint is lost: the store of
// this test sends none. Proves JOB-3.
func TestJobOfAnotherProcessIsPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		var here, there *pawl.Runtime
		for _, rt := range []**pawl.Runtime{&here, &there} {
			var err error
			*rt, err = pawl.Open(pawl.Config{Store: deaf{store}, Kinds: []pawl.AnyKind{reminders, totals}})
			require.NoError(t, err)
		}
		w := newWorker(t, here, send, func(c *job.Config[reminder]) { c.Poll = time.Minute })
		require.NoError(t, w.Start(t.Context()))
		synctest.Wait()
		put(t, there, "1", 0)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, 1, sent(t, here))
		require.NoError(t, w.Stop(t.Context()))
		require.NoError(t, errors.Join(here.Close(t.Context()), there.Close(t.Context()), store.Close()))
	})
}

// deaf is a store without hints.
type deaf struct{ persist.Store }

// Stop hands an interrupted job back: it is still due, the attempt is not counted, and another
// worker does it. Proves JOB-1.
func TestStopHandsBack(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		put(t, rt, "1", 0)
		began := make(chan struct{})
		w := newWorker(t, rt, func(ctx context.Context, _ *job.Job[reminder]) error {
			close(began)
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), job.ErrStopped)
			return context.Cause(ctx)
		}, nil)
		require.NoError(t, w.Start(t.Context()))
		testkit.Receive(t, began)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, w.Stop(ended))
		require.NoError(t, w.Stop(t.Context()))
		require.NoError(t, w.Stop(t.Context()), "twice")
		require.Error(t, w.Start(t.Context()))
		doc, exists := get(t, rt, "1")
		require.True(t, exists)
		require.Zero(t, doc.Attempts)

		n, err := newWorker(t, rt, send, nil).Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, 1, sent(t, rt))
	})
}

// A job that is deleted, or gets another label, is withdrawn: the context of its handler ends, and
// nothing of it is committed. Proves JOB-1.
func TestWithdrawnJob(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		began, causes, lost := make(chan string), make(chan error, 2), make(chan string, 2)
		start(t, rt, func(ctx context.Context, j *job.Job[reminder]) error {
			began <- j.ID
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return send(ctx, j)
		}, func(c *job.Config[reminder]) {
			c.Lost = func(id string, cause error) { lost <- fmt.Sprintf("%s: %v", id, cause) }
		})
		put(t, rt, "deleted", 0)
		testkit.Receive(t, began)
		require.NoError(t, reminders.Scope(rt, "deleted").Delete(t.Context()))
		testkit.Receive(t, causes)
		require.True(t, strings.HasPrefix(testkit.Receive(t, lost), "deleted: "))

		put(t, rt, "labeled", 0)
		testkit.Receive(t, began)
		_, err := reminders.Scope(rt, "labeled").PatchState(t.Context(), pawl.Patch{"label": "stopped by a person"})
		require.NoError(t, err)
		require.ErrorIs(t, testkit.Receive(t, causes), job.ErrWithdrawn)
		require.Equal(t, "labeled: job: withdrawn", testkit.Receive(t, lost))
		doc, _ := get(t, rt, "labeled")
		require.Equal(t, "stopped by a person", doc.Label)
		require.Zero(t, sent(t, rt))
	})
}

// Another writer puts another job under the id of one that is being done. It is not deleted with
// that, but done too. Proves JOB-1.
func TestReplacedJobIsDone(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		put(t, rt, "1", 0)
		var texts []string
		w := newWorker(t, rt, func(ctx context.Context, j *job.Job[reminder]) error {
			if texts = append(texts, j.State.Text); len(texts) > 1 {
				return nil
			}
			_, err := reminders.Scope(rt, "1").SetState(pawl.WithoutLeases(ctx), reminder{State: job.At(time.Now()), Text: "other"})
			return err
		}, nil)
		_, err := w.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"1", "other"}, texts)
		_, exists := get(t, rt, "1")
		require.False(t, exists)
	})
}

// interrupt starts a worker in a bubble, and stops it when its handlers have returned or wait.
func interrupt(t *testing.T, w *job.Worker[reminder]) {
	t.Helper()
	require.NoError(t, w.Start(t.Context()))
	synctest.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = w.Stop(ended)
	require.NoError(t, w.Stop(t.Context()))
}

// Another job that is put under the id is left as it is, however the attempt ends. Proves JOB-1.
func TestReplacedJobIsLeftAlone(t *testing.T) {
	ends := map[string]func(ctx context.Context, j *job.Job[reminder]) error{
		"keep":  func(_ context.Context, j *job.Job[reminder]) error { j.Keep(); return nil },
		"again": func(_ context.Context, j *job.Job[reminder]) error { j.Again(time.Minute); return nil },
		"fail":  func(context.Context, *job.Job[reminder]) error { return errors.New("broken") },
		"park":  func(context.Context, *job.Job[reminder]) error { return pawl.NonRetryable(errors.New("broken")) },
		"stop":  func(ctx context.Context, _ *job.Job[reminder]) error { <-ctx.Done(); return context.Cause(ctx) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *pawl.Runtime) {
				put(t, rt, "1", 0)
				other := reminder{State: job.At(time.Now().Add(24 * time.Hour)), Text: "other"}
				w := newWorker(t, rt, func(ctx context.Context, j *job.Job[reminder]) error {
					_, err := reminders.Scope(rt, "1").SetState(pawl.WithoutLeases(ctx), other)
					require.NoError(t, err)
					return end(ctx, j)
				}, nil)
				interrupt(t, w)
				doc, _ := get(t, rt, "1")
				require.True(t, other.Due.Equal(doc.Due), "%v", doc.Due)
				doc.Due = other.Due
				require.Equal(t, other, doc)
			})
		})
	}
}

// A time that another writer sets while the handler runs stays, also if Stop interrupts that. Proves
// JOB-1.
func TestStopKeepsTheTimeOfOthers(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour} { // the second is due by WithDueIn only
		bubble(t, func(t *testing.T, rt *pawl.Runtime) {
			doc := reminder{State: job.At(time.Now().Add(ahead)), Text: "1"}
			_, err := reminders.Scope(rt, "1").SetState(t.Context(), doc, pawl.WithDueIn(0))
			require.NoError(t, err)
			time.Sleep(time.Millisecond) // by the clock of the bubble
			tomorrow := time.Now().Add(24 * time.Hour)
			w := newWorker(t, rt, func(ctx context.Context, _ *job.Job[reminder]) error {
				_, err := reminders.Scope(rt, "1").PatchState(pawl.WithoutLeases(ctx), pawl.Patch{"due": tomorrow})
				require.NoError(t, err)
				<-ctx.Done()
				return context.Cause(ctx)
			}, nil)
			interrupt(t, w)
			doc, _ = get(t, rt, "1")
			require.True(t, tomorrow.Equal(doc.Due), "%v", doc.Due)
			require.Zero(t, doc.Attempts)
			time.Sleep(time.Millisecond)
			n, err := newWorker(t, rt, send, nil).Once(t.Context())
			require.NoError(t, err)
			require.Zero(t, n, "it is not due")
		})
	}
}

// A job that WithDueIn made due, before its time or without one, is still due after Stop interrupted it.
// Proves JOB-1.
func TestStopHandsBackWhatWasExpedited(t *testing.T) {
	for name, due := range map[string]time.Duration{"at another time": 24 * time.Hour, "at no time": 0} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, rt *pawl.Runtime) {
				doc := reminder{State: job.State{Label: job.Ready}, Text: "1"}
				if due > 0 {
					doc.Due = time.Now().Add(due)
				}
				_, err := reminders.Scope(rt, "1").SetState(t.Context(), doc, pawl.WithDueIn(0))
				require.NoError(t, err)
				time.Sleep(time.Millisecond) // by the clock of the bubble
				began := 0
				w := newWorker(t, rt, func(ctx context.Context, _ *job.Job[reminder]) error {
					began++
					_, err := reminders.Scope(rt, "1").PatchState(ctx, pawl.Patch{"text": "half"})
					require.NoError(t, err)
					<-ctx.Done()
					return context.Cause(ctx)
				}, nil)
				interrupt(t, w)
				require.Equal(t, 1, began)
				after, _ := get(t, rt, "1")
				require.Zero(t, after.Attempts)
				require.True(t, after.Due.Equal(time.Now()), "%v", after.Due)
				n, err := newWorker(t, rt, send, nil).Once(t.Context())
				require.NoError(t, err)
				require.Equal(t, 1, n)
			})
		})
	}
}

// What a handler does to its copy of the document does not change when the job is done again. Proves
// JOB-2.
func TestHandlerChangesItsCopy(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		put(t, rt, "1", 0)
		began := time.Now()
		w := newWorker(t, rt, func(_ context.Context, j *job.Job[reminder]) error {
			j.State.Due, j.State.Attempts = time.Time{}, 100
			return errors.New("broken")
		}, func(c *job.Config[reminder]) { c.Retry = pawl.Retry{Attempts: 2, First: time.Hour, Max: time.Hour} })
		_, err := w.Once(t.Context())
		require.NoError(t, err)
		doc, _ := get(t, rt, "1")
		require.Equal(t, []any{job.Ready, 1}, []any{doc.Label, doc.Attempts})
		require.True(t, doc.Due.After(began), "%v", doc.Due)
	})
}

// A job whose error does not fit into its document is parked nevertheless, and a Parked that panics
// changes nothing about that. Proves JOB-2.
func TestErrorThatDoesNotFit(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		_, err := reminders.Scope(rt, "1").SetState(t.Context(), reminder{State: job.At(time.Now()), Text: strings.Repeat("x", rt.MaxDoc()-300)})
		require.NoError(t, err)
		calls := 0
		w := newWorker(t, rt, func(context.Context, *job.Job[reminder]) error {
			calls++
			return pawl.NonRetryable(errors.New(strings.Repeat("long ", 1000)))
		}, func(c *job.Config[reminder]) { c.Parked = func(string, reminder) { panic("parked") } })
		_, err = w.Once(t.Context())
		require.NoError(t, err)
		doc, _ := get(t, rt, "1")
		require.Equal(t, []any{job.Parked, "the error is too long for the document", 1}, []any{doc.Label, doc.Error, calls})
	})
}

// A document that this release cannot read does not delay the others. Proves JOB-3.
func TestUnreadableJobDelaysNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		raw, err := pawl.Open(pawl.Config{Store: rt.Store()})
		require.NoError(t, err)
		later := pawl.Kind[map[string]any]{Name: "reminder", Label: job.Label, Due: job.Due}
		_, err = later.Scope(raw, "bad").SetState(t.Context(), map[string]any{"label": job.Ready, "due": time.Now(), "text": 7})
		require.NoError(t, err)
		require.NoError(t, raw.Close(t.Context()))
		w := newWorker(t, rt, send, func(c *job.Config[reminder]) { c.Poll = time.Hour })
		require.NoError(t, w.Start(t.Context()))
		for n := range 10 {
			put(t, rt, fmt.Sprint(n), time.Second)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			require.Equal(t, n+1, sent(t, rt))
		}
		require.NoError(t, w.Stop(t.Context()))
	})
}

// Another writer changes the document while its handler runs. The handler does not run again, and
// both changes are kept. Proves JOB-1.
func TestConflictDoesNotRepeatTheHandler(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		put(t, rt, "1", 0)
		handled := 0
		w := newWorker(t, rt, func(ctx context.Context, j *job.Job[reminder]) error {
			handled++
			_, err := reminders.Scope(rt, "1").PatchState(pawl.WithoutLeases(ctx), pawl.Patch{"text": "changed"})
			j.Keep()
			return err
		}, nil)
		_, err := w.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, handled)
		doc, _ := get(t, rt, "1")
		require.Equal(t, reminder{State: job.State{Label: job.Kept}, Text: "changed"}, doc)
	})
}

// An attempt that takes longer than Timeout gets a context that has ended.
func TestTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		put(t, rt, "1", 0)
		w := newWorker(t, rt, func(ctx context.Context, _ *job.Job[reminder]) error {
			<-ctx.Done()
			return ctx.Err()
		}, func(c *job.Config[reminder]) { c.Timeout, c.Retry.Attempts = time.Minute, 1 })
		begin := time.Now()
		_, err := w.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, time.Minute, time.Since(begin))
		doc, _ := get(t, rt, "1")
		require.Equal(t, context.DeadlineExceeded.Error(), doc.Error)
	})
}

func TestConfigIsChecked(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		good := job.Config[reminder]{Kind: reminders, Handle: send}
		for name, change := range map[string]func(*job.Config[reminder]){
			"no handler":  func(c *job.Config[reminder]) { c.Handle = nil },
			"no label":    func(c *job.Config[reminder]) { c.Kind.Label = "" },
			"no due":      func(c *job.Config[reminder]) { c.Kind.Due = "" },
			"attempts":    func(c *job.Config[reminder]) { c.Retry.Attempts = -1 },
			"lease":       func(c *job.Config[reminder]) { c.Lease = -1 },
			"concurrency": func(c *job.Config[reminder]) { c.Concurrency = -1 },
		} {
			c := good
			change(&c)
			_, err := job.New(rt, c)
			var argument *pawl.ArgumentError
			require.ErrorAs(t, err, &argument, name)
		}
		_, err := job.New(nil, good)
		require.ErrorIs(t, err, pawl.ErrNoStore)
	})
}
