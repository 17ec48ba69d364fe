package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// A verdict is the result of a run of go test.
type verdict int

const (
	failed  verdict = iota // no test ran: the package does not compile or does not exist
	green                  // at least one test passed, and none failed
	empty                  // no test failed, and none passed
	red                    // a test failed
	timeout                // a test ran until the timeout of go test
)

// An outcome is a verdict with its evidence.
type outcome struct {
	verdict verdict
	test    string // the first test that failed, or the one that was running; "": unknown
	text    string // the output of the compiler or the tests
	passed  []string
}

// event is a line of go test -json. It has the fields that read uses.
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	FailedBuild string
}

// read returns the outcome of go test -json from its output and whether it succeeded.
func read(stdout, stderr []byte, succeeded bool) outcome {
	var (
		o       outcome
		text    strings.Builder
		running []string // tests that are neither paused nor ended, in the order of their start
		skipped int
		broken  bool // a package did not compile
		ended   bool // a package ran its tests and failed
		hung    bool // a test ran into the timeout
	)
	for line := range bytes.Lines(stdout) {
		var e event
		if json.Unmarshal(line, &e) != nil {
			text.Write(line)
			continue
		}
		text.WriteString(e.Output)
		if e.FailedBuild != "" || e.Action == "build-fail" {
			broken = true
		}
		// A test of this program prints such lines too, but indented.
		if strings.HasPrefix(e.Output, "panic: test timed out after") || strings.HasPrefix(e.Output, "*** Test killed") {
			hung = true
		}
		name := e.Test
		if name == "" {
			ended = ended || e.Action == "fail"
			continue
		}
		switch e.Action {
		case "run", "cont":
			running = append(running, name)
		case "pause", "pass", "fail", "skip":
			running = slices.DeleteFunc(running, func(s string) bool { return s == name })
		}
		switch e.Action {
		case "pass":
			o.passed = append(o.passed, name)
		case "skip":
			skipped++
		case "fail":
			if o.test == "" {
				o.test = name
			}
		}
	}
	text.Write(stderr)
	o.text = text.String()

	// A test binary that exits or is killed ends no test: name the one that was running.
	if o.test == "" && len(running) > 0 {
		o.test = running[len(running)-1]
	}
	switch {
	case broken || (!succeeded && !ended):
		o.verdict = failed
	case hung:
		o.verdict = timeout
	case !succeeded:
		o.verdict = red
	case len(o.passed) > 0:
		o.verdict = green
	default:
		o.verdict = empty
		o.text = "no test matches"
		if skipped > 0 {
			o.text = fmt.Sprintf("all tests were skipped (%d)", skipped)
		}
	}
	return o
}
