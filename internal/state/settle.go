package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// settle makes dst, which is zero, a validated deep copy of draft that shares
// with old whatever is equal, and reports whether all of it is. An invalid old
// means that there was none; same is of no interest then.
func settle(n *node, old, draft, dst reflect.Value, depth int) (same bool, err error) {
	fresh := !old.IsValid()
	if fresh {
		old = n.zero
	}
	switch n.kind {
	case kBool, kInt, kUint, kValue:
		dst.Set(draft)
		return equal(n, old, draft), nil
	case kFloat:
		if reason := badFloat(draft.Float()); reason != "" {
			return false, refuse("%s", reason)
		}
		dst.Set(draft)
		return old.Float() == draft.Float(), nil
	case kString:
		s := draft.String()
		if old.String() == s {
			dst.Set(old)
			return true, nil
		}
		if reason := badString(s); reason != "" {
			return false, refuse("%s", reason)
		}
		dst.Set(draft)
		return false, nil
	case kNumber:
		if s := draft.String(); s != "" && !validNumber(s) {
			return false, refuse("json.Number %q is not a number", s)
		}
		dst.Set(draft)
		return old.String() == draft.String(), nil
	case kTime:
		return settleTime(old, draft, dst)
	case kBytes, kRaw:
		return settleBytes(n, old, draft, dst, depth)
	case kDyn:
		x, same, err := settleDynamic(old.Interface(), draft.Interface(), depth)
		if err == nil {
			setDynamic(dst, x)
		}
		return same, err
	case kObj:
		m := objectOf(draft)
		if m == nil {
			return old.IsNil(), nil
		}
		m, same, err := settleObject(objectOf(old), m, depth)
		if err == nil {
			dst.Set(reflect.ValueOf(m))
		}
		return same, err
	case kCustom:
		return settleCustom(old, draft, dst, fresh, depth)
	case kPtr:
		return settlePtr(n, old, draft, dst, depth)
	}
	if depth >= MaxDepth {
		return false, tooDeep()
	}
	switch n.kind {
	case kStruct:
		if n.plan != nil && depth+n.plan.levels <= MaxDepth && old.CanAddr() {
			dst.Set(draft)
			return n.plan.settle(old.Addr().UnsafePointer(), dst.Addr().UnsafePointer())
		}
		return settleParts(n.parts, old, draft, dst, fresh, depth+1)
	case kMap:
		return settleMap(n, old, draft, dst, depth+1)
	case kArray:
		return settleArray(n, old, draft, dst, depth+1)
	}
	return settleSlice(n, old, draft, dst, depth+1)
}

// settleTime drops what would not survive JSON: the monotonic reading, and the seconds of an old zone's offset, which
// would take the instant with them.
func settleTime(old, draft, dst reflect.Value) (bool, error) {
	t, same, reason := settledTime(old.Interface().(time.Time), draft.Interface().(time.Time))
	if reason != "" {
		return false, refuse("%s", reason)
	}
	dst.Set(reflect.ValueOf(t))
	return same, nil
}

func settledTime(old, t time.Time) (settled time.Time, same bool, reason string) {
	t = t.Round(0)
	if _, offset := t.Zone(); offset%60 != 0 {
		t = t.UTC()
	}
	if sameTime(old, t) {
		return old, true, ""
	}
	return t, false, badTime(t)
}

func badTime(t time.Time) string {
	if y := t.Year(); y < 0 || y > 9999 {
		return "the year of a time must be within 0 and 9999"
	}
	if _, offset := t.Zone(); offset <= -24*3600 || offset >= 24*3600 {
		return "the zone of a time must be within a day"
	}
	return ""
}

func settleBytes(n *node, old, draft, dst reflect.Value, depth int) (bool, error) {
	if draft.IsNil() {
		return old.IsNil(), nil
	}
	b := draft.Bytes()
	if n.kind == kRaw {
		// In the form that it will have in the document.
		var compact bytes.Buffer
		if err := json.Compact(&compact, b); err != nil {
			return false, &Error{Reason: fmt.Sprintf("not JSON: %v", err), Err: err}
		}
		b = slices.Clip(bytes.Clone(compact.Bytes()))
	}
	if !old.IsNil() && bytes.Equal(old.Bytes(), b) {
		dst.Set(old)
		return true, nil
	}
	if n.kind == kRaw {
		if err := checkRaw(b, depth); err != nil {
			return false, err
		}
		dst.SetBytes(b)
		return false, nil
	}
	dst.Set(copyOf(draft))
	return false, nil
}

