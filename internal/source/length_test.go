package source

import (
	"bytes"
	"testing"
)

// tooLong is where a file has stopped being about one thing.
const tooLong = 600

// long lists the files that are allowed to be longer, with the reason.
var long = map[string]string{}

func TestNoFileIsTooLong(t *testing.T) {
	seen := make(map[string]bool)
	walk(t, func(name string, src []byte) {
		lines := bytes.Count(src, []byte("\n"))
		if lines <= tooLong {
			return
		}
		seen[name] = true
		if long[name] == "" {
			t.Errorf("%s has %d lines: split it, or list it with a reason", name, lines)
		}
	})
	for name := range long {
		if !seen[name] {
			t.Errorf("%s is listed as too long, and is not", name)
		}
	}
}
