package pawl

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/pawl-go/pawl/internal/state"
	"github.com/pawl-go/pawl/persist"
)

// Mutation is a change to a state: one of Patch, Set, Push, Inc, SetRecord, DeleteRecord, All, or Atomic's.
//
// All but Atomic's are data: the library runs them itself, and what they were given is copied before the verb that takes them
// returns. Only a value with JSON code of its own (MarshalJSON and the like) is copied when its turn comes, because that code must not
// hold the caller: leave it alone until then, also when the verb has returned an error.
type Mutation interface{ mutation() }

// Patch replaces the named fields and leaves the others. A nil value clears a field: one of a struct becomes zero, an
// entry of a map is removed.
type Patch map[Field]any

// Set replaces the whole state by State, which must be a T.
type Set struct{ State any }

// Push appends Values to the list in Field.
type Push struct {
	Field  Field
	Values []any
}

// Inc adds By to the number in Field.
type Inc struct {
	Field Field
	By    int64
}

// SetRecord sets one entry of the map in Field. Key is taken literally, dots included.
type SetRecord struct {
	Field Field
	Key   string
	Value any
}

// DeleteRecord removes one entry of the map in Field. Key is taken literally, dots included.
type DeleteRecord struct {
	Field Field
	Key   string
}

// All applies its mutations in order, all or none, as one mutation with one version.
type All []Mutation

// Atomic is the mutation of AtomicState: fn changes a private copy of the state, or returns an error and nothing happened.
func Atomic[T any](fn func(ctx context.Context, state *T) error) Mutation {
	return atomicMutation[T]{fn}
}

type atomicMutation[T any] struct {
	fn func(context.Context, *T) error
}

func (Patch) mutation()             {}
func (Set) mutation()               {}
func (Push) mutation()              {}
func (Inc) mutation()               {}
func (SetRecord) mutation()         {}
func (DeleteRecord) mutation()      {}
func (All) mutation()               {}
func (atomicMutation[T]) mutation() {}
func (deletion) mutation()          {}

// deletion is the mutation of Delete.
type deletion struct{}

// function is an atomicMutation of some type.
type function interface {
	nil() bool
	takes() reflect.Type
	// run lets the function change *draft, which becomes a copy of *cur (nil: absent), and fills *dst with what came of it, like
	// change.apply. Draft and dst are zero, and this is all that is ever done with them.
	run(ctx context.Context, typ *state.Type, cur, draft, dst any) (changed bool, err error)
}

func (m atomicMutation[T]) nil() bool           { return m.fn == nil }
func (m atomicMutation[T]) takes() reflect.Type { return reflect.TypeFor[T]() }
func (m atomicMutation[T]) run(ctx context.Context, typ *state.Type, cur, draft, dst any) (bool, error) {
	own, out := draft.(*T), dst.(*T)
	if cur == nil {
		*own = *typ.Zero().(*T)
	} else {
		*own = *cur.(*T)
		if err := typ.Detach(own); err != nil {
			return false, err
		}
	}
	if err := m.fn(ctx, own); err != nil {
		return false, userError{err}
	}
	*out = *own
	return typ.Settle(cur, out)
}

// change is a mutation made ready for states of one type.
type change struct {
	typ     *state.Type
	fn      function // of one that is a single function, or else steps
	creates bool     // brings an absent scope into being even with a zero state
	deletes bool
	takes   *persist.Acquire // the lease is taken in the same commit; nil: not
	steps   []step           // what may run code of the user's, in order
	verb    string
	data    state.Prepared // of a bounded change
}

// step is a part of a change that may run code of the user's: a function, data verbs beside one, or data verbs whose values
// have code of their own (MarshalJSON and the like).
type step struct {
	fn   function
	ops  []state.Op
	data *state.Prepared // of ops, if they could be prepared at once
	err  error           // of preparing them; told in their turn
}

// bounded reports whether the change runs no code but the library's, so that it may run where a caller waits.
func (c *change) bounded() bool { return c.fn == nil && c.steps == nil }

// compile makes c, which is zero, m made ready for a T. It returns *FieldError, *LimitError or *ArgumentError.
func (c *change) compile(key Key, typ *state.Type, rt reflect.Type, m Mutation) error {
	c.typ = typ
	switch m := m.(type) {
	case deletion:
		c.verb, c.deletes = "Delete", true
		return nil
	case function:
		c.verb, c.fn = "Atomic", m
		return accepts(m, rt)
	}
	c.verb, c.creates = verbOf(m), sets(m)
	if op, ok := opOf(m); ok {
		return c.prepare(&key, []state.Op{op}, nil)
	}
	if p, ok := m.(Patch); ok {
		var room [4]state.Op
		return c.prepare(&key, p.flatten(room[:0]), nil)
	}
	ops, fns, err := flatten(nil, nil, rt, m)
	if err != nil {
		return err
	}
	return c.prepare(&key, ops, fns)
}

// prepare makes ops ready, which come after fns. They are copied if they have to be kept.
func (c *change) prepare(key *Key, ops []state.Op, fns []step) error {
	typ := c.typ
	if fns == nil && !typ.Custom() && typ.Plain(ops) {
		var err error
		if c.data, err = typ.Prepare(ops); err != nil {
			return refused(*key, c.verb, err)
		}
		return nil
	}
	if len(ops) > 0 {
		fns = append(fns, step{ops: slices.Clone(ops)})
	}
	for i := range fns { // what need not wait for its turn is copied now
		if s := &fns[i]; s.fn == nil && typ.Plain(s.ops) {
			data, err := typ.Prepare(s.ops)
			s.data, s.err, s.ops = &data, err, nil
		}
	}
	c.steps = fns
	return nil
}

