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

// kind selects how a value is copied, compared and written. It is coarser than reflect.Kind for
// numbers, and finer for types with a JSON form of their own.
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
	kBytes // written as a JSON string
	kRaw   // json.RawMessage
	kDyn   // any
	kObj   // map[string]any or a named type of it
	kStruct
	kMap
	kSlice
	kArray
	kPtr
	kCustom // user code writes the JSON; copied by a round trip
)

// node is a compiled type. Nodes of recursive types form cycles.
type node struct {
	rt   reflect.Type
	kind kind
	zero reflect.Value // addressable, never written to
	elem *node         // the element type of a map, slice, array or pointer

	parts  []part            // the carried fields of a struct, in the order of its Go fields
	fields map[string]*field // the carried fields of a struct, by JSON name

	whole   bool // JSON carries every field stored in the value itself
	flat    bool // an assignment is a deep copy
	dynamic bool // there is an any somewhere below
	lists   bool // there is a slice somewhere below
	custom  bool // there is user code somewhere below
}

// field is one JSON name of a struct, possibly promoted from an embedded struct.
type field struct {
	index []int // as in reflect.Value.FieldByIndex
	node  *node
}

// part is one Go field of a struct. It is either a JSON field, or an embedded struct whose promoted
// fields are parts of their own.
type part struct {
	index     int
	name      string // JSON field
	node      *node  // JSON field; nil for an embedded struct
	omitEmpty bool   // JSON field

	sub     []part       // embedded struct
	pointee reflect.Type // embedded struct behind a pointer: its type; otherwise nil
}

var (
	anyType    = reflect.TypeFor[any]()
	objectType = reflect.TypeFor[map[string]any]()

	interfaces = []reflect.Type{
		reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler](),
		reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
	}
	isZeroer = reflect.TypeFor[interface{ IsZero() bool }]()

	// known has the standard types with a JSON form of their own that count as plain values: they
	// run no user code and are copied without a round trip.
	known = map[reflect.Type]kind{
		reflect.TypeFor[time.Time]():       kTime,
		reflect.TypeFor[json.Number]():     kNumber,
		reflect.TypeFor[json.RawMessage](): kRaw,
		reflect.TypeFor[netip.Addr]():      kValue,
		reflect.TypeFor[netip.AddrPort]():  kValue,
		reflect.TypeFor[netip.Prefix]():    kValue,
	}
)

// nodes caches compiled by reflect.Type. It has the state types, and the types of the values that
// callers put into dynamic parts.
var nodes sync.Map

// compiled is the result of one compilation.
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

// compiler makes the nodes of one type and of all types below it.
type compiler struct {
	made  map[reflect.Type]*node
	order []*node // made, in the order of creation
	errs  []error // one for each part that a state cannot hold
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
		c.refuse(path, "map key %s: keys with MarshalText or UnmarshalText are not supported", key)
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
			c.refuse(at, "embedded unexported %s cannot have a JSON name: make it a field, or remove the name", hidden)
			continue
		}
		f := &field{index: jf.index, node: c.compile(jf.rt, at)}
		n.fields[jf.name] = f
		if jf.omitZero && jf.rt != reflect.TypeFor[time.Time]() &&
			(jf.rt.Implements(isZeroer) || reflect.PointerTo(jf.rt).Implements(isZeroer)) {
			n.custom = true
		}
		place(&n.parts, n.rt, jf.index, part{name: jf.name, node: f.node, omitEmpty: jf.omitEmpty})
	}
}

// hiddenPointer returns the unexported type that index passes by pointer, or nil. encoding/json
// cannot allocate it.
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

// hiddenStruct returns the unexported type that is embedded at index under a JSON name, or nil.
// Reflection can neither set nor return it.
func hiddenStruct(t reflect.Type, index []int) reflect.Type {
	if sf := t.FieldByIndex(index); !sf.IsExported() {
		return sf.Type
	}
	return nil
}

// place adds leaf at index below parts, and the embedded structs that index passes.
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

// hasOwnForm reports whether user code defines the JSON form of t.
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
