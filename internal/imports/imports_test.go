// Package imports tests that imports go one way:
//
//	persist <- adapters
//	persist <- engine packages <- pawl <- {flow, flow/job, stream, idempotency, sse}
//	        <- {flow/machine, flow/run, flow/batch} <- {inspect, erase} <- {cmd, examples, otel, adk}
//
// An engine package imports only those before it in the list engine. internal/worker and
// internal/protect are below pawl and import no package of the module. Packages for tests are
// imported by tests only. pawltest, the one for users, imports pawl, persist/memory and
// internal/relay.
package imports

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/pawl-go/pawl"

// A room is a group of packages with the same rule. The rooms from engine to program are in the
// order of imports: a package may import lower rooms.
type room int

const (
	unknown    room = iota // a package without a rule; the test fails
	contract               // persist: imports nothing of the module
	adapter                // persist/sqlite and others, and persist/adapter: import persist
	leaf                   // imports nothing of the module
	engine                 // imports persist and the engine packages before it
	root                   // pawl
	capability             // flow, flow/job, stream, idempotency, sse
	composed               // flow/machine, flow/run, flow/batch
	inspection             // inspect, erase
	program                // cmd, examples, otel, adk, persist/open: import all of the above and adapters
	testKit                // imported by tests and by other test kits only
	tool                   // imported by no package
)

// engineOrder lists the engine packages; each may import those before it.
var engineOrder = []string{"state", "drain", "document", "commit", "queue", "waitgraph", "registry", "notify", "hints"}

// rooms holds the room of each package, except engine packages and those below persist.
var rooms = map[string]room{
	"":                    root,
	"persist":             contract,
	"flow":                capability,
	"flow/job":            capability,
	"stream":              capability,
	"idempotency":         capability,
	"sse":                 capability,
	"flow/machine":        composed,
	"flow/run":            composed,
	"flow/batch":          composed,
	"inspect":             inspection,
	"erase":               inspection,
	"persist/open":        program,
	"cmd":                 program,
	"examples":            program,
	"otel":                program,
	"adk":                 program,
	"internal/worker":     leaf,
	"internal/protect":    leaf,
	"internal/testkit":    testKit,
	"internal/pgtest":     testKit,
	"internal/pgproxy":    testKit,
	"internal/need":       testKit,
	"internal/relay":      testKit,
	"internal/cycles":     testKit,
	"internal/disk":       testKit,
	"internal/schedule":   testKit,
	"internal/soak":       testKit,
	"pawltest":            testKit,
	"persist/persisttest": testKit,
	"internal/guarantees": tool,
	"internal/imports":    tool,
	"internal/planted":    tool,
	"internal/proof":      tool,
	"internal/source":     tool,
}

// trees lists the folders whose packages all have the room of the folder.
var trees = []string{"cmd", "examples", "otel", "adk", "internal/testkit"}

// roomOf returns the room of a package, given by its path below the module.
func roomOf(path string) room {
	if r, ok := rooms[path]; ok {
		return r
	}
	if strings.HasPrefix(path, "persist/") {
		return adapter
	}
	if engineIndex(path) >= 0 {
		return engine
	}
	for _, tree := range trees {
		if strings.HasPrefix(path, tree+"/") {
			return rooms[tree]
		}
	}
	return unknown
}

// engineIndex returns the position of an engine package in engineOrder, or -1 for other packages.
func engineIndex(path string) int {
	name, ok := strings.CutPrefix(path, "internal/")
	if !ok {
		return -1
	}
	return slices.Index(engineOrder, name)
}

// kitIndex orders the test kits: testkit and disk serve the adapters, and stores opens them.
func kitIndex(path string) int {
	return slices.Index([]string{"internal/testkit", "internal/disk", "persist/persisttest", "internal/testkit/stores"}, path)
}

// allowed reports whether a package may depend on another of the module, directly or not.
func allowed(from, to string) bool {
	if from == to {
		return true
	}
	lower, upper := roomOf(to), roomOf(from)
	if lower == unknown || upper == unknown || lower == tool || lower == testKit && upper != testKit {
		return false
	}
	switch upper {
	case contract, leaf, tool:
		return false
	case adapter:
		return lower == contract || isAdapterPart(from, to)
	case engine:
		return lower == contract || lower == engine && engineIndex(to) < engineIndex(from)
	case testKit:
		if from == "pawltest" {
			return allowedForUsers(to)
		}
		return lower == contract || lower == testKit && kitIndex(to) <= kitIndex(from) || lower == adapter && from == "internal/testkit/stores"
	case program:
		return true
	default:
		return lower < upper && lower != adapter
	}
}

// allowedForUsers reports whether pawltest may depend on a package. It runs in the tests of users,
// so it brings nothing that only the tests of the module need.
func allowedForUsers(to string) bool {
	switch roomOf(to) {
	case contract, leaf, engine, root:
		return true
	}
	return to == "internal/relay" || to == "persist/memory" || strings.HasPrefix(to, "persist/adapter/")
}

// isAdapterPart reports whether an adapter may depend on a package below persist: on the packages
// that adapters share, on a package below itself, and on the package above itself.
func isAdapterPart(from, to string) bool {
	const shared = "persist/adapter/"
	return strings.HasPrefix(to, shared) && !strings.HasPrefix(from, shared) ||
		strings.HasPrefix(to, from+"/") || roomOf(to) == adapter && strings.HasPrefix(from, to+"/")
}

