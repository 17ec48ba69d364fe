package guarantees

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

var update = flag.Bool("update", false, "write the names of the citing tests into docs/guarantees.md")

// The table in docs/guarantees.md matches the citations in the tests of this module.
func TestGuaranteesAreTested(t *testing.T) {
	root := filepath.Join("..", "..")
	page := filepath.Join(root, "docs", "guarantees.md")
	tests, err := Scan(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		text, err := os.ReadFile(page)
		if err == nil {
			err = os.WriteFile(page, []byte(Update(string(text), tests)), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	rows, err := ReadTable(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range Compare(rows, tests) {
		t.Error(wrong)
	}
}

func TestParseTable(t *testing.T) {
	got := parseTable(strings.Join([]string{
		"# Guarantees",
		"LOCK-1 is explained here.",
		"| id | promise | tests |",
		"|---|---|---|",
		"| LOCK-1 | first come, first served | `TestOrder`, TestQueue/fifo |",
		"| `CAS-12` | a \\| b |  |",
		"| TX-1b | alone |",
	}, "\n"))
	want := []Row{
		{"LOCK-1", "first come, first served", []string{"TestOrder", "TestQueue/fifo"}},
		{"CAS-12", "a | b", nil},
		{"TX-1b", "alone", nil},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestUpdate(t *testing.T) {
	page := "# Page\n| id | promise | tests |\n| LOCK-1 | a \\| b | TestGone |\n| LOCK-2 | alone | |\n"
	tests := Tests{Functions: map[string][]string{"TestB": {"LOCK-1"}, "TestA": {"LOCK-1", "LOCK-1"}, "TestMute": nil}}
	want := "# Page\n| id | promise | tests |\n| LOCK-1 | a \\| b | TestA, TestB |\n| LOCK-2 | alone |  |\n"
	if got := Update(page, tests); got != want {
		t.Errorf("got %q", got)
	}
}

func TestCited(t *testing.T) {
	for text, want := range map[string]string{
		"Proves LOCK-7.": "LOCK-7",
		"Waits.\nProves LOCK-7, CAS-1\nand TX-2.": "LOCK-7 CAS-1 TX-2",
		"Proves A-1, and B-2. Proves C-3":         "A-1 B-2 C-3",
		"Proves that UTF-8 is kept":               "",
		"See LOCK-7.":                             "",
	} {
		if got := strings.Join(cited(text), " "); got != want {
			t.Errorf("%q cites %q, want %q", text, got, want)
		}
	}
}

const header = "package p\n\nimport \"testing\"\n\n"

func TestCompare(t *testing.T) {
	row := func(tests ...string) []Row { return []Row{{"LOCK-1", "in order", tests}} }
	citing := header + "// Proves LOCK-1.\nfunc TestOrder(t *testing.T) {}\n"
	cases := []struct {
		name string
		rows []Row
		file string
		src  string
		want string // part of the only complaint; "" if there is none
	}{
		{"doc comment", row("TestOrder"), "p_test.go", citing, ""},
		{"subtest", row("TestOrder/fifo"), "p_test.go",
			header + "func TestOrder(t *testing.T) {\n\tt.Run(\"fifo\", nil) // Proves LOCK-1.\n}\n", ""},
		{"example", row("ExampleOrder"), "p_test.go", "package p\n\n// Proves LOCK-1.\nfunc ExampleOrder() {}\n", ""},
		{"conformance suite", row("testOrder"), "suite.go", header + "// Proves LOCK-1.\nfunc testOrder(t *testing.T) {}\n", ""},
		{"not a test", row("Order"), "order.go", "package p\n\n// Proves LOCK-1.\nfunc Order() {}\n", "LOCK-1 names Order, which does not exist"},
		{"missing", row("TestOrder", "TestGone"), "p_test.go", citing, "LOCK-1 names TestGone, which does not exist"},
		{"does not cite", row("TestOrder", "TestMute"), "p_test.go", citing + "func TestMute(t *testing.T) {}\n", "LOCK-1 names TestMute, which does not cite it"},
		{"unknown id", row("TestOrder"), "p_test.go", citing + "// Proves LOCK-2.\nfunc TestTwo(t *testing.T) {}\n", "p_test.go:7 cites LOCK-2, which is not in the table"},
		{"outside a test", row("TestOrder"), "p_test.go", citing + "\n// Proves LOCK-1.\nvar x int\n", "p_test.go:8 cites LOCK-1 outside a test"},
		{"no test", row(), "p_test.go", citing, "LOCK-1 names no test"},
		{"no description", []Row{{"LOCK-1", "", []string{"TestOrder"}}}, "p_test.go", citing, "LOCK-1 has no words"},
		{"twice", append(row("TestOrder"), row("TestOrder")...), "p_test.go", citing, "LOCK-1 has two rows"},
		{"no table", nil, "p_test.go", header, "table has no row"},
		{"testdata", row("TestOrder"), "testdata/p_test.go", citing, "does not exist"},
		{"module inside", row("TestOrder"), "bench/p_test.go", citing, "does not exist"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tests, err := Scan(fstest.MapFS{c.file: {Data: []byte(c.src)}, "bench/go.mod": {}})
			if err != nil {
				t.Fatal(err)
			}
			wrong := Compare(c.rows, tests)
			switch {
			case c.want == "" && len(wrong) > 0:
				t.Errorf("unexpected complaints: %q", wrong)
			case c.want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], c.want)):
				t.Errorf("got complaints %q, want %q", wrong, c.want)
			}
		})
	}
}
