package state

import (
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
)

// MaxDepth is how deeply lists and objects may nest in a state.
const MaxDepth = 100

// Type is a compiled state type. It is safe for concurrent use.
type Type struct {
	root *node

	// paths caches resolved field paths. It is replaced, never changed, so
	// that reading it takes no lock; pathsMu orders the replacements.
	pathsMu sync.Mutex
	paths   atomic.Pointer[map[string]*path]
}

// types caches *Type by reflect.Type.
var types sync.Map

// Of compiles t, or names every part of it that a state cannot hold.
func Of(t reflect.Type) (*Type, error) {
	if found, ok := types.Load(t); ok {
		return found.(*Type), nil
	}
	if t.Kind() == reflect.Interface {
		return nil, refuse("a state must have a type, not %s", t)
	}
	root, err := nodeOf(t)
	if err != nil {
		return nil, err
	}
	made, _ := types.LoadOrStore(t, &Type{root: root})
	return made.(*Type), nil
}

// Custom reports whether code of the user's can run while a T is copied,
// compared or encoded: a MarshalJSON, UnmarshalJSON, MarshalText or
// UnmarshalText of its own somewhere in T, or an IsZero behind omitzero. What
// an any inside T holds does not count, because it enters in normal form.
func (t *Type) Custom() bool { return t.root.custom }

// Zero returns a new *T. If T is a map it is empty rather than nil, so that a
// user's function can write into it.
func (t *Type) Zero() any {
	v := reflect.New(t.root.rt)
	settleRoot(v.Elem())
	return v.Interface()
}

// Assign makes *dst = *src, or zero if src is nil. It serves callers that do not know T; the result
// shares the memory of *src.
func (t *Type) Assign(dst, src any) {
	reflect.ValueOf(dst).Elem().Set(t.valueOrZero(src))
}

// Detach gives *v, a plain assignment of a committed state, memory of its own. It fails only if user
// code in T (such as MarshalJSON) fails.
func (t *Type) Detach(v any) error {
	if t.root.flat {
		return nil
	}
	return detach(t.root, reflect.ValueOf(v).Elem())
}

// Settle turns *v, a plain assignment of a draft, into a committed state. *v gets memory of its own,
// except that it shares with *old every part that is equal. Settle reports whether *v differs from
// *old; if it does not, the caller may drop *v.
//
// Values inside an any are brought into normal form (see [Normalize]). Settle returns *Error, and
// leaves *v undefined, for values that a state cannot hold: strings that are not valid UTF-8 or
// contain U+0000, NaN, infinities, and nesting beyond [MaxDepth], which includes cycles.
func (t *Type) Settle(old, v any) (changed bool, err error) {
	was, now := t.valueOrZero(old), reflect.ValueOf(v).Elem()
	if !t.root.whole {
		carried := reflect.New(t.root.rt).Elem()
		shallow(t.root, now, carried)
		now.Set(carried)
	}
	same, err := settle(t.root, was, now, 0)
	if err != nil {
		return false, err
	}
	settleRoot(now)
	return !same && !(rootEmpty(was) && rootEmpty(now)), nil
}

// Equal reports whether a and b have the same JSON.
func (t *Type) Equal(a, b any) bool {
	va, vb := t.valueOrZero(a), t.valueOrZero(b)
	return equal(t.root, va, vb) || rootEmpty(va) && rootEmpty(vb)
}

// value returns the T that s points to; ok is false if s is absent.
func (t *Type) value(s any) (v reflect.Value, ok bool) {
	if s == nil {
		return reflect.Value{}, false
	}
	p := reflect.ValueOf(s)
	if p.IsNil() {
		return reflect.Value{}, false
	}
	return p.Elem(), true
}

func (t *Type) valueOrZero(s any) reflect.Value {
	if v, ok := t.value(s); ok {
		return v
	}
	return t.root.zero
}

// settleRoot gives a nil map at the top its empty form: a state is never null
// just because nothing was written to it yet.
func settleRoot(v reflect.Value) {
	if v.Kind() == reflect.Map && v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
}

func rootEmpty(v reflect.Value) bool {
	return v.Kind() == reflect.Map && v.Len() == 0
}

// Error says which part of a state was refused, and why.
type Error struct {
	Verb   Verb   // the verb that was refused; zero outside data verbs
	Path   string // where, in the notation of [ParsePath]; list items as [3]; empty for the state itself
	Reason string
	Limit  bool  // nesting went beyond MaxDepth
	Err    error // what code of the user's returned, if that is the reason
}

func (e *Error) Error() string {
	s := e.Reason
	if e.Path != "" {
		s = strconv.Quote(e.Path) + ": " + s
	}
	if e.Verb != 0 {
		s = e.Verb.String() + " " + s
	}
	return "state: " + s
}

// Unwrap returns the user's own error, if there is one.
func (e *Error) Unwrap() error { return e.Err }

func refuse(format string, args ...any) *Error {
	return &Error{Reason: fmt.Sprintf(format, args...)}
}

func tooDeep() *Error {
	return &Error{Reason: fmt.Sprintf("nested deeper than %d levels, or cyclic", MaxDepth), Limit: true}
}

// failed reports an error that code of the user's, or encoding/json, returned.
func failed(err error) *Error {
	if e, ok := err.(*Error); ok {
		return e // its path is still growing
	}
	return &Error{Reason: err.Error(), Err: err}
}

// under places err below the field or key name.
func under(err error, name string) error {
	e := failed(err)
	e.Path = join(Escape(name), e.Path)
	return e
}

// underIndex places err below a list's item.
func underIndex(err error, i int) error {
	e := failed(err)
	e.Path = join("["+strconv.Itoa(i)+"]", e.Path)
	return e
}

func join(name, rest string) string {
	if name == "" || rest == "" || rest[0] == '[' {
		return name + rest
	}
	return name + "." + rest
}
