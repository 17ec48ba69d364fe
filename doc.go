// Package pawl keeps scoped, versioned state that only moves forward, whoever writes at the same
// time and whatever crashes.
package pawl
