// Package beside is a module that finds the one above by go.work.
package beside

import (
	"testing"

	"tiny"
)

func TestDouble(t *testing.T) {
	if tiny.Sum(2, 2) != 4 {
		t.Error("2 + 2 is not 4")
	}
}
