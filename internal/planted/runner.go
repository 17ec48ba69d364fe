package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// A runner plants bugs in the modules below root, without changing their files.
type runner struct {
	root    string
	workers int // bugs that run at a time
}

// A result is the result of one bug. The bug was noticed if err is nil.
type result struct {
	bug  Bug
	by   string // the test that failed
	err  error
	text string // the output of go test, if err is not nil
	took time.Duration
}

// run plants each bug and passes its result to report, one at a time, in the order in which they
// end. It first runs the tests without the bug: they must pass, and at least one must match. It
// returns an error if it cannot make a build cache.
func (r runner) run(ctx context.Context, bugs []Bug, report func(result)) error {
	baseline := r.baseline(ctx, bugs)
	var mu sync.Mutex                     // report is called under it
	caches := make(chan cache, r.workers) // each is used by one bug at a time
	for range r.workers {
		c, err := newCache(ctx)
		if err != nil {
			return err
		}
		defer os.RemoveAll(c.dir)
		caches <- c
	}
	each(r.workers, bugs, func(b Bug) {
		c := <-caches
		start := time.Now()
		res := r.plant(ctx, b, baseline[b.suite()], c)
		res.took = time.Since(start)
		res.err = errors.Join(res.err, c.clear())
		caches <- c
		mu.Lock()
		defer mu.Unlock()
		report(res)
	})
	return nil
}

// baseline returns the outcome of the tests of bugs on the unbroken source. Suites of one package
// with the same flags run together. If one of their tests fails, each suite runs by itself.
func (r runner) baseline(ctx context.Context, bugs []Bug) map[suite]outcome {
	outcomes := make(map[suite]outcome)
	groups := make(map[suite][]suite) // by what they have in common
	for _, b := range bugs {
		s := b.suite()
		if _, seen := outcomes[s]; seen {
			continue
		}
		outcomes[s] = outcome{}
		_, subtests, _ := strings.Cut(s.run, "/")
		common := suite{s.module, s.pkg, subtests, s.flags}
		groups[common] = append(groups[common], s)
	}
	var mu sync.Mutex // protects outcomes
	each(r.workers, slices.Collect(maps.Keys(groups)), func(common suite) {
		together := r.test(ctx, union(common, groups[common]))
		for _, s := range groups[common] {
			o := together
			if together.verdict != green || !s.matchesAny(together.passed) {
				o = r.test(ctx, s)
			}
			mu.Lock()
			outcomes[s] = o
			mu.Unlock()
		}
	})
	return outcomes
}

// union returns a suite of all tests of suites, which differ in the names of their tests only.
func union(common suite, suites []suite) suite {
	var tests []string
	for _, s := range suites {
		test, _, _ := strings.Cut(s.run, "/")
		tests = append(tests, test)
	}
	all := suite{common.module, common.pkg, strings.Join(tests, "|"), common.flags}
	if common.run != "" {
		all.run = "(" + all.run + ")/" + common.run
	}
	if len(suites) > 1 {
		all.flags += " -timeout=15m"
	}
	return all
}

// matchesAny reports whether s selects one of these tests.
func (s suite) matchesAny(tests []string) bool {
	patterns := strings.Split(s.run, "/")
	return slices.ContainsFunc(tests, func(test string) bool {
		names := strings.Split(test, "/")
		for i, pattern := range patterns {
			if i == len(names) || !regexp.MustCompile(pattern).MatchString(names[i]) {
				return false
			}
		}
		return true
	})
}

// plant runs b's tests on the broken source, which it builds in c. before is their outcome on the
// unbroken source.
func (r runner) plant(ctx context.Context, b Bug, before outcome, c cache) result {
	fail := func(text, format string, args ...any) result {
		return result{bug: b, err: fmt.Errorf(format, args...), text: text}
	}
	if err := b.check(); err != nil {
		return fail("", "%w", err)
	}
	switch before.verdict {
	case green:
	case empty:
		return fail("", "%s -run %q: %s", b.Pkg, b.Run, before.text)
	default:
		return fail(before.text, "tests fail without the bug")
	}
	text, err := b.broken(r.root)
	if err != nil {
		return fail("", "%w", err)
	}
	changed, err := prune(filepath.Join(r.root, b.Module, b.Pkg), b.Run)
	if err != nil {
		return fail("", "%w", err)
	}
	changed[filepath.Join(r.root, filepath.FromSlash(b.File))] = text
	overlay, remove, err := r.overlay(changed)
	if err != nil {
		return fail("", "%w", err)
	}
	defer remove()

	// By the environment, so that a program that a test builds is broken too.
	o := r.test(ctx, b.suite(), "GOCACHE="+c.dir, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	if ctx.Err() != nil {
		return fail("", "interrupted")
	}
	switch o.verdict {
	case red:
		if o.test == "" {
			o.test = "the end of the package's tests" // TestMain, or a data race after the last test
		}
		return result{bug: b, by: o.test}
	case timeout:
		return result{bug: b, by: strings.TrimSpace(o.test + " (timeout)")}
	case failed:
		return fail(o.text, "broken version does not compile")
	default:
		return fail("", "not noticed")
	}
}

// overlay writes a file for go's -overlay flag that replaces the text of these files; one that becomes
// "" is left out. It returns the name of the overlay and a function that removes it.
func (r runner) overlay(changed map[string]string) (string, func(), error) {
	dir, err := os.MkdirTemp("", "planted")
	if err != nil {
		return "", nil, err
	}
	remove := func() { os.RemoveAll(dir) }
	write := func(name, text string) (string, error) {
		path := filepath.Join(dir, name)
		return path, os.WriteFile(path, []byte(text), 0o600)
	}
	files := make(map[string]string)
	for path, text := range changed {
		if files[path] = ""; text == "" || err != nil {
			continue
		}
		files[path], err = write(filepath.Base(path), text)
	}
	if err != nil {
		remove()
		return "", nil, err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": files})
	if err != nil {
		remove()
		return "", nil, err
	}
	overlay, err := write("overlay.json", string(replace))
	if err != nil {
		remove()
		return "", nil, err
	}
	return overlay, remove, nil
}

// test runs a suite with further environment variables.
func (r runner) test(ctx context.Context, s suite, env ...string) outcome {
	// Vet is off: only a test may notice the bug.
	args := []string{"test", "-json", "-vet=off", "-count=1", "-timeout=120s", "-run=" + s.run, s.pkg}
	// After the package: go would take the package for the value of a flag that it does not know.
	args = append(args, strings.Fields(s.flags)...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(r.root, s.module)
	work := "GOWORK=off"
	if s.module != "" {
		work = "GOWORK=" // the go.work of the repository
	}
	cmd.Env = append(append(os.Environ(), work), env...)
	// A test may leave a child process that holds the pipes open.
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return read(stdout.Bytes(), stderr.Bytes(), err == nil)
}

// each calls f for every item, from the given number of goroutines.
func each[T any](workers int, items []T, f func(T)) {
	queue := make(chan T)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for item := range queue {
				f(item)
			}
		})
	}
	for _, item := range items {
		queue <- item
	}
	close(queue)
	wg.Wait()
}
