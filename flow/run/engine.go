package run

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
)

// MaxKey is the maximum length of an idempotency key, in characters.
const MaxKey = 255

// DefaultWorkspace is the workspace of runs that name none.
const DefaultWorkspace = "default"

// DefaultConcurrency is the number of steps that an engine runs at a time.
const DefaultConcurrency = 16

// Config configures an Engine; the zero value is the default.
type Config struct {
	// Concurrency is the number of steps that run at a time; 0: DefaultConcurrency.
	Concurrency int
	// Lease is the length of the lease of a step. A run whose worker died is taken again at most
	// this long after the last renewal. 0: pawl.DefaultLease.
	Lease time.Duration
	// Poll is how often the engine looks for due runs without a hint of the store. 0:
	// job.DefaultPoll.
	Poll time.Duration
	// Logger gets the errors that cannot be returned to a caller; nil: slog.Default().
	Logger *slog.Logger
}

// Engine creates and reads runs and, between Start and Stop, works on those of the registered
// definitions. Its methods are safe for concurrent use.
type Engine struct {
	rt     *pawl.Runtime
	config Config
	hook   func(moment string, a *attempt) // for tests: called before and after a step

	mu          sync.Mutex // protects the fields below
	definitions map[string]definition
	schedules   []job.Schedule
	requests    []Request // of the schedules
	faults      []error
	workers     []runner // nil: not started
	started     bool     // Start has succeeded
	stopped     bool
}

// runner is a job.Worker of any type.
type runner interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
}

// NewEngine returns an engine. Without Start it only creates, reads, signals and cancels runs.
func NewEngine(rt *pawl.Runtime, c Config) *Engine {
	c.Concurrency, c.Logger = cmp.Or(c.Concurrency, DefaultConcurrency), cmp.Or(c.Logger, slog.Default())
	e := &Engine{rt: rt, config: c, hook: func(string, *attempt) {}, definitions: map[string]definition{}}
	if rt == nil || rt.Store() == nil {
		e.faults = append(e.faults, pawl.ErrNoStore)
	}
	return e
}

// Runs starts and reads the runs of one definition.
type Runs[S any] struct {
	e     *Engine
	owner pawl.Owner
	name  string
}

// Register adds a definition to e, before Start. A definition with faults is not added: Engine.Start
// returns them (*pawl.ArgumentError), and Runs.Start returns *UnknownDefinitionError.
func Register[S any](e *Engine, d Definition[S]) *Runs[S] {
	e.mu.Lock()
	defer e.mu.Unlock()
	faults := definitionOf[S]{d}.faults()
	if e.workers != nil {
		faults = append(faults, &pawl.ArgumentError{Argument: "Definition " + d.Name, Reason: "registered after Start"})
	}
	if e.definitions[d.Name] != nil {
		faults = append(faults, &pawl.ArgumentError{Argument: "Definition " + d.Name, Reason: "registered twice"})
	}
	if e.faults = append(e.faults, faults...); len(faults) == 0 {
		e.definitions[d.Name] = definitionOf[S]{d}
	}
	return &Runs[S]{e, e.rt, d.Name}
}

// definition returns a registered definition; nil: there is none.
func (e *Engine) definition(name string) definition {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.definitions[name]
}

