package batch_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

func init() {
	testkit.Child("worker", func() error { return beginAll(0, 100*time.Millisecond) })
}

// rawJobs are the documents of jobs, as another writer sees them.
func rawJobs(queue string) pawl.Kind[map[string]any] {
	return pawl.Kind[map[string]any]{Name: "batch." + queue, Label: job.Label, Due: job.Due}
}

// isJob reports whether a commit changes the document of a job.
func isJob(w persist.Write) bool {
	return strings.HasPrefix(w.Kind, "batch.") && !strings.HasSuffix(w.Kind, ".item") && w.Expected > 0 && !w.Deleted
}

// before makes fn run once, before the first commit that gives a job a status. The runtime that it
// returns takes jobs by commits.
func before(t testing.TB, store persist.Store, status batch.Status, fn func()) *pawl.Runtime {
	t.Helper()
	tap := &stores.Tap{Store: store}
	var once sync.Once
	tap.OnCommit(func(_ context.Context, c persist.Commit) error {
		for _, w := range c.Writes {
			if isJob(w) && w.Label == string(status) {
				once.Do(fn)
			}
		}
		return nil
	})
	return open(t, stores.Bare{Store: tap})
}

// A worker is about to take a queued job when Cancel tears it down. The worker gets nothing. Proves
// CANCEL-1, CANCEL-2.
func TestResurrectionCancelFirst(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s)
		var c batch.Cancellation
		worker := newQueue(t, before(t, store, batch.Running, func() { c = cancelJob(t, q, "j") }), s)
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(3, 5))
		n, err := worker.Once(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, batch.NowCanceled, c.Answer)
		require.Equal(t, c.Progress, progress(t, q, "j"))
		require.Zero(t, s.count())
		checkBooks(t, rt, q, 100, "j")
	})
}

// Cancel is about to tear a queued job down when a worker takes it. The worker tears it down, at the
// next item. Proves CANCEL-2, CANCEL-9.
func TestResurrectionWorkerFirst(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		calling, goOn := make(chan struct{}), make(chan struct{})
		s.during = func(context.Context, string) error {
			close(calling)
			<-goOn
			return nil
		}
		worker := newQueue(t, rt, s)
		endpoint := newQueue(t, before(t, store, batch.Canceling, func() {
			start(t, worker)
			testkit.Receive(t, calling)
		}), s)
		give(t, rt, "ada", 100)
		submit(t, worker, "j", prompts(3, 5))
		require.Equal(t, batch.Accepted, cancelJob(t, endpoint, "j").Answer)
		p := progress(t, worker, "j")
		require.Equal(t, batch.Running, p.Status)
		require.Zero(t, p.Refunded)
		require.Len(t, s.left(), 1)
		close(goOn)
		p = finished(t, worker, "j")
		require.Equal(t, batch.Canceled, p.Status)
		require.Equal(t, 1, s.count())
		require.Empty(t, s.left())
		checkBooks(t, rt, worker, 100, "j")
	})
}

// A job is delivered to a second worker while the first takes it, works on it and ends it. The
// second gets nothing. Proves CANCEL-1.
func TestDoubleDelivery(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		first := newQueue(t, rt, s)
		second := newQueue(t, before(t, store, batch.Running, func() {
			n, err := first.Once(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}), s)
		give(t, rt, "ada", 100)
		submit(t, first, "j", prompts(3, 5))
		n, err := second.Once(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		p := progress(t, first, "j")
		require.Equal(t, batch.Completed, p.Status)
		require.EqualValues(t, 15, p.Charged)
		require.Equal(t, 3, s.count())
		checkBooks(t, rt, first, 100, "j")
	})
}

