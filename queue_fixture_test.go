package pawl_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/require"
)

// counts is the state that the tests of the queue use.
type counts struct {
	N    int      `json:"n"`
	Done []string `json:"done"`
}

// bubble runs fn with a runtime inside a synctest bubble, where time is virtual and every deadline
// is exact.
func bubble(t *testing.T, c pawl.Config, fn func(t *testing.T, rt *pawl.Runtime)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rt, err := pawl.Open(c)
		require.NoError(t, err)
		fn(t, rt)
		require.NoError(t, rt.Close(context.Background()))
	})
}

// block occupies the scope until release is called. It returns when its function runs.
func block(s pawl.Scope[counts], opts ...pawl.CallOption) (release func(), result <-chan error) {
	free, done := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
			<-free
			b.Done = append(b.Done, "blocker")
			return nil
		}, opts...)
		done <- err
	}()
	synctest.Wait()
	return sync.OnceFunc(func() { close(free) }), done
}

// push submits one PushState in the background and returns when it is in the queue.
func push(s pawl.Scope[counts], value string, opts ...pawl.CallOption) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := s.PushState(context.Background(), "done", value, opts...)
		done <- err
	}()
	synctest.Wait()
	return done
}

// takeTogether makes the worker take fn together with the mutations that submit queues behind it. A
// worker takes all waiters of an in-memory scope at once. It returns when fn is about to run. fn
// runs when release is called.
func takeTogether(t *testing.T, s pawl.Scope[counts], fn func(context.Context, *counts) error, submit func()) (release func(), result <-chan error) {
	t.Helper()
	before, _ := block(s)
	free, done, runs := make(chan struct{}), make(chan error, 1), make(chan struct{})
	go func() {
		_, err := s.AtomicState(context.Background(), func(ctx context.Context, b *counts) error {
			close(runs)
			<-free
			return fn(ctx, b)
		}, pawl.WithTimeout(pawl.NoTimeout))
		done <- err
	}()
	synctest.Wait()
	submit()
	before()
	<-runs
	synctest.Wait()
	return sync.OnceFunc(func() { close(free) }), done
}

// appendDone returns a function that appends name to the list Done.
func appendDone(name string) func(context.Context, *counts) error {
	return func(_ context.Context, b *counts) error { b.Done = append(b.Done, name); return nil }
}

// doneList returns the list Done of s.
func doneList(t *testing.T, s pawl.Scope[counts]) []string {
	t.Helper()
	b, err := s.State(context.Background())
	require.NoError(t, err)
	return b.Done
}
