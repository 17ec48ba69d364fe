package state

// Verb is one way to change a state without a function.
type Verb uint8

// The data verbs.
const (
	Patch        Verb = iota + 1 // Field becomes Value; a nil Value clears it
	Set                          // the whole state becomes Value, a T or a *T
	Push                         // Values are appended to the list in Field
	Inc                          // By is added to the number in Field
	SetRecord                    // the entry Key of the map in Field becomes Value
	DeleteRecord                 // the entry Key of the map in Field is removed
)

func (v Verb) String() string {
	switch v {
	case Patch:
		return "patch"
	case Set:
		return "set"
	case Push:
		return "push"
	case Inc:
		return "inc"
	case SetRecord:
		return "set record"
	case DeleteRecord:
		return "delete record"
	}
	return "verb"
}

// Op is one data verb with its arguments. Field is a path as [ParsePath] reads
// it; an empty Field is the state itself, for every verb but Patch. Key is
// taken literally, dots included.
type Op struct {
	Verb   Verb
	Field  string
	Key    string
	Value  any
	Values []any
	By     int64
	Joins  bool // belongs to the Patch of the op before: their order means nothing, so they must not overlap
}
