package pawl

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pawl-go/pawl/internal/state"
	"github.com/pawl-go/pawl/persist"
)

// Mutation is a change to a state: a Patch, Set, Push, Inc, SetRecord, DeleteRecord or All, or the
// result of Atomic.
//
// All but the last are data: the library runs them itself, and copies their values before the verb
// returns. A value with JSON code of its own (such as MarshalJSON) is copied when its turn comes,
// because that code must not hold the caller. Do not change such a value until then, even if the
// verb has returned an error.
type Mutation interface {
	// verb returns the name of the mutation in events and errors.
	verb() string
}

// Patch replaces the named fields and leaves the others. A nil value sets a field of a struct to
// zero, and removes an entry of a map.
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

// Atomic returns the mutation of AtomicState: fn changes a private copy of the state. If fn returns
// an error, nothing is changed.
func Atomic[T any](fn func(ctx context.Context, state *T) error) Mutation {
	return atomicMutation[T]{fn}
}

type atomicMutation[T any] struct {
	fn func(context.Context, *T) error
}

func (Patch) verb() string             { return "Patch" }
func (Set) verb() string               { return "Set" }
func (Push) verb() string              { return "Push" }
func (Inc) verb() string               { return "Inc" }
func (SetRecord) verb() string         { return "SetRecord" }
func (DeleteRecord) verb() string      { return "DeleteRecord" }
func (All) verb() string               { return "All" }
func (atomicMutation[T]) verb() string { return "Atomic" }
func (deletion) verb() string          { return "Delete" }

// deletion is the mutation of Delete.
type deletion struct{}

// function is an atomicMutation of some type.
type function interface {
	nil() bool
	takes() reflect.Type
	// run lets the function change a copy of *cur (nil: absent), and fills *dst with the result,
	// like change.apply.
	run(ctx context.Context, typ *state.Type, cur, dst any) (changed bool, err error)
}

func (m atomicMutation[T]) nil() bool           { return m.fn == nil }
func (m atomicMutation[T]) takes() reflect.Type { return reflect.TypeFor[T]() }
func (m atomicMutation[T]) run(ctx context.Context, typ *state.Type, cur, dst any) (bool, error) {
	own, out := new(T), dst.(*T) // apart, because the function may keep own
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

// change is a mutation prepared for states of one type.
type change struct {
	typ     *state.Type
	stateOf stateType // of typ; for a change in memory
	fn      function  // of a change that is a single function; nil: see steps
	creates bool      // brings an absent scope into being even with a zero state
	deletes bool
	takes   *persist.Acquire // the lease is taken in the same commit; nil: not
	steps   []step           // parts that may run user code, in order
	verb    string
	data    state.Prepared // of a bounded change
}

// step is a part of a change that may run user code: a function, data verbs beside one, or data
// verbs whose values have JSON code of their own.
type step struct {
	fn   function
	ops  []state.Op
	data *state.Prepared // of ops, if they could be prepared at once
	err  error           // of preparing them; returned in their turn
}

// hasFunction reports whether a function of the user is part of the change.
func (c *change) hasFunction() bool {
	return c.fn != nil || slices.ContainsFunc(c.steps, func(s step) bool { return s.fn != nil })
}

// bounded reports whether the change runs no user code, so that it may run on its caller's
// goroutine.
func (c *change) bounded() bool { return c.fn == nil && c.steps == nil }

// compile fills c with m, prepared for states of type typ. It returns *FieldError,
// *LimitError or *ArgumentError.
func (c *change) compile(key Key, typ *state.Type, m Mutation) error {
	if m == nil {
		return &ArgumentError{Argument: "mutation", Reason: "nil"}
	}
	if !known(m) {
		return &ArgumentError{Argument: "mutation", Reason: fmt.Sprintf("%T is not a mutation", m)}
	}
	c.typ, c.verb, c.creates = typ, m.verb(), sets(m)
	switch m := m.(type) {
	case deletion:
		c.deletes = true
		return nil
	case function:
		c.fn = m
		return accepts(m, typ)
	}
	if op, ok := opOf(m); ok {
		return c.prepare(&key, []state.Op{op}, nil)
	}
	if p, ok := m.(Patch); ok {
		var room [4]state.Op
		return c.prepare(&key, p.flatten(room[:0]), nil)
	}
	ops, fns, err := flatten(nil, nil, typ, m)
	if err != nil {
		return err
	}
	return c.prepare(&key, ops, fns)
}

// prepare prepares ops, which come after fns. It copies ops that it keeps.
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
	for i := range fns { // values without code of their own are copied now
		if s := &fns[i]; s.fn == nil && typ.Plain(s.ops) {
			data, err := typ.Prepare(s.ops)
			s.data, s.err, s.ops = &data, err, nil
		}
	}
	c.steps = fns
	return nil
}

// known reports whether m is one of the mutations of this package. A pointer to one, which may be nil,
// has its methods too, and is none.
func known(m Mutation) bool {
	switch m.(type) {
	case Patch, Inc, Push, Set, SetRecord, DeleteRecord, All, function, deletion:
		return true
	}
	return false
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

// flatten appends m to ops as data verbs. A function becomes a step, and so do the data verbs
// before it.
func flatten(ops []state.Op, steps []step, typ *state.Type, m Mutation) ([]state.Op, []step, error) {
	if op, ok := opOf(m); ok {
		return append(ops, op), steps, nil
	}
	switch m := m.(type) {
	case Patch:
		ops = m.flatten(ops)
	case All:
		for _, part := range m {
			var err error
			if ops, steps, err = flatten(ops, steps, typ, part); err != nil {
				return nil, nil, err
			}
		}
	case function:
		if err := accepts(m, typ); err != nil {
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
		return nil, nil, &ArgumentError{Argument: "mutation", Reason: fmt.Sprintf("%T cannot be part of All", m)}
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

// accepts returns an error if fn cannot run on states of type typ.
func accepts(fn function, typ *state.Type) error {
	if fn.nil() {
		return &ArgumentError{Argument: "Atomic", Reason: "nil function"}
	}
	if fn.takes() != typ.Reflect() {
		return &ArgumentError{Argument: "Atomic", Reason: "the function takes " + fn.takes().String() + ", the state is " + typ.Reflect().String()}
	}
	return nil
}

// apply fills *dst, a zero T, with the result of the change on *cur (nil: absent). If it reports
// false or an error, *dst has no meaning.
func (c *change) apply(ctx context.Context, cur, dst any) (changed bool, err error) {
	if c.bounded() {
		c.typ.Assign(dst, cur)
		return c.data.Apply(cur, dst, nil)
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
		return s.fn.run(ctx, typ, cur, dst)
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

// userError marks an error that a function returned, so that it reaches its caller unchanged.
type userError struct{ error }

// refused turns an error of package state, or of a function, into the error of the caller.
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
