package pawl_test

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// The model of the verbs. A state is a tree of nil, bool, string, *big.Rat, []any and
// map[string]any. A shape says which values fit where. The model is written to be obvious and
// shares no code with the library.

// shape describes the values that a place in a state can hold.
type shape struct {
	kind   shapeKind
	bits   int               // of numbers
	fields map[string]*shape // of objects
	elem   *shape            // of lists, maps and pointers
}

type shapeKind string

const (
	shapeObject  shapeKind = "object" // all its fields always exist
	shapeMap     shapeKind = "map"
	shapeList    shapeKind = "list"
	shapePointer shapeKind = "pointer"
	shapeInt     shapeKind = "int"
	shapeUint    shapeKind = "uint"
	shapeFloat   shapeKind = "float"
	shapeString  shapeKind = "string"
	shapeBool    shapeKind = "bool"
	shapeAny     shapeKind = "any"
)

var (
	anyShape    = &shape{kind: shapeAny}
	intShape    = &shape{kind: shapeInt, bits: 64}
	stringShape = &shape{kind: shapeString}
)

func mapOf(elem *shape) *shape  { return &shape{kind: shapeMap, elem: elem} }
func listOf(elem *shape) *shape { return &shape{kind: shapeList, elem: elem} }

// zero returns the value of a place that was never written.
func (s *shape) zero() any {
	switch s.kind {
	case shapeObject:
		object := map[string]any{}
		for name, field := range s.fields {
			object[name] = field.zero()
		}
		return object
	case shapeInt, shapeUint, shapeFloat:
		return new(big.Rat)
	case shapeString:
		return ""
	case shapeBool:
		return false
	}
	return nil
}

// fit returns tree in the form that s holds, and false if s cannot hold it.
func (s *shape) fit(tree any) (any, bool) {
	if s.kind == shapeAny {
		return tree, true
	}
	if tree == nil {
		return nil, s.kind == shapeMap || s.kind == shapeList || s.kind == shapePointer
	}
	switch s.kind {
	case shapePointer:
		return s.elem.fit(tree)
	case shapeBool:
		_, ok := tree.(bool)
		return tree, ok
	case shapeString:
		_, ok := tree.(string)
		return tree, ok
	case shapeInt, shapeUint, shapeFloat:
		n, ok := tree.(*big.Rat)
		return tree, ok && s.holds(n)
	case shapeList:
		list, ok := tree.([]any)
		out := []any{}
		for _, x := range list {
			y, fits := s.elem.fit(x)
			ok = ok && fits
			out = append(out, y)
		}
		return out, ok
	}
	object, ok := tree.(map[string]any)
	out := map[string]any{}
	if s.kind == shapeObject {
		out = s.zero().(map[string]any)
	}
	for name, x := range object {
		elem := s.elem
		if s.kind == shapeObject {
			elem = s.fields[name]
		}
		if elem == nil {
			return nil, false
		}
		y, fits := elem.fit(x)
		ok = ok && fits
		out[name] = y
	}
	return out, ok
}

// holds reports whether a number of shape s can be exactly n.
func (s *shape) holds(n *big.Rat) bool {
	if s.kind == shapeFloat {
		_, exact := n.Float64()
		return exact
	}
	low, high := new(big.Int), new(big.Int).Lsh(big.NewInt(1), uint(s.bits))
	if s.kind == shapeInt {
		high.Rsh(high, 1)
		low.Neg(high)
	}
	return n.IsInt() && n.Num().Cmp(low) >= 0 && n.Num().Cmp(high) < 0
}

// countable reports whether n is in the range of integers in dynamic state.
func countable(n *big.Rat) bool {
	return (&shape{kind: shapeInt, bits: 64}).holds(n) || (&shape{kind: shapeUint, bits: 64}).holds(n)
}

// modelPart is one verb.
type modelPart struct {
	verb   string // "Patch", "Set", "Push", "Inc", "SetRecord", "DeleteRecord", "Atomic"
	fields map[string]any
	field  string
	key    string
	values []any // as given to the library
	by     int64
	fn     string
	tree   any // Set
	bad    bool
}

