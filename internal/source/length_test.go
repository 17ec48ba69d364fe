package source

import (
	"bytes"
	"testing"
)

// maxLines is the largest number of lines in a file.
const maxLines = 600

// long lists the files that may be longer, with the reason.
var long = map[string]string{}

func TestNoFileIsTooLong(t *testing.T) {
	seen := make(map[string]bool)
	walk(t, func(name string, src []byte) {
		lines := bytes.Count(src, []byte("\n"))
		if lines <= maxLines {
			return
		}
		seen[name] = true
		if long[name] == "" {
			t.Errorf("%s has %d lines, limit %d: split it, or list it with a reason", name, lines, maxLines)
		}
	})
	for name := range long {
		if !seen[name] {
			t.Errorf("%s is listed as too long, but has at most %d lines", name, maxLines)
		}
	}
}
