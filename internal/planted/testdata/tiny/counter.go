// Package tiny is a module to plant bugs in.
package tiny

import _ "embed"

//go:embed greeting.txt
var greeting string

// Sum adds.
func Sum(a, b int) int {
	return a + b
}

// Wait returns at once.
func Wait(done chan struct{}) {
	close(done)
	<-done
}

// Untested is nobody's business.
func Untested() int { return 41 + 1 }
