package testkit

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Patience is how long a test waits for something that must happen.
const Patience = 30 * time.Second

// Eventually waits until condition returns true, and fails t after [Patience]. It calls condition
// in the test's own goroutine, so that condition may use require. message says what was waited for.
func Eventually(t testing.TB, condition func() bool, message ...any) {
	t.Helper()
	EventuallyWithin(t, Patience, condition, message...)
}

// EventuallyWithin is [Eventually] with another limit.
func EventuallyWithin(t testing.TB, limit time.Duration, condition func() bool, message ...any) {
	t.Helper()
	for deadline := time.Now().Add(limit); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not true within %v: %s", limit, fmt.Sprint(message...))
		}
	}
}

// Receive returns the next value of c, and the zero value if c is closed. It fails t after [Patience].
func Receive[T any](t testing.TB, c <-chan T, message ...any) T {
	t.Helper()
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	select {
	case v := <-c:
		return v
	case <-timeout.C:
		t.Fatalf("nothing received within %v: %s", Patience, fmt.Sprint(message...))
		panic("unreachable")
	}
}

// Within returns a context that outlives t, for cleanup functions, and that ends after limit.
func Within(t testing.TB, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	t.Cleanup(cancel)
	return ctx
}
