package pawl_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// Whoever came after the function that is given up, and was not taken yet, has its turn without anybody else coming. Proves LOCK-11.
func TestAbandonedBeforeOthersThatCame(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, result := block(s)
		second, third := push(s, "second", pawl.WithTimeout(time.Second)), push(s, "third", pawl.WithTimeout(time.Second))
		require.True(t, s.Abandon())
		require.ErrorIs(t, <-result, pawl.ErrAbandoned)
		require.NoError(t, <-second)
		require.NoError(t, <-third)
		release()
		synctest.Wait()
		assert.Equal(t, []string{"second", "third"}, said(t, s))
	})
}

// A deferred function may panic while runtime.Goexit ends the goroutine. Proves SCOPE-5, LOCK-11.
func TestPanicDuringGoexit(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[counts](p, "a")
		ended := make(chan any, 1)
		go func() {
			defer func() { ended <- recover() }()
			s.AtomicState(context.Background(), func(context.Context, *counts) error {
				defer func() { panic("cleanup") }()
				runtime.Goexit()
				return nil
			})
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		select {
		case <-ended:
		case <-ctx.Done():
			require.Fail(t, "its caller waits")
		}
		_, err := s.AtomicState(ctx, func(_ context.Context, b *counts) error { b.N++; return nil })
		require.NoError(t, err)
	})
}

// What a caller waited with serves another scope while those that were taken together with it have their turns: Close names that scope once, as
// what runs there. Proves SCOPE-18.
func TestCloseNamesNothingTwice(t *testing.T) {
	for range 10 { // what is used again is up to a pool
		synctest.Test(t, func(t *testing.T) {
			free := make(chan struct{})
			rt, err := pawl.Open(pawl.Config{Store: memory.New(), Observer: pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
				if e.Type == pawl.Started && e.Verb == "Push" {
					<-free
				}
			})})
			require.NoError(t, err)
			s, other := pawl.Memory[counts](rt, "a"), pawl.Session[counts](rt, "b")
			release, _ := block(s)
			go func() {
				_, err := s.AtomicState(context.Background(), say("first"))
				assert.NoError(t, err)
				_, err = other.AtomicState(context.Background(), func(context.Context, *counts) error { <-free; return nil })
				assert.NoError(t, err)
			}()
			synctest.Wait()
			second := push(s, "second")
			release()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			var busy *pawl.BusyError
			require.ErrorAs(t, rt.Close(ctx), &busy)
			named := 0
			for _, r := range busy.Running {
				if r.Scope == other.Key() {
					named++
				}
			}
			assert.Equal(t, 1, named)
			close(free)
			require.NoError(t, <-second)
			require.NoError(t, rt.Close(context.Background()))
		})
	}
}

// TestContextOfACommitEndsWithIt: what a store has left behind in a goroutine of its own hears that the call is over, also if nobody asked for that
// before.
func TestContextOfACommitEndsWithIt(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := visits.Scope(p.rt, "a")
		given := make(chan context.Context, 1)
		p.store.onCommit(func(ctx context.Context, _ persist.Commit) error {
			given <- ctx
			return nil
		})
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		ctx := <-given
		soon(t, func() bool { return ctx.Err() == context.Canceled })
		<-ctx.Done()
		derived, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		require.ErrorIs(t, derived.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(ctx), context.Canceled)
	})
}