// sets reports whether m replaces the whole state, at some point.
func sets(m Mutation) bool {
	switch m := m.(type) {
	case Set:
		return true
	case All:
		return slices.ContainsFunc(m, sets)
	}
	return false
}

func verbOf(m Mutation) string {
	switch m.(type) {
	case Patch:
		return "Patch"
	case Set:
		return "Set"
	case Push:
		return "Push"
	case Inc:
		return "Inc"
	case SetRecord:
		return "SetRecord"
	case DeleteRecord:
		return "DeleteRecord"
	case All:
		return "All"
	}
	return "Atomic"
}

// opOf returns a mutation that is one data verb.
func opOf(m Mutation) (state.Op, bool) {
	switch m := m.(type) {
	case Set:
		return state.Op{Verb: state.Set, Value: m.State}, true
	case Push:
		return state.Op{Verb: state.Push, Field: string(m.Field), Values: m.Values}, true
	case Inc:
		return state.Op{Verb: state.Inc, Field: string(m.Field), By: m.By}, true
	case SetRecord:
		return state.Op{Verb: state.SetRecord, Field: string(m.Field), Key: m.Key, Value: m.Value}, true
	case DeleteRecord:
		return state.Op{Verb: state.DeleteRecord, Field: string(m.Field), Key: m.Key}, true
	}
	return state.Op{}, false
}

// flatten appends m to ops as data verbs; a function closes the run of data verbs before it and becomes a step.
func flatten(ops []state.Op, steps []step, rt reflect.Type, m Mutation) ([]state.Op, []step, error) {
	if op, ok := opOf(m); ok {
		return append(ops, op), steps, nil
	}
	switch m := m.(type) {
	case Patch:
		ops = m.flatten(ops)
	case All:
		for _, part := range m {
			var err error
			if ops, steps, err = flatten(ops, steps, rt, part); err != nil {
				return nil, nil, err
			}
		}
	case function:
		if err := accepts(m, rt); err != nil {
			return nil, nil, err
		}
		if len(ops) > 0 {
			steps = append(steps, step{ops: slices.Clone(ops)})
			ops = nil
		}
		steps = append(steps, step{fn: m})
	case nil:
		return nil, nil, &ArgumentError{Argument: "mutation", Reason: "nil"}
	default:
		return nil, nil, &ArgumentError{Argument: "mutation", Reason: "a deletion cannot be part of All"}
	}
	return ops, steps, nil
}

// flatten appends a patch to ops, in the order of its fields.
func (p Patch) flatten(ops []state.Op) []state.Op {
	first := len(ops)
	for f, v := range p {
		ops = append(ops, state.Op{Verb: state.Patch, Field: string(f), Value: v})
	}
	if mine := ops[first:]; len(mine) > 1 {
		slices.SortFunc(mine, func(a, b state.Op) int { return strings.Compare(a.Field, b.Field) })
		for i := range mine[1:] {
			mine[i+1].Joins = true
		}
	}
	return ops
}

// accepts tells why a function cannot run on states of type rt.
func accepts(fn function, rt reflect.Type) error {
	if fn.nil() {
		return &ArgumentError{Argument: "Atomic", Reason: "nil function"}
	}
	if fn.takes() != rt {
		return &ArgumentError{Argument: "Atomic", Reason: "the function takes " + fn.takes().String() + ", the state is " + rt.String()}
	}
	return nil
}

// apply fills *dst, a zero T, with what the change makes of *cur (nil: absent). If it reports false, or an error, *dst
// means nothing. Tail is nil wherever another run on the same container could overlap with this one.
func (c *change) apply(ctx context.Context, cur, dst any, tail *state.Tail) (changed bool, err error) {
	if c.bounded() {
		c.typ.Assign(dst, cur)
		return c.data.Apply(cur, dst, tail)
	}
	if c.fn != nil {
		return step{fn: c.fn}.apply(ctx, c.typ, cur, dst)
	}
	from := cur
	for i, s := range c.steps {
		to := dst
		if i < len(c.steps)-1 {
			to = c.typ.Zero()
		}
		did, err := s.apply(ctx, c.typ, from, to)
		if err != nil {
			return false, err
		}
		if did {
			from, changed = to, true
		}
	}
	if !changed || len(c.steps) == 1 {
		return changed, nil
	}
	if from != dst { // the last step changed nothing
		c.typ.Assign(dst, from)
	}
	return !c.typ.Equal(cur, dst), nil
}

func (s step) apply(ctx context.Context, typ *state.Type, cur, dst any) (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	if s.fn != nil {
		return s.fn.run(ctx, typ, cur, typ.Zero(), dst)
	}
	data := s.data
	if data == nil {
		made, err := typ.Prepare(s.ops)
		if err != nil {
			return false, err
		}
		data = &made
	}
	typ.Assign(dst, cur)
	return data.Apply(cur, dst, nil)
}

// userError marks an error that a mutator returned, so that it reaches its caller unchanged whatever its type.
type userError struct{ error }

// refused turns an error of package state, or of a mutator, into what the caller gets.
func refused(key Key, verb string, err error) error {
	if u, ok := err.(userError); ok {
		return u.error
	}
	var e *state.Error
	if !errors.As(err, &e) {
		return err
	}
	if e.Limit {
		return &LimitError{Scope: key, What: "depth", Limit: state.MaxDepth, Reason: e.Path}
	}
	return &FieldError{Scope: key, Field: Field(e.Path), Verb: verb, Reason: e.Reason}
}
