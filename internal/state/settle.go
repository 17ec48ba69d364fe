package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"
)

// settle turns v, a shallow copy of a draft, into a committed value: valid, with memory of its own,
// and shared with old wherever the two are equal. It reports whether all of v equals old. An
// invalid old means that there was no value; the report has no meaning then.
//
// settle reads a value of the draft once, because a goroutine of the function may still write to
// it. The value that was checked is the value that is kept.
func settle(n *node, old, v reflect.Value, depth int) (same bool, err error) {
	fresh := !old.IsValid()
	if fresh {
		old = n.zero
	}
	switch n.kind {
	case kBool:
		return old.Bool() == v.Bool(), nil
	case kInt:
		return old.Int() == v.Int(), nil
	case kUint:
		return old.Uint() == v.Uint(), nil
	case kValue:
		return old.Equal(v), nil
	case kFloat:
		return old.Float() == v.Float(), checkFloat(v.Float())
	case kString:
		s := v.String()
		if old.String() == s {
			return true, nil
		}
		return false, checkString(s)
	case kNumber:
		was, s := old.String(), v.String()
		if s != "" && s != was {
			if err := checkNumber(s); err != nil {
				return false, err
			}
		}
		return sameNumber(was, s), nil
	case kTime:
		return settleTime(old, v)
	case kBytes, kRaw:
		return settleBytes(n, old, v, depth)
	case kDyn:
		x, same, err := settleDynamic(old.Interface(), v.Interface(), depth)
		if err == nil {
			setDynamic(v, x)
		}
		return same, err
	case kObj:
		m := objectOf(v)
		if m == nil {
			return old.IsNil(), nil
		}
		m, same, err := settleObject(objectOf(old), m, depth)
		if err == nil {
			v.Set(reflect.ValueOf(m))
		}
		return same, err
	case kCustom:
		return settleCustom(old, v, fresh, depth)
	case kPtr:
		return settlePtr(n, old, v, depth)
	}
	if depth >= MaxDepth {
		return false, tooDeep()
	}
	switch n.kind {
	case kStruct:
		return settleParts(n.parts, old, v, fresh, depth+1)
	case kMap:
		return settleMap(n, old, v, depth+1)
	case kArray:
		return settleArray(n, old, v, depth+1)
	}
	return settleSlice(n, old, v, depth+1)
}

// settled returns a committed copy of draft.
func settled(n *node, draft reflect.Value, depth int) (reflect.Value, error) {
	v := reflect.New(n.rt).Elem()
	shallow(n, draft, v)
	_, err := settle(n, reflect.Value{}, v, depth)
	return v, err
}

// shallow assigns from to to. Fields that JSON does not carry become zero.
func shallow(n *node, from, to reflect.Value) {
	if n.whole {
		to.Set(from)
		return
	}
	to.SetZero()
	if n.kind == kStruct {
		shallowParts(n.parts, from, to)
		return
	}
	for i := range from.Len() { // an array
		shallow(n.elem, from.Index(i), to.Index(i))
	}
}

func shallowParts(parts []part, from, to reflect.Value) {
	for i := range parts {
		p := &parts[i]
		source, target := from.Field(p.index), to.Field(p.index)
		switch {
		case p.node != nil:
			shallow(p.node, source, target)
		case p.pointee != nil:
			target.Set(source)
		default:
			shallowParts(p.sub, source, target)
		}
	}
}

// settleTime drops the parts of a time that JSON does not carry: the monotonic reading, and the
// seconds of a zone's offset. Without them the zone would change the instant, so it becomes UTC.
func settleTime(old, v reflect.Value) (bool, error) {
	was, t := timeOf(old), timeOf(v).Round(0)
	if _, offset := t.Zone(); offset%60 != 0 {
		t = t.UTC()
	}
	same := sameTime(was, t)
	if same {
		t = was
	} else if err := checkTime(t); err != nil {
		return false, err
	}
	*v.Addr().Interface().(*time.Time) = t
	return same, nil
}

// checkTime refuses the times that JSON cannot write.
func checkTime(t time.Time) error {
	if y := t.Year(); y < 0 || y > 9999 {
		return refuse("the year %d of a time is outside 0 to 9999", y)
	}
	if _, offset := t.Zone(); offset <= -24*3600 || offset >= 24*3600 {
		return refuse("the zone offset %ds of a time is a day or more", offset)
	}
	return nil
}

func settleBytes(n *node, old, v reflect.Value, depth int) (bool, error) {
	if v.IsNil() {
		return old.IsNil() || n.kind == kRaw && sameJSON(rawOf(old), rawOf(v)), nil
	}
	b := v.Bytes()
	if n.kind == kRaw {
		var compact bytes.Buffer // the form that the document will have
		if err := json.Compact(&compact, b); err != nil {
			return false, &Error{Reason: fmt.Sprintf("not JSON: %v", err), Err: err}
		}
		b = compact.Bytes()
	}
	if !old.IsNil() && bytes.Equal(old.Bytes(), b) {
		v.Set(old)
		return true, nil
	}
	if n.kind == kRaw {
		if err := checkRaw(b, depth); err != nil {
			return false, err
		}
		if sameJSON(rawOf(old), b) {
			v.SetBytes(slices.Clip(b)) // json.Compact has copied it
			return true, nil
		}
	}
	v.SetBytes(slices.Clip(bytes.Clone(b)))
	return false, nil
}