func settleCustom(old, draft, dst reflect.Value, fresh bool, depth int) (bool, error) {
	doc, err := marshalValue(draft)
	if err != nil {
		return false, failed(err)
	}
	if !fresh {
		if was, err := marshalValue(old); err == nil && bytes.Equal(was, doc) {
			dst.Set(old)
			return true, nil
		}
	}
	if err := checkRaw(doc, depth); err != nil {
		return false, err
	}
	return false, unmarshalValue(doc, dst)
}

func settlePtr(n *node, old, draft, dst reflect.Value, depth int) (bool, error) {
	if draft.IsNil() {
		return old.IsNil(), nil
	}
	if n.elem.kind == kPtr {
		depth++ // nothing else would stop a pointer that points to itself
		if depth >= MaxDepth {
			return false, tooDeep()
		}
	}
	if draft.Pointer() == old.Pointer() {
		dst.Set(old)
		return true, nil
	}
	made := reflect.New(n.elem.rt)
	same, err := settle(n.elem, old.Elem(), draft.Elem(), made.Elem(), depth)
	if err != nil {
		return false, err
	}
	if same && !old.IsNil() {
		dst.Set(old)
		return true, nil
	}
	dst.Set(made)
	return false, nil
}

func settleParts(parts []part, old, draft, dst reflect.Value, fresh bool, depth int) (bool, error) {
	all := true
	for i := range parts {
		p := &parts[i]
		was, now, to := old.Field(p.index), draft.Field(p.index), dst.Field(p.index)
		if p.node != nil {
			if fresh {
				was = reflect.Value{}
			}
			same, err := settle(p.node, was, now, to, depth)
			if err != nil {
				return false, under(err, p.name)
			}
			if !same && !fresh && p.omitEmpty && bothEmpty(p.node, was, now) {
				same = true
			}
			all = all && same
			continue
		}
		same, err := settleEmbedded(p, was, now, to, fresh, depth)
		if err != nil {
			return false, err
		}
		all = all && same
	}
	return all, nil
}

func settleEmbedded(p *part, was, now, to reflect.Value, fresh bool, depth int) (bool, error) {
	if p.embedded == nil {
		return settleParts(p.sub, was, now, to, fresh, depth)
	}
	if now.IsNil() {
		return was.IsNil(), nil
	}
	made := reflect.New(p.embedded)
	before := was.Elem()
	if was.IsNil() {
		before, fresh = reflect.Zero(p.embedded), true
	}
	same, err := settleParts(p.sub, before, now.Elem(), made.Elem(), fresh, depth)
	if err != nil {
		return false, err
	}
	if same && !was.IsNil() {
		to.Set(was)
		return true, nil
	}
	to.Set(made)
	return false, nil
}

func settleArray(n *node, old, draft, dst reflect.Value, depth int) (bool, error) {
	all := true
	for i := range draft.Len() {
		same, err := settle(n.elem, old.Index(i), draft.Index(i), dst.Index(i), depth)
		if err != nil {
			return false, underIndex(err, i)
		}
		all = all && same
	}
	return all, nil
}

// settleSlice allocates nothing for a list until it finds a difference.
func settleSlice(n *node, old, draft, dst reflect.Value, depth int) (bool, error) {
	if draft.IsNil() {
		return old.IsNil(), nil
	}
	size, before := draft.Len(), old.Len()
	var out, scratch reflect.Value
	if old.IsNil() || size != before {
		out = reflect.MakeSlice(n.rt, size, size)
	} else if draft.Pointer() == old.Pointer() {
		dst.Set(old)
		return true, nil
	} else {
		scratch = reflect.New(n.elem.rt).Elem()
	}
	for i := range size {
		to, was := scratch, reflect.Value{}
		if out.IsValid() {
			to = out.Index(i)
		} else {
			scratch.SetZero()
		}
		if i < before {
			was = old.Index(i)
		}
		same, err := settle(n.elem, was, draft.Index(i), to, depth)
		if err != nil {
			return false, underIndex(err, i)
		}
		if !out.IsValid() && !same {
			out = reflect.MakeSlice(n.rt, size, size)
			reflect.Copy(out, old.Slice(0, i))
			out.Index(i).Set(to)
		}
	}
	if !out.IsValid() {
		dst.Set(old)
		return true, nil
	}
	dst.Set(out)
	return false, nil
}

