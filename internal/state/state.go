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
	plan *plan         // of a struct; nil: it has none
	zero reflect.Value // *T, never written to

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
	made, _ := types.LoadOrStore(t, &Type{root: root, plan: planOf(root), zero: root.zero.Addr()})
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

// Clone fills *dst with a deep copy of *src that shares nothing mutable with
// it. It fails only if code of T's own (MarshalJSON and the like) does.
func (t *Type) Clone(src, dst any) error {
	to := reflect.ValueOf(dst).Elem()
	from, ok := t.value(src)
	if !ok {
		to.SetZero()
	} else if t.plan != nil {
		to.Set(from)
		return t.Deepen(src, dst)
	} else if err := clone(t.root, from, to); err != nil {
		return err
	}
	settleRoot(to)
	return nil
}

// Settle turns a draft that a user's function was free to change into a
// committed state: *dst becomes a deep copy of *draft that shares with *old
// every part that is equal. It reports whether anything differs from *old; if
// not, *dst equals *old and the caller may drop it.
//
// Values inside an any are brought into normal form (see [Normalize]). Settle
// returns *Error, and leaves *dst undefined, for what a state cannot hold:
// strings that are not valid UTF-8 or contain U+0000, NaN, infinities, and
// nesting beyond [MaxDepth], which a cyclic value reaches too.
func (t *Type) Settle(old, draft, dst any) (changed bool, err error) {
	to := reflect.ValueOf(dst).Elem()
	was := t.valueOrZero(old)
	now := t.valueOrZero(draft)
	if t.plan != nil {
		to.Set(now)
		return t.SettleCopy(old, draft, dst)
	}
	to.SetZero()
	same, err := settle(t.root, was, now, to, 0)
	if err != nil {
		return false, err
	}
	settleRoot(to)
	if !same && rootEmpty(was) && rootEmpty(to) {
		same = true
	}
	return !same, nil
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
