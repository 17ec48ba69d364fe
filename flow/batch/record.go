package batch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
)

// Status is the status of a job.
type Status string

// The statuses of a job. Completed and Canceled are for ever. A Failed job can be retried or
// canceled.
const (
	Pending   Status = "pending"   // its items are being stored
	Queued    Status = "queued"    // it waits for a worker
	Running   Status = "running"   // a worker works on it, or has died doing so
	Canceling Status = "canceling" // it is being torn down
	Completed Status = "completed" // each item is made or has failed
	Canceled  Status = "canceled"  // torn down
	Failed    Status = "failed"    // stopped, because its account could not be charged
)

// Finished reports whether no worker works on a job with this status.
func (s Status) Finished() bool { return s == Completed || s == Canceled || s == Failed }

// Final reports whether a job with this status never changes its status or its account again.
func (s Status) Final() bool { return s == Completed || s == Canceled }

// record is the document of a job. It stays small: the items are documents of their own. The label
// of its State is the status.
type record struct {
	job.State

	Account   string    `json:"account"`
	Hash      string    `json:"hash"`            // of the account and the items
	Items     int       `json:"items"`           // of the whole job
	Stored    int       `json:"stored"`          // items that are documents by now
	Requested bool      `json:"cancelRequested"` // by Cancel; never taken back
	Reason    string    `json:"reason,omitempty"`
	Created   time.Time `json:"createdAt"`
	Ended     time.Time `json:"finishedAt,omitzero"`

	// The books: sums over the items. Each changes in the commit that changes the item.
	Done      int   `json:"done"`
	Failed    int   `json:"failed"`
	Finalized int   `json:"finalized"`
	Canceled  int   `json:"canceled"`
	Charged   int64 `json:"charged"`
	Refunded  int64 `json:"refunded"`
}

func (r *record) status() Status { return Status(r.Label) }

// jobMoves are all transitions of a job: from which statuses, and whether a cancel has to be
// requested, or must not be.
var jobMoves = map[Status]struct {
	from      []Status
	requested bool
}{
	Pending:   {[]Status{""}, false},
	Queued:    {[]Status{Pending, Running, Failed}, false},
	Running:   {[]Status{Queued}, false},
	Completed: {[]Status{Running}, false},
	Failed:    {[]Status{Running}, false},
	Canceling: {[]Status{Pending, Queued, Running, Failed, Canceling}, true},
	Canceled:  {[]Status{Canceling}, true},
}

// atOnce is a due time that has come by the clock of every process.
var atOnce = time.Unix(1, 0).UTC()

// become makes a transition, if jobMoves has it. Nothing else writes a status. No worker takes a job
// that is pending or finished. Another job keeps its due time, or is due at once if it has none.
func (r *record) become(to Status, now time.Time) error {
	move := jobMoves[to]
	if !slices.Contains(move.from, r.status()) || r.Requested != move.requested {
		return fmt.Errorf("batch: a job that is %q (cancel requested: %t) cannot become %s", r.status(), r.Requested, to)
	}
	r.Label, r.Ended = string(to), time.Time{}
	switch {
	case to == Pending || to.Finished():
		r.Due = time.Time{}
	case r.Due.IsZero():
		r.Due = atOnce
	}
	if to.Finished() {
		r.Ended = now
	}
	return nil
}

// claim is the change in the commit that takes a job. A queued job becomes running. A job that is
// running or canceling is taken over as it is: its worker has died or given up.
func claim() pawl.Mutation {
	return pawl.Atomic(func(_ context.Context, r *record) error {
		if r.status() != Queued {
			return nil
		}
		return r.become(Running, time.Now())
	})
}

// handBack undoes claim, for a worker that was stopped.
func (r *record) handBack(now time.Time) error {
	if r.status() != Running || r.Requested {
		return nil // another worker tears it down
	}
	r.Due = atOnce
	return r.become(Queued, now)
}

// end makes the last transition of work on a job, or the first one of its teardown if a cancel was
// requested meanwhile.
func (r *record) end(to Status, now time.Time) error {
	if r.Requested {
		return r.become(Canceling, now)
	}
	return r.become(to, now)
}

// request records the request to cancel. If no worker holds the job, its teardown begins.
func (r *record) request(held bool, now time.Time) error {
	r.Requested, r.Due = true, atOnce // also if a retry of the job was due later
	if held {
		return nil
	}
	r.Reason = ""
	return r.become(Canceling, now)
}

// ItemState is the state of an item.
type ItemState string

// The states of an item. An item is undecided while it is Waiting, Charged or Made.
const (
	Waiting      ItemState = "waiting"   // not charged
	Charged      ItemState = "charged"   // its call is made, or was interrupted
	Made         ItemState = "made"      // its call has returned
	ItemFailed   ItemState = "failed"    // its call has failed; refunded
	Finalized    ItemState = "finalized" // accepted; never refunded
	ItemCanceled ItemState = "canceled"  // by the teardown; refunded, if it was charged
)

// itemMoves are all transitions of an item.
var itemMoves = map[ItemState][]ItemState{
	Charged:      {Waiting},
	Made:         {Charged},
	ItemFailed:   {Charged},
	Finalized:    {Made},
	ItemCanceled: {Waiting, Charged, Made},
}

// item is the document of an item.
type item[I, A any] struct {
	State    ItemState `json:"state"`
	Index    int       `json:"index"`
	Data     I         `json:"item"`
	Price    int64     `json:"price"`
	Begun    bool      `json:"begun,omitempty"`    // a call may have made something
	Attempts int       `json:"attempts,omitempty"` // calls that were begun and not interrupted by Stop
	Failures int       `json:"failures,omitempty"` // calls that failed and were to be repeated
	Artifact *A        `json:"artifact,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// become makes a transition, if itemMoves has it.
func (it *item[I, A]) become(to ItemState) bool {
	if !slices.Contains(itemMoves[to], it.State) {
		return false
	}
	it.State = to
	return true
}
