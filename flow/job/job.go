package job

import (
	"context"
	"time"

	"github.com/pawl-go/pawl"
)

// State is the part of a document that makes it a job. Embed it in the type of the document.
type State struct {
	// Label is Ready, Parked or Kept.
	Label string `json:"label"`
	// Due is when the job is to be done next; zero: never.
	Due time.Time `json:"due,omitzero"`
	// Attempts is the number of attempts since the job became ready. The current one is counted.
	Attempts int `json:"attempts,omitempty"`
	// Error is the error of the last attempt.
	Error string `json:"error,omitempty"`
}

// Labels of jobs.
const (
	Ready  = "ready"  // to be done when it is due
	Parked = "parked" // its attempts are spent, or its error was marked by pawl.NonRetryable
	Kept   = "kept"   // done, and kept by its handler
)

// Fields of State, for pawl.Kind.
const (
	Label pawl.Field = "label"
	Due   pawl.Field = "due"
)

// At returns the State of a new job that is due at a time.
func At(due time.Time) State { return State{Label: Ready, Due: due} }

func (s *State) job() *State { return s }

// document is a pointer to a type that embeds State.
type document[T any] interface {
	*T
	job() *State
}

// Job is one attempt at a job.
type Job[T any] struct {
	// ID is the id of the document.
	ID string
	// State is a copy of the document as it was taken. Changes to it are not kept: see Update.
	State T
	// Attempt is 1 in the first attempt.
	Attempt int

	key      string
	document func(*T) *State
	due      time.Time  // of the document as it was taken
	retry    pawl.Retry // of the document as it was taken
	replaced bool       // the last commit finds another job under the id
	taken    time.Time  // by the store's clock
	since    time.Time  // just after that, by the clock of this process
	update   func(state *T) error
	onCommit []func(ctx context.Context, tx *pawl.Tx) error
}

// Key returns a key that is the same in every attempt at this job. Pass it to systems that recognise
// a repeated call by a key.
func (j *Job[T]) Key() string { return j.key }

// Now returns the time by the store's clock. It is never ahead of it, so a job that is made due at
// Now is due.
func (j *Job[T]) Now() time.Time { return j.taken.Add(time.Since(j.since)) }

// OnCommit adds writes to the commit that ends the job. If that commit meets a conflict, fn runs
// again, and the handler does not. An error of fn fails the attempt.
func (j *Job[T]) OnCommit(fn func(ctx context.Context, tx *pawl.Tx) error) {
	j.onCommit = append(j.onCommit, fn)
}

// sees reports whether doc is still the document of this attempt. Another job that was put under the id
// has no attempts yet.
func (j *Job[T]) sees(doc *T) bool {
	j.replaced = j.document(doc).Attempts != j.Attempt
	return !j.replaced
}

// Update makes the commit that ends the job change the document by fn instead of deleting it. fn
// gets the current document, without attempts and error. It has to set Due, and Label if that
// changes: a job that stays Ready and is due is taken again at once. If the commit meets a conflict,
// fn runs again. The last call of Update, Again and Keep counts.
func (j *Job[T]) Update(fn func(state *T) error) { j.update = fn }

// Again makes the job due again after d, with a full budget of attempts, instead of deleting it. It leaves
// another job that was put under the id meanwhile alone. See Update.
func (j *Job[T]) Again(d time.Duration) {
	j.Update(func(state *T) error {
		if !j.replaced {
			j.document(state).Due = j.Now().Add(d)
		}
		return nil
	})
}

// Keep keeps the document, with the label Kept, instead of deleting it. It leaves another job that was put
// under the id meanwhile alone. See Update.
func (j *Job[T]) Keep() {
	j.Update(func(state *T) error {
		if s := j.document(state); !j.replaced {
			s.Label, s.Due = Kept, time.Time{}
		}
		return nil
	})
}