// dependencies returns the import paths of all packages that each package of the module depends on,
// by its path below the module. The imports of tests are left out.
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

// standard reports whether path belongs to the standard library: its first element has no dot.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func TestImportsGoOneWay(t *testing.T) {
	deps := dependencies(t)
	if _, ok := deps["persist"]; !ok {
		t.Fatal("go list does not know persist")
	}
	for pkg, all := range deps {
		if roomOf(pkg) == unknown {
			t.Errorf("%q has no room: add it to the rooms of this test", pkg)
			continue
		}
		for _, dep := range all {
			if ours(dep) && !allowed(pkg, local(dep)) {
				t.Errorf("%q must not depend on %q", pkg, local(dep))
			}
		}
	}
}

func TestStandardLibraryOnly(t *testing.T) {
	deps := dependencies(t)
	for _, pkg := range []string{"persist", "internal/worker", "internal/protect"} {
		for _, dep := range deps[pkg] {
			if !standard(dep) {
				t.Errorf("%s depends on %s", pkg, dep)
			}
		}
	}
}

// The test kit for users brings no module of others.
func TestKitForUsersHasNoOtherModules(t *testing.T) {
	deps := dependencies(t)["pawltest"]
	if len(deps) == 0 {
		t.Fatal("go list does not know pawltest")
	}
	for _, dep := range deps {
		if !standard(dep) && !ours(dep) {
			t.Errorf("pawltest depends on %s", dep)
		}
	}
}

// A program that embeds the library does not get a web server or test flags with it.
func TestRootHasFewDependencies(t *testing.T) {
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
		{"flow/run", "flow/job", true},
		{"flow/machine", "flow/job", true},
		{"flow/job", "flow/run", false},
		{"flow/job", "flow", false},
		{"flow/job", "internal/protect", true},
		{"internal/protect", "persist", false},
		{"flow/run", "flow/batch", false},
		{"flow", "flow/run", false},
		{"flow", "persist/memory", false},
		{"idempotency", "", true},
		{"examples/chat", "persist/sqlite", true},
		{"cmd/pawl", "persist/sqlite", true},
		{"cmd/pawl", "persist/open", true},
		{"persist/open", "persist/sqlite", true},
		{"persist/sqlite", "persist/open", false},
		{"", "persist/open", false},
		{"persist/memory", "persist/adapter/cursor", true},
		{"persist/adapter/cursor", "persist", true},
		{"persist/adapter/cursor", "persist/adapter/hints", false},
		{"persist/adapter/cursor", "persist/memory", false},
		{"persist", "persist/adapter/cursor", false},
		{"persist/sqlite/migrations", "persist/sqlite", true},
		{"persist/sqlite", "internal/state", false},
		{"persist/sqlite", "internal/worker", false},
		{"sse", "", true},
		{"sse", "idempotency", false},
		{"pawltest", "", true},
		{"pawltest", "internal/relay", true},
		{"pawltest", "persist/memory", true},
		{"pawltest", "persist/sqlite", false},
		{"pawltest", "internal/testkit", false},
		{"pawltest", "internal/pgtest", false},
		{"pawltest", "flow", false},
		{"flow", "pawltest", false},
		{"examples/chat", "pawltest", false},
		{"internal/testkit/stores", "internal/relay", true},
		{"internal/relay", "persist", true},
		{"internal/relay", "", false},
		{"", "internal/relay", false},
		{"flow/machine", "internal/worker", true},
		{"inspect", "flow/machine", true},
		{"flow/machine", "inspect", false},
		{"inspect", "persist/sqlite", false},
		{"cmd/pawl", "inspect", true},
		{"inspect", "cmd/pawl", false},
		{"", "internal/state", true},
		{"", "internal/hints", true},
		{"", "internal/worker", true},
		{"internal/worker", "internal/state", false},
		{"internal/worker", "persist", false},
		{"internal/state", "internal/worker", false},
		{"internal/state", "persist", true},
		{"internal/state", "", false},
		{"internal/commit", "internal/document", true},
		{"internal/document", "internal/commit", false},
		{"internal/hints", "internal/queue", true},
		{"internal/queue", "internal/registry", false},
		{"internal/commit", "persist/memory", false},
		{"internal/queue", "internal/testkit", false},
		{"internal/testkit/stores", "persist/sqlite", true},
		{"internal/testkit", "internal/pgtest", true},
		{"internal/disk", "internal/testkit", true},
		{"internal/testkit", "internal/disk", false},
		{"internal/disk", "persist/sqlite", false},
		{"persist/sqlite", "internal/disk", false},
		{"internal/pgtest", "internal/need", true},
		{"", "internal/need", false},
		{"examples/chat", "internal/pgtest", false},
		{"internal/planted", "internal/guarantees", false},
		{"examples/chat", "internal/planted", false},
		{"internal/other", "persist", false},
		{"", "internal/other", false},
		{"other", "", false},
	} {
		if got := allowed(c.from, c.to); got != c.want {
			t.Errorf("allowed(%q, %q) = %v", c.from, c.to, got)
		}
	}
}
