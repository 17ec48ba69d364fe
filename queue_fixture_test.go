package pawl_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/require"
)

// counts is the state of the tests of the queue.
type counts struct {
	N    int      `json:"n"`
	Done []string `json:"done"`
}

// bubble runs fn on a runtime inside a synctest bubble: time is virtual, and every deadline is exact.
func bubble(t *testing.T, c pawl.Config, fn func(t *testing.T, rt *pawl.Runtime)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rt, err := pawl.Open(c)
		require.NoError(t, err)
		fn(t, rt)
		require.NoError(t, rt.Close(context.Background()))
	})
}

// block occupies the scope until the returned function is called, and returns once its mutator runs.
func block(s pawl.Scope[counts], opts ...pawl.Option) (release func(), result <-chan error) {
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

// push submits one PushState in the background and returns once it has its place in the queue.
func push(s pawl.Scope[counts], value string, opts ...pawl.Option) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := s.PushState(context.Background(), "done", value, opts...)
		done <- err
	}()
	synctest.Wait()
	return done
}

// Those that wait in memory are taken together. These tests are about what happens to one of them between that and its turn.

// taken lets a function that runs until it is released, and whatever submit queues behind it, be taken together, and returns once it runs.
func taken(t *testing.T, s pawl.Scope[counts], fn func(context.Context, *counts) error, submit func()) (release func(), result <-chan error) {
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

// say appends name to the list.
func say(name string) func(context.Context, *counts) error {
	return func(_ context.Context, b *counts) error { b.Done = append(b.Done, name); return nil }
}

func said(t *testing.T, s pawl.Scope[counts]) []string {
	t.Helper()
	b, err := s.State(context.Background())
	require.NoError(t, err)
	return b.Done
}