// Start works on due runs in the background, until Stop or until ctx ends. The contexts of the steps
// are made from ctx. Starting a started engine does nothing.
//
// It returns all faults of the definitions and schedules, joined (*pawl.ArgumentError, or an error of
// Create), and pawl.ErrNoStore; then it starts nothing. It returns the cause of a ctx that has ended,
// job.ErrStopped after Stop, and the errors of pawl's verbs for a schedule that could not be stored.
func (e *Engine) Start(ctx context.Context) error {
	if err := e.build(); err != nil {
		return err
	}
	e.mu.Lock()
	workers, started := e.workers, e.started
	e.mu.Unlock()
	if started {
		return nil
	}
	for _, w := range slices.Backward(workers) { // the scheduler first: it can fail
		if err := w.Start(ctx); err != nil {
			e.mu.Lock()
			e.workers = nil
			e.mu.Unlock()
			return errors.Join(err, stopAll(ctx, workers))
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.started = true
	return nil
}

// build makes the workers, if there are none yet.
func (e *Engine) build() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return job.ErrStopped
	}
	faults := slices.Clone(e.faults)
	for _, q := range e.requests {
		if err := e.checkRequest(q); err != nil {
			faults = append(faults, err)
		}
	}
	if err := errors.Join(faults...); err != nil || e.workers != nil {
		return err
	}
	var labels []string
	for name := range e.definitions {
		labels = append(labels, label(open, name), label(parked, name))
	}
	if len(labels) == 0 {
		return &pawl.ArgumentError{Argument: "Engine", Reason: "no definition is registered"}
	}
	runs, err := job.New(e.rt, job.Config[record]{
		Kind: records, Handle: e.work, Parked: e.logFailed, Lost: e.logLost,
		Protocol: job.Protocol[record]{
			Labels: labels, Begin: begin, HandBack: (*record).handBack, Retry: e.retry, Failed: (*record).failed,
		},
		Concurrency: e.config.Concurrency, Lease: e.config.Lease, Poll: e.config.Poll, Logger: e.config.Logger,
	})
	if err != nil {
		return err
	}
	workers := []runner{runs}
	if len(e.schedules) > 0 {
		ticks, err := job.NewScheduler(e.rt, job.SchedulerConfig{Schedules: e.schedules, Lease: e.config.Lease, Poll: e.config.Poll, Logger: e.config.Logger})
		if err != nil {
			return err
		}
		workers = append(workers, ticks)
	}
	e.workers = workers
	return nil
}

// Stop takes no more runs and waits for the steps in progress. When ctx ends first, it ends their
// contexts and returns an error that wraps the cause of ctx; another Stop can wait for them. An
// interrupted step is handed back: its run is PENDING, and the attempt is not counted. Stopping
// twice is safe. A step must not call Stop.
func (e *Engine) Stop(ctx context.Context) error {
	e.mu.Lock()
	e.stopped = true
	workers := e.workers
	e.mu.Unlock()
	return stopAll(ctx, workers)
}

// stopAll stops workers, the scheduler first: it starts runs.
func stopAll(ctx context.Context, workers []runner) error {
	var errs []error
	for _, w := range slices.Backward(workers) {
		errs = append(errs, w.Stop(ctx))
	}
	return errors.Join(errs...)
}

// Request describes a run to create.
type Request struct {
	Definition string
	// Input is the first state, as JSON; nil: {}.
	Input json.RawMessage
	// Workspace is where Key is unique; empty: DefaultWorkspace.
	Workspace string
	// Key makes repeated requests start one run; empty: each request starts a run.
	Key string
}

// Create creates a run and returns its id, or the id of the run that the key was used for before
// and created=false. On a *pawl.Tx the run is part of that transaction. The typed form is
// Runs.Start.
//
// It returns *UnknownDefinitionError, *KeyError if the key was used with another definition or
// input, *pawl.LimitError for a key or a workspace that is too long, *pawl.ArgumentError for an
// input that does not fit the definition, and the errors of pawl's verbs.
func (e *Engine) Create(ctx context.Context, o pawl.Owner, q Request) (id string, created bool, err error) {
	snap, created, err := e.create(ctx, o, q)
	return snap.ID, created, err
}

// create is Create. It returns the record of the run.
func (e *Engine) create(ctx context.Context, o pawl.Owner, q Request) (snap pawl.Snapshot[record], created bool, err error) {
	d := e.definition(q.Definition)
	if d == nil {
		return snap, false, &UnknownDefinitionError{q.Definition}
	}
	r, err := newRecord(d, q)
	if err != nil {
		return snap, false, err
	}
	scope := records.Scope(o, runID(r.Workspace, r.Key))
	if err := e.fits(scope.Key().ID, &r); err != nil {
		return snap, false, err
	}
	for {
		snap, err = scope.SetState(ctx, r, pawl.IfAbsent(), pawl.WithDueIn(0)) // due by the store's clock
		if !errors.Is(err, pawl.ErrExists) {
			return snap, err == nil, err
		}
		if snap, err = scope.Snapshot(ctx); err != nil {
			return snap, false, err
		}
		if snap.Version == 0 {
			continue // deleted in between
		}
		if was := snap.ReadOnly(); was.Definition != r.Definition || was.InputHash != r.InputHash {
			return snap, false, &KeyError{Key: q.Key, Run: snap.ID}
		}
		return snap, false, nil
	}
}

