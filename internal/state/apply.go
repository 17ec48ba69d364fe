package state

import (
	"encoding/json"
	"maps"
	"math"
	"math/bits"
	"reflect"
)

// Apply makes all changes to *v, which holds *cur by plain assignment, or is zero if cur is nil (an
// absent state). It replaces the memory that it changes, so *cur stays as it is. Apply returns
// *Error if a change does not fit the state. *v has no meaning after an error, or if nothing
// changed. tail may be nil.
func (p *Prepared) Apply(cur, v any, tail *Tail) (changed bool, err error) {
	to := reflect.ValueOf(v).Elem()
	if p.count == 1 {
		changed, err = p.t.apply(&p.first, to, tail)
	} else {
		changed, err = p.applyAll(cur, to, tail)
	}
	if err == nil && changed {
		settleRoot(to)
	}
	return changed, err
}

// applyAll makes several changes as one. If one of them fails, tail takes back the pushes.
func (p *Prepared) applyAll(cur any, v reflect.Value, tail *Tail) (changed bool, err error) {
	tail.begin()
	for i := range p.count {
		one, err := p.t.apply(p.at(i), v, tail)
		if err != nil {
			tail.rollback()
			return false, err
		}
		changed = changed || one
	}
	if was := p.t.valueOrZero(cur); changed && (equal(p.t.root, was, v) || rootEmpty(was) && rootEmpty(v)) {
		changed = false // the changes cancel each other out
	}
	if !changed {
		tail.rollback()
		return false, nil
	}
	tail.keep()
	return true, nil
}

// apply makes one change to v.
func (t *Type) apply(c *change, v reflect.Value, tail *Tail) (bool, error) {
	if c.verb == Set {
		if equal(t.root, v, c.value) || rootEmpty(v) && rootEmpty(c.value) {
			return false, nil
		}
		v.Set(c.value)
		return true, nil
	}
	steps := c.path.inner
	if c.verb == Patch && len(c.path.dyn) == 0 {
		steps = c.path.steps
	}
	changed, err := c.walk(steps, v, true, tail)
	if err != nil {
		e := failed(err)
		e.Verb, e.Path = c.verb, c.field
		return false, e
	}
	return changed, nil
}

// walk takes the steps to the field and makes the change there. It changes fields of structs in
// place, because v is a copy already. It replaces a pointee or a map only if something below it
// changed. present is false below a nil pointer or an absent entry.
func (c *change) walk(steps []step, v reflect.Value, present bool, tail *Tail) (bool, error) {
	for len(steps) > 0 && steps[0].kind == stepField {
		v = v.Field(steps[0].index)
		steps = steps[1:]
	}
	if len(steps) == 0 {
		return c.change(v, present, tail)
	}
	s, rest := &steps[0], steps[1:]
	if s.kind == stepPtr {
		pointee := reflect.New(s.rt)
		if v.IsNil() {
			present = false
		} else {
			pointee.Elem().Set(v.Elem())
		}
		changed, err := c.walk(rest, pointee.Elem(), present, tail)
		if changed {
			v.Set(pointee)
		}
		return changed, err
	}
	was := v.MapIndex(s.key)
	if len(rest) == 0 && c.clear && len(c.path.dyn) == 0 {
		if !was.IsValid() {
			return false, nil
		}
		setEntry(v, s.key, reflect.Value{})
		return true, nil
	}
	value := reflect.New(s.rt).Elem()
	if was.IsValid() {
		value.Set(was)
	}
	changed, err := c.walk(rest, value, present && was.IsValid(), tail)
	if changed {
		setEntry(v, s.key, value)
	}
	return changed, err
}

// setEntry replaces the map in v by a copy in which key has value. An invalid value removes the
// key.
func setEntry(v, key, value reflect.Value) {
	m := copyMap(v)
	m.SetMapIndex(key, value)
	v.Set(m)
}

// change makes the change to v, which is the field itself.
func (c *change) change(v reflect.Value, present bool, tail *Tail) (bool, error) {
	if n := c.path.target; (n.kind == kDyn || n.kind == kObj) && !(c.verb == Patch && len(c.path.dyn) == 0) {
		x, changed, err := c.inDynamic(dynamicOf(n, v), c.path.dyn, tail)
		if changed {
			setDynamic(v, x)
		}
		return changed, err
	}
	switch c.verb {
	case Patch:
		if equal(c.path.leaf, v, c.value) && (present || c.clear) {
			return false, nil
		}
		v.Set(c.value)
		return true, nil
	case Inc:
		if c.by == 0 {
			return false, nil
		}
		err := c.inc(v)
		return err == nil, err
	case Push:
		if !c.value.IsValid() {
			return false, nil
		}
		tail.push(v, v, c.value, c.rest)
		return true, nil
	case SetRecord:
		was := v.MapIndex(c.key)
		if was.IsValid() && equal(c.path.target.elem, was, c.value) {
			return false, nil
		}
		setEntry(v, c.key, c.value)
		return true, nil
	}
	if !v.MapIndex(c.key).IsValid() { // DeleteRecord
		return false, nil
	}
	setEntry(v, c.key, reflect.Value{})
	return true, nil
}

