package pawl_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/big"

	"github.com/pawl-go/pawl"
)

var errModel = errors.New("boom")

// modelFunctions are the functions of the model, on trees. A function that fails changes nothing.
var modelFunctions = map[string]func(any) (any, error){
	"bump": func(state any) (any, error) {
		object := state.(map[string]any)
		switch n := object["n"].(type) {
		case nil:
			object["n"] = new(big.Rat).SetInt64(1)
		case *big.Rat:
			if next := new(big.Rat).Add(n, new(big.Rat).SetInt64(1)); intShape.holds(next) {
				object["n"] = next
			}
		}
		return object, nil
	},
	"append": func(state any) (any, error) {
		object := state.(map[string]any)
		if list, ok := object["list"].([]any); ok || object["list"] == nil {
			object["list"] = append(list, "f")
		}
		return object, nil
	},
	"dynamic": func(state any) (any, error) {
		name := "any"
		object := state.(map[string]any)
		object[name] = map[string]any{"a": map[string]any{"b": new(big.Rat).SetInt64(1)}, "l": []any{new(big.Rat).SetFloat64(1.5), "x"}}
		return object, nil
	},
	"nothing": func(state any) (any, error) { return state, nil },
	"invalid": func(any) (any, error) { return nil, modelField },
	"fail":    func(any) (any, error) { return nil, modelBoom },
	"panic":   func(any) (any, error) { return nil, modelPanic },
}

var modelFunctionNames = []string{"bump", "append", "dynamic", "nothing", "invalid", "fail", "panic"}

// scribble overwrites everything that is reachable from a state.
func scribble(x any) {
	switch v := x.(type) {
	case *modelState:
		v.N, v.Name = -1, "scribbled"
		for i := range v.List {
			v.List[i] = "scribbled"
		}
		for k := range v.Map {
			v.Map[k] = -1
		}
		for _, tags := range v.Nest.Tags {
			for i := range tags {
				tags[i] = "scribbled"
			}
		}
		scribble(v.Nest.Free)
		scribble(v.Any)
		if v.Ptr != nil {
			v.Ptr.X = -1
		}
	case *pawl.Doc:
		scribble(map[string]any(*v))
	case map[string]any:
		for k, x := range v {
			scribble(x)
			v[k] = "scribbled"
		}
	case []any:
		for i, x := range v {
			scribble(x)
			v[i] = "scribbled"
		}
	}
}

// typedFunction does to a modelState what modelFunctions[name] does to a tree.
func typedFunction(name string, s *modelState) error {
	switch name {
	case "bump":
		if s.N < math.MaxInt64 {
			s.N++
		}
	case "append":
		s.List = append(s.List, "f")
	case "dynamic":
		s.Any = map[string]any{"a": map[string]any{"b": 1}, "l": []any{1.5, "x"}}
	case "invalid":
		s.Name = "\xff"
	case "fail":
		scribble(s)
		return errModel
	case "panic":
		scribble(s)
		panic(errModel)
	}
	return nil
}

// docFunction does to a Doc what modelFunctions[name] does to a tree.
func docFunction(name string, d *pawl.Doc) error {
	switch name {
	case "bump":
		switch n := (*d)["n"].(type) {
		case nil:
			(*d)["n"] = 1
		case int64:
			if n < math.MaxInt64 {
				(*d)["n"] = n + 1
			}
		}
	case "append":
		if list, ok := (*d)["list"].([]any); ok || (*d)["list"] == nil {
			(*d)["list"] = append(list, "f")
		}
	case "dynamic":
		(*d)["any"] = map[string]any{"a": map[string]any{"b": 1}, "l": []any{1.5, "x"}}
	case "invalid":
		(*d)["bad"] = []any{math.NaN()}
	case "fail":
		scribble(d)
		return errModel
	case "panic":
		scribble(d)
		panic(errModel)
	}
	return nil
}

// modelAnswer is the result of a call.
type modelAnswer struct {
	err     error
	id      string
	version uint64
	exists  bool
	tree    any
	keep    func() (any, error) // reads the snapshot again
}

// modelTarget is a scope whose state type is hidden from the model.
type modelTarget interface {
	apply(rt *pawl.Runtime, parts []modelPart, all, short bool, opts []pawl.CallOption) modelAnswer
	delete(rt *pawl.Runtime, opts []pawl.CallOption) modelAnswer
	read(rt *pawl.Runtime) modelAnswer
	shape() *shape
	fields() []string
	name() string
}

type typedTarget[T any] struct {
	kind     pawl.Kind[T]
	id       string
	of       *shape
	paths    []string
	function func(string, *T) error
}

