package batch_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// The model runs a random sequence of operations by three processes on two jobs. At each point of the
// protocol, and inside each call, another process may run a further operation, or the process may
// freeze. A frozen process is cut off from the store until it thaws. One that never thaws has died.
//
// Only one goroutine acts at a time: a process that meets a point waits until the operation of the
// other process has ended or is frozen. So the model can compare the whole state with its
// expectations at every point.
//
// In memory the time is that of a bubble, and leases run out. On disk no process freezes.

// modelJobs are the prices of the items of each job.
var modelJobs = map[string][]int64{"a": {3, 0, 5}, "b": {4, 2}}

const modelProcesses = 3

// modelProcess is a process with a runtime of its own.
type modelProcess struct {
	way  *cuttable
	rt   *pawl.Runtime
	q    *queue
	run  *modelRun     // the operation in progress; nil: none
	thaw chan struct{} // closed to let a frozen process go on; nil: it is not frozen
	dead bool          // it only unwinds
}

// modelRun is an operation in progress.
type modelRun struct{ ended, frozen chan struct{} }

// cuttable is a store that a process can be cut off from.
type cuttable struct {
	persist.Store
	cut     atomic.Bool
	commits *atomic.Int64 // of all processes
}

var errCut = fmt.Errorf("%w: cut off", persist.ErrUnavailable)

func (c *cuttable) Commit(ctx context.Context, commit persist.Commit) (time.Time, error) {
	if c.cut.Load() {
		return time.Time{}, errCut
	}
	c.commits.Add(1)
	return c.Store.Commit(ctx, commit)
}

func (c *cuttable) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if c.cut.Load() {
		return persist.Record{}, errCut
	}
	return c.Store.Load(ctx, key)
}

func (c *cuttable) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	if c.cut.Load() {
		return persist.Page{}, errCut
	}
	return c.Store.List(ctx, q)
}

// model is the expected state.
type model struct {
	decisions []int // zeros after the last one: nothing unusual happens
	freezes   bool  // processes may freeze, and time may pass
	counts    map[string]int

	account   string
	processes []*modelProcess
	view      *modelProcess // reads, and cancels in the end

	points   int64 // that the account was given
	images   map[string]bool
	calls    map[string]int
	accepted map[string]bool // items that Finalize has accepted, as "a/0"
	jobs     map[string]modelJob
	commits  atomic.Int64
	checked  int64    // the number of commits that check has seen
	log      []string // the operations
	failure  string   // the first one; empty: none
}

// modelJob is a job as it was last seen.
type modelJob struct {
	batch.Progress
	items []batch.Item[prompt, image]
}

// next returns the next decision, a number below n.
func (m *model) next(n int) int {
	if len(m.decisions) == 0 {
		return 0
	}
	d := m.decisions[0]
	m.decisions = m.decisions[1:]
	return d % n
}

func (m *model) fail(format string, args ...any) {
	if m.failure == "" {
		m.failure = fmt.Sprintf(format, args...) + "\n" + strings.Join(m.log, "\n")
		m.decisions = nil
	}
}

