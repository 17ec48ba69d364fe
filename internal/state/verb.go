package state

// Verb is a data verb: a change to a state that needs no function.
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

// Op is one data verb with its arguments.
type Op struct {
	Verb Verb

	// Field is a dotted path of JSON names. After a backslash, a dot or a backslash is literal. For
	// all verbs but Patch an empty Field is the state itself.
	Field string

	Key    string // of a record, taken literally, dots included
	Value  any    // for Patch, Set and SetRecord
	Values []any  // for Push
	By     int64  // for Inc

	// Joins says that this Patch and the op before it are one patch. The fields of one patch have
	// no order, so they must not overlap.
	Joins bool
}
