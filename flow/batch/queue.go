package batch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
)

// Defaults of Config.
const (
	DefaultJobs  = 4
	DefaultItems = 1
	DefaultPoll  = time.Second
	DefaultChunk = 500
)

// DefaultRetry is the retry policy of the call of an item.
var DefaultRetry = pawl.Retry{Attempts: 3, First: time.Second, Max: time.Minute}

// jobRetry is the policy for a job that meets an error which is not about one item, such as a
// removal that fails. It is tried until it succeeds.
var jobRetry = pawl.Retry{Attempts: math.MaxInt, First: time.Second, Max: time.Minute}

// commitRetry is the budget of a commit whose failure would repeat a call.
var commitRetry = pawl.Retry{Attempts: 100, First: 5 * time.Millisecond, Max: 500 * time.Millisecond, Within: time.Minute}

// leastCalls is how many calls of an item may be begun before the item fails, if none of them ends:
// each kills its process. The policy may have fewer attempts; those are for errors.
const leastCalls = 20

// Config configures a Queue of jobs whose items are of type I and whose calls make artifacts of type
// A. Name, Ledger, Price, Make and Remove are required.
type Config[I, A any] struct {
	// Name is the name of the queue. Its jobs are of the kind batch.NAME, their items of
	// batch.NAME.item.
	Name string
	// Ledger keeps the balances.
	Ledger Ledger
	// Price returns the price of an item in points. Submit calls it for each item, and stores the
	// price with the item.
	Price func(item I) (int64, error)
	// Make makes the expensive call. The key is the same in every attempt at the item, and no other
	// item has it: pass it to the other system, and name what the call makes by it. An error is
	// retried by Retry; then the item has failed and is refunded.
	//
	// Its context ends after Timeout, when the lease of the job is lost, when the context of Stop
	// ends, and, with Interrupt, when the job is to be canceled. A call that continues after its lease
	// was lost may make its artifact after the job was torn down.
	Make func(ctx context.Context, key string, item I) (A, error)
	// Remove removes what the call of an item made. The artifact is nil if the call did not return:
	// what it made has to be found by its key. Removing what is not there is a success. Remove may
	// run more than once for an item.
	Remove func(ctx context.Context, key string, artifact *A) error
	// Finalize adds the writes of the program to the commit that accepts an item; nil: there are
	// none. It may run more than once, when the commit is repeated.
	Finalize func(ctx context.Context, tx *pawl.Tx, item Item[I, A]) error

	// Retry is the policy for failed calls; zero fields: DefaultRetry. Within is ignored.
	Retry pawl.Retry
	// Timeout ends the context of a call; 0: none.
	Timeout time.Duration
	// Interrupt makes a cancel end the contexts of the calls in progress. Otherwise they end by
	// themselves before the job is torn down.
	Interrupt bool
	// Jobs is the number of jobs that this process works on at a time; 0: DefaultJobs.
	Jobs int
	// Items is the number of calls, or removals, of a job at a time; 0: DefaultItems.
	Items int
	// Lease is the length of the lease of a job. A job whose worker died is taken again at most this
	// long after the last renewal. 0: pawl.DefaultLease.
	Lease time.Duration
	// Poll is how often a worker looks for jobs, and for a request to cancel, without a hint of the
	// store; 0: DefaultPoll.
	Poll time.Duration
	// Chunk is the number of items that one commit of Submit stores, or of the teardown refunds, if the
	// store takes as many; 0: DefaultChunk.
	Chunk int
	// Logger gets the errors that cannot be returned to a caller; nil: slog.Default().
	Logger *slog.Logger
}

// Queue keeps jobs and, between Start and Stop, works on them. Its methods are safe for concurrent
// use.
type Queue[I, A any] struct {
	rt     *pawl.Runtime
	owner  pawl.Owner // of Submit: rt, or the transaction of In
	config Config[I, A]
	jobs   pawl.Kind[record]
	items  pawl.Kind[item[I, A]]
	worker *job.Worker[record]
	hook   func(p point, id string) // for tests

	stopping chan struct{} // closed by Stop
	stop     *sync.Once
}