// settleCustom copies a value by its JSON, since only user code knows its memory.
func settleCustom(old, v reflect.Value, fresh bool, depth int) (bool, error) {
	doc, err := marshalValue(v)
	if err != nil {
		return false, failed(err)
	}
	if !fresh {
		if was, err := marshalValue(old); err == nil && sameJSON(was, doc) {
			v.Set(old)
			return true, nil
		}
	}
	if err := checkRaw(doc, depth); err != nil {
		return false, err
	}
	return false, unmarshalValue(doc, v)
}

func settlePtr(n *node, old, v reflect.Value, depth int) (bool, error) {
	if v.IsNil() {
		return old.IsNil(), nil
	}
	if n.elem.kind == kPtr {
		depth++ // nothing else would stop at a pointer that points to itself
		if depth >= MaxDepth {
			return false, tooDeep()
		}
	}
	made := reflect.New(n.elem.rt)
	shallow(n.elem, v.Elem(), made.Elem())
	same, err := settle(n.elem, old.Elem(), made.Elem(), depth)
	if err != nil {
		return false, err
	}
	if same && !old.IsNil() {
		v.Set(old)
		return true, nil
	}
	v.Set(made)
	return false, nil
}

func settleParts(parts []part, old, v reflect.Value, fresh bool, depth int) (bool, error) {
	all := true
	for i := range parts {
		p := &parts[i]
		was, now := old.Field(p.index), v.Field(p.index)
		if p.node == nil {
			same, err := settleEmbedded(p, was, now, fresh, depth)
			if err != nil {
				return false, err
			}
			all = all && same
			continue
		}
		if fresh {
			was = reflect.Value{}
		}
		same, err := settle(p.node, was, now, depth)
		if err != nil {
			return false, under(err, p.name)
		}
		all = all && (fresh || sameField(p, was, now, same))
	}
	return all, nil
}

func settleEmbedded(p *part, was, now reflect.Value, fresh bool, depth int) (bool, error) {
	if p.pointee == nil {
		return settleParts(p.sub, was, now, fresh, depth)
	}
	if now.IsNil() {
		return was.IsNil(), nil
	}
	made := reflect.New(p.pointee)
	shallowParts(p.sub, now.Elem(), made.Elem())
	before := was.Elem()
	if was.IsNil() {
		before, fresh = reflect.Zero(p.pointee), true
	}
	same, err := settleParts(p.sub, before, made.Elem(), fresh, depth)
	if err != nil {
		return false, err
	}
	if same && !was.IsNil() {
		now.Set(was)
		return true, nil
	}
	now.Set(made)
	return false, nil
}

func settleArray(n *node, old, v reflect.Value, depth int) (bool, error) {
	all := true
	for i := range v.Len() {
		same, err := settle(n.elem, old.Index(i), v.Index(i), depth)
		if err != nil {
			return false, underIndex(err, i)
		}
		all = all && same
	}
	return all, nil
}

// settleSlice allocates no list until it finds a difference.
func settleSlice(n *node, old, v reflect.Value, depth int) (bool, error) {
	if v.IsNil() {
		return old.IsNil(), nil
	}
	if n.elem.kind == kString && equalList(n, old, v) { // else v is read again, and what is kept is checked then
		v.Set(old)
		return true, nil
	}
	size, before := v.Len(), old.Len()
	var out, item reflect.Value
	if old.IsNil() || size != before {
		out = reflect.MakeSlice(n.rt, size, size)
	} else {
		item = reflect.New(n.elem.rt).Elem()
	}
	for i := range size {
		if out.IsValid() {
			item = out.Index(i)
		}
		shallow(n.elem, v.Index(i), item)
		var was reflect.Value
		if i < before {
			was = old.Index(i)
		}
		same, err := settle(n.elem, was, item, depth)
		if err != nil {
			return false, underIndex(err, i)
		}
		if !same && !out.IsValid() {
			out = reflect.MakeSlice(n.rt, size, size)
			reflect.Copy(out, old.Slice(0, i))
			out.Index(i).Set(item)
		}
	}
	if !out.IsValid() {
		v.Set(old)
		return true, nil
	}
	v.Set(out)
	return false, nil
}

// settleMap collects only the entries that differ, like settleObject.
func settleMap(n *node, old, v reflect.Value, depth int) (bool, error) {
	if v.IsNil() {
		return old.IsNil(), nil
	}
	type entry struct{ key, value reflect.Value }
	var differ []entry
	key, value := reflect.New(n.rt.Key()).Elem(), reflect.New(n.elem.rt).Elem()
	for iter := v.MapRange(); iter.Next(); {
		key.SetIterKey(iter)
		if n.elem.whole {
			value.SetIterValue(iter)
		} else {
			shallow(n.elem, iter.Value(), value)
		}
		was := old.MapIndex(key)
		same, err := settle(n.elem, was, value, depth)
		if err != nil {
			return false, under(err, keyName(key))
		}
		if same && was.IsValid() {
			continue
		}
		if key.Kind() == reflect.String {
			if err := checkKey(key.String()); err != nil {
				return false, err
			}
		}
		differ = append(differ, entry{key, value})
		key, value = reflect.New(n.rt.Key()).Elem(), reflect.New(n.elem.rt).Elem()
	}
	size := v.Len()
	if len(differ) == 0 && old.Len() == size && !old.IsNil() {
		v.Set(old)
		return true, nil
	}
	var out reflect.Value
	if len(differ) == size {
		out = reflect.MakeMapWithSize(n.rt, size)
	} else {
		out = copyMap(old)
	}
	for _, e := range differ {
		out.SetMapIndex(e.key, e.value)
	}
	if out.Len() > size {
		for _, key := range out.MapKeys() {
			if !v.MapIndex(key).IsValid() {
				out.SetMapIndex(key, reflect.Value{})
			}
		}
	}
	v.Set(out)
	return false, nil
}