func (m *model) note(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

// newProcess opens a runtime and a queue on the store.
func (m *model) newProcess(store persist.Store, name string) (p *modelProcess, err error) {
	p = &modelProcess{way: &cuttable{Store: store, commits: &m.commits}}
	if p.rt, err = pawl.Open(pawl.Config{Store: p.way, Logger: quiet}); err != nil {
		return nil, err
	}
	p.q, err = batch.New(p.rt, config{
		Name: name, Ledger: batch.ScopeLedger(wallets, "points"),
		Price:  func(i prompt) (int64, error) { return i.Price, nil },
		Make:   func(ctx context.Context, key string, i prompt) (image, error) { return m.draw(ctx, p, key, i) },
		Remove: func(_ context.Context, key string, _ *image) error { return m.remove(p, key) },
		Retry:  pawl.Retry{Attempts: 2, First: 1, Max: 1}, Jobs: 1, Chunk: 2, Poll: time.Hour, Logger: quiet,
	})
	if err == nil && m.view != nil {
		p.q.Hook(func(point, id string) { m.at(p, point+" "+id) })
	}
	return p, err
}

// draw is the call of an item.
func (m *model) draw(ctx context.Context, p *modelProcess, key string, i prompt) (image, error) {
	if ctx.Err() != nil {
		return image{}, context.Cause(ctx)
	}
	m.images[key] = true
	m.calls[key]++
	id, _, _ := strings.Cut(i.Text, "/")
	for _, it := range m.jobs[id].items {
		if it.Item == i && (it.Key != key || it.State != batch.Charged || it.Attempts < m.calls[key]) {
			m.fail("call %d of %+v", m.calls[key], it)
		}
	}
	switch m.next(8) {
	case 4:
		m.count("call failed")
		return image{}, errCall
	case 5:
		m.count("call failed for good")
		return image{}, pawl.NonRetryable(errCall)
	case 6:
		m.count("call panicked")
		panic(errCall)
	case 7:
		m.at(p, "calling "+i.Text)
	}
	return image{Name: key}, nil
}

// remove removes what a call made.
func (m *model) remove(p *modelProcess, key string) error {
	if p.dead {
		return errCut
	}
	switch m.next(10) {
	case 7:
		m.count("removal failed")
		return errCall
	case 8:
		m.count("removal failed for good")
		return pawl.NonRetryable(errCall)
	case 9:
		m.count("removal panicked")
		panic(errCall)
	}
	delete(m.images, key)
	return nil
}

func (m *model) count(what string) { m.counts[what]++ }

// at is called by a process at a point of the protocol.
func (m *model) at(p *modelProcess, point string) {
	if p.dead {
		return
	}
	m.check(point)
	m.count("at " + strings.Fields(point)[0])
	if strings.HasPrefix(point, "ended") {
		return // inside a transaction, whose budget does not wait for other operations
	}
	switch d := m.next(8); {
	case d < 5:
	case d == 7 && m.freezes:
		m.note("freeze at %s", point)
		m.count("frozen")
		p.way.cut.Store(true)
		thaw := make(chan struct{})
		p.thaw = thaw
		p.run.frozen <- struct{}{}
		<-thaw
	default:
		m.note("at %s:", point)
		m.count("nested")
		m.operation()
	}
}

// do runs an operation of a process until it ends or freezes.
func (m *model) do(p *modelProcess, operation func()) {
	p.run = &modelRun{make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(p.run.ended)
		operation()
	}()
	m.await(p)
}

func (m *model) await(p *modelProcess) {
	select {
	case <-p.run.ended:
		p.run = nil
	case <-p.run.frozen:
	}
	m.check("after an operation")
}

// operation runs a random operation of a process that has none in progress.
func (m *model) operation() {
	var idle, frozen []*modelProcess
	for _, p := range m.processes {
		if p.run == nil {
			idle = append(idle, p)
		}
		if p.thaw != nil {
			frozen = append(frozen, p)
		}
	}
	what := m.next(16)
	switch {
	case what < 2 && len(frozen) > 0:
		p := frozen[m.next(len(frozen))]
		m.note("process %d thaws", slices.Index(m.processes, p))
		m.count("thawed")
		p.way.cut.Store(false)
		thaw := p.thaw
		p.thaw = nil
		close(thaw)
		m.await(p)
		return
	case what < 4 && m.freezes:
		seconds := []int{1, 10, 40}[m.next(3)]
		m.note("%d s pass", seconds)
		time.Sleep(time.Duration(seconds) * time.Second)
		return
	case len(idle) == 0:
		return
	}
	p := idle[m.next(len(idle))]
	id := []string{"a", "b"}[m.next(2)]
	name := fmt.Sprintf("process %d ", slices.Index(m.processes, p))
	switch {
	case what < 9:
		m.note("%sworks", name)
		m.do(p, func() { m.once(p) })
	case what == 9:
		m.note("5 more points")
		m.points += 5
		m.do(p, func() {
			if _, err := wallets.Scope(p.rt, m.account).IncState(context.Background(), "points", 5); err != nil {
				m.fail("top-up: %v", err)
			}
		})
	case what == 10:
		m.note("%ssubmits %s", name, id)
		m.do(p, func() { m.submit(p, id) })
	case what == 11:
		m.note("%scancels %s", name, id)
		m.do(p, func() { m.cancel(p, id) })
	case what == 12:
		m.note("%sretries %s", name, id)
		m.do(p, func() { m.retry(p, id) })
	default:
		items := []int{m.next(len(modelJobs[id]))}
		if m.next(4) == 3 {
			items = append(items, m.next(len(modelJobs[id])))
		}
		m.note("%sfinalizes %v of %s", name, items, id)
		m.do(p, func() { m.finalize(p, id, items) })
	}
}

func (m *model) once(p *modelProcess) {
	if _, err := p.q.Once(context.Background()); err != nil && !p.dead {
		m.fail("Once: %v", err)
	}
}

func (m *model) submit(p *modelProcess, id string) {
	j := aJob{ID: id, Account: m.account}
	for i, price := range modelJobs[id] {
		j.Items = append(j.Items, prompt{Text: fmt.Sprint(id, "/", i), Price: price})
	}
	before, exists := m.jobs[id]
	_, created, err := p.q.Submit(context.Background(), j)
	status := (*batch.StatusError)(nil)
	switch {
	case p.dead:
	case err == nil && !(created && exists):
		m.count("submitted")
	case errors.As(err, &status) && m.jobs[id].CancelRequested:
		m.count("submit refused")
	case pawl.IsRetryable(err): // it has lost to other operations until its budget was spent
	default:
		m.fail("Submit of %+v: created %t, %v", before, created, err)
	}
}

func (m *model) cancel(p *modelProcess, id string) {
	before, exists := m.jobs[id]
	c, err := p.q.Cancel(context.Background(), id)
	if p.dead {
		return
	}
	m.check("canceled")
	after, removal := m.jobs[id], (*batch.RemoveError)(nil)
	expected := false
	switch {
	case !exists:
		expected = errors.Is(err, pawl.ErrNotFound)
	case before.Status == batch.Completed:
		expected = err == nil && c.Answer == batch.AlreadyCompleted && same(c.Progress, after.Progress)
	case before.Status == batch.Canceled:
		expected = err == nil && c.Answer == batch.AlreadyCanceled && same(c.Progress, before.Progress)
	case errors.As(err, &removal):
		expected = after.CancelRequested
	case errors.Is(err, pawl.ErrLeaseLost): // it was frozen
		expected = m.freezes && after.CancelRequested
	case err != nil:
		expected = false
	case c.Answer == batch.NowCanceled || c.Answer == batch.AlreadyCanceled:
		expected = after.Status == batch.Canceled && same(c.Progress, after.Progress)
	case c.Answer == batch.AlreadyCompleted:
		expected = after.Status == batch.Completed
	case c.Answer == batch.Accepted:
		expected = after.CancelRequested
	}
	if m.count("cancel " + string(c.Answer)); !expected {
		m.fail("Cancel: %+v, %v; before %+v, after %+v", c, err, before, after)
	}
}

func (m *model) retry(p *modelProcess, id string) {
	before, exists := m.jobs[id]
	err := p.q.Retry(context.Background(), id)
	status := (*batch.StatusError)(nil)
	switch {
	case p.dead:
	case !exists && errors.Is(err, pawl.ErrNotFound):
	case before.Status == batch.Failed && err == nil:
		m.count("retried")
	case before.Status != batch.Failed && errors.As(err, &status) && status.Status == before.Status:
	default:
		m.fail("Retry: %v; before %+v", err, before)
	}
}

func (m *model) finalize(p *modelProcess, id string, items []int) {
	before, exists := m.jobs[id]
	err := p.q.Finalize(context.Background(), id, items...)
	if p.dead {
		return
	}
	made := exists && len(before.items) == before.Items
	for _, i := range items {
		made = made && before.items[i].State == batch.Made
	}
	status, state := (*batch.StatusError)(nil), (*batch.ItemError)(nil)
	switch {
	case !exists && errors.Is(err, pawl.ErrNotFound):
	case before.CancelRequested && errors.As(err, &status):
		m.count("finalize refused")
	case !before.CancelRequested && !made && errors.As(err, &state):
	case !before.CancelRequested && made && err == nil:
		m.count("finalized")
		for _, i := range items {
			m.accepted[fmt.Sprint(id, "/", i)] = true
		}
	default:
		m.fail("Finalize: %v; before %+v", err, before)
	}
}

// end ends the frozen processes, cancels the jobs and checks what is left.
func (m *model) end() {
	for _, p := range m.processes {
		if p.run != nil {
			p.dead = true
			close(p.thaw)
			<-p.run.ended
		}
	}
	if m.freezes {
		time.Sleep(time.Minute) // leases run out
	}
	m.check("the end")
	m.decisions = nil
	left := map[string]bool{}
	for id, j := range m.jobs {
		m.note("the last cancel of %s", id)
		m.cancel(m.view, id)
		m.check("the last cancel")
		final := j.Status == batch.Completed || j.Status == batch.Canceled
		if j = m.jobs[id]; j.Status != batch.Canceled && !final {
			m.fail("the last cancel left %+v", j.Progress)
		}
		for _, it := range j.items {
			switch it.State {
			case batch.Finalized:
				left[it.Key] = true
			case batch.Made:
				if left[it.Key] = true; j.Status == batch.Canceled {
					m.fail("%+v of a canceled job is not refunded", it)
				}
			case batch.Waiting, batch.Charged:
				m.fail("%+v of a job that is %s", it, j.Status)
			}
		}
		m.count("end " + string(j.Status))
	}
	if !maps.Equal(left, m.images) {
		m.fail("images %v, want %v", m.images, left)
	}
}

// runSequence returns a description of the first failure, or an empty string.
func runSequence(m *model, store persist.Store, name string) string {
	m.images, m.calls, m.accepted, m.jobs = map[string]bool{}, map[string]int{}, map[string]bool{}, map[string]modelJob{}
	m.account, m.points = "ada-"+name, 7
	var err error
	if m.view, err = m.newProcess(store, name); err == nil {
		_, err = wallets.Scope(m.view.rt, m.account).SetState(context.Background(), wallet{m.points})
	}
	for range modelProcesses {
		p, err2 := m.newProcess(store, name)
		m.processes, err = append(m.processes, p), errors.Join(err, err2)
	}
	if err != nil {
		return err.Error()
	}
	m.do(m.processes[0], func() { m.submit(m.processes[0], "a") })
	for len(m.decisions) > 0 {
		m.operation()
	}
	m.end()
	for _, p := range append(m.processes, m.view) {
		if err := p.rt.Close(context.Background()); err != nil {
			m.fail("close: %v", err)
		}
	}
	return m.failure
}

// checks makes rapid check n sequences, unless its flag says otherwise.
func checks(t *testing.T, n int) {
	f := flag.Lookup("rapid.checks")
	if f.Value.String() == f.DefValue {
		require.NoError(t, f.Value.Set(strconv.Itoa(n)))
		t.Cleanup(func() { require.NoError(t, f.Value.Set(f.DefValue)) })
	}
}

// drawDecisions draws numbers bit by bit, because rapid prefers small ones.
func drawDecisions(t *rapid.T) []int {
	number := rapid.Custom(func(t *rapid.T) (n int) {
		for range 8 {
			if n *= 2; rapid.Bool().Draw(t, "bit") {
				n++
			}
		}
		return n
	})
	length := rapid.SampledFrom([]int{10, 25, 50}).Draw(t, "length")
	return rapid.SliceOfN(number, length, length).Draw(t, "decisions")
}

// Workers, cancels, retries, repeated submits, acceptances, failing calls and removals, and deaths of
// processes in random order inside each other: no point is lost or invented, at any moment. What was
// accepted is never refunded, and a canceled job never changes again. A last Cancel leaves nothing
// undecided and no image of a refunded item. Proves CANCEL-1, CANCEL-2, CANCEL-3, CANCEL-5, CANCEL-6,
// CANCEL-7, CANCEL-8, CANCEL-9, CANCEL-10, CANCEL-11.
func TestModel(t *testing.T) {
	counts := map[string]int{}
	t.Run("memory", func(t *testing.T) {
		checks(t, testkit.Times(10_000, 1_000))
		rapid.Check(t, func(rt *rapid.T) {
			m := &model{decisions: drawDecisions(rt), freezes: true, counts: counts}
			var failure string
			synctest.Test(t, func(*testing.T) {
				store := memory.New()
				failure = runSequence(m, store, "images")
				_ = store.Close()
			})
			if failure != "" {
				rt.Fatal(failure)
			}
		})
		t.Logf("%v", counts)
	})
	t.Run("sqlite", func(t *testing.T) {
		stores.Need(t, "sqlite")
		checks(t, testkit.Times(300, 40))
		store, n := stores.OpenFor(t, stores.SQLite.New(t)), 0
		rapid.Check(t, func(rt *rapid.T) {
			n++
			m := &model{decisions: drawDecisions(rt), counts: counts}
			if failure := runSequence(m, store, fmt.Sprint("images-", n)); failure != "" {
				rt.Fatal(failure)
			}
		})
	})
}
