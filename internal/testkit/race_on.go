//go:build race

package testkit

// Race is true if the race detector is on. It makes everything slower and larger.
const Race = true
