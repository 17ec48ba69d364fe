package state

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"sync"
	"time"
)

// kind is how a value is copied, compared and written. It is coarser than
// reflect.Kind in numbers and finer where JSON has a form of its own.
type kind uint8

const (
	kBool kind = iota
	kInt
	kUint
	kFloat
	kString
	kNumber // json.Number
	kValue  // an immutable, comparable type of the standard library
	kTime
	kBytes // a JSON string
	kRaw   // json.RawMessage
	kDyn   // any
	kObj   // map[string]any, or a named type of it
	kStruct
	kMap
	kSlice
	kArray
	kPtr
	kCustom // has its own JSON form; copied by a round trip
)

// node is a compiled type. Nodes of recursive types form cycles.
type node struct {
	rt   reflect.Type
	kind kind
	zero reflect.Value // addressable, never written to
	elem *node         // of maps, slices, arrays and pointers

	parts  []part            // of structs: what to copy, in memory order
	fields map[string]*field // of structs: by JSON name

	whole   bool // JSON carries every field
	flat    bool // a shallow copy is a deep one
	dynamic bool // an any is somewhere below
	lists   bool // a slice is somewhere below
	custom  bool // code of the user's is somewhere below
}

// field is one name of a struct, possibly promoted through embedded structs.
type field struct {
	name  string
	index []int
	node  *node
}

// part is one Go field of a struct. It is either a JSON field (node is set) or
// an embedded struct whose promoted fields are in sub.
type part struct {
	index     int
	name      string
	node      *node
	omitEmpty bool
	pointee   reflect.Type // the struct type behind an embedded pointer
	sub       []part
}

var (
	anyType    = reflect.TypeFor[any]()
	objectType = reflect.TypeFor[map[string]any]()

	interfaces = []reflect.Type{
		reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler](),
		reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
	}
	isZeroer = reflect.TypeFor[interface{ IsZero() bool }]()

	// known are the types whose own JSON form is trusted not to run anybody's
	// code, and that need no round trip to be copied.
	known = map[reflect.Type]kind{
		reflect.TypeFor[time.Time]():       kTime,
		reflect.TypeFor[json.Number]():     kNumber,
		reflect.TypeFor[json.RawMessage](): kRaw,
		reflect.TypeFor[netip.Addr]():      kValue,
		reflect.TypeFor[netip.AddrPort]():  kValue,
		reflect.TypeFor[netip.Prefix]():    kValue,
	}
)

// nodes caches compiled by reflect.Type; types is its public face. It also
// holds the types of values that callers put into dynamic parts.
var nodes sync.Map

type compiled struct {
	node *node
	err  error
}

func nodeOf(t reflect.Type) (*node, error) {
	if found, ok := nodes.Load(t); ok {
		c := found.(compiled)
		return c.node, c.err
	}
	c := compiler{made: map[reflect.Type]*node{}}
	root := c.compile(t, "")
	out := compiled{node: root, err: errors.Join(c.errs...)}
	if out.err != nil {
		out.node = nil
	} else {
		c.propagate()
	}
	found, _ := nodes.LoadOrStore(t, out)
	out = found.(compiled)
	return out.node, out.err
}

type compiler struct {
	made  map[reflect.Type]*node
	order []*node
	errs  []error
}

func (c *compiler) refuse(path, format string, args ...any) {
	c.errs = append(c.errs, &Error{Path: path, Reason: fmt.Sprintf(format, args...)})
}

func (c *compiler) compile(t reflect.Type, path string) *node {
	if n, ok := c.made[t]; ok {
		return n
	}
	n := &node{rt: t, zero: reflect.New(t).Elem()}
	c.made[t] = n
	c.order = append(c.order, n)
	if k, ok := known[t]; ok {
		n.kind = k
		return n
	}
	if t.Kind() != reflect.Interface && t.Kind() != reflect.Pointer && hasOwnForm(t) {
		n.kind = kCustom
		return n
	}
	switch t.Kind() {
	case reflect.Bool:
		n.kind = kBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n.kind = kInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		n.kind = kUint
	case reflect.Float32, reflect.Float64:
		n.kind = kFloat
	case reflect.String:
		n.kind = kString
	case reflect.Interface:
		n.kind = kDyn
		if t.NumMethod() > 0 {
			c.refuse(path, "interface %s: only any can be decoded", t)
		}
	case reflect.Pointer:
		n.kind = kPtr
		n.elem = c.compile(t.Elem(), path)
	case reflect.Array:
		n.kind = kArray
		n.elem = c.compile(t.Elem(), path+"[]")
	case reflect.Slice:
		n.kind = kSlice
		if t.Elem().Kind() == reflect.Uint8 && !hasOwnForm(t.Elem()) {
			n.kind = kBytes
			return n
		}
		n.elem = c.compile(t.Elem(), path+"[]")
	case reflect.Map:
		c.compileMap(n, path)
	case reflect.Struct:
		c.compileStruct(n, path)
	default:
		c.refuse(path, "%s has no JSON form", t)
	}
	return n
}

