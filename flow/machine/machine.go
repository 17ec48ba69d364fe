package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/state"
)

// Machine fires the steps of one workflow on entities of type T.
type Machine[T any] struct {
	*machine[T]
	owner pawl.Owner // where Create opens scopes: the runtime or a transaction
}

// machine is the part of a Machine that does not depend on a transaction.
type machine[T any] struct {
	e        *Engine
	entities pawl.Kind[T]
	typ      *state.Type
	w        Workflow
	routes   map[string]map[string]*route // by step and requester
	claims   map[string]string            // claim_into to revert_to

	// mu protects the fields below.
	mu             sync.Mutex
	actions        map[string]*handler[T]
	effectHandlers map[string]func(context.Context, *Delivery[T]) error
	declFaults     []error // of Add, Handle and Effect
}

// route is a step for one requester.
type route struct {
	step, by     string
	from, to     string
	into, revert string // the claim; empty: the requester runs unclaimed
	action       string
	effects      []string
}

// handler is the body of an action.
type handler[T any] struct {
	in  reflect.Type
	run func(ctx context.Context, a *Action[T], in any) error
}

// Add adds a workflow to e. The field that kind.Label names holds the status of an entity.
//
// Engine.Start returns the faults: *RuleError for a workflow that is not valid, or does not fit the
// kind.
func Add[T any](e *Engine, kind pawl.Kind[T], w Workflow) *Machine[T] {
	m := &machine[T]{
		e: e, entities: kind, w: w, routes: map[string]map[string]*route{}, claims: w.claims(),
		actions:        map[string]*handler[T]{},
		effectHandlers: map[string]func(context.Context, *Delivery[T]) error{},
	}
	fault := func(reason string, values ...string) {
		m.declFaults = append(m.declFaults, &RuleError{Rule: RuleEntity, Workflow: w.Name, Reason: reason, Values: values})
	}
	if err := w.Validate(); err != nil {
		m.declFaults = append(m.declFaults, err)
	}
	var err error
	m.typ, err = state.Of(reflect.TypeFor[T]())
	switch {
	case err != nil:
		fault(err.Error())
	case kind.Name != w.Kind:
		fault("entity_kind differs from the name of the kind", w.Kind, kind.Name)
	case kind.InMemory:
		fault("the kind is in memory, not persisted", kind.Name)
	case kind.Label == "":
		fault("the kind has no Label, which names the field of the status", kind.Name)
	case m.typ.Check(string(kind.Label)) != nil:
		fault("the entity has no such field", string(kind.Label))
	}
	for _, s := range w.Steps {
		by := map[string]*route{}
		for requester, action := range s.Action {
			r := &route{
				step: s.Key, by: requester, from: s.Status, to: s.To[requester],
				action: action, effects: slices.Clone(s.Effects[requester]),
			}
			if c := s.Claim[requester]; len(c) == 2 {
				r.into, r.revert = c.Into(), c.Revert()
			}
			by[requester] = r
		}
		m.routes[s.Key] = by
	}
	e.add(m)
	return &Machine[T]{m, e.rt}
}

// NoInput is the input type of an action without input; its Trigger.Input is nil.
type NoInput = struct{}

// Handle registers the body of an action under the name that steps use. In is the type that
// Trigger.Input must have.
//
// Engine.Start returns the faults: *HandlerError for a name that is registered twice, or that no
// step uses.
func Handle[T, In any](m *Machine[T], action string, fn func(ctx context.Context, a *Action[T], in In) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case fn == nil:
		m.handlerFault(action, "the action's handler is nil")
	case m.actions[action] != nil:
		m.handlerFault(action, "the action is registered twice")
	}
	m.actions[action] = &handler[T]{reflect.TypeFor[In](), func(ctx context.Context, a *Action[T], in any) error {
		typed, _ := in.(In) // the zero value for a nil input
		return fn(ctx, a, typed)
	}}
}

// Effect registers the handler of an after-effect. It runs after the commit that recorded the
// after-effect, at least once, in any process that has registered it. Delivery.ID is the same in
// every attempt. An error is retried later, unless pawl.NonRetryable marks it as final.
//
// Engine.Start returns the faults, as for Handle.
func Effect[T any](m *Machine[T], name string, fn func(ctx context.Context, d *Delivery[T]) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case fn == nil:
		m.handlerFault(name, "the after-effect's handler is nil")
	case m.effectHandlers[name] != nil:
		m.handlerFault(name, "the after-effect is registered twice")
	}
	m.effectHandlers[name] = fn
}

func (m *machine[T]) handlerFault(name, reason string) {
	m.declFaults = append(m.declFaults, &HandlerError{Workflow: m.w.Name, Name: name, Reason: reason})
}

