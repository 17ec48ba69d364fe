package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"time"
)

// convert returns a valid copy of value as a field of type n holds it. Numbers convert if they stay
// exact. A value that is neither of type n nor a scalar goes through strict JSON. depth is the
// number of lists and objects around the field.
func convert(n *node, value any, depth int) (reflect.Value, error) {
	if n.kind == kDyn {
		x, err := normalize(value, depth)
		if err != nil {
			return reflect.Value{}, err
		}
		out := reflect.New(n.rt).Elem()
		setDynamic(out, x)
		return out, nil
	}
	if value == nil {
		return fromNil(n)
	}
	v := reflect.ValueOf(value)
	if v.Type() == n.rt {
		return own(n, v, depth)
	}
	if v.Kind() == reflect.Pointer && n.kind != kCustom {
		if v.IsNil() {
			return fromNil(n)
		}
		if v.Type().Elem() == n.rt {
			return own(n, v.Elem(), depth)
		}
	}
	switch n.kind {
	case kPtr:
		pointee, err := convert(n.elem, value, depth)
		if err != nil {
			return reflect.Value{}, err
		}
		out := reflect.New(n.rt).Elem()
		out.Set(reflect.New(n.elem.rt))
		out.Elem().Set(pointee)
		return out, nil
	case kBool:
		if v.Kind() == reflect.Bool && !hasOwnForm(v.Type()) {
			return v.Convert(n.rt), nil
		}
		return reflect.Value{}, unfit(n, v)
	case kString:
		if v.Kind() == reflect.String && v.Type() != reflect.TypeFor[json.Number]() && !hasOwnForm(v.Type()) {
			return own(n, v.Convert(n.rt), depth)
		}
	case kInt, kUint, kFloat:
		return toNumber(n, v, depth)
	case kTime:
		if s, ok := value.(string); ok {
			t, err := time.Parse(time.RFC3339Nano, s)
			if err != nil {
				return reflect.Value{}, refuse("%q is not an RFC 3339 time", s)
			}
			return own(n, reflect.ValueOf(t), depth)
		}
	}
	return throughJSON(n, v, depth)
}

// fromNil returns the null of type n, or an error if it has none.
func fromNil(n *node) (reflect.Value, error) {
	switch n.rt.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice:
		return n.zero, nil
	}
	return reflect.Value{}, refuse("%s cannot be null", n.rt)
}

// own returns a valid copy of v, which has type n.
func own(n *node, v reflect.Value, depth int) (reflect.Value, error) {
	switch n.kind {
	case kBool, kInt, kUint:
		return v, nil // a copy already, since it came in an interface
	case kString:
		return v, checkString(v.String())
	}
	return settled(n, v, depth)
}

func unfit(n *node, v reflect.Value) error {
	return refuse("%s cannot hold a %s", n.rt, v.Type())
}

// toNumber converts v to a number of type n, if the number stays exact.
func toNumber(n *node, v reflect.Value, depth int) (reflect.Value, error) {
	if hasOwnForm(v.Type()) {
		return throughJSON(n, v, depth)
	}
	from, err := nodeOf(v.Type())
	if err != nil {
		return reflect.Value{}, refuse("%v", err)
	}
	switch from.kind {
	case kInt, kUint, kFloat, kNumber:
	case kPtr, kDyn:
		return throughJSON(n, v, depth)
	default:
		return reflect.Value{}, unfit(n, v)
	}
	if from.kind == kFloat && n.kind == kFloat {
		f := v.Float()
		if err := checkFloat(f); err != nil {
			return reflect.Value{}, err
		}
		out := reflect.New(n.rt).Elem()
		if out.OverflowFloat(f) {
			return out, refuse("%v is out of the range of %s", f, n.rt)
		}
		out.SetFloat(f)
		return out, nil
	}
	// In normal form every whole number is an integer.
	x, err := normalizeValue(from, v, 0)
	if err != nil {
		return reflect.Value{}, err
	}
	out := reflect.New(n.rt).Elem()
	ok := false
	switch n.kind {
	case kInt:
		if i, is := x.(int64); is && !out.OverflowInt(i) {
			ok = true
			out.SetInt(i)
		}
	case kUint:
		switch u := x.(type) {
		case int64:
			if ok = u >= 0 && !out.OverflowUint(uint64(u)); ok {
				out.SetUint(uint64(u))
			}
		case uint64:
			if ok = !out.OverflowUint(u); ok {
				out.SetUint(u)
			}
		}
	case kFloat:
		var f float64
		if f, ok = exactFloat(x, n.rt.Bits()); ok {
			out.SetFloat(f)
		}
	}
	if !ok {
		return out, refuse("%s cannot hold %v exactly", n.rt, x)
	}
	return out, nil
}

