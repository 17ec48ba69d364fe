package batch_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

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
			items: "ok ok ok", points: 100, act: (*bench).cancelAll, again: (*bench).cancelAll,
			want: "canceled 0-0 100 canceled,canceled,canceled ",
		},
		"cancel": {
			items: "ok ok ok ok ok", points: 20, prepare: accepted, act: (*bench).cancelAll, again: (*bench).cancelAll,
			want: "canceled 18-13 15 finalized,canceled,canceled,canceled,canceled 0",
		},
		"teardown": {
			items: "ok ok ok ok ok", points: 20, prepare: accepted, act: (*bench).cancelAll,
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

// untilEnded is how long a repetition may take: first a lease runs out, and then all jobs are worked on
// at once.
const untilEnded = 4 * testkit.Patience

// cancelAll repeats Cancel until the job is canceled, without a worker: the dead process had a lease.
func (b *bench) cancelAll(id string) error {
	for deadline := time.Now().Add(untilEnded); ; time.Sleep(20 * time.Millisecond) {
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
	ctx, cancel := context.WithTimeout(context.Background(), untilEnded)
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
