package batch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

func init() {
	// It is idle while it is blocked, so that it can be paused without a lock of its store.
	testkit.Child("victim", func() error { return beginAll(shortLease, 10*time.Second) })
}

// Variables of the child.
const (
	envVisits = "PAWL_TEST_VISITS" // the visits to block at, as JSON
	envFolder = "PAWL_TEST_FOLDER" // of the images
)

// shortLease is the lease of processes that the tests kill or pause. It survives a short pause of a
// busy machine.
const shortLease = 1500 * time.Millisecond

// operation is one use of a queue. A process begins it and is killed. Another one repeats it.
type operation struct {
	// items says for each item what its call does. The item with index i costs 5+i points.
	items  string
	points int64 // of the account
	// prepare brings a job to where the operation begins; nil: Submit does.
	prepare func(b *bench, id string) error
	// act is the operation; nil: workers do it.
	act func(b *bench, id string) error
	// again is the repetition, and waits for the end of the job; nil: act, then workers end it.
	again func(b *bench, id string) error
	// want is what comes out of it: see outcome.String.
	want string
	// only lists the points at which a process is killed, when it reaches them first; nil: all.
	only []string
	// early says that a repetition may cancel before as many items are charged as without a crash.
	early bool
}

// operations are all of them, by the name of their queue.
var operations map[string]operation

func init() {
	operations = map[string]operation{
		"complete": {
			items: "ok ok ok", points: 100,
			want: "completed 18-0 82 made,made,made 012",
		},
		"failing": {
			items: "ok bad ok", points: 100,
			want: "completed 18-6 88 made,failed,made 02",
		},
		"poor": {
			items: "ok ok ok ok", points: 12,
			want: "failed 11-0 1 made,made,waiting,waiting 01",
		},
		"retry": {
			items: "ok ok ok ok", points: 12, prepare: retryable, act: (*bench).retry,
			want: "completed 26-0 74 made,made,made,made 0123",
		},
		"submit": {
			items: "ok ok ok ok ok", points: 100, prepare: nothing, act: (*bench).submit,
			want: "completed 35-0 65 made,made,made,made,made 01234",
		},
		"queued": {
			items: "ok ok ok", points: 100, act: (*bench).cancel, again: (*bench).cancelAll,
			want: "canceled 0-0 100 canceled,canceled,canceled ",
		},
		"cancel": {
			items: "ok ok ok ok ok", points: 20, prepare: accepted, act: (*bench).cancel, again: (*bench).cancelAll,
			want: "canceled 18-13 15 finalized,canceled,canceled,canceled,canceled 0",
		},
		"teardown": {
			items: "ok ok ok ok ok", points: 20, prepare: accepted, act: (*bench).cancel,
			want: "canceled 18-13 15 finalized,canceled,canceled,canceled,canceled 0",
		},
		"running": {
			items: "ok cancel ok", points: 100, again: (*bench).goOn,
			want: "canceled 11-11 100 canceled,canceled,canceled ",
		},
		"deadworker": {
			items: "ok cancel ok", points: 100, again: (*bench).cancelAll, early: true,
			want: "canceled 0-0 100 canceled,canceled,canceled ",
		},
		"leave": {
			items: "ok stop ok", points: 100, only: []string{"leaving", "ended"},
			want: "completed 18-0 82 made,made,made 012",
		},
		"finalize": {
			items: "ok ok ok", points: 100, prepare: done, act: (*bench).finalize,
			want: "completed 18-0 82 finalized,made,finalized 012",
		},
		"delete": {
			items: "ok ok ok", points: 100, prepare: done, act: (*bench).delete, again: (*bench).delete,
			want: " 0-0 82  012",
		},
	}
}

// nothing prepares a job that the operation itself submits.
func nothing(*bench, string) error { return nil }

// done prepares a job that workers have worked on to its end.
func done(b *bench, id string) error {
	if err := b.submit(id); err != nil {
		return err
	}
	_, err := b.queue(id).Once(context.Background())
	return err
}