func (k typedTarget[T]) shape() *shape    { return k.of }
func (k typedTarget[T]) fields() []string { return k.paths }
func (k typedTarget[T]) name() string     { return k.id }

// mutation returns the library's mutation for a part of the model.
func (k typedTarget[T]) mutation(p modelPart) pawl.Mutation {
	switch p.verb {
	case "Patch":
		patch := pawl.Patch{}
		for field, value := range p.fields {
			patch[pawl.Field(field)] = value
		}
		return patch
	case "Set":
		return pawl.Set{State: k.state(p)}
	case "Push":
		return pawl.Push{Field: pawl.Field(p.field), Values: p.values}
	case "Inc":
		return pawl.Inc{Field: pawl.Field(p.field), By: p.by}
	case "SetRecord":
		return pawl.SetRecord{Field: pawl.Field(p.field), Key: p.key, Value: p.values[0]}
	case "DeleteRecord":
		return pawl.DeleteRecord{Field: pawl.Field(p.field), Key: p.key}
	}
	return pawl.Atomic(func(_ context.Context, s *T) error { return k.function(p.fn, s) })
}

// state returns the argument of Set. It has the wrong type if p is bad.
func (k typedTarget[T]) state(p modelPart) any {
	if p.bad {
		return "not a state"
	}
	var state T
	if err := json.Unmarshal([]byte(jsonOf(p.tree)), &state); err != nil {
		panic(err)
	}
	return state
}

func (k typedTarget[T]) apply(rt *pawl.Runtime, parts []modelPart, all, short bool, opts []pawl.CallOption) modelAnswer {
	return k.call(rt, func(ctx context.Context, s pawl.Scope[T]) (pawl.Snapshot[T], error) {
		if all {
			list := pawl.All{}
			for _, p := range parts {
				list = append(list, k.mutation(p))
			}
			return s.Apply(ctx, list, opts...)
		}
		p := parts[0]
		if !short || p.bad || p.verb == "Push" && len(p.values) != 1 {
			return s.Apply(ctx, k.mutation(p), opts...)
		}
		switch p.verb {
		case "Patch":
			return s.PatchState(ctx, k.mutation(p).(pawl.Patch), opts...)
		case "Set":
			return s.SetState(ctx, k.state(p).(T), opts...)
		case "Push":
			return s.PushState(ctx, pawl.Field(p.field), p.values[0], opts...)
		case "Inc":
			return s.IncState(ctx, pawl.Field(p.field), p.by, opts...)
		case "SetRecord":
			return s.SetStateRecord(ctx, pawl.Field(p.field), p.key, p.values[0], opts...)
		case "DeleteRecord":
			return s.DeleteStateRecord(ctx, pawl.Field(p.field), p.key, opts...)
		}
		return s.AtomicState(ctx, func(_ context.Context, s *T) error { return k.function(p.fn, s) }, opts...)
	})
}

func (k typedTarget[T]) delete(rt *pawl.Runtime, opts []pawl.CallOption) modelAnswer {
	return k.call(rt, func(ctx context.Context, s pawl.Scope[T]) (pawl.Snapshot[T], error) {
		return pawl.Snapshot[T]{ID: k.id}, s.Delete(ctx, opts...)
	})
}

func (k typedTarget[T]) read(rt *pawl.Runtime) modelAnswer {
	return k.call(rt, func(ctx context.Context, s pawl.Scope[T]) (pawl.Snapshot[T], error) {
		mine, err := s.State(ctx)
		if err != nil {
			return pawl.Snapshot[T]{}, err
		}
		scribble(&mine)
		return s.Snapshot(ctx)
	})
}

// call runs f and returns its result as an answer. It recovers from the panic of the model's
// function.
func (k typedTarget[T]) call(rt *pawl.Runtime, f func(context.Context, pawl.Scope[T]) (pawl.Snapshot[T], error)) (a modelAnswer) {
	defer func() {
		if v := recover(); v != nil {
			p, ok := v.(*pawl.PanicError)
			if !ok || !errors.Is(p, errModel) {
				panic(v)
			}
			a.err = modelPanic
		}
	}()
	snap, err := f(context.Background(), k.kind.Scope(rt, k.id))
	a = modelAnswer{err: err, id: snap.ID, version: snap.Version, exists: snap.Exists()}
	if !a.exists {
		return a
	}
	a.keep = func() (any, error) {
		doc, err := json.Marshal(snap.ReadOnly())
		if err != nil {
			return nil, err
		}
		return parseTree(doc)
	}
	if a.tree, err = a.keep(); a.err == nil {
		a.err = err
	}
	return a
}