// Two processes work on the same jobs. Each item is called and charged once. Proves CANCEL-1.
func TestTwoProcesses(t *testing.T) {
	refs := references(t)
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		b := openBench(t, stores.OpenFor(t, location), t.TempDir())
		var visits []visit
		for i := range testkit.Times(20, 5) {
			visits = append(visits, visit{"complete", "none", i})
		}
		a := startChild(t, "worker", location, b, visits)
		z := startChild(t, "worker", location, b, visits)
		for _, v := range visits {
			require.NoError(t, b.prepare(v.id()))
		}
		for _, v := range visits {
			require.Equal(t, batch.Completed, finished(t, b.queue(v.id()), v.id()).Status)
		}
		testkit.Ready(a, z)
		a.Wait()
		z.Wait()
		compare(t, b, visits, refs)
		files, err := os.ReadDir(b.folder)
		require.NoError(t, err)
		require.Len(t, files, 3*len(visits))
		for _, f := range files {
			info, err := f.Info()
			require.NoError(t, err)
			require.EqualValues(t, 1, info.Size(), "calls of %s", f.Name())
		}
	})
}

// deadInCancel kills a process in Cancel, checks how it left the job, and repeats the cancel: by
// another Cancel, and by a worker.
func deadInCancel(t *testing.T, point string, nth int, left string) {
	t.Helper()
	refs := references(t)
	visits := []visit{{"cancel", point, nth}, {"teardown", point, nth}}
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		b := openBench(t, stores.OpenFor(t, location), t.TempDir())
		block(t, "victim", location, b, visits).Kill()
		for _, v := range visits {
			o := b.outcome(t, v.id())
			require.Equal(t, left, o.String())
			require.False(t, o.Progress.Final)
			require.NotEqual(t, batch.AlreadyCanceled, cancelJob(t, b.queue(v.id()), v.id()).Answer)
		}
		repeat(t, b, visits, refs)
	})
}

// A process dies between the commits that mark and refund items. Those of the first are not refunded
// again. Proves CANCEL-3, CANCEL-7, CANCEL-11.
func TestDeathAfterTheMarker(t *testing.T) {
	deadInCancel(t, "refunded", 1, "canceling 18-13 15 finalized,canceled,canceled,waiting,waiting 012")
}

// A process dies between two removals. All images are removed by the repetition, and the image of
// the accepted item stays. Proves CANCEL-5, CANCEL-7, CANCEL-10, CANCEL-11.
func TestDeathInCleanup(t *testing.T) {
	deadInCancel(t, "removed", 1, "canceling 18-13 15 finalized,canceled,canceled,canceled,canceled 02")
}

// A process dies after all removals. The job is not canceled before the repetition. Proves CANCEL-6,
// CANCEL-7, CANCEL-11.
func TestDeathBeforeTheEnd(t *testing.T) {
	deadInCancel(t, "cleaned", 1, "canceling 18-13 15 finalized,canceled,canceled,canceled,canceled 0")
}

// Cancel comes after the last item and before the job is completed. The job is torn down. Proves
// CANCEL-8, CANCEL-9.
func TestCancelAfterTheLastItem(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q, endpoint := newQueue(t, rt, s), newQueue(t, open(t, store), s)
		var answers []batch.Answer
		q.Hook(func(point, id string) {
			if point == "completing" {
				answers = append(answers, cancelJob(t, endpoint, id).Answer)
			}
		})
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(3, 5))
		_, err := q.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, []batch.Answer{batch.Accepted}, answers)
		p := progress(t, q, "j")
		require.Equal(t, batch.Canceled, p.Status)
		require.EqualValues(t, []int64{15, 15}, []int64{p.Charged, p.Refunded})
		require.Equal(t, 3, p.Done)
		require.Empty(t, s.left())
		require.EqualValues(t, 100, balance(t, rt, "ada"))
		require.Equal(t, batch.AlreadyCanceled, cancelJob(t, endpoint, "j").Answer)
		checkBooks(t, rt, q, 100, "j")
	})
}

