package state

import (
	"reflect"
	"slices"
)

// Prepared is a list of data verbs that fit T and share no memory with the caller. It can be
// applied any number of times, by one goroutine at a time for each [Tail].
type Prepared struct {
	t     *Type
	first change   // apart, so that a single verb needs no slice
	more  []change // the changes after first
	count int
}

// change is a prepared Op. The fields in use depend on the verb, and on whether the path ends
// inside a dynamic part.
type change struct {
	verb  Verb
	clear bool // a Patch with nil
	field string
	path  *path
	by    int64

	// The key and the value for a typed field.
	key   reflect.Value
	value reflect.Value   // the first one of Push
	rest  []reflect.Value // the others of Push

	// The key and the value inside a dynamic part, except for Push.
	name string
	dyn  any
}

// Prepare resolves the fields of ops, converts every value to its field's type, copies it and
// validates it. Applying is cheap then, and sees no later change by the caller. Prepare returns
// *Error for a field that T does not have, for a verb or a value that does not fit, and for fields
// of one patch that overlap (a and a.b), because their order would decide.
func (t *Type) Prepare(ops []Op) (p Prepared, err error) {
	p.t, p.count = t, len(ops)
	if len(ops) == 0 {
		return p, nil
	}
	if err := t.prepare(&ops[0], &p.first); err != nil || len(ops) == 1 {
		return p, err
	}
	p.more = make([]change, len(ops)-1)
	for i := range p.more {
		if err := t.prepare(&ops[i+1], &p.more[i]); err != nil {
			return p, err
		}
	}
	for first := 0; first < len(ops); {
		last := first + 1
		for last < len(ops) && ops[last].Joins {
			last++
		}
		if err := p.overlap(first, last); err != nil {
			return p, err
		}
		first = last
	}
	return p, nil
}

// overlap returns an error if one field of the patch from first to last contains another.
func (p *Prepared) overlap(first, last int) error {
	if last-first < 2 {
		return nil
	}
	nested := false // only a longer path can be inside another
	for i := first; i < last; i++ {
		nested = nested || len(p.at(i).path.names) != len(p.at(first).path.names)
	}
	if !nested {
		return nil
	}
	type named struct {
		field string
		names []string
	}
	// fields has copies, because pointers would move every Prepared to the heap.
	fields := make([]named, 0, last-first)
	for i := first; i < last; i++ {
		fields = append(fields, named{p.at(i).field, p.at(i).path.names})
	}
	// In this order a path comes right before the paths below it.
	slices.SortStableFunc(fields, func(a, b named) int { return slices.Compare(a.names, b.names) })
	for i := 1; i < len(fields); i++ {
		outer, inner := fields[i-1], fields[i]
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

// prepare fills c with op, or returns an error with its verb and path.
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
		depth++ // the value is inside the list or the map
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
		return refuse("the state has type %s, not %T", t.root.rt, op.Value)
	}
	if c.value, err = settled(t.root, v, 0); err != nil {
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

// anyNode is the compiled any, the type of items in a dynamic list.
var anyNode = func() *node {
	n, err := nodeOf(anyType)
	if err != nil {
		panic(err)
	}
	return n
}()

// fillDynamic prepares a verb on a dynamic part, or inside one. Apply checks the verb against the
// value that is there then.
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
		if err := checkKey(op.Key); err != nil {
			return err
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

// Plain reports whether preparing ops runs no user code: neither the values nor the fields that
// they go to have a JSON form of their own. If T is Custom, applying them may still run some.
func (t *Type) Plain(ops []Op) bool {
	for i := range ops {
		op := &ops[i]
		target := t.root
		if target.custom && op.Verb != Set {
			p, err := t.path(op.Field)
			if err != nil {
				continue // Prepare returns the same error
			}
			target = p.leaf
		}
		if target.custom || customAny(op.Value, 0) || slices.ContainsFunc(op.Values, func(v any) bool { return customAny(v, 0) }) {
			return false
		}
	}
	return true
}

// customAny reports whether user code can run while x is converted.
func customAny(x any, depth int) bool {
	if depth > MaxDepth {
		return true // Prepare refuses it; a cyclic value has no end
	}
	switch x := x.(type) {
	case nil, bool, string, int, int64, int32, uint64, uint32, float64:
		return false
	case map[string]any:
		for _, v := range x {
			if customAny(v, depth+1) {
				return true
			}
		}
		return false
	case []any:
		for _, v := range x {
			if customAny(v, depth+1) {
				return true
			}
		}
		return false
	}
	v := reflect.ValueOf(x)
	n, err := nodeOf(v.Type())
	return err == nil && customValue(n, v, depth)
}

// customValue looks into a value only where its type leaves it open.
func customValue(n *node, v reflect.Value, depth int) bool {
	if n.custom || !n.dynamic {
		return n.custom
	}
	if depth > MaxDepth {
		return true
	}
	switch n.kind {
	case kDyn:
		return customAny(v.Interface(), depth)
	case kObj:
		return customAny(objectOf(v), depth)
	case kPtr:
		return !v.IsNil() && customValue(n.elem, v.Elem(), depth+1)
	case kStruct:
		return customParts(n.parts, v, depth+1)
	case kMap:
		for iter := v.MapRange(); iter.Next(); {
			if customValue(n.elem, iter.Value(), depth+1) {
				return true
			}
		}
	case kSlice, kArray:
		for i := range v.Len() {
			if customValue(n.elem, v.Index(i), depth+1) {
				return true
			}
		}
	}
	return false
}

func customParts(parts []part, v reflect.Value, depth int) bool {
	for i := range parts {
		p := &parts[i]
		f := v.Field(p.index)
		if p.node != nil {
			if customValue(p.node, f, depth) {
				return true
			}
			continue
		}
		if p.pointee != nil {
			if f.IsNil() {
				continue
			}
			f = f.Elem()
		}
		if customParts(p.sub, f, depth) {
			return true
		}
	}
	return false
}