func (c *compiler) compileMap(n *node, path string) {
	n.kind = kMap
	key := n.rt.Key()
	switch key.Kind() {
	case reflect.String,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
	default:
		c.refuse(path, "map key %s: keys must be strings or integers", key)
	}
	if hasOwnForm(key) {
		c.refuse(path, "map key %s: keys with a text form of their own are not supported", key)
	}
	if n.rt.ConvertibleTo(objectType) {
		n.kind = kObj
		return
	}
	n.elem = c.compile(n.rt.Elem(), join(path, "*"))
}

func (c *compiler) compileStruct(n *node, path string) {
	n.kind = kStruct
	n.fields = map[string]*field{}
	for _, jf := range jsonFields(n.rt) {
		at := join(path, Escape(jf.name))
		if hidden := hiddenPointer(n.rt, jf.index); hidden != nil {
			c.refuse(at, "embedded pointer to unexported %s cannot be decoded", hidden)
			continue
		}
		if hidden := hiddenStruct(n.rt, jf.index); hidden != nil {
			c.refuse(at, "embedded unexported %s cannot have a name of its own: make it a field, or let it have none", hidden)
			continue
		}
		f := &field{name: jf.name, index: jf.index, node: c.compile(jf.rt, at)}
		n.fields[jf.name] = f
		if jf.omitZero && jf.rt != reflect.TypeFor[time.Time]() &&
			(jf.rt.Implements(isZeroer) || reflect.PointerTo(jf.rt).Implements(isZeroer)) {
			n.custom = true
		}
		place(&n.parts, n.rt, jf.index, part{name: jf.name, node: f.node, omitEmpty: jf.omitEmpty})
	}
}

// hiddenPointer returns the unexported type that index passes by pointer:
// encoding/json cannot allocate it.
func hiddenPointer(t reflect.Type, index []int) reflect.Type {
	for _, i := range index[:len(index)-1] {
		sf := t.Field(i)
		t = sf.Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
			if !sf.IsExported() {
				return t
			}
		}
	}
	return nil
}

// hiddenStruct returns the unexported type that is embedded at index itself, as
// a field with a name: reflection could neither set nor return it.
func hiddenStruct(t reflect.Type, index []int) reflect.Type {
	if sf := t.FieldByIndex(index); !sf.IsExported() {
		return sf.Type
	}
	return nil
}

// place adds leaf at index below parts, with the embedded structs on the way.
func place(parts *[]part, t reflect.Type, index []int, leaf part) {
	leaf.index = index[0]
	if len(index) == 1 {
		*parts = append(*parts, leaf)
		return
	}
	last := len(*parts) - 1
	ft := t.Field(index[0]).Type
	var pointee reflect.Type
	if ft.Kind() == reflect.Pointer {
		ft = ft.Elem()
		pointee = ft
	}
	if last < 0 || (*parts)[last].index != index[0] {
		*parts = append(*parts, part{index: index[0], pointee: pointee})
		last++
	}
	place(&(*parts)[last].sub, ft, index[1:], leaf)
}

// hasOwnForm reports whether t brings code for its JSON form.
func hasOwnForm(t reflect.Type) bool {
	if _, ok := known[t]; ok {
		return false
	}
	for _, i := range interfaces {
		if t.Implements(i) || reflect.PointerTo(t).Implements(i) {
			return true
		}
	}
	return false
}

// propagate derives the flags. Types can be recursive, so it repeats until no flag changes.
func (c *compiler) propagate() {
	for _, n := range c.order {
		n.whole = n.kind != kStruct || wholeParts(n.parts, n.rt)
		switch n.kind {
		case kBool, kInt, kUint, kFloat, kString, kNumber, kValue, kTime, kArray, kStruct:
			n.flat = true
		case kBytes, kRaw, kSlice:
			n.lists = true
		case kDyn, kObj:
			n.dynamic = true
		case kCustom:
			n.custom = true
		}
	}
	for again := true; again; {
		again = false
		for _, n := range c.order {
			was := *n
			if n.elem != nil {
				n.take(n.elem, n.kind == kArray)
			}
			n.takeParts(n.parts)
			again = again || was.whole != n.whole || was.flat != n.flat || was.dynamic != n.dynamic || was.lists != n.lists || was.custom != n.custom
		}
	}
}

// wholeParts reports whether parts has every field of struct t and of the structs it embeds.
func wholeParts(parts []part, t reflect.Type) bool {
	if len(parts) != t.NumField() {
		return false
	}
	for _, p := range parts {
		if p.node == nil && p.pointee == nil && !wholeParts(p.sub, t.Field(p.index).Type) {
			return false
		}
	}
	return true
}

// take derives the flags of n from those of a part below it. inline says that the part is stored
// in n itself.
func (n *node) take(below *node, inline bool) {
	n.whole = n.whole && (below.whole || !inline)
	n.flat = n.flat && below.flat
	n.dynamic = n.dynamic || below.dynamic
	n.lists = n.lists || below.lists
	n.custom = n.custom || below.custom
}

func (n *node) takeParts(parts []part) {
	for _, p := range parts {
		if p.node != nil {
			n.take(p.node, true)
			continue
		}
		n.flat = n.flat && p.pointee == nil
		n.takeParts(p.sub)
	}
}