// faults implements anyMachine.
func (m *machine[T]) faults() []error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := machine[T]{w: m.w, declFaults: slices.Clone(m.declFaults)}
	actions, effects := map[string]bool{}, map[string]bool{}
	for _, s := range m.w.Steps {
		for _, by := range s.requesters() {
			if a := s.Action[by]; a != "" && !actions[a] {
				actions[a] = true
				if m.actions[a] == nil {
					all.handlerFault(a, "the action has no handler")
				}
			}
			for _, name := range s.Effects[by] {
				if !effects[name] {
					effects[name] = true
					if m.effectHandlers[name] == nil {
						all.handlerFault(name, "the after-effect has no handler")
					}
					if max(len(pendingLabel(m.w.Name, name)), len(givenUpLabel(m.w.Name, name))) > pawl.MaxLabel {
						all.handlerFault(name, "the names of the workflow and the after-effect are too long together")
					}
				}
			}
		}
	}
	for a := range m.actions {
		if !actions[a] {
			all.handlerFault(a, "no step has this action")
		}
	}
	for name := range m.effectHandlers {
		if !effects[name] {
			all.handlerFault(name, "no step has this after-effect")
		}
	}
	return all.declFaults
}

func (m *machine[T]) workflow() *Workflow            { return &m.w }
func (m *machine[T]) claimStates() map[string]string { return m.claims }
func (m *machine[T]) kind() string                   { return m.entities.Name }

// status returns the status of an entity.
func (m *machine[T]) status(entity *T) string {
	found, _ := m.typ.Lookup(entity, string(m.entities.Label))
	v := reflect.ValueOf(found)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() != reflect.String {
		return ""
	}
	return v.String()
}

// errStatus is returned by changeStatus for an entity that has another status than from.
var errStatus = errors.New("machine: the status has changed")

// changeStatus returns the mutation from one status to another. It fails with errStatus for an
// entity in any other status.
func (m *machine[T]) changeStatus(from, to string) pawl.Mutation {
	return pawl.All{
		pawl.Atomic(func(_ context.Context, entity *T) error {
			if m.status(entity) != from {
				return errStatus
			}
			return nil
		}),
		pawl.Patch{m.entities.Label: to},
	}
}

// In returns a machine whose Create is part of tx. Fire does not use tx.
func (m *Machine[T]) In(tx *pawl.Tx) *Machine[T] { return &Machine[T]{m.machine, tx} }

// Create creates an entity. An entity without a status gets the workflow's initial status.
//
// It returns *StepError for a claim state and for a status that is not in status_types,
// pawl.ErrExists for an id in use, and the other errors of pawl's verbs.
func (m *Machine[T]) Create(ctx context.Context, id string, entity T) (pawl.Snapshot[T], error) {
	status := m.status(&entity)
	if status == "" {
		status = m.w.Initial
	}
	if _, claim := m.claims[status]; claim || !slices.Contains(m.w.Statuses, status) {
		return pawl.Snapshot[T]{}, &StepError{Workflow: m.w.Name, Reason: fmt.Sprintf("a new entity cannot have the status %q", status)}
	}
	return m.entities.Scope(m.owner, id).Apply(ctx, pawl.All{pawl.Set{State: entity}, pawl.Patch{m.entities.Label: status}}, pawl.IfAbsent())
}

// resolve returns the route and the handler of t, and its input as JSON if the step has
// after-effects.
func (m *machine[T]) resolve(t Trigger) (r *route, h *handler[T], input []byte, err error) {
	fail := func(format string, args ...any) (*route, *handler[T], []byte, error) {
		return nil, nil, nil, &StepError{Workflow: m.w.Name, Step: t.Step, By: t.By, Reason: fmt.Sprintf(format, args...)}
	}
	by, ok := m.routes[t.Step]
	if !ok {
		return fail("unknown step")
	}
	if r = by[t.By]; r == nil {
		return fail("the requester has no action in this step")
	}
	m.mu.Lock()
	h = m.actions[r.action]
	m.mu.Unlock()
	if t.Input == nil && h.in != reflect.TypeFor[NoInput]() && h.in.Kind() != reflect.Interface {
		return fail("action %s needs an input of type %v, got none", r.action, h.in)
	}
	if t.Input != nil && !reflect.TypeOf(t.Input).AssignableTo(h.in) {
		return fail("action %s needs an input of type %v, got %T", r.action, h.in, t.Input)
	}
	if len(r.effects) > 0 && t.Input != nil {
		if input, err = json.Marshal(t.Input); err != nil {
			return fail("cannot encode the input for after-effects: %v", err)
		}
	}
	return r, h, input, nil
}
