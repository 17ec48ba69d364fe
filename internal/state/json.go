package state

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// marshal is json.Marshal without HTML escaping.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	b := buf.Bytes()
	return b[:len(b)-1], nil // Encode ends with a newline
}

// Encode returns the JSON of s, without HTML escaping. An absent state has the JSON of the zero T,
// which for a map is {}, not null.
func (t *Type) Encode(s any) ([]byte, error) {
	v := t.valueOrZero(s)
	if v.Kind() == reflect.Map && v.IsNil() && t.root.kind != kCustom {
		return []byte("{}"), nil
	}
	doc, err := marshal(v.Addr().Interface())
	if err != nil {
		return nil, failed(err)
	}
	return doc, nil
}

// Decode fills *dst from doc. Integers inside an any are exact. lossy reports that doc has fields,
// at any depth, that T does not know, or may have them, if T is Custom. Then *dst must be written
// back through [Merge] to keep them.
func (t *Type) Decode(doc []byte, dst any) (lossy bool, err error) {
	v := reflect.ValueOf(dst).Elem()
	// Refusing unknown fields is the cheap way to learn that there are none, the usual case.
	if err := t.decode(doc, v, true); err != nil {
		lossy = true
		if err := t.decode(doc, v, false); err != nil {
			return false, failed(err)
		}
	}
	if t.root.dynamic || t.root.lists {
		if err := fix(t.root, v, 0); err != nil {
			return false, err
		}
	}
	settleRoot(v)
	return lossy || t.root.custom, nil
}

func (t *Type) decode(doc []byte, v reflect.Value, strict bool) error {
	v.SetZero()
	dec := json.NewDecoder(bytes.NewReader(doc))
	if t.root.dynamic {
		dec.UseNumber()
	}
	if strict {
		dec.DisallowUnknownFields()
	}
	if err := dec.Decode(v.Addr().Interface()); err != nil {
		return err
	}
	return atEnd(dec)
}

// fix turns a value that encoding/json has decoded into a committed one, in place. Dynamic parts
// get normal form, and lists lose their spare capacity.
func fix(n *node, v reflect.Value, depth int) error {
	if !n.dynamic && !n.lists {
		return nil
	}
	switch n.kind {
	case kDyn:
		x, err := fixDynamic(v.Interface(), depth)
		if err == nil {
			setDynamic(v, x)
		}
		return err
	case kObj:
		if m := objectOf(v); m != nil {
			_, err := fixDynamic(m, depth)
			return err
		}
		return nil
	case kBytes, kRaw:
		v.SetCap(v.Len())
		return nil
	case kPtr:
		if v.IsNil() {
			return nil
		}
		return fix(n.elem, v.Elem(), depth)
	}
	if depth >= MaxDepth {
		return tooDeep()
	}
	switch n.kind {
	case kStruct:
		return fixParts(n.parts, v, depth+1)
	case kMap:
		return fixMap(n, v, depth+1)
	case kSlice:
		v.SetCap(v.Len())
	}
	if !n.elem.dynamic && !n.elem.lists {
		return nil
	}
	for i := range v.Len() {
		if err := fix(n.elem, v.Index(i), depth+1); err != nil {
			return underIndex(err, i)
		}
	}
	return nil
}

func fixParts(parts []part, v reflect.Value, depth int) error {
	for i := range parts {
		p := &parts[i]
		f := v.Field(p.index)
		if p.node != nil {
			if err := fix(p.node, f, depth); err != nil {
				return under(err, p.name)
			}
			continue
		}
		if p.pointee != nil {
			if f.IsNil() {
				continue
			}
			f = f.Elem()
		}
		if err := fixParts(p.sub, f, depth); err != nil {
			return err
		}
	}
	return nil
}

func fixMap(n *node, v reflect.Value, depth int) error {
	if !n.elem.dynamic && !n.elem.lists {
		return nil
	}
	for _, key := range v.MapKeys() {
		value := reflect.New(n.elem.rt).Elem()
		value.Set(v.MapIndex(key))
		if err := fix(n.elem, value, depth); err != nil {
			return under(err, keyName(key))
		}
		v.SetMapIndex(key, value)
	}
	return nil
}