func (p modelPart) String() string {
	return fmt.Sprintf("%s{%v %q %q %#v %d %s %s %v}", p.verb, p.fields, p.field, p.key, p.values, p.by, p.fn, printTree(p.tree), p.bad)
}

// modelError is the model of an error of a verb.
type modelError string

const (
	modelField modelError = "field"
	modelBoom  modelError = "boom"
	modelPanic modelError = "panic"
)

func (e modelError) Error() string { return string(e) }

// fits reports whether p can be applied to any state of shape s.
func (p modelPart) fits(s *shape) bool {
	if p.verb == "Atomic" {
		return true
	}
	if p.verb == "Set" {
		return !p.bad
	}
	if p.verb == "Patch" {
		return p.patchFits(s)
	}
	at, inside, ok := s.find(p.field, false)
	if !ok {
		return false
	}
	for at.kind == shapePointer {
		at = at.elem
	}
	dynamic := inside || at.kind == shapeAny
	switch p.verb {
	case "Inc":
		return dynamic || at.kind == shapeInt || at.kind == shapeUint || at.kind == shapeFloat
	case "Push":
		return (dynamic || at.kind == shapeList) && allFit(dynamic, at, p.values)
	}
	return (dynamic || at.kind == shapeMap) && goodString(p.key) && (p.verb == "DeleteRecord" || allFit(dynamic, at, p.values))
}

func allFit(dynamic bool, container *shape, values []any) bool {
	elem := anyShape
	if !dynamic {
		elem = container.elem
	}
	for _, v := range values {
		tree, ok := treeOf(v)
		if ok {
			_, ok = elem.fit(tree)
		}
		if !ok {
			return false
		}
	}
	return true
}

func (p modelPart) patchFits(s *shape) bool {
	var paths [][]string
	for field, value := range p.fields {
		at, inside, ok := s.find(field, true)
		if !ok {
			return false
		}
		if value != nil {
			if inside {
				at = anyShape
			}
			tree, ok := treeOf(value)
			if ok {
				_, ok = at.fit(tree)
			}
			if !ok {
				return false
			}
		}
		paths = append(paths, namesOf(field))
	}
	for i, outer := range paths {
		for j, inner := range paths {
			if i != j && len(outer) < len(inner) && slices.Equal(outer, inner[:len(outer)]) {
				return false // the fields overlap
			}
		}
	}
	return true
}

// find returns the shape at field and whether field is inside a dynamic value. The empty path means
// the whole state; it is refused if named is set.
func (s *shape) find(field string, named bool) (at *shape, inside, ok bool) {
	names := namesOf(field)
	if named && len(names) == 0 || slices.Contains(names, "") {
		return nil, false, false
	}
	for _, name := range names {
		for s.kind == shapePointer {
			s = s.elem
		}
		switch s.kind {
		case shapeObject:
			if s = s.fields[name]; s == nil {
				return nil, false, false
			}
		case shapeMap:
			s = s.elem
		case shapeAny:
			inside = true
		default:
			return nil, false, false
		}
	}
	return s, inside, true
}

// namesOf splits a path at its dots, except at a dot after a backslash.
func namesOf(field string) []string {
	if field == "" {
		return nil
	}
	field = strings.ReplaceAll(field, `\.`, "\x00")
	names := strings.Split(field, ".")
	for i := range names {
		names[i] = strings.ReplaceAll(names[i], "\x00", ".")
	}
	return names
}

// apply returns the state after p. It may change the state that it is given.
func (p modelPart) apply(s *shape, state any) (any, error) {
	switch p.verb {
	case "Atomic":
		return modelFunctions[p.fn](state)
	case "Set":
		return cloneTree(p.tree), nil
	case "Patch":
		for field, value := range p.fields {
			tree, _ := treeOf(value)
			next, err := modelChange(s, state, namesOf(field), true, patchWith(tree))
			if err != nil {
				return nil, err
			}
			if !unchanged(next) {
				state = next
			}
		}
		return state, nil
	}
	next, err := modelChange(s, state, namesOf(p.field), true, p.changeOne)
	if unchanged(next) {
		return state, nil
	}
	return next, err
}

// modelPlace is the place in a state that a verb is applied to.
type modelPlace struct {
	shape   *shape
	value   any
	present bool // false: it, or a value around it, does not exist yet
	entry   bool // it is an entry of a map or a dynamic object, and can be removed
}

