// Package state holds everything that must know a state type by reflection.
//
// A [Type] is compiled once per Go type. It copies, compares, validates,
// encodes and changes values of that type. States travel as an any that holds
// a *T, because a pointer in an interface costs no allocation; a nil any is an
// absent state and stands for the zero T.
//
// Three rules hold everywhere:
//
//   - A committed state is immutable and shared by all its readers. Every
//     operation fills a new T and shares with the old one whatever it did not
//     touch.
//   - The state is what JSON sees. Field names are those of encoding/json, and
//     fields that JSON does not carry are zeroed when a value enters the state.
//   - Two values are equal when their JSON is. A nil list and an empty one
//     differ (null and []), except in a field with omitempty, which writes
//     neither. At the top a nil map is an empty one.
package state
