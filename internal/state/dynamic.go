package state

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// normalize returns v in normal form. The result shares no mutable memory with v and equals what
// decodeDoc makes of its JSON. depth is the number of lists and objects around v. normalize returns
// *Error for values that a state cannot hold.
func normalize(v any, depth int) (any, error) {
	switch x := v.(type) {
	case nil, bool, int64:
		return v, nil
	case string:
		return v, checkString(x)
	case int:
		return int64(x), nil
	case float64:
		return normalFloat(x, 64)
	case uint64:
		return normalUint(x), nil
	case map[string]any:
		return normalizeObject(x, depth)
	case []any:
		return normalizeList(x, depth)
	}
	rv := reflect.ValueOf(v)
	n, err := nodeOf(rv.Type())
	if err != nil {
		return nil, refuse("%v", err)
	}
	return normalizeValue(n, rv, depth)
}

func normalizeObject(x map[string]any, depth int) (any, error) {
	if x == nil {
		return nil, nil
	}
	if depth >= MaxDepth {
		return nil, tooDeep()
	}
	out := make(map[string]any, len(x))
	for k, v := range x {
		if err := checkKey(k); err != nil {
			return nil, err
		}
		y, err := normalize(v, depth+1)
		if err != nil {
			return nil, under(err, k)
		}
		out[k] = y
	}
	return out, nil
}

func normalizeList(x []any, depth int) (any, error) {
	if x == nil {
		return nil, nil
	}
	if depth >= MaxDepth {
		return nil, tooDeep()
	}
	out := make([]any, len(x))
	for i, v := range x {
		y, err := normalize(v, depth+1)
		if err != nil {
			return nil, underIndex(err, i)
		}
		out[i] = y
	}
	return out, nil
}

// normalizeValue is normalize for all other Go types. Structs go through their JSON, which handles
// omitempty and other options.
func normalizeValue(n *node, v reflect.Value, depth int) (any, error) {
	switch n.kind {
	case kBool:
		return v.Bool(), nil
	case kInt:
		return v.Int(), nil
	case kUint:
		return normalUint(v.Uint()), nil
	case kFloat:
		return normalFloat(v.Float(), n.rt.Bits())
	case kString:
		return normalize(v.String(), depth)
	case kDyn:
		return normalize(v.Interface(), depth)
	case kObj:
		return normalize(dynamicOf(n, v), depth)
	case kNumber:
		return normalizeNumber(v.String())
	case kPtr:
		if v.IsNil() {
			return nil, nil
		}
		if n.elem.kind == kPtr {
			depth++ // nothing else would stop at a pointer that points to itself
			if depth >= MaxDepth {
				return nil, tooDeep()
			}
		}
		return normalizeValue(n.elem, v.Elem(), depth)
	case kMap:
		return normalizeMap(n, v, depth)
	case kSlice, kArray:
		return normalizeSlice(n, v, depth)
	}
	// Settling refuses values that encoding/json would silently replace.
	own, err := settled(n, v, depth)
	if err != nil {
		return nil, err
	}
	doc, err := marshal(own.Addr().Interface())
	if err != nil {
		return nil, failed(err)
	}
	return decodeDoc(doc, depth)
}

func normalizeNumber(s string) (any, error) {
	if s == "" {
		return int64(0), nil // as encoding/json writes it
	}
	if !validNumber(s) {
		return nil, refuse("json.Number %q is not a number", s)
	}
	x := parseNumber(strings.Clone(s))
	if _, ok := x.(json.Number); ok {
		return x, checkDigits(s)
	}
	return x, nil
}

func normalizeMap(n *node, v reflect.Value, depth int) (any, error) {
	if v.IsNil() {
		return nil, nil
	}
	if depth >= MaxDepth {
		return nil, tooDeep()
	}
	out := make(map[string]any, v.Len())
	for iter := v.MapRange(); iter.Next(); {
		k := keyName(iter.Key())
		if err := checkKey(k); err != nil {
			return nil, err
		}
		x, err := normalizeValue(n.elem, iter.Value(), depth+1)
		if err != nil {
			return nil, under(err, k)
		}
		out[k] = x
	}
	return out, nil
}

func normalizeSlice(n *node, v reflect.Value, depth int) (any, error) {
	if n.kind == kSlice && v.IsNil() {
		return nil, nil
	}
	if depth >= MaxDepth {
		return nil, tooDeep()
	}
	out := make([]any, v.Len())
	for i := range out {
		x, err := normalizeValue(n.elem, v.Index(i), depth+1)
		if err != nil {
			return nil, underIndex(err, i)
		}
		out[i] = x
	}
	return out, nil
}

// decodeDoc decodes one JSON document into normal form.
func decodeDoc(doc []byte, depth int) (any, error) {
	tree, err := decodeTree(doc)
	if err != nil {
		return nil, err
	}
	return fixDynamic(tree, depth)
}

// decodeTree decodes doc with its numbers as written.
func decodeTree(doc []byte) (any, error) {
	var tree any
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return nil, failed(err)
	}
	return tree, atEnd(dec)
}

// atEnd returns an error if the document of dec is not its only one.
func atEnd(dec *json.Decoder) error {
	if _, err := dec.Token(); err != io.EOF {
		return refuse("trailing data after the JSON document")
	}
	return nil
}

