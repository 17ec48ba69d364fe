package main

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/internal/guarantees"
)

// The runner runs on its own module in testdata/tiny.
func TestRunner(t *testing.T) {
	sum := Bug{File: "counter.go", Old: "a + b", New: "a - b", Pkg: ".", Run: "TestSum"}
	with := func(change func(*Bug)) Bug {
		b := sum
		change(&b)
		return b
	}
	cases := []struct {
		name string
		bug  Bug
		by   string // the test that notices the bug
		err  string // or else part of the error
	}{
		{"noticed", sum, "TestSum/small", ""},
		{"not noticed", with(func(b *Bug) { b.Old = "41 + 1"; b.New = "41" }), "", "not noticed"},
		{"text not found", with(func(b *Bug) { b.Old = "a * b" }), "", "Old not found in counter.go"},
		{"text found twice", with(func(b *Bug) { b.Old = "done" }), "", "Old found 3 times in counter.go"},
		{"no such file", with(func(b *Bug) { b.File = "gone.go" }), "", "no such file"},
		{"type error", with(func(b *Bug) { b.New = `"a"` }), "", "does not compile"},
		{"syntax error", with(func(b *Bug) { b.New = "(" }), "", "does not compile"},
		{"import not found", with(func(b *Bug) { b.Old = `import _ "embed"`; b.New = `import _ "nosuch/pkg"` }), "", "does not compile"},
		{"hang", with(func(b *Bug) { b.Old = "close(done)"; b.New = ""; b.Run = "TestWait"; b.Flags = []string{"-timeout=1s"} }), "TestWait (timeout)", ""},
		{"embedded file", with(func(b *Bug) { b.File = "greeting.txt"; b.Old = "hello"; b.Run = "TestGreeting" }), "TestGreeting", ""},
		{"program built by a test", with(func(b *Bug) { b.File = "hello/main.go"; b.Old = `"hello"`; b.New = `"bye"`; b.Run = "TestBuilt" }), "TestBuilt", ""},
		{"another module", with(func(b *Bug) { b.Module = "beside"; b.Run = "TestDouble" }), "TestDouble", ""},
		{"no such module", with(func(b *Bug) { b.Module = "gone" }), "", "fail without the bug"},
		{"exit", with(func(b *Bug) { b.Old = "41 + 1"; b.New = "41"; b.Run = "TestExit" }), "TestExit", ""},
		{"no test", with(func(b *Bug) { b.Run = "TestNothing" }), "", "no test matches"},
		{"skipped tests only", with(func(b *Bug) { b.Run = "TestSkipped" }), "", "skipped"},
		{"red without the bug", with(func(b *Bug) { b.Run = "TestFailing" }), "", "fail without the bug"},
		{"no such package", with(func(b *Bug) { b.Pkg = "./gone" }), "", "fail without the bug"},
		{"no change", with(func(b *Bug) { b.New = b.Old }), "", "the same text"},
	}
	var bugs []Bug
	for _, c := range cases {
		c.bug.Name, c.bug.Mechanism = c.name, "a mechanism"
		bugs = append(bugs, c.bug)
	}
	root, err := filepath.Abs("testdata/tiny")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	table := newTable(&out, bugs)
	results := make(map[string]result)
	err = runner{root, 2}.run(t.Context(), bugs, func(r result) {
		results[r.bug.Name] = r
		table.add(r)
	})
	if err != nil {
		t.Fatal(err)
	}

	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, ok := results[c.name]
			switch {
			case !ok:
				t.Error("no result")
			case c.err == "" && r.err != nil:
				t.Errorf("not noticed: %v\n%s", r.err, r.text)
			case c.err != "" && (r.err == nil || !strings.Contains(r.err.Error(), c.err)):
				t.Errorf("error %v, noticed by %q; want an error with %q", r.err, r.by, c.err)
			case r.by != c.by:
				t.Errorf("noticed by %q, want %q", r.by, c.by)
			}
		})
	}
	if err := table.summarize(); err == nil || !strings.Contains(err.Error(), "13 of 19") {
		t.Errorf("the table ends with %v\n%s", err, &out)
	}
}

func TestChoose(t *testing.T) {
	all := []Bug{{Name: "order", File: "lock.go", Quick: true}, {Name: "deadlock", File: "lock.go"}, {Name: "retry", File: "cas.go"}}
	cases := []struct {
		only  string
		short bool
		want  string
	}{
		{"", false, "order deadlock retry"},
		{"", true, "order"},
		{"lock", false, "order deadlock"},
		{"^retry$", false, "retry"},
		{"cas", true, "!"},
		{"(", false, "!"},
	}
	for _, c := range cases {
		chosen, err := choose(all, c.only, c.short)
		var names []string
		for _, b := range chosen {
			names = append(names, b.Name)
		}
		if err != nil {
			names = []string{"!"}
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("choose(%q, %v) = %s, want %s", c.only, c.short, got, c.want)
		}
	}
}

// This checks the list without running it, so that a change of code that a bug is planted in fails
// at once.
func TestBugsAreCurrent(t *testing.T) {
	const root = "../.."
	rows, err := guarantees.ReadTable(filepath.Join(root, "docs", "guarantees.md"))
	if err != nil {
		t.Error(err)
	}
	known := make(map[string]bool)
	for _, r := range rows {
		known[r.ID] = true
	}
	seen := make(map[string]bool)
	for _, b := range bugs() {
		if seen[b.Name] {
			t.Errorf("%s: two bugs have this name", b.Name)
		}
		seen[b.Name] = true
		if err := b.check(); err != nil {
			t.Errorf("%s: %v", b.Name, err)
		} else if _, err := b.broken(root); err != nil {
			t.Errorf("%s: %v", b.Name, err)
		}
		isFree := slices.ContainsFunc(unguaranteed, func(place string) bool { return strings.HasPrefix(b.File, place) })
		if len(b.Proves) == 0 && !isFree {
			t.Errorf("%s: field Proves is empty", b.Name)
		}
		for _, id := range b.Proves {
			if !known[id] {
				t.Errorf("%s: %s is not in docs/guarantees.md", b.Name, id)
			}
		}
	}
}

// Only what a bug's tests need is compiled for it.
func TestPrune(t *testing.T) {
	pruned, err := prune("../..", "^TestHold$/^memory$")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		"lease_hold_test.go":  {"func TestHold("},
		"main_test.go":        {"func TestMain("},
		"stores_test.go":      {"func "},
		"queue_order_test.go": nil,
		"watch_many_test.go":  nil,
	} {
		text := pruned[filepath.Join("../..", path)]
		if len(want) == 0 && text != "" {
			t.Errorf("%s is compiled:\n%s", path, text)
		}
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s lacks %q:\n%s", path, part, text)
			}
		}
		if strings.Count(text, "func Test") > 1 {
			t.Errorf("%s has other tests:\n%s", path, text)
		}
	}
}
