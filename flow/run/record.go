package run

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
)

// Status is the status of a run or of a step.
type Status string

// The statuses. A run is PENDING, RUNNING or WAITING until it is COMPLETED, FAILED or CANCELED. Only
// a step is SKIPPED.
const (
	Pending   Status = "PENDING"   // to be worked on, at once or when its next attempt is due
	Running   Status = "RUNNING"   // a worker holds its lease
	Waiting   Status = "WAITING"   // for a time or a signal
	Completed Status = "COMPLETED" // by its last step, or by End
	Skipped   Status = "SKIPPED"   // by Goto or End
	Failed    Status = "FAILED"    // its attempts are spent, or its error was final
	Canceled  Status = "CANCELED"  // by Cancel
)

// Finished reports whether a run with this status is over.
func (s Status) Finished() bool { return s == Completed || s == Failed || s == Canceled }

// The label of a run is made of its definition and one of these, or of the status that it ended
// with. Workers take open and parked runs when they are due. RUNNING ones are among them: the lease
// of a worker that died runs out.
const (
	open   Status = "OPEN"
	parked Status = "PARKED" // the release that took it last does not have its step; it is PENDING
)

// StepRecord is a step of a run as stored.
type StepRecord struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Visits is how often a Goto came back over the step.
	Visits int `json:"visits,omitempty"`
	// Attempts is the number of attempts, without those that were interrupted by Stop.
	Attempts int `json:"attempts,omitempty"`
	// NextAttempt is when the next attempt is due after a failed one.
	NextAttempt time.Time `json:"nextAttempt,omitzero"`
	// Output is the value given to Attempt.Output.
	Output json.RawMessage `json:"output,omitempty"`
	// Error is the error of the last attempt.
	Error string `json:"error,omitempty"`
}

// record is the document of a run. Its size is bounded: it has one entry per step of the definition,
// however often a step runs.
type record struct {
	job.State // its attempts are those of the current step

	Workspace  string          `json:"workspace"`
	Definition string          `json:"definition"`
	Key        string          `json:"key,omitempty"`
	InputHash  string          `json:"inputHash"`
	Status     Status          `json:"status"`
	Data       json.RawMessage `json:"state"`
	Current    string          `json:"currentStepName"`
	Steps      []StepRecord    `json:"steps"`
	CreatedAt  time.Time       `json:"createdAt"`
	// Begun[0] is Run.StartedAt. It is a list because begin can use data verbs only: it pushes the
	// time of each attempt, and the commit that ends the attempt cuts the list to one.
	Begun      []time.Time `json:"begun,omitempty"`
	FinishedAt time.Time   `json:"finishedAt,omitzero"`
	Suspended  bool        `json:"suspended,omitempty"` // the current step returned Sleep or Await
	Awaits     string      `json:"awaits,omitempty"`    // the signal of Await
	Parked     string      `json:"parked,omitempty"`    // why it is parked
}

var records = pawl.Kind[record]{Name: "run", Label: job.Label, Due: job.Due}

// inbox are the signals of one run and name that no step has received. Its id is that of the run,
// and the name.
type inbox struct {
	Next     int      `json:"next"` // the number of the next signal
	Messages []Signal `json:"messages"`
}

var inboxes = pawl.Kind[inbox]{Name: "run.signal"}

func inboxID(run, signal string) string { return run + "/" + signal }

// Signal is a signal that was sent to a run.
type Signal struct {
	Name   string          `json:"name"`
	Number int             `json:"number"` // counts the signals of this name
	Data   json.RawMessage `json:"data,omitempty"`
}

// label returns the label of runs of a definition.
func label(kind Status, definition string) string { return string(kind) + " " + definition }

// become sets the status and with it the label.
func (r *record) become(s Status) {
	r.Status, r.Parked = s, ""
	r.Label = label(open, r.Definition)
	if s.Finished() {
		r.Label = label(s, r.Definition)
		r.FinishedAt, r.Due = time.Now(), time.Time{}
	}
}

// parkedFor is how long a run stays parked before a worker looks at it again.
const parkedFor = time.Minute

// park leaves the run to a release that has its current step, until a time.
func (r *record) park(reason string, until time.Time) {
	r.Status, r.Parked, r.Due = Pending, reason, until
	r.Label = label(parked, r.Definition)
	r.Begun = r.Begun[:1]
}