func (c *change) inc(v reflect.Value) error {
	switch c.path.target.kind {
	case kInt:
		old := v.Int()
		sum := old + c.by
		if (sum > old) != (c.by > 0) || v.OverflowInt(sum) {
			return refuse("%d%+d overflows %s", old, c.by, v.Type())
		}
		v.SetInt(sum)
	case kUint:
		sum, ok := addUint(v.Uint(), c.by)
		if !ok || v.OverflowUint(sum) {
			return refuse("%d%+d overflows %s", v.Uint(), c.by, v.Type())
		}
		v.SetUint(sum)
	default:
		sum, err := addFloat(v.Float(), c.by, v.Type().Bits())
		if err != nil {
			return err
		}
		v.SetFloat(sum)
	}
	return nil
}

// addUint returns u + by, and false if it overflows.
func addUint(u uint64, by int64) (uint64, bool) {
	if by >= 0 {
		sum, carry := bits.Add64(u, uint64(by), 0)
		return sum, carry == 0
	}
	less := uint64(-(by + 1)) + 1 // -by would overflow for the smallest int64
	return u - less, less <= u
}

// addFloat returns f + by. It refuses a whole number that is so large that the sum would be
// rounded.
func addFloat(f float64, by int64, bits int) (float64, error) {
	delta, ok := exactFloat(by, bits)
	if !ok {
		return 0, refuse("%d is not exact as a float%d", by, bits)
	}
	sum := f + delta
	if bits == 32 {
		sum = float64(float32(sum))
	}
	// Knuth's formula for the rounding error of a sum.
	added := sum - f
	rounded := (f-(sum-added))+(delta-added) != 0
	if math.IsInf(sum, 0) || rounded && f == math.Trunc(f) {
		return 0, refuse("%v%+d is not exact as a float%d", f, by, bits)
	}
	return sum, nil
}

// inDynamic makes the change below cur, a value in normal form, at the path of names. It returns
// the new value of cur. A nil cur is absent.
func (c *change) inDynamic(cur any, names []string, tail *Tail) (next any, changed bool, err error) {
	if len(names) == 0 {
		return c.changeDynamic(cur, tail)
	}
	obj, err := asObject(cur)
	if err != nil {
		return nil, false, refuse("%q is inside %s, not an object", names[0], kindName(cur))
	}
	was, had := obj[names[0]]
	if len(names) == 1 && c.verb == Patch {
		if c.clear {
			return without(obj, names[0])
		}
		if had && equalDynamic(was, c.dyn) {
			return nil, false, nil
		}
		return with(obj, names[0], c.dyn), true, nil
	}
	below, changed, err := c.inDynamic(was, names[1:], tail)
	if !changed {
		return nil, false, err
	}
	return with(obj, names[0], below), true, nil
}

// changeDynamic makes the change to cur, a value in normal form, and returns its new value.
func (c *change) changeDynamic(cur any, tail *Tail) (next any, changed bool, err error) {
	switch c.verb {
	case Inc:
		return incDynamic(cur, c.by)
	case Push:
		list, ok := cur.([]any)
		if !ok && cur != nil {
			return nil, false, refuse("%s is not a list", kindName(cur))
		}
		if !c.value.IsValid() {
			return nil, false, nil
		}
		var out []any
		tail.push(reflect.ValueOf(list), reflect.ValueOf(&out).Elem(), c.value, c.rest)
		return out, true, nil
	}
	obj, err := asObject(cur)
	if err != nil {
		return nil, false, err
	}
	if c.verb == DeleteRecord {
		return without(obj, c.name)
	}
	if was, had := obj[c.name]; had && equalDynamic(was, c.dyn) {
		return nil, false, nil
	}
	return with(obj, c.name, c.dyn), true, nil
}

func incDynamic(cur any, by int64) (next any, changed bool, err error) {
	switch x := cur.(type) {
	case nil:
		return by, by != 0, nil
	case int64:
		sum := x + by
		if by == 0 || (sum > x) == (by > 0) {
			return sum, by != 0, nil
		}
		if x > 0 { // a sum of two int64 that is too large for int64 fits in uint64
			return uint64(x) + uint64(by), true, nil
		}
	case uint64:
		if sum, ok := addUint(x, by); ok {
			return normalUint(sum), by != 0, nil
		}
	case float64:
		if by != 0 && x == math.Trunc(x) {
			break // in normal form, a whole float64 is beyond the range of integers
		}
		sum, err := addFloat(x, by, 64)
		if err != nil {
			return nil, false, err
		}
		next, err = normalFloat(sum, 64)
		return next, sum != x, err
	case json.Number:
		return nil, false, refuse("%s cannot be incremented exactly", x)
	default:
		return nil, false, refuse("%s is not a number", kindName(cur))
	}
	return nil, false, refuse("%v%+d is out of the range of integers", cur, by)
}

// asObject returns cur as an object. An absent cur is an empty one.
func asObject(cur any) (map[string]any, error) {
	obj, ok := cur.(map[string]any)
	if !ok && cur != nil {
		return nil, refuse("%s is not a map", kindName(cur))
	}
	return obj, nil
}

// with returns a copy of obj, which may be nil, in which key has value.
func with(obj map[string]any, key string, value any) map[string]any {
	if obj == nil {
		return map[string]any{key: value}
	}
	out := maps.Clone(obj)
	out[key] = value
	return out
}

// without returns a copy of obj without key, and whether obj has key.
func without(obj map[string]any, key string) (next any, changed bool, err error) {
	if _, had := obj[key]; !had {
		return nil, false, nil
	}
	out := maps.Clone(obj)
	delete(out, key)
	return out, true, nil
}

// kindName names the kind of a value in normal form, for an error.
func kindName(x any) string {
	switch x.(type) {
	case nil:
		return "nothing"
	case bool:
		return "a bool"
	case string:
		return "a string"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	}
	return "a number"
}
