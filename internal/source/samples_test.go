package source

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A block of code in README.md or docs/ that follows a line such as
//
//	<!-- sample: example_test.go -->
//
// is a part of that file, so it compiles and a test runs it. Indentation may differ.
func TestSamplesAreInTheirFiles(t *testing.T) {
	found := 0
	files(t, isPage, func(name string, src []byte) {
		samples, err := samplesIn(string(src))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, s := range samples {
			found++
			file, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(s.file)))
			if err != nil {
				t.Errorf("%s:%d: %v", name, s.line, err)
			} else if !contains(trimmed(string(file)), s.code) {
				t.Errorf("%s:%d: the sample differs from %s", name, s.line, s.file)
			}
		}
	})
	if found == 0 {
		t.Error("no samples found")
	}
}

func isPage(name string, d fs.DirEntry) bool {
	if d.IsDir() {
		return name == "docs"
	}
	return name == "README.md" || path.Dir(name) == "docs" && path.Ext(name) == ".md"
}

// sample is a block of code in a page.
type sample struct {
	file string
	line int // of its mark
	code []string
}

// samplesIn returns the marked blocks of a page. It returns an error for a mark without a block.
func samplesIn(page string) ([]sample, error) {
	var found []sample
	lines := trimmed(page)
	for i, line := range lines {
		file, ok := strings.CutPrefix(line, "<!-- sample: ")
		if !ok {
			continue
		}
		file, ok = strings.CutSuffix(file, " -->")
		begin := i + 1
		for begin < len(lines) && lines[begin] == "" {
			begin++
		}
		if !ok || begin == len(lines) || lines[begin] != "```go" {
			return nil, fmt.Errorf("line %d: mark without a block of Go code", i+1)
		}
		length := slices.Index(lines[begin+1:], "```")
		if length <= 0 {
			return nil, fmt.Errorf("line %d: empty block, or block without an end", i+1)
		}
		found = append(found, sample{file, i + 1, lines[begin+1 : begin+1+length]})
	}
	return found, nil
}

// trimmed returns the lines of text without the space around them.
func trimmed(text string) []string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines
}

// contains reports whether part occurs in all, without a gap.
func contains(all, part []string) bool {
	for i := 0; i+len(part) <= len(all); i++ {
		if slices.Equal(all[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

func TestSamplesIn(t *testing.T) {
	const page = "text\n<!-- sample: a_test.go -->\n\n```go\nx := 1\n\n\ty()\n```\nmore\n"
	samples, err := samplesIn(page)
	if err != nil || len(samples) != 1 || samples[0].file != "a_test.go" || samples[0].line != 2 {
		t.Fatalf("got %+v, %v", samples, err)
	}
	code := samples[0].code
	for text, want := range map[string]bool{
		"func f() {\n\tx := 1\n\n\ty()\n}": true,
		"x := 1\ny()":                      false,
		"x := 1\n\n":                       false,
		"":                                 false,
	} {
		if contains(trimmed(text), code) != want {
			t.Errorf("%q: want %v", text, want)
		}
	}
	for _, bad := range []string{"<!-- sample: a.go -->\ntext", "<!-- sample: a.go -->", "<!-- sample: a.go -->\n```go\nx", "<!-- sample: a.go\n```go\nx\n```"} {
		if _, err := samplesIn(bad); err == nil {
			t.Errorf("%q: want an error", bad)
		}
	}
}
