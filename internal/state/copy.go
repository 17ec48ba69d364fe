package state

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
)

// detach gives v, an assignment of a committed value, memory of its own. Committed values are valid
// and have no fields that JSON does not carry, so only user code can fail.
func detach(n *node, v reflect.Value) error {
	if n.flat {
		return nil
	}
	switch n.kind {
	case kStruct:
		return detachParts(n.parts, v)
	case kArray:
		return detachItems(n, v)
	case kDyn:
		setDynamic(v, cloneDynamic(v.Interface()))
		return nil
	case kCustom:
		doc, err := marshalValue(v)
		if err != nil {
			return failed(err)
		}
		return unmarshalValue(doc, v)
	}
	if v.IsNil() {
		return nil
	}
	switch n.kind {
	case kObj:
		v.Set(reflect.ValueOf(cloneObject(objectOf(v))))
	case kBytes, kRaw:
		v.Set(copyOf(v))
	case kPtr:
		made := reflect.New(n.elem.rt)
		made.Elem().Set(v.Elem())
		v.Set(made)
		return detach(n.elem, made.Elem())
	case kSlice:
		if list, ok := v.Addr().Interface().(*[]string); ok { // the commonest list; reflection allocates twice
			*list = slices.Clip(slices.Clone(*list))
			return nil
		}
		v.Set(copyOf(v))
		return detachItems(n, v)
	case kMap:
		return detachMap(n, v)
	}
	return nil
}

func detachParts(parts []part, v reflect.Value) error {
	for i := range parts {
		p := &parts[i]
		if p.node != nil {
			if p.node.flat {
				continue
			}
			if err := detach(p.node, v.Field(p.index)); err != nil {
				return under(err, p.name)
			}
			continue
		}
		f := v.Field(p.index)
		if p.pointee != nil {
			if f.IsNil() {
				continue
			}
			made := reflect.New(p.pointee)
			made.Elem().Set(f.Elem())
			f.Set(made)
			f = made.Elem()
		}
		if err := detachParts(p.sub, f); err != nil {
			return err
		}
	}
	return nil
}

// detachItems detaches the items of a list or an array.
func detachItems(n *node, v reflect.Value) error {
	if n.elem.flat {
		return nil
	}
	for i := range v.Len() {
		if err := detach(n.elem, v.Index(i)); err != nil {
			return underIndex(err, i)
		}
	}
	return nil
}

func detachMap(n *node, v reflect.Value) error {
	out := copyMap(v)
	if !n.elem.flat {
		value := reflect.New(n.elem.rt).Elem()
		for iter := v.MapRange(); iter.Next(); {
			value.SetIterValue(iter)
			if err := detach(n.elem, value); err != nil {
				return under(err, keyName(iter.Key()))
			}
			out.SetMapIndex(iter.Key(), value)
		}
	}
	v.Set(out)
	return nil
}

// copyOf returns a copy of slice v without spare capacity.
func copyOf(v reflect.Value) reflect.Value {
	out := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
	reflect.Copy(out, v)
	return out
}

// copyMap returns a new map with the entries of v, which may be nil. For common types maps.Clone
// copies the memory and saves the iteration.
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

// objectOf returns v, whose type is map[string]any or a named type of it, as a map[string]any.
func objectOf(v reflect.Value) map[string]any {
	if m, ok := v.Interface().(map[string]any); ok {
		return m
	}
	return v.Convert(objectType).Interface().(map[string]any)
}

// dynamicOf returns the value of a dynamic part. A nil map is absent.
func dynamicOf(n *node, v reflect.Value) any {
	if n.kind == kDyn {
		return v.Interface()
	}
	if m := objectOf(v); m != nil {
		return m
	}
	return nil
}

// setDynamic stores x, which may be nil, in v, an any or a map[string]any.
func setDynamic(v reflect.Value, x any) {
	if x == nil {
		v.SetZero()
		return
	}
	v.Set(reflect.ValueOf(x))
}

// marshalValue returns the JSON of v. Methods with a pointer receiver count.
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