// exactFloat returns a number in normal form as a float of the given size, if that is exact.
func exactFloat(x any, bits int) (float64, bool) {
	var f float64
	switch x := x.(type) {
	case int64:
		f = float64(x)
		if f >= math.MaxInt64 || int64(f) != x {
			return 0, false
		}
	case uint64:
		f = float64(x)
		if f >= math.MaxUint64 || uint64(f) != x {
			return 0, false
		}
	case float64:
		return x, bits == 64 || !reflect.Zero(reflect.TypeFor[float32]()).OverflowFloat(x)
	default:
		return 0, false
	}
	return f, bits == 64 || float64(float32(f)) == f
}

// throughJSON converts v by its JSON. It refuses fields that n does not have.
func throughJSON(n *node, v reflect.Value, depth int) (reflect.Value, error) {
	x, err := normalize(v.Interface(), depth)
	if err != nil {
		return reflect.Value{}, err
	}
	if err := fits(n, x); err != nil {
		return reflect.Value{}, err
	}
	doc, err := marshal(x)
	if err != nil {
		return reflect.Value{}, failed(err)
	}
	out := reflect.New(n.rt)
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if n.dynamic {
		dec.UseNumber()
	}
	if err := dec.Decode(out.Interface()); err != nil {
		return reflect.Value{}, &Error{Reason: fmt.Sprintf("%s cannot hold a %s: %v", n.rt, v.Type(), err), Err: err}
	}
	if err := fix(n, out.Elem(), depth); err != nil {
		return reflect.Value{}, err
	}
	return out.Elem(), nil
}

// fits refuses values that encoding/json would accept and change: null for a type without null,
// field names that differ by case, items beyond the end of an array, and integers that a float
// would round.
func fits(n *node, x any) error {
	switch n.kind {
	case kPtr:
		if x == nil {
			return nil
		}
		return fits(n.elem, x)
	case kDyn, kObj, kRaw, kCustom, kValue:
		return nil
	}
	switch x := x.(type) {
	case nil:
		_, err := fromNil(n)
		return err
	case int64, uint64:
		if n.kind == kFloat {
			if _, ok := exactFloat(x, n.rt.Bits()); !ok {
				return refuse("%s cannot hold %v exactly", n.rt, x)
			}
		}
	case []any:
		if n.kind == kArray && len(x) > n.rt.Len() {
			return refuse("%s cannot hold %d items", n.rt, len(x))
		}
		if n.kind == kSlice || n.kind == kArray {
			for i, v := range x {
				if err := fits(n.elem, v); err != nil {
					return underIndex(err, i)
				}
			}
		}
	case map[string]any:
		for k, v := range x {
			below := n.elem
			if n.kind == kStruct {
				f, ok := n.fields[k]
				if !ok {
					return refuse("%s has no field %q", n.rt, k)
				}
				below = f.node
			} else if n.kind != kMap {
				return nil // encoding/json refuses it
			}
			if err := fits(below, v); err != nil {
				return under(err, k)
			}
		}
	}
	return nil
}
