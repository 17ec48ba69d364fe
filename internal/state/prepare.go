package state

import (
	"reflect"
	"slices"
)

// Prepared is a list of data verbs, checked against T and cut off from the
// caller's memory. It can be applied any number of times, by one goroutine at
// a time for each [Tail].
type Prepared struct {
	t     *Type
	first change // apart, so that a single verb costs no slice
	more  []change
	count int
}

// change is a prepared Op. Which values it has depends on the verb and on
// whether the path ends inside a dynamic part.
type change struct {
	verb  Verb
	clear bool // Patch with nil
	field string
	path  *path
	by    int64
	name  string          // the key of a record
	key   reflect.Value   // the same as a key of a typed map
	value reflect.Value   // of the field's own type
	rest  []reflect.Value // further values to push
	dyn   any             // the value, inside a dynamic part
}

// Prepare resolves the fields of ops, converts every value to its field's type,
// and copies and validates it: applying is cheap then, and no later change by
// the caller is seen. It returns *Error for a field that T does not have, a
// verb or a value that does not fit, and for patches that overlap (a together
// with a.b), because their order would decide.
func (t *Type) Prepare(ops []Op) (p Prepared, err error) {
	err = p.Fill(t, ops)
	return
}

// Fill is Prepare for a zero p in its place: a Prepared is large enough for a
// copy to be felt.
func (p *Prepared) Fill(t *Type, ops []Op) error {
	p.t, p.count = t, len(ops)
	if len(ops) == 0 {
		return nil
	}
	if err := t.prepare(&ops[0], &p.first); err != nil || len(ops) == 1 {
		return err
	}
	p.more = make([]change, len(ops)-1)
	for i := range p.more {
		if err := t.prepare(&ops[i+1], &p.more[i]); err != nil {
			return err
		}
	}
	for first := 0; first < len(ops); {
		last := first + 1
		for last < len(ops) && ops[last].Joins {
			last++
		}
		if err := p.overlap(first, last); err != nil {
			return err
		}
		first = last
	}
	return nil
}

// overlap refuses patches, among those from first to last that belong together,
// of which one contains the other. Sorted by names, a path comes right before
// the ones below it.
func (p *Prepared) overlap(first, last int) error {
	if last-first < 2 {
		return nil
	}
	type patch struct {
		field string
		names []string
	}
	var patches []patch // copies: pointers would move every Prepared to the heap
	for i := first; i < last; i++ {
		if c := p.at(i); c.verb == Patch {
			patches = append(patches, patch{c.field, c.path.names})
		}
	}
	slices.SortStableFunc(patches, func(a, b patch) int { return slices.Compare(a.names, b.names) })
	for i := 1; i < len(patches); i++ {
		outer, inner := patches[i-1], patches[i]
		if n := len(outer.names); n < len(inner.names) && slices.Equal(outer.names, inner.names[:n]) {
			return &Error{Verb: Patch, Path: inner.field, Reason: "overlaps the patch of " + outer.field}
		}
	}
	return nil
}

func (p *Prepared) at(i int) *change {
	if i == 0 {
		return &p.first
	}
	return &p.more[i-1]
}

func (t *Type) prepare(op *Op, c *change) (err error) {
	c.verb, c.field = op.Verb, op.Field
	if op.Verb != Set {
		if c.path, err = t.path(op.Field); err != nil {
			e := failed(err)
			e.Verb = op.Verb
			return e
		}
	}
	if err := t.fill(op, c); err != nil {
		e := failed(err)
		e.Verb, e.Path = op.Verb, join(op.Field, e.Path)
		return e
	}
	return nil
}

func (t *Type) fill(op *Op, c *change) (err error) {
	if op.Verb == Set {
		return t.fillSet(op, c)
	}
	target, depth := c.path.target, len(c.path.names)
	if op.Verb == Push || op.Verb == SetRecord {
		depth++ // the value goes into a list or a map, which may be new
	}
	if depth > MaxDepth {
		return tooDeep()
	}
	if target.kind == kDyn || target.kind == kObj {
		return c.fillDynamic(op, depth)
	}
	switch op.Verb {
	case Patch:
		return c.fillPatch(op, depth)
	case Inc:
		c.by = op.By
		if target.kind != kInt && target.kind != kUint && target.kind != kFloat {
			return refuse("%s is not a number", target.rt)
		}
		return nil
	case Push:
		if target.kind != kSlice {
			return refuse("%s is not a list", target.rt)
		}
		return c.fillPush(target.elem, op.Values, depth)
	case SetRecord, DeleteRecord:
		if target.kind != kMap {
			return refuse("%s is not a map", target.rt)
		}
		if c.key, err = keyOf(target, op.Key); err != nil {
			return err
		}
		c.name = op.Key
		if op.Verb == SetRecord {
			if c.value, err = convert(target.elem, op.Value, depth); err != nil {
				return under(err, op.Key)
			}
		}
		return nil
	}
	return refuse("unknown verb")
}

func (t *Type) fillSet(op *Op, c *change) (err error) {
	v := reflect.ValueOf(op.Value)
	if v.IsValid() && v.Type() == reflect.PointerTo(t.root.rt) && !v.IsNil() {
		v = v.Elem()
	}
	if !v.IsValid() || v.Type() != t.root.rt {
		return refuse("the state is a %s, not a %T", t.root.rt, op.Value)
	}
	c.value = reflect.New(t.root.rt).Elem()
	if _, err := settle(t.root, reflect.Value{}, v, c.value, 0); err != nil {
		return err
	}
	settleRoot(c.value)
	return nil
}