// retryable prepares a job that has failed and that its account can pay now.
func retryable(b *bench, id string) error {
	if err := done(b, id); err != nil {
		return err
	}
	_, err := wallets.Scope(b.rt, id).IncState(context.Background(), "points", 88)
	return err
}

// accepted prepares a job that has failed, with one item accepted.
func accepted(b *bench, id string) error {
	if err := done(b, id); err != nil {
		return err
	}
	return b.queue(id).Finalize(context.Background(), id, 0)
}

// bench is the view of one process: a queue for each operation, on a store and a folder of images.
type bench struct {
	rt     *pawl.Runtime
	folder string
	lease  time.Duration // 0: pawl.DefaultLease
	poll   time.Duration
	hook   func(point, id string)
	mu     sync.Mutex // protects queues
	queues map[string]*queue
}

func newBench(store persist.Store, folder string) (*bench, error) {
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{wallets}})
	return &bench{rt: rt, folder: folder, poll: 100 * time.Millisecond, hook: func(string, string) {}, queues: map[string]*queue{}}, err
}

func openBench(t testing.TB, store persist.Store, folder string) *bench {
	t.Helper()
	b, err := newBench(store, folder)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.stop())
		require.NoError(t, b.rt.Close(context.Background()))
	})
	return b
}

// stop stops all queues.
func (b *bench) stop() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []error
	for _, q := range b.queues {
		all = append(all, q.Stop(context.Background()))
	}
	return errors.Join(all...)
}

// queueName returns the name of the queue of a job. Jobs that stop their queue have one of their own.
func (b *bench) queueName(id string) string {
	name, rest, _ := strings.Cut(id, "/")
	if name == "leave" {
		name += strings.ReplaceAll(rest, "/", "")
	}
	return name
}

// queue returns the queue of a job.
func (b *bench) queue(id string) *queue {
	name := b.queueName(id)
	b.mu.Lock()
	defer b.mu.Unlock()
	if q, ok := b.queues[name]; ok {
		return q
	}
	q, err := batch.New(b.rt, config{
		Name: name, Ledger: batch.ScopeLedger(wallets, "points"),
		Price: func(p prompt) (int64, error) { return p.Price, nil },
		Make:  b.draw, Remove: b.remove, Logger: quiet, Interrupt: true,
		Retry: pawl.Retry{First: time.Hour, Max: time.Hour},
		Jobs:  1000, Chunk: 2, Lease: b.lease, Poll: b.poll,
	})
	if err != nil {
		panic(err)
	}
	q.Hook(func(point, id string) { b.hook(point, id) })
	b.queues[name] = q
	return q
}

// image returns the file of an image, with a byte for each call. The files outlive the process.
func (b *bench) image(key string) string { return filepath.Join(b.folder, url.QueryEscape(key)) }

// draw is the call of an item, whose text is what to do and the id of its job.
func (b *bench) draw(ctx context.Context, key string, p prompt) (image, error) {
	_, err := os.Stat(b.image(key))
	again := err == nil
	file, err := os.OpenFile(b.image(key), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return image{}, err
	}
	_, err = file.WriteString("x")
	if err := errors.Join(err, file.Close()); err != nil {
		return image{}, err
	}
	switch do, id, _ := strings.Cut(p.Text, " "); {
	case do == "bad":
		return image{}, pawl.NonRetryable(errCall)
	case do == "cancel":
		if _, err := b.queue(id).Cancel(context.Background(), id); err != nil {
			return image{}, err
		}
		<-ctx.Done()
		return image{}, ctx.Err()
	case do == "stop" && !again:
		go func() { _ = b.queue(id).Stop(context.Background()) }()
		return image{}, errCall // and wait for the next attempt, until the queue is stopped
	}
	return image{Name: key}, nil
}

