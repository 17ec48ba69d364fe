package state

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"time"
)

// clone makes dst, which is zero, a deep copy of src. What it is given is a
// committed state, so it validates nothing.
func clone(n *node, src, dst reflect.Value) error {
	if n.flat {
		dst.Set(src)
		return nil
	}
	switch n.kind {
	case kStruct:
		return cloneParts(n.parts, src, dst)
	case kObj:
		if m := objectOf(src); m != nil {
			dst.Set(reflect.ValueOf(cloneObject(m)))
		}
		return nil
	case kDyn:
		setDynamic(dst, cloneDynamic(src.Interface()))
		return nil
	case kCustom:
		doc, err := marshalValue(src)
		if err != nil {
			return failed(err)
		}
		return unmarshalValue(doc, dst)
	case kArray:
		for i := range src.Len() {
			if err := clone(n.elem, src.Index(i), dst.Index(i)); err != nil {
				return underIndex(err, i)
			}
		}
		return nil
	}
	if src.IsNil() {
		return nil
	}
	switch n.kind {
	case kBytes, kRaw:
		dst.Set(copyOf(src))
	case kPtr:
		dst.Set(reflect.New(n.elem.rt))
		return clone(n.elem, src.Elem(), dst.Elem())
	case kSlice:
		if n.elem.flat {
			dst.Set(copyOf(src))
			return nil
		}
		out := reflect.MakeSlice(n.rt, src.Len(), src.Len())
		for i := range src.Len() {
			if err := clone(n.elem, src.Index(i), out.Index(i)); err != nil {
				return underIndex(err, i)
			}
		}
		dst.Set(out)
	case kMap:
		return cloneMap(n, src, dst)
	}
	return nil
}

func cloneParts(parts []part, src, dst reflect.Value) error {
	for i := range parts {
		p := &parts[i]
		from, to := src.Field(p.index), dst.Field(p.index)
		if p.node != nil {
			if err := clone(p.node, from, to); err != nil {
				return under(err, p.name)
			}
			continue
		}
		if p.embedded != nil {
			if from.IsNil() {
				continue
			}
			to.Set(reflect.New(p.embedded))
			from, to = from.Elem(), to.Elem()
		}
		if err := cloneParts(p.sub, from, to); err != nil {
			return err
		}
	}
	return nil
}

func cloneMap(n *node, src, dst reflect.Value) error {
	if n.entries != nil {
		dst.Set(src)
		n.entries.part(dst.Addr().UnsafePointer())
		return nil
	}
	out := copyMap(src)
	if !n.elem.flat {
		value := reflect.New(n.elem.rt).Elem()
		for iter := src.MapRange(); iter.Next(); {
			value.SetZero()
			if err := clone(n.elem, iter.Value(), value); err != nil {
				return under(err, keyName(iter.Key()))
			}
			out.SetMapIndex(iter.Key(), value)
		}
	}
	dst.Set(out)
	return nil
}

// copyOf returns a copy of slice v without spare capacity.
func copyOf(v reflect.Value) reflect.Value {
	out := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
	reflect.Copy(out, v)
	return out
}

// copyMap returns a map of its own with the entries of v, which may be nil.
// The usual types are spared the iteration: maps.Clone copies memory.
func copyMap(v reflect.Value) reflect.Value {
	if v.IsNil() {
		return reflect.MakeMap(v.Type())
	}
	switch m := v.Interface().(type) {
	case map[string]any:
		return reflect.ValueOf(maps.Clone(m))
	case map[string]string:
		return reflect.ValueOf(maps.Clone(m))
	case map[string]int:
		return reflect.ValueOf(maps.Clone(m))
	case map[string]int64:
		return reflect.ValueOf(maps.Clone(m))
	case map[string]float64:
		return reflect.ValueOf(maps.Clone(m))
	case map[string]bool:
		return reflect.ValueOf(maps.Clone(m))
	case map[string][]string:
		return reflect.ValueOf(maps.Clone(m))
	}
	out := reflect.MakeMapWithSize(v.Type(), v.Len())
	key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
	for iter := v.MapRange(); iter.Next(); {
		key.SetIterKey(iter)
		value.SetIterValue(iter)
		out.SetMapIndex(key, value)
	}
	return out
}

// objectOf returns v, of a type like map[string]any, as one.
func objectOf(v reflect.Value) map[string]any {
	if m, ok := v.Interface().(map[string]any); ok {
		return m
	}
	return v.Convert(objectType).Interface().(map[string]any)
}