// A worker does not hear of a cancel, because its store has no hints. It charges no further item.
// Proves CANCEL-8, CANCEL-9.
func TestChargeTestsTheRequest(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		endpoint := newQueue(t, rt, s)
		q := newQueue(t, open(t, stores.Bare{Store: store}), s, func(c *config) { c.Poll = time.Hour })
		q.Hook(func(point, id string) {
			if point == "made" {
				assert.Equal(t, batch.Accepted, cancelJob(t, endpoint, id).Answer)
			}
		})
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(5, 5))
		_, err := q.Once(t.Context())
		require.NoError(t, err)
		p := progress(t, q, "j")
		require.Equal(t, batch.Canceled, p.Status)
		require.EqualValues(t, []int64{5, 5}, []int64{p.Charged, p.Refunded})
		require.Equal(t, 1, s.count())
		checkBooks(t, rt, q, 100, "j")
	})
}

// Cancel finds that a worker has the job, and the worker is stopped and hands it back before Cancel
// asks it. Cancel tears the job down itself. Proves CANCEL-9.
func TestCancelOfAReleasedJob(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		calling, goOn := make(chan struct{}), make(chan struct{})
		s.during = func(ctx context.Context, _ string) error {
			close(calling)
			<-goOn
			<-ctx.Done()
			return nil
		}
		worker := newQueue(t, rt, s)
		give(t, rt, "ada", 100)
		submit(t, worker, "j", prompts(3, 5))
		require.NoError(t, worker.Start(context.Background()))
		testkit.Receive(t, calling)
		endpoint := newQueue(t, before(t, store, batch.Running, func() { // the commit of the request
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			require.Error(t, worker.Stop(ctx)) // no further call begins
			close(goOn)
			require.NoError(t, worker.Stop(context.Background()))
		}), s)
		require.Equal(t, batch.NowCanceled, cancelJob(t, endpoint, "j").Answer)
		p := progress(t, endpoint, "j")
		require.Equal(t, batch.Canceled, p.Status)
		require.EqualValues(t, []int64{5, 5}, []int64{p.Charged, p.Refunded})
		require.Empty(t, s.left())
		checkBooks(t, rt, endpoint, 100, "j")
	})
}

// Two endpoints cancel jobs while a worker is anywhere in them. The answers agree with what becomes
// of each job, and the books balance. Proves CANCEL-2, CANCEL-3, CANCEL-7, CANCEL-8, CANCEL-9.
func TestEndpointRacesWorker(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s)
		endpoints := []*queue{newQueue(t, open(t, store), s), newQueue(t, open(t, store), s)}
		give(t, rt, "ada", 1000)
		var mu sync.Mutex // protects the maps
		countdown, reached := map[string]int{}, map[string]chan struct{}{}
		q.Hook(func(_, id string) {
			mu.Lock()
			defer mu.Unlock()
			if countdown[id]--; countdown[id] == 0 {
				close(reached[id])
			}
		})
		start(t, q)
		var ids []string
		for i := range testkit.Times(30, 10) {
			id := fmt.Sprint("j", i)
			ids = append(ids, id)
			at := make(chan struct{})
			mu.Lock()
			countdown[id], reached[id] = 1+rand.N(13), at // without a cancel the hook is called 13 times
			mu.Unlock()
			submit(t, q, id, prompts(3, 5))
			<-at
			answers := make([]batch.Cancellation, len(endpoints))
			errs := make([]error, len(endpoints))
			var all sync.WaitGroup
			for i, endpoint := range endpoints {
				all.Go(func() { answers[i], errs[i] = endpoint.Cancel(t.Context(), id) })
			}
			all.Wait()
			require.NoError(t, errors.Join(errs...))
			p := finished(t, q, id)
			for _, c := range answers {
				require.Equal(t, p.Status == batch.Completed, c.Answer == batch.AlreadyCompleted, "%+v", c)
				if c.Progress.Final {
					require.Equal(t, fmt.Sprint(p.Status, p.Charged, p.Refunded), fmt.Sprint(c.Progress.Status, c.Progress.Charged, c.Progress.Refunded))
				}
			}
			if p.Status == batch.Completed {
				require.EqualValues(t, 15, p.Cost())
			} else {
				require.Equal(t, batch.Canceled, p.Status)
				require.Zero(t, p.Cost())
			}
		}
		images := 0
		for _, id := range ids {
			if p := progress(t, q, id); p.Status == batch.Completed {
				images += p.Done
			}
		}
		require.Len(t, s.left(), images)
		checkBooks(t, rt, q, 1000, ids...)
	})
}

