// Package imports asserts that imports run one way:
//
//	persist <- adapters
//	persist <- pawl <- {flow, stream, idempotency} <- flow/... <- {examples, cmd}
package imports

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/pawl-go/pawl"

// A room is a part of the module; what it holds may import lower rooms and itself.
type room int

const (
	contract   room = iota // persist
	adapter                // persist/sqlite and its like; no part of what the library imports
	root                   // pawl
	capability             // flow, stream, idempotency, and what is new
	composed               // flow/machine, flow/run, flow/batch
	program                // examples, cmd
	shared                 // internal: judged by what those who import it get to import
)

// roomOf returns the room of a package, named by its path below the module.
func roomOf(path string) room {
	top, _, nested := strings.Cut(path, "/")
	switch {
	case path == "":
		return root
	case path == "persist":
		return contract
	case slices.Contains(strings.Split(path, "/"), "internal"):
		return shared
	case top == "persist":
		return adapter
	case top == "examples", top == "cmd":
		return program
	case top == "flow" && nested:
		return composed
	default:
		return capability
	}
}

// allowed reports whether a package may depend on another of the module, directly or not.
func allowed(from, to string) bool {
	if from == to || roomOf(from) == shared || roomOf(to) == shared {
		return true
	}
	switch roomOf(from) {
	case contract:
		return false
	case adapter:
		return to == "persist" || within(from, to)
	case program:
		return true
	default:
		return roomOf(to) != adapter && roomOf(to) < roomOf(from) || within(from, to)
	}
}

// kitAllowed reports whether a package of the test kit may depend on another of the module. The kit
// serves the tests of the adapters and of the root package, and package stores serves the latter.
func kitAllowed(from, to string) bool {
	switch from {
	case "internal/testkit":
		return to == "persist" || roomOf(to) == shared && to != "internal/testkit/stores"
	case "internal/testkit/stores":
		return roomOf(to) == contract || roomOf(to) == adapter || roomOf(to) == shared
	}
	return true
}

// within reports whether one of two packages lies below the other, as sqlite/migrations does.
func within(a, b string) bool {
	return roomOf(a) == roomOf(b) && (strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/"))
}

// dependencies returns, for each package of the module, all that it depends on: packages of
// this module by their path below it, others by their import path.
func dependencies(t *testing.T) map[string][]string {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}}{{range .Deps}} {{.}}{{end}}`, "./...")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	deps := make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		names := strings.Fields(line)
		deps[local(names[0])] = names[1:]
	}
	return deps
}

// local returns the path of a package below the module; the module itself is "".
func local(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
}

func ours(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// standard reports whether path is of the standard library, whose first element has no dot.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func TestImportsRunOneWay(t *testing.T) {
	deps := dependencies(t)
	for _, pkg := range []string{"persist", "internal/testkit", "internal/testkit/stores"} {
		if _, ok := deps[pkg]; !ok {
			t.Fatalf("go list does not know %s", pkg)
		}
	}
	for pkg, all := range deps {
		for _, dep := range all {
			if ours(dep) && !(allowed(pkg, local(dep)) && kitAllowed(pkg, local(dep))) {
				t.Errorf("%s/%s must not depend on %s", module, pkg, dep)
			}
		}
	}
}

func TestPersistIsStandardLibraryOnly(t *testing.T) {
	for _, dep := range dependencies(t)["persist"] {
		if !standard(dep) {
			t.Errorf("persist depends on %s", dep)
		}
	}
}

// Whoever embeds the library gets neither a web server nor a flag named -test.v with it.
func TestRootIsLight(t *testing.T) {
	heavy := map[string]bool{"net/http": true, "testing": true, "database/sql": true}
	for _, dep := range dependencies(t)[""] {
		if heavy[dep] {
			t.Errorf("the root package depends on %s", dep)
		}
	}
}

func TestAllowed(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"", "persist", true},
		{"", "persist/sqlite", false},
		{"persist", "", false},
		{"persist", "persist/memory", false},
		{"persist/sqlite", "persist", true},
		{"persist/sqlite", "persist/fs", false},
		{"persist/sqlite", "", false},
		{"persist/sqlite", "flow", false},
		{"persist/sqlite", "persist/sqlite/migrations", true},
		{"persist/persisttest", "persist", true},
		{"persist/persisttest", "", false},
		{"flow", "", true},
		{"", "flow", false},
		{"stream", "flow", false},
		{"flow/run", "flow", true},
		{"flow/run", "stream", true},
		{"flow/run", "flow/batch", false},
		{"flow", "flow/run", false},
		{"flow", "persist/memory", false},
		{"idempotency", "", true},
		{"examples/chat", "persist/sqlite", true},
		{"cmd/pawl", "persist/sqlite", true},
		{"", "internal/state", true},
		{"persist/memory", "persist/internal/cursor", true},
	} {
		if got := allowed(c.from, c.to); got != c.want {
			t.Errorf("allowed(%q, %q) = %v", c.from, c.to, got)
		}
	}
}

func TestKitAllowed(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"internal/testkit", "", false},
		{"internal/testkit", "flow", false},
		{"internal/testkit", "persist", true},
		{"internal/testkit", "persist/fs", false},
		{"internal/testkit", "internal/need", true},
		{"internal/testkit", "internal/testkit/stores", false},
		{"internal/testkit/stores", "", false},
		{"internal/testkit/stores", "flow/machine", false},
		{"internal/testkit/stores", "persist/fs", true},
		{"internal/testkit/stores", "internal/pgtest", true},
		{"internal/testkit/stores", "internal/testkit", true},
		{"internal/pgtest", "", true},
	} {
		if got := kitAllowed(c.from, c.to); got != c.want {
			t.Errorf("kitAllowed(%q, %q) = %v", c.from, c.to, got)
		}
	}
}