// settleMap collects only the entries that differ, like settleObject.
func settleMap(n *node, old, draft, dst reflect.Value, depth int) (bool, error) {
	if draft.IsNil() {
		return old.IsNil(), nil
	}
	if draft.Pointer() == old.Pointer() {
		dst.Set(old)
		return true, nil
	}
	if n.entries != nil {
		was := reflect.New(n.rt)
		was.Elem().Set(old)
		dst.Set(draft)
		return n.entries.settle(was.UnsafePointer(), dst.Addr().UnsafePointer())
	}
	type entry struct{ key, value reflect.Value }
	var differ []entry
	fresh := func(t reflect.Type) reflect.Value { return reflect.New(t).Elem() }
	key, before, now, scratch := fresh(n.rt.Key()), fresh(n.elem.rt), fresh(n.elem.rt), fresh(n.elem.rt)
	for iter := draft.MapRange(); iter.Next(); {
		key.SetIterKey(iter)
		now.SetIterValue(iter)
		was := old.MapIndex(key)
		if was.IsValid() { // where it has an address
			before.Set(was)
			was = before
		}
		scratch.SetZero()
		same, err := settle(n.elem, was, now, scratch, depth)
		if err != nil {
			return false, under(err, keyName(key))
		}
		if same && was.IsValid() {
			continue
		}
		if key.Kind() == reflect.String {
			if reason := badString(key.String()); reason != "" {
				return false, refuse("key %q: %s", key.String(), reason)
			}
		}
		differ = append(differ, entry{key, scratch})
		key, scratch = fresh(n.rt.Key()), fresh(n.elem.rt)
	}
	if len(differ) == 0 && old.Len() == draft.Len() && !old.IsNil() {
		dst.Set(old)
		return true, nil
	}
	var out reflect.Value
	if len(differ) == draft.Len() {
		out = reflect.MakeMapWithSize(n.rt, draft.Len())
	} else {
		out = copyMap(old)
	}
	for _, e := range differ {
		out.SetMapIndex(e.key, e.value)
	}
	if out.Len() > draft.Len() {
		for _, key := range out.MapKeys() {
			if !draft.MapIndex(key).IsValid() {
				out.SetMapIndex(key, reflect.Value{})
			}
		}
	}
	dst.Set(out)
	return false, nil
}

// checkRaw validates JSON that somebody else wrote: encoding/json would replace
// invalid Unicode silently, and has a far higher limit on nesting.
func checkRaw(doc []byte, depth int) error {
	if !utf8.Valid(doc) {
		return refuse("JSON must be valid UTF-8")
	}
	inString := false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			i++
			if i < len(doc) && doc[i] == 'u' {
				skip, reason := checkEscape(doc[i-1:])
				if reason != "" {
					return refuse("%s", reason)
				}
				i += skip - 2
			}
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > MaxDepth {
				return tooDeep()
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	if _, err := decodeTree(doc); err != nil {
		return &Error{Reason: fmt.Sprintf("not JSON: %v", err), Err: err}
	}
	return nil
}

// checkEscape checks the \u escape that doc starts with, and returns its length.
func checkEscape(doc []byte) (length int, reason string) {
	unit := func(at int) uint64 {
		if len(doc) < at+6 || doc[at] != '\\' || doc[at+1] != 'u' {
			return 0xFFFFFFFF
		}
		u, err := strconv.ParseUint(string(doc[at+2:at+6]), 16, 32)
		if err != nil {
			return 0xFFFFFFFF
		}
		return u
	}
	switch u := unit(0); {
	case u == 0:
		return 6, "strings cannot contain U+0000"
	case u >= 0xD800 && u < 0xDC00:
		if low := unit(6); low >= 0xDC00 && low < 0xE000 {
			return 12, ""
		}
		return 6, "strings must be valid Unicode"
	case u >= 0xDC00 && u < 0xE000:
		return 6, "strings must be valid Unicode"
	}
	return 2, ""
}