// A removal fails. Cancel returns that, the job stays canceling, and a repetition by Cancel or a
// worker ends it without another refund. Proves CANCEL-6.
func TestFailedCleanup(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s)
		give(t, rt, "ada", 12)
		for _, id := range []string{"endpoint", "worker"} {
			submit(t, q, id, prompts(3, 5))
			_, err := q.Once(t.Context())
			require.NoError(t, err)
			require.Equal(t, "made made waiting", states(t, q, id), "the account is empty")
			s.removing = func(string) error { return errCall }
			_, err = q.Cancel(t.Context(), id)
			remove := (*batch.RemoveError)(nil)
			require.ErrorAs(t, err, &remove)
			require.ErrorIs(t, err, errCall)
			p := progress(t, q, id)
			require.Equal(t, batch.Canceling, p.Status)
			require.Contains(t, p.Reason, errCall.Error())
			require.EqualValues(t, []int64{10, 10}, []int64{p.Charged, p.Refunded})
			require.Len(t, s.left(), 2)
			s.removing = nil
			if id == "endpoint" {
				require.Equal(t, batch.NowCanceled, cancelJob(t, q, id).Answer)
			} else {
				start(t, q)
			}
			p = finished(t, q, id)
			require.Equal(t, batch.Canceled, p.Status)
			require.Empty(t, p.Reason)
			require.EqualValues(t, []int64{10, 10}, []int64{p.Charged, p.Refunded})
			require.Empty(t, s.left())
			checkBooks(t, rt, q, 12, id)
		}
	})
}

// rival is a store in which another writer changes a job before each commit that changes it, so that
// each meets one conflict.
type rival struct {
	*stores.Tap
	writer *pawl.Runtime
	mu     sync.Mutex             // protects the fields below
	moved  map[persist.Key]uint64 // the versions after the changes
	errs   []error
}

func newRival(t testing.TB, store persist.Store) *rival {
	t.Helper()
	r := &rival{Tap: &stores.Tap{Store: store}, writer: open(t, store), moved: map[persist.Key]uint64{}}
	r.OnCommit(func(ctx context.Context, c persist.Commit) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, w := range c.Writes {
			if !isJob(w) || r.moved[w.Key] == w.Expected {
				continue
			}
			snap, err := rawJobs(strings.TrimPrefix(w.Kind, "batch.")).Scope(r.writer, w.ID).
				IncState(pawl.WithoutLeases(context.WithoutCancel(ctx)), "changes", 1)
			r.moved[w.Key], r.errs = snap.Version, append(r.errs, err)
		}
		return nil
	})
	return r
}

// Each commit that changes a job meets a conflict. The repeated commits have the same result. Proves
// CANCEL-3, CANCEL-4, CANCEL-8.
func TestConflictAtEveryCommit(t *testing.T) {
	refs := references(t)
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		r := newRival(t, store)
		for name, got := range runAll(t, stores.Bare{Store: r}, store) { // take jobs by commits, too
			require.Equal(t, refs[name].outcome, got.outcome, name)
		}
		require.NoError(t, errors.Join(r.errs...))
		require.Len(t, r.moved, len(operations))
		require.GreaterOrEqual(t, len(r.errs), 4*len(operations), "conflicts")
	})
}

// The progress of a job is the same in the process that changed it and in another one, with the
// locations of its times.
func TestProgressOfAnotherProcess(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q, other := newQueue(t, rt, s), newQueue(t, open(t, store), s)
		give(t, rt, "ada", 100)
		submitted, _, err := q.Submit(t.Context(), aJob{ID: "j", Account: "ada", Items: prompts(1, 5)})
		require.NoError(t, err)
		require.Equal(t, submitted, progress(t, q, "j"))
		require.Equal(t, submitted, progress(t, other, "j"))
		c := cancelJob(t, q, "j")
		require.Equal(t, c.Progress, progress(t, q, "j"))
		require.Equal(t, c.Progress, progress(t, other, "j"))
	})
}
