package state

import (
	"bytes"
	"reflect"
	"time"
)

// equal reports whether a and b have the same JSON.
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
	case kString:
		return a.String() == b.String()
	case kNumber:
		return sameNumber(a.String(), b.String())
	case kValue:
		return a.Equal(b)
	case kTime:
		return sameTime(timeOf(a), timeOf(b))
	case kBytes:
		return a.IsNil() == b.IsNil() && bytes.Equal(a.Bytes(), b.Bytes())
	case kRaw:
		return sameJSON(rawOf(a), rawOf(b))
	case kDyn:
		return equalDynamic(a.Interface(), b.Interface())
	case kObj:
		return equalObject(objectOf(a), objectOf(b))
	case kStruct:
		return equalParts(n.parts, a, b)
	case kCustom:
		docA, errA := marshalValue(a)
		docB, errB := marshalValue(b)
		return errA == nil && errB == nil && sameJSON(docA, docB)
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

// rawOf returns the JSON of a json.RawMessage. That of nil is null.
func rawOf(v reflect.Value) []byte {
	if v.IsNil() {
		return []byte("null")
	}
	return v.Bytes()
}

// sameJSON reports whether two documents are equal as JSON. A store may return a document with other
// spaces, another order of keys, and numbers written in another way.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := decodeDoc(a, 0)
	y, errY := decodeDoc(b, 0)
	return errX == nil && errY == nil && equalDynamic(x, y)
}

func equalParts(parts []part, a, b reflect.Value) bool {
	for i := range parts {
		p := &parts[i]
		fa, fb := a.Field(p.index), b.Field(p.index)
		if p.node != nil {
			if !sameField(p, fa, fb, equal(p.node, fa, fb)) {
				return false
			}
			continue
		}
		if p.pointee != nil {
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

// sameField reports whether the fields a and b of p have the same JSON. Same says whether they have
// as values outside a struct. Where omitempty leaves out both, a nil list or map equals an empty
// one. Where it leaves out one, an empty number or raw message does not equal 0 or null.
func sameField(p *part, a, b reflect.Value, same bool) bool {
	if !p.omitEmpty {
		return same
	}
	switch p.node.rt.Kind() {
	case reflect.Map, reflect.Slice, reflect.String:
		if a.Len() == 0 || b.Len() == 0 {
			return a.Len() == b.Len()
		}
	}
	return same
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

// sameTime reports whether a and b are the same instant with the same zone offset.
func sameTime(a, b time.Time) bool {
	_, offsetA := a.Zone()
	_, offsetB := b.Zone()
	return a.Equal(b) && offsetA == offsetB
}

// timeOf returns the time in v. Reading it through its address saves the allocation of an
// interface.
func timeOf(v reflect.Value) time.Time {
	if v.CanAddr() {
		return *v.Addr().Interface().(*time.Time)
	}
	return v.Interface().(time.Time)
}
