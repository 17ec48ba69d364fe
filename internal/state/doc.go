// Package state applies verbs to typed values. It holds all code that knows a state type by
// reflection: copying, comparing, validating, encoding, and changing a value by field name.
//
// A [Type] is compiled once per Go type. States travel as an any that holds a *T, because a pointer
// in an interface needs no allocation. A nil any is an absent state and stands for the zero T.
//
// The package does not know scopes, versions, queues or stores. It does not run a user's function
// either, but it can run user code: the MarshalJSON, UnmarshalJSON, MarshalText, UnmarshalText and
// IsZero methods of T and of the values that verbs are given.
//
// Four rules hold everywhere:
//
//   - A committed state is immutable and shared by all its readers. [Type.Detach], [Type.Settle]
//     and [Prepared.Apply] work on a value that their caller has assigned. They replace the memory
//     that must differ and share the rest.
//   - The state is what JSON carries. Field names are those of encoding/json. Other fields become
//     zero when a value enters the state.
//   - Two values are equal when their JSON is. A nil list and an empty one differ (null and []),
//     except in a field with omitempty, which writes neither. At the top a nil map is an empty one.
//   - A value inside an any has normal form: nil, bool, string, int64, uint64 (only above the range
//     of int64), float64 (never a whole number in the range of either), json.Number (only a number
//     that none of these holds as written), map[string]any or []any.
//
// # Races
//
//   - A reader and a writer of one scope: nothing that a reader can reach is ever written, so
//     readers need no lock. A [Tail] writes only beyond the length of every list that it returned.
//   - [Type.Settle] and a goroutine of the function that still writes to the draft: Settle reads a
//     value once and keeps the copy that it checked. The state is valid; it may hold either write.
//   - Two goroutines that compile one type: the first result that is stored wins. Two goroutines
//     that resolve one path: the results are equal, and one of them stays in the cache.
//   - Two changes that share a [Tail]: the caller orders them. The package takes no lock for it.
package state