// step returns the record of a step; nil: there is none.
func (r *record) step(name string) *StepRecord {
	if i := r.index(name); i >= 0 {
		return &r.Steps[i]
	}
	return nil
}

func (r *record) index(name string) int {
	return slices.IndexFunc(r.Steps, func(s StepRecord) bool { return s.Name == name })
}

// begin is the transition to RUNNING, in the commit that takes the lease. It is made of data verbs,
// so that a store can take many runs in one step.
func begin() pawl.Mutation {
	return pawl.All{pawl.Patch{"status": Running}, pawl.Push{Field: "begun", Values: []any{time.Now()}}}
}

// handBack undoes begin, for a worker that was stopped.
func (r *record) handBack() {
	r.become(Pending)
	r.Begun = r.Begun[:max(len(r.Begun)-1, 1)]
}

// adopt adds the steps of a definition that r does not have, in the order of the definition. Steps
// that only r has stay where they are: another release has them.
func (r *record) adopt(names []string) {
	steps := make([]StepRecord, len(names))
	for i, name := range names {
		steps[i] = StepRecord{Name: name, Status: Pending}
		if s := r.step(name); s != nil {
			steps[i] = *s
		}
	}
	place := 0 // behind the step before, in the order of r
	for _, s := range r.Steps {
		if i := slices.IndexFunc(steps, func(known StepRecord) bool { return known.Name == s.Name }); i >= 0 {
			place = i + 1
			continue
		}
		steps = slices.Insert(steps, place, s)
		place++
	}
	r.Steps = steps
}

// follow moves from the current step, which is done, to what comes next.
func (r *record) follow(next Next) {
	to := next.name
	if i := r.index(r.Current); next.kind == toNext && i+1 < len(r.Steps) {
		to = r.Steps[i+1].Name
	}
	r.advance(to)
}

// advance moves from the current step, which is done, to another one; "" ends the run. Steps that
// are jumped over are SKIPPED. A jump backwards makes the steps from there on PENDING again.
func (r *record) advance(to string) {
	from, target := r.index(r.Current), len(r.Steps)
	if to != "" {
		target = r.index(to)
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		switch {
		case i > from && i < target && s.Status == Pending:
			s.Status = Skipped
		case target <= from && i >= target:
			*s = StepRecord{Name: s.Name, Status: Pending, Visits: s.Visits + 1}
		}
	}
	r.Current, r.Suspended, r.Awaits = to, false, ""
	if to == "" {
		r.become(Completed)
		return
	}
	r.become(Pending)
}

// Run is a run as stored.
type Run[S any] struct {
	ID         string
	Workspace  string
	Definition string
	Key        string
	Status     Status
	// Version grows by one with each change of the run. A step that succeeds makes two: it begins,
	// and it is completed.
	Version     uint64
	State       S
	CurrentStep string // empty when the run is completed
	Steps       []StepRecord
	CreatedAt   time.Time // this and the other times are by the clock of the process
	StartedAt   time.Time // when its first step began; set once
	FinishedAt  time.Time
	// Awaits is the signal that a WAITING run awaits.
	Awaits string
	// Due is when a worker takes the run next; zero: not before a signal.
	Due time.Time
	// Error is the error of a FAILED run.
	Error string
	// Parked says why no worker works on the run: the release that took it last does not have its
	// step. It goes on within a minute after a release that has the step was started. Empty: it is
	// not parked.
	Parked string
}

// runOf returns a record as a Run.
func runOf[S any](snap pawl.Snapshot[record]) (Run[S], error) {
	r := snap.State()
	if s := r.step(r.Current); s != nil && r.Status == Running {
		s.Status, s.Attempts, s.NextAttempt = Running, r.Attempts, time.Time{}
	}
	out := Run[S]{
		ID: snap.ID, Workspace: r.Workspace, Definition: r.Definition, Key: r.Key, Status: r.Status, Version: snap.Version,
		CurrentStep: r.Current, Steps: r.Steps, CreatedAt: r.CreatedAt, FinishedAt: r.FinishedAt,
		Due: r.Due, Error: r.Error,
	}
	if r.Status == Pending {
		out.Parked = r.Parked
	}
	if len(r.Begun) > 0 {
		out.StartedAt = r.Begun[0]
	}
	if r.Status == Waiting {
		out.Awaits = r.Awaits
	}
	return out, json.Unmarshal(r.Data, &out.State)
}
