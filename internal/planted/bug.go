package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A Bug breaks one mechanism on purpose: it replaces a piece of a file by a broken version.
type Bug struct {
	// Name is short, unique and in kebab-case. It says what is broken, not how.
	Name string
	// Mechanism says in a few words what the library no longer does with the bug.
	Mechanism string
	// Proves lists the guarantees that depend on the mechanism, such as LOCK-7. It is empty for parts
	// that docs/guarantees.md says nothing about; see unguaranteed.
	Proves []string

	// File is the file to break, relative to the root of the repository, with slashes. It need not be a Go
	// file: an embedded migration can be broken too.
	File string
	// Old is the text to replace. It must occur in File exactly once, so that a change of the code
	// cannot turn the bug into no change.
	Old string
	// New is the broken version. It must compile.
	New string

	// Module is the folder of the module of the tests, relative to the root of the repository. Empty:
	// the library itself. The modules beside it find the library by go.work.
	Module string
	// Pkg is the package pattern, in the module, of the tests that claim to prove the mechanism.
	Pkg string
	// Run is the -run expression that selects these tests, and as few others as possible.
	Run string
	// Flags are further flags of go test, such as -race, -count=20 or -tags=x. They come last, so
	// -timeout=10s for a bug that makes a test hang overrides the default.
	Flags []string
	// Quick marks a bug that is noticed within a few seconds; -short runs only these.
	Quick bool
}

// suite identifies the tests of a bug. Bugs with the same suite share the run on the unbroken
// source.
type suite struct{ module, pkg, run, flags string }

func (b Bug) suite() suite { return suite{b.Module, b.Pkg, b.Run, strings.Join(b.Flags, " ")} }

// unguaranteed lists files and folders that docs/guarantees.md says nothing about: sessions for ADK,
// the test kit, the command line, and what is told to observers.
var unguaranteed = []string{"adk/", "pawltest/", "internal/relay/", "cmd/", "otel/", "examples/", "observe.go", "stats.go", "store_calls.go", "watch_record.go"}

// check returns an error if a field of b is empty or invalid.
func (b Bug) check() error {
	for what, text := range map[string]string{
		"Name": b.Name, "Mechanism": b.Mechanism, "File": b.File, "Old": b.Old, "Pkg": b.Pkg, "Run": b.Run,
	} {
		if text == "" {
			return fmt.Errorf("field %s is empty", what)
		}
	}
	if b.Old == b.New {
		return errors.New("fields Old and New are the same text")
	}
	if _, err := regexp.Compile(b.Run); err != nil {
		return fmt.Errorf("field Run: %w", err)
	}
	return nil
}

// broken returns the text of b's file under root with the bug in it.
func (b Bug) broken(root string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(b.File)))
	if err != nil {
		return "", err
	}
	switch n := strings.Count(string(data), b.Old); n {
	case 1:
		return strings.Replace(string(data), b.Old, b.New, 1), nil
	case 0:
		return "", fmt.Errorf("field Old not found in %s", b.File)
	default:
		return "", fmt.Errorf("field Old found %d times in %s", n, b.File)
	}
}