func (b *bench) remove(_ context.Context, key string, _ *image) error {
	if err := os.Remove(b.image(key)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// images returns the items of a job whose images exist, by the ends of their keys.
func (b *bench) images(id string) (ends []string, err error) {
	files, err := os.ReadDir(b.folder)
	for _, f := range files {
		key, err := url.QueryUnescape(f.Name())
		if err != nil {
			return nil, err
		}
		if _, end, ok := strings.Cut(key, "/"+url.QueryEscape(id)+"/"); ok {
			ends = append(ends, end)
		}
	}
	return ends, err
}

// prepare brings a job to where its operation begins. Its account has its id.
func (b *bench) prepare(id string) error {
	op := of(id)
	if _, err := wallets.Scope(b.rt, id).SetState(context.Background(), wallet{op.points}); err != nil {
		return err
	}
	if op.prepare == nil {
		return b.submit(id)
	}
	return op.prepare(b, id)
}

func (b *bench) submit(id string) error {
	var items []prompt
	for i, do := range strings.Fields(of(id).items) {
		items = append(items, prompt{Text: do + " " + id, Price: int64(5 + i)})
	}
	_, _, err := b.queue(id).Submit(context.Background(), aJob{ID: id, Account: id, Items: items})
	return err
}

func (b *bench) cancel(id string) error {
	_, err := b.queue(id).Cancel(context.Background(), id)
	return err
}

// retry queues a failed job. A repetition may find it queued.
func (b *bench) retry(id string) error {
	err := b.queue(id).Retry(context.Background(), id)
	if status := (*batch.StatusError)(nil); errors.As(err, &status) && status.Status != batch.Failed {
		return nil
	}
	return err
}

// finalize accepts two items. A repetition may find them accepted.
func (b *bench) finalize(id string) error {
	err := b.queue(id).Finalize(context.Background(), id, 0, 2)
	if it := (*batch.ItemError)(nil); errors.As(err, &it) && it.State == batch.Finalized {
		return nil
	}
	return err
}

func (b *bench) delete(id string) error { return b.queue(id).Delete(context.Background(), id) }

// cancelAll repeats Cancel until the job is canceled, without a worker: the dead process had a lease.
func (b *bench) cancelAll(id string) error {
	for deadline := time.Now().Add(testkit.Patience); ; time.Sleep(20 * time.Millisecond) {
		c, err := b.queue(id).Cancel(context.Background(), id)
		switch {
		case err != nil:
			return err
		case c.Answer == batch.NowCanceled || c.Answer == batch.AlreadyCanceled:
			return nil
		case c.Answer != batch.Accepted || c.Progress.Final || time.Now().After(deadline):
			return fmt.Errorf("unexpected answer %+v", c)
		}
	}
}

// goOn repeats Cancel if it was called before the crash, and lets workers end the job.
func (b *bench) goOn(id string) error {
	p, err := b.queue(id).Progress(context.Background(), id)
	if err != nil {
		return err
	}
	if p.CancelRequested {
		if err := b.cancel(id); err != nil {
			return err
		}
	}
	return b.end(id)
}

// end waits until workers have ended a job.
func (b *bench) end(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	q := b.queue(id)
	if err := q.Start(context.Background()); err != nil && !errors.Is(err, job.ErrStopped) {
		return err
	}
	var last batch.Progress
	for p, err := range q.Watch(ctx, id) {
		if last = p; err != nil {
			return fmt.Errorf("%w: %+v", err, last)
		}
	}
	if !last.Status.Finished() {
		return fmt.Errorf("not finished: %+v", last)
	}
	return nil
}

// begin does the operation for the first time.
func (b *bench) begin(id string) error {
	if op := of(id); op.act != nil {
		return op.act(b, id)
	}
	return b.queue(id).Start(context.Background())
}

// again repeats an operation and brings its job to the end.
func (b *bench) again(id string) error {
	op := of(id)
	if op.again != nil {
		return op.again(b, id)
	}
	if op.act != nil {
		if err := op.act(b, id); err != nil {
			return err
		}
	}
	return b.end(id)
}

// outcome is all that a crash must not change.
type outcome struct {
	Progress batch.Progress
	States   []string // of the items
	Balance  int64
	Images   []string
}

// String returns the status, the points that were charged and refunded, the balance, the states of
// the items, and the indexes of the images.
func (o outcome) String() string {
	images := ""
	for _, end := range o.Images {
		images += strings.TrimLeft(end[:len(end)-1], "0") + end[len(end)-1:]
	}
	return fmt.Sprintf("%s %d-%d %d %s %s", o.Progress.Status, o.Progress.Charged, o.Progress.Refunded, o.Balance,
		strings.Join(o.States, ","), images)
}

func (b *bench) outcome(t testing.TB, id string) (o outcome) {
	t.Helper()
	var err error
	o.Progress, err = b.queue(id).Progress(t.Context(), id)
	if !errors.Is(err, pawl.ErrNotFound) { // deleted
		require.NoError(t, err)
	}
	o.Progress.ID, o.Progress.Account, o.Progress.Reason = "", "", strings.ReplaceAll(o.Progress.Reason, id, "ID")
	o.Progress.CreatedAt, o.Progress.FinishedAt = time.Time{}, time.Time{}
	refunded := int64(0)
	for it, err := range b.queue(id).Items(t.Context(), id) {
		require.NoError(t, err)
		o.States = append(o.States, string(it.State))
		if it.Attempts > 0 && (it.State == batch.ItemCanceled || it.State == batch.ItemFailed) {
			refunded += it.Price
		}
	}
	require.Equal(t, refunded, o.Progress.Refunded, "%s: %v", id, o.States)
	if of(id).early {
		o.Progress.Charged, o.Progress.Refunded, o.Progress.Done = o.Progress.Cost(), 0, 0
	}
	o.Balance = balance(t, b.rt, id)
	o.Images, err = b.images(id)
	require.NoError(t, err)
	return o
}

// visit is a moment of the matrix: an operation reaches a point for the nth time. It has a job.
type visit struct {
	Operation, Point string
	Nth              int
}

func (v visit) id() string { return fmt.Sprintf("%s/%s/%d", v.Operation, v.Point, v.Nth) }

// of returns the operation of a job.
func of(id string) operation {
	name, _, _ := strings.Cut(id, "/")
	return operations[name]
}

// reference is an operation without a crash.
type reference struct {
	outcome outcome
	visits  []visit
}

// references runs each operation in memory.
func references(t testing.TB) map[string]reference {
	t.Helper()
	location := stores.Memory.New(t)
	return runAll(t, stores.OpenFor(t, location), stores.OpenFor(t, location))
}

// runAll runs each operation without a crash: one process begins it, another repeats it.
func runAll(t testing.TB, begins, repeats persist.Store) map[string]reference {
	t.Helper()
	all, folder := map[string]reference{}, t.TempDir()
	for _, name := range slices.Sorted(maps.Keys(operations)) {
		first, second := openBench(t, begins, folder), openBench(t, repeats, folder)
		id := visit{name, "none", 0}.id()
		require.NoError(t, second.prepare(id), name)
		var r reference
		var mu sync.Mutex
		ended := make(chan struct{})
		seen := map[string]int{}
		first.hook = func(point, _ string) {
			mu.Lock()
			defer mu.Unlock()
			seen[point]++
			if only := operations[name].only; only == nil || slices.Contains(only, point) && seen[point] == 1 {
				r.visits = append(r.visits, visit{name, point, seen[point]})
			}
			if point == "ended" && seen[point] == 1 { // a queue that is being stopped may take it again
				close(ended)
			}
		}
		require.NoError(t, first.begin(id), name)
		if operations[name].act == nil {
			testkit.Receive(t, ended, name)
		}
		require.NoError(t, first.stop(), name)
		require.NoError(t, second.again(id), name)
		r.outcome = second.outcome(t, id)
		require.Equal(t, operations[name].want, r.outcome.String(), name)
		all[name] = r
	}
	return all
}

// beginAll begins the operations of the visits, in a child, and blocks each at its point. It
// continues when it is told to, and ends when all of them have ended.
func beginAll(lease, poll time.Duration) error {
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	var visits []visit
	if err := json.Unmarshal([]byte(os.Getenv(envVisits)), &visits); err != nil {
		return err
	}
	b, err := newBench(store, os.Getenv(envFolder))
	if err != nil {
		return err
	}
	b.lease, b.poll = lease, poll
	var mu sync.Mutex
	seen, goOn := map[visit]bool{}, make(chan struct{})
	b.hook = func(point, id string) {
		name, _, _ := strings.Cut(id, "/")
		mu.Lock()
		n := 1
		for seen[visit{id, point, n}] {
			n++
		}
		seen[visit{id, point, n}] = true
		mu.Unlock()
		if v := (visit{name, point, n}); v.id() == id {
			testkit.Say("%s", id)
			<-goOn
		}
	}
	var all sync.WaitGroup
	for _, v := range visits {
		all.Go(func() {
			if err := b.begin(v.id()); err != nil {
				fmt.Fprintln(os.Stderr, v.id(), err)
			}
		})
	}
	testkit.Begin()
	close(goOn)
	all.Wait()
	return errors.Join(b.stop(), b.rt.Close(context.Background()), store.Close())
}

// matrix returns the visits of all operations: each point that an operation reaches, and each time
// that it does so if all is true.
func matrix(refs map[string]reference, all bool) (visits []visit) {
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		for _, v := range refs[name].visits {
			if all || v.Nth == 1 {
				visits = append(visits, v)
			}
		}
	}
	return visits
}

// startChild starts a process that begins the operations of the visits.
func startChild(t testing.TB, role, location string, b *bench, visits []visit) *testkit.Process {
	t.Helper()
	list, err := json.Marshal(visits)
	require.NoError(t, err)
	return testkit.Start(t, role, stores.Env(location), envVisits+"="+string(list), envFolder+"="+b.folder)
}

// block starts a process that begins the operations of the visits, and returns when each of them is
// blocked at its point.
func block(t testing.TB, location string, b *bench, visits []visit) *testkit.Process {
	t.Helper()
	for _, v := range visits {
		require.NoError(t, b.prepare(v.id()), v)
	}
	p := startChild(t, "victim", location, b, visits)
	missing := map[string]bool{"ready": true}
	for _, v := range visits {
		missing[v.id()] = true
	}
	for len(missing) > 0 {
		line, ok := p.Next()
		require.True(t, ok, "the child has ended before %v: %s", missing, p.Stderr())
		require.True(t, missing[line], line)
		delete(missing, line)
	}
	return p
}

// repeat repeats the operations of the visits and compares what comes out with the references.
func repeat(t testing.TB, b *bench, visits []visit, refs map[string]reference) {
	t.Helper()
	errs := make([]error, len(visits))
	var all sync.WaitGroup
	for i, v := range visits {
		all.Go(func() { errs[i] = b.again(v.id()) })
	}
	all.Wait()
	for i, v := range visits {
		require.NoError(t, errs[i], v.id())
	}
	compare(t, b, visits, refs)
}

func compare(t testing.TB, b *bench, visits []visit, refs map[string]reference) {
	t.Helper()
	for _, v := range visits {
		require.Equal(t, refs[v.Operation].outcome, b.outcome(t, v.id()), v.id())
	}
}

// A process is killed at each point of the protocol, in each operation that reaches it, and the
// operation is repeated. The end, the totals, the balance and the images are those without a crash.
// PAWL_SHORT leaves the first visit to each point. Proves CANCEL-3, CANCEL-5, CANCEL-6, CANCEL-11.
func TestKilledAtEveryPoint(t *testing.T) {
	refs := references(t)
	visits := matrix(refs, !testkit.Short)
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		b := openBench(t, stores.OpenFor(t, location), t.TempDir())
		block(t, location, b, visits).Kill()
		repeat(t, b, visits, refs)
	})
	t.Logf("%d visits", len(visits))
}
