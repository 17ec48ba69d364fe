package testkit

import (
	"fmt"
	"runtime"
	"testing"
)

// Failure runs f with a test that may fail, and returns its messages. t fails if f succeeds.
func Failure(t testing.TB, f func(t testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	if !r.failed {
		t.Fatal("the test did not fail")
	}
	return r.messages
}

// recorder is a test that keeps its failure to itself. Its cleanup functions run with those of t.
type recorder struct {
	testing.TB
	failed   bool
	messages string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failed = true
	r.messages += fmt.Sprintf(format, args...)
}

func (r *recorder) FailNow() {
	r.failed = true
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	r.FailNow()
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprint(args...)) }
