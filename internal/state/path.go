package state

import (
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
)

// maxPaths limits the cache of resolved paths of one type. Further paths, which only the keys of
// maps can produce, are resolved each time.
const maxPaths = 256

// parsePath splits a dotted path into its names. After a backslash, a dot or a backslash is
// literal.
func parsePath(field string) ([]string, error) {
	if field == "" {
		return nil, &Error{Reason: "the field has no name"}
	}
	if !strings.ContainsRune(field, '\\') {
		names := strings.Split(field, ".")
		return names, checkNames(field, names)
	}
	var names []string
	var name strings.Builder
	for i := 0; i < len(field); i++ {
		switch c := field[i]; c {
		case '.':
			names = append(names, name.String())
			name.Reset()
		case '\\':
			i++
			if i == len(field) || field[i] != '.' && field[i] != '\\' {
				return nil, &Error{Path: field, Reason: "a backslash must be followed by a dot or a backslash"}
			}
			name.WriteByte(field[i])
		default:
			name.WriteByte(c)
		}
	}
	names = append(names, name.String())
	return names, checkNames(field, names)
}

func checkNames(field string, names []string) error {
	for _, name := range names {
		if name == "" {
			return &Error{Path: field, Reason: "a name in the path is empty"}
		}
		if err := checkString(name); err != nil {
			return &Error{Path: field, Reason: failed(err).Reason}
		}
	}
	return nil
}

// Escape returns the path whose only name is name.
func Escape(name string) string {
	if !strings.ContainsAny(name, `.\`) {
		return name
	}
	return strings.NewReplacer(`\`, `\\`, `.`, `\.`).Replace(name)
}

// path is a field resolved against a type. It leads through Go values, then, from the first dynamic
// part on, through names inside it.
type path struct {
	names  []string
	steps  []step   // to the named value, or to the dynamic part
	leaf   *node    // the type that steps lead to
	inner  []step   // steps, and further through the pointers of leaf
	target *node    // the type that inner leads to
	dyn    []string // the names inside the dynamic part
}

type stepKind uint8

const (
	stepField stepKind = iota
	stepPtr
	stepEntry
)

type step struct {
	kind  stepKind
	index int           // of a stepField
	key   reflect.Value // of a stepEntry
	rt    reflect.Type  // the type of the value after the step
}

// path resolves field. An empty field is the state itself.
func (t *Type) path(field string) (*path, error) {
	if cached := t.paths.Load(); cached != nil {
		if p, ok := (*cached)[field]; ok {
			return p, nil
		}
	}
	p, err := t.resolve(field)
	if err != nil {
		return nil, err
	}
	t.pathsMu.Lock()
	defer t.pathsMu.Unlock()
	var next map[string]*path
	if cached := t.paths.Load(); cached != nil {
		if len(*cached) >= maxPaths {
			return p, nil
		}
		next = maps.Clone(*cached)
	} else {
		next = map[string]*path{}
	}
	// Cloned, because field may be part of a large string.
	next[strings.Clone(field)] = p
	t.paths.Store(&next)
	return p, nil
}

func (t *Type) resolve(field string) (*path, error) {
	p := &path{}
	n := t.root
	if field != "" {
		names, err := parsePath(strings.Clone(field))
		if err != nil {
			return nil, err
		}
		p.names = names
	}
	for i, name := range p.names {
		n, p.steps = pointees(n, p.steps)
		if n.kind == kDyn || n.kind == kObj {
			p.dyn = p.names[i:]
			break
		}
		var err error
		if n, err = p.walk(n, name); err != nil {
			return nil, &Error{Path: field, Reason: err.Error()}
		}
	}
	p.leaf = n
	p.target, p.inner = pointees(n, p.steps[:len(p.steps):len(p.steps)])
	return p, nil
}

// pointees adds steps through pointers, if n is one, and returns the type behind them.
func pointees(n *node, steps []step) (*node, []step) {
	for n.kind == kPtr && len(steps) < MaxDepth {
		n = n.elem
		steps = append(steps, step{kind: stepPtr, rt: n.rt})
	}
	return n, steps
}

// walk adds the steps from a value of type n to the field or entry name.
func (p *path) walk(n *node, name string) (*node, error) {
	switch n.kind {
	case kStruct:
		f, ok := n.fields[name]
		if !ok {
			return nil, fmt.Errorf("%s has no field %q", n.rt, name)
		}
		rt := n.rt
		for i, index := range f.index {
			if i > 0 && rt.Kind() == reflect.Pointer {
				rt = rt.Elem()
				p.steps = append(p.steps, step{kind: stepPtr, rt: rt})
			}
			rt = rt.Field(index).Type
			p.steps = append(p.steps, step{kind: stepField, index: index, rt: rt})
		}
		return f.node, nil
	case kMap:
		key, err := keyOf(n, name)
		if err != nil {
			return nil, err
		}
		p.steps = append(p.steps, step{kind: stepEntry, key: key, rt: n.elem.rt})
		return n.elem, nil
	case kSlice, kArray:
		return nil, fmt.Errorf("%s is a list; a path cannot lead into it", n.rt)
	}
	return nil, fmt.Errorf("%s has no fields", n.rt)
}

// keyOf returns name as a key of map type n.
func keyOf(n *node, name string) (reflect.Value, error) {
	if err := checkKey(name); err != nil {
		return reflect.Value{}, err
	}
	key := reflect.New(n.rt.Key()).Elem()
	switch {
	case key.Kind() == reflect.String:
		key.SetString(name)
	case key.CanInt():
		i, err := strconv.ParseInt(name, 10, 64)
		if err != nil || key.OverflowInt(i) {
			return key, refuse("%q is not a key of %s", name, n.rt)
		}
		key.SetInt(i)
	default:
		u, err := strconv.ParseUint(name, 10, 64)
		if err != nil || key.OverflowUint(u) {
			return key, refuse("%q is not a key of %s", name, n.rt)
		}
		key.SetUint(u)
	}
	return key, nil
}

// keyName returns the key of a map as JSON writes it.
func keyName(key reflect.Value) string {
	switch {
	case key.Kind() == reflect.String:
		return key.String()
	case key.CanInt():
		return strconv.FormatInt(key.Int(), 10)
	}
	return strconv.FormatUint(key.Uint(), 10)
}

// Check returns *Error if T has no such field. Every name is a field inside a dynamic part, and
// every key of a map is one.
func (t *Type) Check(field string) error {
	if field == "" {
		_, err := parsePath(field)
		return err
	}
	_, err := t.path(field)
	return err
}

// Lookup returns the value of a field of s. It returns false if T has no such field, or s has no
// value there. The value is part of the state and must not be changed.
func (t *Type) Lookup(s any, field string) (v any, ok bool) {
	p, err := t.path(field)
	if err != nil {
		return nil, false
	}
	at := t.valueOrZero(s)
	for _, st := range p.inner {
		switch st.kind {
		case stepField:
			at = at.Field(st.index)
		case stepPtr:
			at = at.Elem()
		case stepEntry:
			at = at.MapIndex(st.key)
		}
		if !at.IsValid() {
			return nil, false
		}
	}
	if p.target.kind != kDyn && p.target.kind != kObj {
		return at.Interface(), true
	}
	if len(p.dyn) == 0 {
		v = at.Interface()
		return v, v != nil
	}
	v = dynamicOf(p.target, at)
	for _, name := range p.dyn {
		obj, isObj := v.(map[string]any)
		if !isObj {
			return nil, false
		}
		if v, ok = obj[name]; !ok {
			return nil, false
		}
	}
	return v, true
}