// New returns a queue. Without Start it only submits, reads, finalizes and cancels jobs. It returns
// *pawl.ArgumentError for a missing or negative field, and pawl.ErrNoStore. A name that a kind cannot
// have is refused by the first operation (*pawl.KindError, *pawl.LimitError).
func New[I, A any](rt *pawl.Runtime, c Config[I, A]) (*Queue[I, A], error) {
	bad := func(reason string) error { return &pawl.ArgumentError{Argument: "Config", Reason: reason} }
	switch {
	case rt == nil || rt.Store() == nil:
		return nil, pawl.ErrNoStore
	case c.Name == "" || strings.HasSuffix(c.Name, itemSuffix):
		return nil, bad("Name must not be empty, or end with " + itemSuffix)
	case c.Ledger == nil || c.Price == nil || c.Make == nil || c.Remove == nil:
		return nil, bad("Ledger, Price, Make and Remove are required")
	case c.Retry.Attempts < 0 || c.Retry.First < 0 || c.Retry.Max < 0:
		return nil, bad(fmt.Sprintf("Retry must not be negative, got %+v", c.Retry))
	case c.Timeout < 0 || c.Jobs < 0 || c.Items < 0 || c.Lease < 0 || c.Poll < 0 || c.Chunk < 0:
		return nil, bad("Timeout, Jobs, Items, Lease, Poll and Chunk must not be negative")
	case c.Chunk > maxChunk:
		return nil, bad(fmt.Sprintf("Chunk must be at most %d", maxChunk))
	}
	c.Retry = c.Retry.Or(DefaultRetry)
	c.Jobs, c.Items, c.Chunk = cmp.Or(c.Jobs, DefaultJobs), cmp.Or(c.Items, DefaultItems), cmp.Or(c.Chunk, DefaultChunk)
	c.Lease, c.Poll, c.Logger = cmp.Or(c.Lease, pawl.DefaultLease), cmp.Or(c.Poll, DefaultPoll), cmp.Or(c.Logger, slog.Default())
	q := &Queue[I, A]{
		rt: rt, owner: rt, config: c, hook: func(point, string) {}, stopping: make(chan struct{}), stop: new(sync.Once),
		jobs:  pawl.Kind[record]{Name: "batch." + c.Name, Label: job.Label, Due: job.Due},
		items: pawl.Kind[item[I, A]]{Name: "batch." + c.Name + itemSuffix, Label: "state"},
	}
	w, err := job.New(rt, job.Config[record]{
		Kind: q.jobs, Handle: q.handle, Lost: q.logLost, Retry: jobRetry,
		Protocol: job.Protocol[record]{
			Labels: []string{string(Queued), string(Running), string(Canceling)}, Begin: claim,
			HandBack: func(r *record) { _ = r.handBack(time.Now()) },
		},
		Concurrency: c.Jobs, Lease: c.Lease, Poll: c.Poll, Logger: c.Logger,
	})
	q.worker = w
	return q, err
}

// itemSuffix makes the kind of the items from that of the jobs.
const itemSuffix = ".item"

// maxChunk leaves room for the job and its account in a transaction, and for scopes of Finalize.
const maxChunk = pawl.MaxScopes / 2

// Start works on jobs in the background, until Stop or until ctx ends. The contexts of the calls are
// made from ctx. Starting a started queue does nothing. It returns the cause of a ctx that has
// ended, and job.ErrStopped after Stop.
func (q *Queue[I, A]) Start(ctx context.Context) error { return q.worker.Start(ctx) }

// Stop begins no more calls, waits for those in progress and hands the jobs back. When ctx ends
// first, it ends the contexts of the calls and returns an error that wraps the cause of ctx; another
// Stop can wait for them. A call that was interrupted is made again, under the same key, and does not
// count as an attempt. Stopping twice is safe. Make and Remove must not call Stop.
func (q *Queue[I, A]) Stop(ctx context.Context) error {
	q.stop.Do(func() { close(q.stopping) })
	return q.worker.Stop(ctx)
}

// Once works on the jobs that wait for a worker until there are none, and returns how often it took
// a job. It is for tests and tools, and works without Start. It returns the errors of
// job.Worker.Once.
func (q *Queue[I, A]) Once(ctx context.Context) (int, error) { return q.worker.Once(ctx) }

// In returns the same queue, with Submit as part of tx.
func (q *Queue[I, A]) In(tx *pawl.Tx) *Queue[I, A] {
	in := *q
	in.owner = tx
	return &in
}

// logLost logs that a worker lost a job.
func (q *Queue[I, A]) logLost(id string, cause error) {
	q.config.Logger.Warn("batch: a worker lost its job; another one goes on", "queue", q.config.Name, "job", id, "err", cause)
}

// itemPrefix returns the prefix of the ids of the items of a job.
func itemPrefix(id string) string { return url.QueryEscape(id) + "/" }

// itemID returns the id of an item. Ids are in the order of the items.
func itemID(id string, index int) string { return fmt.Sprintf("%s%08d", itemPrefix(id), index) }

// key returns the key of the call of an item.
func (q *Queue[I, A]) key(id string, index int) string { return q.items.Name + "/" + itemID(id, index) }

// point is a moment between two steps of the protocol, at which a process may die. Tests kill one at
// each.
type point string

const (
	atStored     point = "stored"     // a chunk of items is stored
	atClaimed    point = "claimed"    // a worker has taken the job
	atCharged    point = "charged"    // an item is charged
	atCalled     point = "called"     // a call has returned, and that is not stored
	atMade       point = "made"       // that is stored
	atFailed     point = "failed"     // an item has failed and is refunded
	atCompleting point = "completing" // before the job is completed
	atFailing    point = "failing"    // before the job has failed
	atLeaving    point = "leaving"    // before a worker that is stopped hands the job back
	atRequested  point = "requested"  // a cancel is requested of the worker
	atCanceling  point = "canceling"  // the teardown has begun
	atRefunded   point = "refunded"   // a chunk of items is refunded
	atRemoved    point = "removed"    // what an item made is removed
	atCleaned    point = "cleaned"    // all of it is removed, before the job is canceled
	atEnded      point = "ended"      // a worker or Cancel has ended its work on the job
	atFinalized  point = "finalized"  // items are accepted
	atRetried    point = "retried"    // a failed job is queued again
	atForgotten  point = "forgotten"  // the items are deleted, before the job is
)
