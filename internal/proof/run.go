package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// proof is a claim, and the tests that try to refute it.
type proof struct {
	name   string
	claim  string
	module string // the folder of the module; "": that of the library
	pkg    string
	tests  string // a pattern of go test -run
	short  string // environment of the short form: NAME=value, separated by spaces
	long   string // of the long form
	bug    string // a planted bug that the tests notice
}

// command returns the command that a reader can run, from the root of the repository. (GOWORK=off, which
// run sets for the module of the library, changes nothing for its tests.)
func (p proof) command(long bool) string {
	text := fmt.Sprintf("go test -count=1 -v -timeout 10h -run '%s' %s", p.tests, p.pkg)
	if env := p.environment(long); env != "" {
		text = env + " " + text
	}
	if p.module != "" {
		text = "cd " + p.module + " && " + text
	}
	return text
}

func (p proof) environment(long bool) string {
	if long {
		return p.long
	}
	return p.short
}

// result is what the tests of a proof printed.
type result struct {
	output  string
	figures []string // each with the subtest that reported it
}

// run runs the tests of p. It returns an error if one fails or is skipped, or none reports figures.
func (p proof) run(ctx context.Context, root string, long bool) (result, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-timeout=10h", "-run="+p.tests, p.pkg)
	cmd.Dir = filepath.Join(root, p.module)
	work := "GOWORK=off"
	if p.module != "" {
		work = "GOWORK=" // the go.work of the repository
	}
	cmd.Env = append(append(cleared(os.Environ()), work), strings.Fields(p.environment(long))...)
	cmd.WaitDelay = 10 * time.Second // a test may leave a child process that holds the pipes open
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	failure := cmd.Run()
	r, err := read(stdout.Bytes(), p.names())
	r.output += stderr.String()
	return r, errors.Join(failure, err)
}

// cleared returns an environment without the variables that make tests shorter, or leave some out.
func cleared(environment []string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return name == "GOFLAGS" || strings.HasPrefix(name, "PAWL_") && name != "PAWL_TEST_POSTGRES"
	})
}

// names returns the tests of p: beginnings of the names of tests, as p.tests lists them.
func (p proof) names() []string { return strings.Split(strings.Trim(p.tests, "^()$"), "|") }

// event is a line of go test -json. It has the fields that read uses.
type event struct {
	Action string
	Test   string
	Output string
}

// read returns the result of go test -json from its output. It returns an error if a test was skipped, or
// if one of these tests, given by the beginnings of their names, did not pass or reported no figures.
func read(output []byte, tests []string) (r result, err error) {
	const mark = ": figures: "
	var text strings.Builder
	passed, reported := make(map[string]bool), make(map[string]bool)
	for line := range bytes.Lines(output) {
		var e event
		if json.Unmarshal(line, &e) != nil {
			text.Write(line)
			continue
		}
		text.WriteString(e.Output)
		test, subtest, _ := strings.Cut(e.Test, "/")
		if _, figures, found := strings.Cut(e.Output, mark); found {
			if figures = strings.TrimSpace(figures); subtest != "" {
				figures = strings.ReplaceAll(subtest, "_", " ") + ": " + figures
			}
			r.figures = append(r.figures, figures)
			reported[test] = true
		}
		switch {
		case e.Action == "pass" && subtest == "":
			passed[test] = true
		case e.Action == "skip" && test != "":
			err = errors.Join(err, fmt.Errorf("%s was skipped", e.Test))
		}
	}
	for _, name := range tests {
		if !beginsOne(passed, name) || !beginsOne(reported, name) {
			err = errors.Join(err, fmt.Errorf("%s did not pass, or reported no figures", name))
		}
	}
	r.output = text.String()
	return r, err
}

// beginsOne reports whether one of the names begins with begin.
func beginsOne(names map[string]bool, begin string) bool {
	for name := range names {
		if strings.HasPrefix(name, begin) {
			return true
		}
	}
	return false
}