// newRecord returns the record of a new run.
func newRecord(d definition, q Request) (r record, err error) {
	input := q.Input
	if len(input) == 0 || string(input) == "null" {
		input = json.RawMessage("{}")
	}
	if err := d.check(input); err != nil {
		return r, &pawl.ArgumentError{Argument: "Input", Reason: err.Error()}
	}
	if n := utf8.RuneCountInString(q.Key); n > MaxKey {
		return r, &pawl.LimitError{Scope: pawl.Key{Kind: records.Name}, What: "idempotency key", Limit: MaxKey, Got: n}
	}
	workspace := cmp.Or(q.Workspace, DefaultWorkspace)
	if n := len(workspacePrefix(workspace)); n > maxWorkspace {
		return r, &pawl.LimitError{Scope: pawl.Key{Kind: records.Name}, What: "workspace", Limit: maxWorkspace, Got: n}
	}
	hash, err := hashOf(input)
	if err != nil {
		return r, &pawl.ArgumentError{Argument: "Input", Reason: err.Error()}
	}
	r = record{Workspace: workspace, Definition: q.Definition, Key: q.Key, InputHash: hash, Data: input, CreatedAt: time.Now()}
	r.adopt(d.steps())
	r.Current, r.Due = r.Steps[0].Name, r.CreatedAt
	r.become(Pending)
	return r, nil
}

// maxWorkspace is the maximum length of the prefix that a workspace gives to ids.
const maxWorkspace = 128

// runID returns the id of the run with a key in a workspace, or a new id without a key.
func runID(workspace, key string) string {
	name := rand.Text()
	if key != "" {
		sum := sha256.Sum256([]byte(key))
		name = hex.EncodeToString(sum[:16])
	}
	return workspacePrefix(workspace) + name
}

// workspacePrefix returns the prefix of the ids of the runs of a workspace.
func workspacePrefix(workspace string) string { return url.QueryEscape(workspace) + "/" }

// hashOf returns a hash of a JSON value that does not depend on the order of fields, white space and
// escapes. Numbers count as written, so that no digit is lost. Fields with zero values do not count:
// a release that adds a field to its input must recognise a repeated request.
func hashOf(input json.RawMessage) (string, error) {
	var v any
	decoder := json.NewDecoder(bytes.NewReader(input))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		return "", err
	}
	data, err := json.Marshal(withoutZeros(v))
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), err
}

// withoutZeros returns a JSON value without fields that are null, false, 0, empty, or become so. The
// items of a list stay, without such fields.
func withoutZeros(v any) any {
	if list, ok := v.([]any); ok {
		for i, item := range list {
			list[i] = withoutZeros(item)
		}
	}
	fields, ok := v.(map[string]any)
	if !ok {
		return v
	}
	for name, value := range fields {
		value = withoutZeros(value)
		list, isList := value.([]any)
		object, isObject := value.(map[string]any)
		number, isNumber := value.(json.Number)
		switch {
		case value == nil, value == false, value == "", isNumber && number == "0", isList && len(list) == 0, isObject && len(object) == 0:
			delete(fields, name)
		default:
			fields[name] = value
		}
	}
	return fields
}

// StartOption changes one call of Start.
type StartOption func(*Request)

// InWorkspace sets the workspace that keys are unique in.
func InWorkspace(name string) StartOption { return func(q *Request) { q.Workspace = name } }

// WithKey makes repeated calls with the same key start one run. The key has at most MaxKey
// characters. It does not expire while its run exists.
func WithKey(key string) StartOption { return func(q *Request) { q.Key = key } }

// In returns the same runs, with Start and Get as parts of tx.
func (r *Runs[S]) In(tx *pawl.Tx) *Runs[S] { return &Runs[S]{r.e, tx, r.name} }