// dynamicOf returns the value of a dynamic part; a nil map is an absent one.
func dynamicOf(n *node, v reflect.Value) any {
	if n.kind == kDyn {
		return v.Interface()
	}
	if m := objectOf(v); m != nil {
		return m
	}
	return nil
}

// setDynamic stores x, which may be nil, in v, an any or a kind of
// map[string]any.
func setDynamic(v reflect.Value, x any) {
	if x == nil {
		v.SetZero()
		return
	}
	v.Set(reflect.ValueOf(x))
}

// equal compares two values by what JSON would say.
func equal(n *node, a, b reflect.Value) bool {
	switch n.kind {
	case kBool:
		return a.Bool() == b.Bool()
	case kInt:
		return a.Int() == b.Int()
	case kUint:
		return a.Uint() == b.Uint()
	case kFloat:
		return a.Float() == b.Float()
	case kString, kNumber:
		return a.String() == b.String()
	case kValue:
		return a.Equal(b)
	case kTime:
		return sameTime(a.Interface().(time.Time), b.Interface().(time.Time))
	case kBytes, kRaw:
		return a.IsNil() == b.IsNil() && bytes.Equal(a.Bytes(), b.Bytes())
	case kDyn:
		return equalDynamic(a.Interface(), b.Interface())
	case kObj:
		return equalObject(objectOf(a), objectOf(b))
	case kStruct:
		return equalParts(n.parts, a, b)
	case kCustom:
		docA, errA := marshalValue(a)
		docB, errB := marshalValue(b)
		return errA == nil && errB == nil && bytes.Equal(docA, docB)
	case kPtr:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() && b.IsNil()
		}
		return a.Pointer() == b.Pointer() || equal(n.elem, a.Elem(), b.Elem())
	case kMap:
		return equalMap(n, a, b)
	}
	return equalList(n, a, b)
}

func equalParts(parts []part, a, b reflect.Value) bool {
	for i := range parts {
		p := &parts[i]
		fa, fb := a.Field(p.index), b.Field(p.index)
		if p.node != nil {
			if !equal(p.node, fa, fb) && !(p.omitEmpty && bothEmpty(p.node, fa, fb)) {
				return false
			}
			continue
		}
		if p.embedded != nil {
			if fa.IsNil() || fb.IsNil() {
				if fa.IsNil() != fb.IsNil() {
					return false
				}
				continue
			}
			fa, fb = fa.Elem(), fb.Elem()
		}
		if !equalParts(p.sub, fa, fb) {
			return false
		}
	}
	return true
}

// bothEmpty reports whether omitempty leaves out a and b alike although one is
// nil and the other is not.
func bothEmpty(n *node, a, b reflect.Value) bool {
	switch n.rt.Kind() {
	case reflect.Map, reflect.Slice:
		return a.Len() == 0 && b.Len() == 0
	}
	return false
}

func equalMap(n *node, a, b reflect.Value) bool {
	if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
		return false
	}
	if a.Pointer() == b.Pointer() {
		return true
	}
	for iter := a.MapRange(); iter.Next(); {
		other := b.MapIndex(iter.Key())
		if !other.IsValid() || !equal(n.elem, iter.Value(), other) {
			return false
		}
	}
	return true
}

func equalList(n *node, a, b reflect.Value) bool {
	if n.kind == kSlice {
		if a.Len() != b.Len() || a.IsNil() != b.IsNil() {
			return false
		}
		if a.Pointer() == b.Pointer() {
			return true
		}
	}
	for i := range a.Len() {
		if !equal(n.elem, a.Index(i), b.Index(i)) {
			return false
		}
	}
	return true
}

// sameTime reports whether a and b print alike.
func sameTime(a, b time.Time) bool {
	_, offsetA := a.Zone()
	_, offsetB := b.Zone()
	return a.Equal(b) && offsetA == offsetB
}

// marshalValue returns the JSON of v with the methods that a pointer has.
func marshalValue(v reflect.Value) ([]byte, error) {
	if !v.CanAddr() {
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		v = p.Elem()
	}
	return marshal(v.Addr().Interface())
}

func unmarshalValue(doc []byte, dst reflect.Value) error {
	dst.SetZero()
	if err := json.Unmarshal(doc, dst.Addr().Interface()); err != nil {
		return failed(err)
	}
	return nil
}