// modelRemoved, in place of a new value, removes an entry from its map. modelNothing changes
// nothing.
type (
	modelRemoved struct{}
	modelNothing struct{}
)

// modelChange follows names to a place and replaces the value there by the result of f.
func modelChange(s *shape, value any, names []string, present bool, f func(modelPlace) (any, error)) (any, error) {
	if len(names) == 0 {
		return f(modelPlace{shape: s, value: value, present: present})
	}
	if s.kind == shapePointer {
		if value == nil {
			value, present = s.elem.zero(), false
		}
		return modelChange(s.elem, value, names, present, f)
	}
	object, ok := value.(map[string]any)
	if !ok && value != nil {
		return nil, modelField
	}
	name := names[0]
	below, entry := s, true
	switch s.kind {
	case shapeObject:
		below, entry = s.fields[name], false
	case shapeMap:
		below = s.elem
	}
	old, had := object[name]
	if !had {
		old = below.zero()
	}
	var next any
	var err error
	if len(names) == 1 {
		next, err = f(modelPlace{below, old, present && had, entry})
	} else {
		next, err = modelChange(below, old, names[1:], present && had, f)
	}
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for k, v := range object {
		out[k] = v
	}
	switch next.(type) {
	case modelNothing:
		return modelNothing{}, nil
	case modelRemoved:
		delete(out, name)
	default:
		out[name] = next
	}
	return out, nil
}

func unchanged(next any) bool { _, ok := next.(modelNothing); return ok }

func patchWith(tree any) func(modelPlace) (any, error) {
	return func(at modelPlace) (any, error) {
		switch {
		case tree != nil:
			next, _ := at.shape.fit(tree)
			return next, nil
		case !at.present:
			return modelNothing{}, nil
		case at.entry:
			return modelRemoved{}, nil
		}
		return at.shape.zero(), nil
	}
}

// changeOne applies a verb that works on one field.
func (p modelPart) changeOne(at modelPlace) (any, error) {
	if at.shape.kind == shapePointer {
		if at.value == nil {
			at.value, at.present = at.shape.elem.zero(), false
		}
		at.shape = at.shape.elem
		return p.changeOne(at)
	}
	switch p.verb {
	case "Inc":
		return p.inc(at)
	case "Push":
		list, ok := at.value.([]any)
		if !ok && at.value != nil {
			return nil, modelField
		}
		if len(p.values) == 0 {
			return modelNothing{}, nil
		}
		elem := at.shape.elem
		if elem == nil {
			elem = anyShape
		}
		list = slices.Clone(list)
		for _, v := range p.values {
			tree, _ := treeOf(v)
			tree, _ = elem.fit(tree)
			list = append(list, tree)
		}
		return list, nil
	}
	object, ok := at.value.(map[string]any)
	if !ok && at.value != nil {
		return nil, modelField
	}
	if _, had := object[p.key]; !had && p.verb == "DeleteRecord" {
		return modelNothing{}, nil
	}
	out := map[string]any{}
	for k, v := range object {
		out[k] = v
	}
	if p.verb == "DeleteRecord" {
		delete(out, p.key)
		return out, nil
	}
	elem := at.shape.elem
	if elem == nil {
		elem = anyShape
	}
	tree, _ := treeOf(p.values[0])
	out[p.key], _ = elem.fit(tree)
	return out, nil
}

func (p modelPart) inc(at modelPlace) (any, error) {
	old, ok := at.value.(*big.Rat)
	if !ok && at.value != nil {
		return nil, modelField
	}
	if p.by == 0 {
		return modelNothing{}, nil
	}
	if old == nil {
		old = new(big.Rat)
	}
	by := new(big.Rat).SetInt64(p.by)
	sum := new(big.Rat).Add(old, by)
	if at.shape.kind == shapeAny {
		_, exact := by.Float64() // a fraction is a float64, and stays one
		if old.IsInt() && !countable(sum) || !old.IsInt() && !exact {
			return nil, modelField
		}
		return sum, nil
	}
	if !at.shape.holds(sum) {
		return nil, modelField
	}
	return sum, nil
}