// Start creates a run, or returns the run that the key was used for before, and created=false. It
// returns *KeyError if the key was used with another definition or input, *pawl.LimitError for a key
// or a workspace that is too long, and the errors of json.Marshal and of pawl's verbs.
func (r *Runs[S]) Start(ctx context.Context, input S, opts ...StartOption) (run Run[S], created bool, err error) {
	q := Request{Definition: r.name}
	for _, o := range opts {
		o(&q)
	}
	if q.Input, err = json.Marshal(input); err != nil {
		return run, false, err
	}
	snap, created, err := r.e.create(ctx, r.owner, q)
	if err != nil {
		return run, false, err
	}
	run, err = runOf[S](snap)
	return run, created, err
}

// Get returns a run. It returns pawl.ErrNotFound if there is none of this definition with that id,
// and the errors of pawl's verbs.
func (r *Runs[S]) Get(ctx context.Context, id string) (Run[S], error) {
	snap, err := records.Scope(r.owner, id).Snapshot(ctx)
	if err != nil {
		return Run[S]{}, err
	}
	if snap.Version == 0 || snap.ReadOnly().Definition != r.name {
		return Run[S]{}, notFound(id)
	}
	return runOf[S](snap)
}

func notFound(id string) error { return fmt.Errorf("%w: run %s", pawl.ErrNotFound, id) }

// Filter selects runs; the zero value selects all.
type Filter struct {
	Workspace string
	// Statuses selects runs with one of these statuses; nil: any. Parked runs are PENDING.
	Statuses []Status
	// Parked selects runs that are parked.
	Parked bool
	// Age selects runs that last changed at least this long ago.
	Age time.Duration
	// Limit is the maximum number of runs; 0: no limit.
	Limit int
}

// List yields runs of this definition, page by page. A run that this release cannot read is yielded
// with its id and an error, and the sequence goes on; every other error of pawl.Kind.List ends it.
func (r *Runs[S]) List(ctx context.Context, f Filter) iter.Seq2[Run[S], error] {
	q := pawl.Query{Age: f.Age}
	if f.Workspace != "" {
		q.Prefix = workspacePrefix(f.Workspace)
	}
	q.Labels = f.labels(r.name)
	return func(yield func(Run[S], error) bool) {
		left := f.Limit
		for snap, err := range records.List(ctx, r.owner, q) {
			run := Run[S]{ID: snap.ID}
			if err == nil {
				run, err = runOf[S](snap)
			}
			if err == nil && f.Statuses != nil && !slices.Contains(f.Statuses, run.Status) {
				continue
			}
			if !yield(run, err) {
				return
			}
			if err != nil {
				continue // it does not count
			}
			if left--; left == 0 {
				return
			}
		}
	}
}

// labels returns the labels of the runs of a definition that may match f.
func (f Filter) labels(definition string) (labels []string) {
	if f.Parked {
		return []string{label(parked, definition)}
	}
	unfinished := false
	for _, s := range []Status{Pending, Running, Waiting, Completed, Failed, Canceled} {
		switch {
		case f.Statuses != nil && !slices.Contains(f.Statuses, s):
		case s.Finished():
			labels = append(labels, label(s, definition))
		default:
			unfinished = true
		}
	}
	if unfinished || labels == nil {
		labels = append(labels, label(open, definition), label(parked, definition))
	}
	return labels
}

// Watch yields a run and then each of its later versions, of all processes. A slow caller skips to
// the newest. It ends when ctx ends, or after it yields an error: pawl.ErrNotFound, or an error of
// pawl.Scope.Watch.
func (r *Runs[S]) Watch(ctx context.Context, id string) iter.Seq2[Run[S], error] {
	return func(yield func(Run[S], error) bool) {
		for change, err := range records.Scope(r.owner, id).Watch(ctx) {
			var run Run[S]
			if err == nil && (change.Version == 0 || change.ReadOnly().Definition != r.name) {
				err = notFound(id)
			}
			if err == nil {
				run, err = runOf[S](change.Snapshot)
			}
			if !yield(run, err) || err != nil {
				return
			}
		}
	}
}