func (c *change) fillPatch(op *Op, depth int) (err error) {
	if len(c.path.names) == 0 {
		return refuse("the field has no name")
	}
	if c.clear = op.Value == nil; c.clear {
		c.value = c.path.leaf.zero
		return nil
	}
	c.value, err = convert(c.path.leaf, op.Value, depth)
	return err
}

func (c *change) fillPush(elem *node, values []any, depth int) error {
	for i, x := range values {
		v, err := convert(elem, x, depth)
		if err != nil {
			return underIndex(err, i)
		}
		if i == 0 {
			c.value = v
		} else {
			c.rest = append(c.rest, v)
		}
	}
	return nil
}

var anyNode = func() *node {
	n, err := nodeOf(anyType)
	if err != nil {
		panic(err)
	}
	return n
}()

// fillDynamic prepares a verb on a dynamic part, or inside one. What is there
// can only be known when it is applied.
func (c *change) fillDynamic(op *Op, depth int) (err error) {
	switch op.Verb {
	case Patch:
		if len(c.path.dyn) == 0 {
			return c.fillPatch(op, depth)
		}
		c.clear = op.Value == nil
		c.dyn, err = normalize(op.Value, depth)
		return err
	case Inc:
		if c.path.target.kind == kObj && len(c.path.dyn) == 0 {
			return refuse("%s is not a number", c.path.target.rt)
		}
		c.by = op.By
		return nil
	case Push:
		if c.path.target.kind == kObj && len(c.path.dyn) == 0 {
			return refuse("%s is not a list", c.path.target.rt)
		}
		return c.fillPush(anyNode, op.Values, depth)
	case SetRecord, DeleteRecord:
		c.name = op.Key
		if reason := badString(op.Key); reason != "" {
			return refuse("key: %s", reason)
		}
		if op.Verb == SetRecord {
			if c.dyn, err = normalize(op.Value, depth); err != nil {
				return under(err, op.Key)
			}
		}
		return nil
	}
	return refuse("unknown verb")
}

// Foreign reports whether preparing ops, or applying them, could run code of
// the user's: because T is Custom, or because a value brings its own JSON form.
func (t *Type) Foreign(ops []Op) bool {
	if t.root.custom {
		return true
	}
	for i := range ops {
		op := &ops[i]
		if foreign(op.Value, 0) {
			return true
		}
		for _, v := range op.Values {
			if foreign(v, 0) {
				return true
			}
		}
	}
	return false
}

// Plain reports whether preparing ops runs no code of the user's, whatever applying them does: neither the values nor the
// fields that they go to have a JSON form of their own.
func (t *Type) Plain(ops []Op) bool {
	for i := range ops {
		op := &ops[i]
		target := t.root
		if op.Verb != Set {
			p, err := t.path(op.Field)
			if err != nil {
				continue // that is all that Prepare will say
			}
			target = p.leaf
		}
		if target.custom || foreign(op.Value, 0) || slices.ContainsFunc(op.Values, func(v any) bool { return foreign(v, 0) }) {
			return false
		}
	}
	return true
}

func foreign(x any, depth int) bool {
	if depth > MaxDepth {
		return true // it will be refused, but not where a caller waits: looking further could take for ever
	}
	switch x := x.(type) {
	case nil, bool, string, int, int64, int32, uint64, uint32, float64:
		return false
	case map[string]any:
		for _, v := range x {
			if foreign(v, depth+1) {
				return true
			}
		}
		return false
	case []any:
		for _, v := range x {
			if foreign(v, depth+1) {
				return true
			}
		}
		return false
	}
	v := reflect.ValueOf(x)
	n, err := nodeOf(v.Type())
	return err == nil && foreignValue(n, v, depth)
}

// foreignValue looks into values only where their type does not say enough.
func foreignValue(n *node, v reflect.Value, depth int) bool {
	if n.custom || !n.dynamic {
		return n.custom
	}
	if depth > MaxDepth {
		return true
	}
	switch n.kind {
	case kDyn:
		return foreign(v.Interface(), depth)
	case kObj:
		return foreign(objectOf(v), depth)
	case kPtr:
		return !v.IsNil() && foreignValue(n.elem, v.Elem(), depth+1)
	case kStruct:
		return foreignParts(n.parts, v, depth+1)
	case kMap:
		for iter := v.MapRange(); iter.Next(); {
			if foreignValue(n.elem, iter.Value(), depth+1) {
				return true
			}
		}
	case kSlice, kArray:
		for i := range v.Len() {
			if foreignValue(n.elem, v.Index(i), depth+1) {
				return true
			}
		}
	}
	return false
}

func foreignParts(parts []part, v reflect.Value, depth int) bool {
	for i := range parts {
		p := &parts[i]
		f := v.Field(p.index)
		if p.node != nil {
			if foreignValue(p.node, f, depth) {
				return true
			}
			continue
		}
		if p.embedded != nil {
			if f.IsNil() {
				continue
			}
			f = f.Elem()
		}
		if foreignParts(p.sub, f, depth) {
			return true
		}
	}
	return false
}
