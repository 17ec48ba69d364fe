package document

import (
	"fmt"

	"github.com/pawl-go/pawl/internal/state"
)

// View is a document decoded into a state type. It never changes.
type View struct {
	Type *state.Type
	// State is the state, a *T.
	State any
	// Encoded is the document of State. Nil means that it is not encoded yet.
	Encoded []byte

	source *source
}

// source is the document that a view was decoded from, before mutations. Views of later states share it.
type source struct {
	// raw is the document. Nil means that the state was never encoded.
	raw []byte
	// known is the part of raw that the type knows, a *T.
	known any
	// lossy says that raw may have fields that the type does not know.
	lossy bool
}

// noSource is the source of a state that replaces none.
var noSource source

// NewView returns a view of a state that was not decoded from a document.
func NewView(typ *state.Type, s any) *View {
	return &View{Type: typ, State: s, source: &source{known: s}}
}

// Decode returns the view of raw, a document of the current schema, for typ.
func Decode(typ *state.Type, raw []byte) (*View, error) {
	dst := typ.Zero()
	lossy, err := typ.Decode(raw, dst)
	if err != nil {
		return nil, err
	}
	return &View{Type: typ, State: dst, source: &source{raw: raw, known: dst, lossy: lossy}}, nil
}

// unchanged returns v with the document that it was decoded from as its encoding, unless it was
// mutated since. Encoding it again could run the type's own code in the turn of another mutation.
func (v View) unchanged() *View {
	if v.Encoded == nil && v.State == v.source.known {
		v.Encoded = v.source.raw
	}
	return &v
}

// replaced returns v with another state.
func (v View) replaced(typ *state.Type, s any) *View {
	v.Type, v.State, v.Encoded = typ, s, nil
	return &v
}

// committed returns v once raw, its document, is stored.
func (v *View) committed(raw []byte) *View {
	return &View{Type: v.Type, State: v.State, source: &source{raw: raw, known: v.State, lossy: v.source.lossy}}
}

// encode returns the document of v, with the fields that its type does not know.
func (v *View) encode() ([]byte, error) {
	if v.Encoded != nil {
		return v.Encoded, nil
	}
	raw, err := v.Type.Encode(v.State)
	if err == nil && v.source.lossy {
		var known []byte
		if known, err = v.Type.Encode(v.source.known); err == nil {
			raw, err = state.Merge(v.source.raw, known, raw)
		}
	}
	return raw, err
}

// SizeError is returned for a document above the limit, in bytes, that is larger than the one
// before.
type SizeError struct{ Limit, Size int }

func (e *SizeError) Error() string {
	return fmt.Sprintf("document: limit %d bytes, got %d", e.Limit, e.Size)
}
