package state

import "reflect"

type node struct {
	rt     reflect.Type
	zero   reflect.Value
	custom bool
}
type path struct{}

func nodeOf(t reflect.Type) (*node, error)                                   { panic("todo") }
func clone(n *node, src, dst reflect.Value) error                            { panic("todo") }
func settle(n *node, old, draft, dst reflect.Value, depth int) (bool, error) { panic("todo") }
func equal(n *node, a, b reflect.Value) bool                                 { panic("todo") }

// Foreign reports whether preparing ops could run code of the user's.
func (t *Type) Foreign(ops []Op) bool { panic("todo") }

// Prepared is a list of data verbs, checked against T and cut off from the
// caller's memory. It can be applied any number of times.
type Prepared struct{}

// Prepare resolves, converts, copies and validates ops, so that applying them
// is cheap and sees no later change by the caller. It returns *Error.
func (t *Type) Prepare(ops []Op) (Prepared, error) { panic("todo") }

// Apply fills *dst (a zero T of the caller's) with *cur changed by all ops, or
// returns *Error. cur is never modified, nil is absent. If nothing changed, or
// on an error, *dst is undefined and must be dropped. tail may be nil.
func (p *Prepared) Apply(cur, dst any, tail *Tail) (changed bool, err error) { panic("todo") }

// Tail lets lists of one linear history grow in place. Its zero value is ready.
type Tail struct{}

// Check returns *Error if T cannot have such a field.
func (t *Type) Check(field string) error { panic("todo") }

// Lookup returns the value of a field of s, and whether it is there.
func (t *Type) Lookup(s any, field string) (v any, ok bool) { panic("todo") }

// Encode returns the JSON of s, without HTML escaping.
func (t *Type) Encode(s any) ([]byte, error) { panic("todo") }

// Decode fills *dst from doc; lossy reports that doc may hold fields that T
// does not know, so that writing it back needs [Merge].
func (t *Type) Decode(doc []byte, dst any) (lossy bool, err error) { panic("todo") }

// Merge returns newKnown plus the fields of stored that are unknown to T.
func Merge(stored, oldKnown, newKnown []byte) ([]byte, error) { panic("todo") }

// DecodeDoc decodes a document into normal form.
func DecodeDoc(doc []byte) (any, error) { panic("todo") }

// Normalize returns v in normal form.
func Normalize(v any) (any, error) { panic("todo") }

// ParsePath splits a path into names.
func ParsePath(field string) ([]string, error) { panic("todo") }

// Escape returns name as a path of one name.
func Escape(name string) string { panic("todo") }