// Signal sends a signal to a run, with data as JSON. A run that awaits it continues. Otherwise the
// signal is kept until a step awaits it; none is lost. Signals of one name are received in order.
//
// It returns *FinishedError if the run is over, pawl.ErrNotFound, *pawl.ArgumentError for a bad name
// or data, and the errors of pawl's verbs.
func (e *Engine) Signal(ctx context.Context, id, name string, data any) error {
	if name == "" || len(name) > maxName {
		return &pawl.ArgumentError{Argument: "name", Reason: fmt.Sprintf("must have 1 to %d bytes", maxName)}
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return &pawl.ArgumentError{Argument: "data", Reason: err.Error()}
	}
	return e.change(ctx, id, func(ctx context.Context, tx *pawl.Tx, r *record) ([]pawl.CallOption, error) {
		if r.Status.Finished() {
			return nil, &FinishedError{id, r.Status}
		}
		err := deliver(ctx, inboxes.Scope(tx, inboxID(id, name)), name, raw)
		if err != nil || r.Status != Waiting || r.Awaits != name || r.Parked != "" {
			return nil, err
		}
		r.Due = time.Now()
		return []pawl.CallOption{pawl.WithDueIn(0)}, nil
	})
}

// deliver adds a signal to an inbox.
func deliver(ctx context.Context, scope pawl.Scope[inbox], name string, data json.RawMessage) error {
	snap, err := scope.Snapshot(ctx)
	if err != nil {
		return err
	}
	in := snap.State()
	in.Messages = append(in.Messages, Signal{name, in.Next, data})
	in.Next++
	if snap.Version == 0 { // also of a run that was deleted and started again
		_, err = scope.SetState(ctx, in, pawl.IfAbsent())
		return err
	}
	_, err = scope.SetState(ctx, in)
	return err
}

// Cancel ends a run with the status CANCELED. The context of a step that runs ends, and nothing of
// it is committed. It returns *FinishedError if the run is over, pawl.ErrNotFound, and the errors of
// pawl's verbs.
func (e *Engine) Cancel(ctx context.Context, id string) error {
	return e.change(ctx, id, func(_ context.Context, _ *pawl.Tx, r *record) ([]pawl.CallOption, error) {
		if r.Status.Finished() {
			return nil, &FinishedError{id, r.Status}
		}
		if s := r.step(r.Current); s != nil {
			s.Status = Pending
		}
		r.become(Canceled)
		return nil, nil
	})
}

// Retry puts a run that has failed or is parked back to work, at the step where it stopped, with a
// full budget of attempts. It returns *FinishedError for a run that is COMPLETED or CANCELED,
// *UnfinishedError for a run that is neither over nor parked, pawl.ErrNotFound, and the errors of
// pawl's verbs.
func (e *Engine) Retry(ctx context.Context, id string) error {
	return e.change(ctx, id, func(_ context.Context, _ *pawl.Tx, r *record) ([]pawl.CallOption, error) {
		switch {
		case r.Parked != "" && r.Status == Pending || r.Status == Failed:
		case r.Status.Finished():
			return nil, &FinishedError{id, r.Status}
		default:
			return nil, &UnfinishedError{id, r.Status}
		}
		if s := r.step(r.Current); s != nil {
			s.Status, s.Attempts, s.Error = Pending, 0, ""
		}
		r.Attempts, r.Error, r.FinishedAt, r.Due = 0, "", time.Time{}, time.Now()
		r.become(Pending)
		return []pawl.CallOption{pawl.WithDueIn(0)}, nil
	})
}

// change changes the record of a run in a transaction. If fn does not change it, it is not written.
func (e *Engine) change(
	ctx context.Context, id string, fn func(ctx context.Context, tx *pawl.Tx, r *record) ([]pawl.CallOption, error),
) error {
	return pawl.Transact(ctx, e.rt, func(ctx context.Context, tx *pawl.Tx) error {
		scope := records.Scope(tx, id)
		snap, err := scope.Snapshot(ctx)
		if err != nil {
			return err
		}
		if snap.Version == 0 {
			return notFound(id)
		}
		r := snap.State()
		opts, err := fn(ctx, tx, &r)
		if err != nil {
			return err
		}
		_, err = scope.SetState(ctx, r, opts...)
		return err
	})
}
