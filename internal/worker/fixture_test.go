package worker_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/worker"
)

func TestMain(m *testing.M) { testkit.Main(m.Run) }

// desk holds the jobs of a test until they are taken, and records how they are taken and run.
type desk struct {
	mu      sync.Mutex
	due     []int
	looks   []look
	started []int
	ended   []int
	running int
	most    int // the largest number of jobs that ran at the same time
	asked   int // the largest number of jobs running or asked for at the same time
	taking  int
	takes   int // the largest number of concurrent Takes

	// take, if not nil, may replace the result of Take; run is the body of each job.
	take func(ctx context.Context, limit int, jobs []int) ([]int, error)
	run  func(ctx context.Context, job int)
	log  bytes.Buffer
}

// look records one Take.
type look struct {
	at    time.Time
	limit int
	got   int
}

func (d *desk) put(jobs ...int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due = append(d.due, jobs...)
}

func (d *desk) Take(ctx context.Context, limit int) ([]int, error) {
	d.mu.Lock()
	n := min(limit, len(d.due))
	jobs := slices.Clone(d.due[:n])
	d.due = d.due[n:]
	d.looks = append(d.looks, look{time.Now(), limit, n})
	d.asked = max(d.asked, d.running+limit)
	d.taking++
	d.takes = max(d.takes, d.taking)
	take := d.take
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.taking--
	}()
	if take != nil {
		return take(ctx, limit, jobs)
	}
	return jobs, nil
}

func (d *desk) Run(ctx context.Context, job int) {
	d.mu.Lock()
	d.started = append(d.started, job)
	d.running++
	d.most = max(d.most, d.running)
	run := d.run
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.running--
		d.ended = append(d.ended, job)
	}()
	if run != nil {
		run(ctx, job)
	}
}

// count returns the number of Takes.
func (d *desk) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.looks)
}

// gaps returns the times between Takes.
func (d *desk) gaps() (out []time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.looks[1:] {
		out = append(out, d.looks[i+1].at.Sub(d.looks[i].at))
	}
	return out
}

// done returns the jobs that have ended, in order of their numbers.
func (d *desk) done() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(slices.Values(d.ended))
}

// begun returns the jobs that were started, in order of their numbers.
func (d *desk) begun() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(slices.Values(d.started))
}

// lines returns the number of occurrences of what in the log.
func (d *desk) lines(what string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Count(d.log.String(), what)
}

// Write appends to the log.
func (d *desk) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

// loop returns a loop over the desk, otherwise configured by c.
func (d *desk) loop(c worker.Config[int]) *worker.Loop[int] {
	c.Name, c.Take, c.Run = "desk", d.Take, d.Run
	c.Logger = slog.New(slog.NewTextHandler(d, nil))
	return worker.New(c)
}

// bubble runs fn with a started loop in a synctest bubble, where time is virtual and exact, and
// stops the loop at the end.
func bubble(t *testing.T, d *desk, c worker.Config[int], fn func(t *testing.T, l *worker.Loop[int])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := d.loop(c)
		require.NoError(t, l.Start(context.Background()))
		synctest.Wait()
		fn(t, l)
		require.NoError(t, l.Stop(context.Background()))
	})
}

// pass lets time d pass in a bubble, and waits for its effects.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// numbers returns 0 to n-1.
func numbers(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// ended returns a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