// fixDynamic brings a tree that encoding/json has decoded into normal form, in place.
func fixDynamic(x any, depth int) (any, error) {
	switch x := x.(type) {
	case json.Number:
		return parseNumber(string(x)), nil
	case map[string]any:
		if depth >= MaxDepth {
			return nil, tooDeep()
		}
		for k, v := range x {
			y, err := fixDynamic(v, depth+1)
			if err != nil {
				return nil, err
			}
			x[k] = y
		}
	case []any:
		if depth >= MaxDepth {
			return nil, tooDeep()
		}
		for i, v := range x {
			y, err := fixDynamic(v, depth+1)
			if err != nil {
				return nil, err
			}
			x[i] = y
		}
		// A decoded list has spare capacity, which a reader's append must not reach.
		return slices.Clip(x), nil
	}
	return x, nil
}

// settleDynamic is settle for a value inside an any. old has normal form.
func settleDynamic(old, draft any, depth int) (out any, same bool, err error) {
	switch d := draft.(type) {
	case map[string]any:
		if d == nil {
			return nil, old == nil, nil
		}
		was, _ := old.(map[string]any)
		m, same, err := settleObject(was, d, depth)
		if same {
			return old, true, nil
		}
		return m, false, err
	case []any:
		if d == nil {
			return nil, old == nil, nil
		}
		was, _ := old.([]any)
		return settleList(old, was, d, depth)
	case json.Number:
		if d == old { // also one with more digits than a new number may have
			return old, true, nil
		}
	}
	x, err := normalize(draft, depth)
	if err != nil {
		return nil, false, err
	}
	switch x.(type) {
	case map[string]any, []any:
		return settleDynamic(old, x, depth)
	}
	if sameScalar(old, x) {
		return old, true, nil
	}
	return x, false, nil
}

// settleObject collects only the entries that differ, so an unchanged object needs no allocation.
func settleObject(old, draft map[string]any, depth int) (out map[string]any, same bool, err error) {
	if depth >= MaxDepth {
		return nil, false, tooDeep()
	}
	type entry struct {
		key   string
		value any
	}
	var differ []entry
	for k, v := range draft {
		was, had := old[k]
		x, same, err := settleDynamic(was, v, depth+1)
		if err != nil {
			return nil, false, under(err, k)
		}
		if had && same {
			continue
		}
		if err := checkKey(k); err != nil {
			return nil, false, err
		}
		differ = append(differ, entry{k, x})
	}
	if len(differ) == 0 && len(old) == len(draft) && old != nil {
		return old, true, nil
	}
	if len(differ) == len(draft) {
		out = make(map[string]any, len(draft))
	} else {
		out = maps.Clone(old)
	}
	for _, e := range differ {
		out[e.key] = e.value
	}
	if len(out) > len(draft) {
		for k := range out {
			if _, ok := draft[k]; !ok {
				delete(out, k)
			}
		}
	}
	return out, false, nil
}

// settleList is settleDynamic for a list. boxed is old in its interface, which saves an allocation
// if nothing changed.
func settleList(boxed any, old, draft []any, depth int) (any, bool, error) {
	if depth >= MaxDepth {
		return nil, false, tooDeep()
	}
	var out []any
	if old == nil || len(old) != len(draft) {
		out = make([]any, len(draft))
	}
	for i, v := range draft {
		var was any
		if i < len(old) {
			was = old[i]
		}
		x, same, err := settleDynamic(was, v, depth+1)
		if err != nil {
			return nil, false, underIndex(err, i)
		}
		if out == nil && !same {
			out = make([]any, len(draft))
			copy(out, old[:i])
		}
		if out != nil {
			out[i] = x
		}
	}
	if out == nil {
		return boxed, true, nil
	}
	return out, false, nil
}

// cloneDynamic returns a deep copy of a value in normal form.
func cloneDynamic(x any) any {
	switch x := x.(type) {
	case map[string]any:
		return cloneObject(x)
	case []any:
		if x == nil {
			return nil
		}
		out := make([]any, len(x))
		for i, v := range x {
			out[i] = cloneDynamic(v)
		}
		return out
	}
	return x
}

func cloneObject(x map[string]any) map[string]any {
	out := maps.Clone(x)
	for k, v := range x {
		switch v.(type) {
		case map[string]any, []any:
			out[k] = cloneDynamic(v)
		}
	}
	return out
}

// equalDynamic compares two values in normal form.
func equalDynamic(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && equalObject(a, b)
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) || (a == nil) != (b == nil) {
			return false
		}
		if len(a) == 0 || &a[0] == &b[0] {
			return true
		}
		return slices.EqualFunc(a, b, equalDynamic)
	}
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	return sameScalar(a, b)
}

// sameScalar compares two values in normal form, of which neither is an object or a list. Only a
// json.Number has more than one form.
func sameScalar(a, b any) bool {
	x, okX := a.(json.Number)
	y, okY := b.(json.Number)
	return a == b || okX && okY && sameNumber(string(x), string(y))
}

func equalObject(a, b map[string]any) bool {
	if len(a) != len(b) || (a == nil) != (b == nil) {
		return false
	}
	if reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() {
		return true
	}
	for k, v := range a {
		w, ok := b[k]
		if !ok || !equalDynamic(v, w) {
			return false
		}
	}
	return true
}

// checkString refuses the strings that not every store can keep.
func checkString(s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return refuse("strings cannot contain U+0000")
	}
	if !utf8.ValidString(s) {
		return refuse("strings must be valid UTF-8")
	}
	return nil
}

// checkKey is checkString for the key of a map.
func checkKey(key string) error {
	if err := checkString(key); err != nil {
		return refuse("key %q: %s", key, failed(err).Reason)
	}
	return nil
}
