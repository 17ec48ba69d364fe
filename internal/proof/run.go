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
	bug    string // a planted bug that the tests notice; "": none yet
}

// command returns the command that a reader can run, from the root of the repository.
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
	cmd.Env = append(append(os.Environ(), work), strings.Fields(p.environment(long))...)
	cmd.WaitDelay = 10 * time.Second // a test may leave a child process that holds the pipes open
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	failure := cmd.Run()
	r, err := read(stdout.Bytes())
	r.output += stderr.String()
	return r, errors.Join(failure, err)
}

// event is a line of go test -json. It has the fields that read uses.
type event struct {
	Action string
	Test   string
	Output string
}

// read returns the result of go test -json from its output. It returns an error if a test was skipped,
// or no test reported figures.
func read(output []byte) (r result, err error) {
	const mark = ": figures: "
	var text strings.Builder
	for line := range bytes.Lines(output) {
		var e event
		if json.Unmarshal(line, &e) != nil {
			text.Write(line)
			continue
		}
		text.WriteString(e.Output)
		if _, figures, found := strings.Cut(e.Output, mark); found {
			_, subtest, _ := strings.Cut(e.Test, "/")
			if figures = strings.TrimSpace(figures); subtest != "" {
				figures = strings.ReplaceAll(subtest, "_", " ") + ": " + figures
			}
			r.figures = append(r.figures, figures)
		}
		if e.Action == "skip" && e.Test != "" {
			err = errors.Join(err, fmt.Errorf("%s was skipped", e.Test))
		}
	}
	if len(r.figures) == 0 {
		err = errors.Join(err, errors.New("no test reported figures"))
	}
	r.output = text.String()
	return r, err
}
