package state

import (
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
)

// MaxDepth is the number of lists and objects that may be nested in each other.
const MaxDepth = 100

// Type is a compiled state type. It is safe for concurrent use.
type Type struct {
	root *node

	// paths caches resolved paths by field. The map is replaced, never changed, so reading it takes
	// no lock. It is nil at first.
	paths   atomic.Pointer[map[string]*path]
	pathsMu sync.Mutex // protects the replacement of paths
}

// types caches *Type by reflect.Type.
var types sync.Map

// Of returns the compiled type t. If a state cannot hold parts of t, it returns an error that names
// all of them.
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

// Reflect returns the Go type that t was compiled from.
func (t *Type) Reflect() reflect.Type { return t.root.rt }

// Custom reports whether user code can run while a T is copied, compared or encoded: T has
// somewhere a MarshalJSON, UnmarshalJSON, MarshalText or UnmarshalText method, or an IsZero method
// behind omitzero. The contents of an any do not count, because they have normal form.
func (t *Type) Custom() bool { return t.root.custom }

// Zero returns a new *T. A map is empty, not nil, so that a user's function can write to it.
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

// Detach gives *v, a plain assignment of a committed state, memory of its own. It fails only if
// user code in T (such as MarshalJSON) fails.
func (t *Type) Detach(v any) error {
	if t.root.flat {
		return nil
	}
	return detach(t.root, reflect.ValueOf(v).Elem())
}

// Settle turns *v, a plain assignment of a draft, into a committed state. *v gets memory of its
// own, except that it shares with *old every part that is equal. Settle reports whether *v differs
// from *old; if it does not, the caller may drop *v.
//
// Values inside an any get normal form. Settle returns *Error, and leaves *v undefined, for values
// that a state cannot hold: strings that are not valid UTF-8 or contain U+0000, NaN, infinities,
// and nesting beyond [MaxDepth], which includes cycles.
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

// value returns the T that s points to. It returns false if s is absent.
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

// settleRoot makes a nil map at the top empty. An unwritten state is not null.
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
	Verb   Verb   // the refused verb; zero outside data verbs
	Path   string // the part, as in [Op]; list items as [3]; empty for the state itself
	Reason string
	Limit  bool  // the nesting is deeper than MaxDepth
	Err    error // the error of user code, if that is the reason
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

// Unwrap returns the error of user code, if that is the reason.
func (e *Error) Unwrap() error { return e.Err }

func refuse(format string, args ...any) *Error {
	return &Error{Reason: fmt.Sprintf(format, args...)}
}

func tooDeep() *Error {
	return &Error{Reason: fmt.Sprintf("nested deeper than %d levels, or cyclic", MaxDepth), Limit: true}
}

// failed returns err as an *Error. Other types of errors come from user code or encoding/json.
func failed(err error) *Error {
	if e, ok := err.(*Error); ok {
		return e
	}
	return &Error{Reason: err.Error(), Err: err}
}

// under puts the field or key name in front of the path of err.
func under(err error, name string) error {
	e := failed(err)
	e.Path = join(Escape(name), e.Path)
	return e
}

// underIndex puts the index of a list item in front of the path of err.
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
