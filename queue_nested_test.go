package pawl_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A function that mutates its own scope through its context gets ErrReentrant at once. Detached
// calls, and calls after its return, succeed. Proves LOCK-9.
func TestReentrantCallsFailAtOnce(t *testing.T) {
	bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
		for name, s := range map[string]pawl.Scope[counts]{"in memory": pawl.Memory[counts](rt, "a"), "persisted": pawl.Session[counts](rt, "a")} {
			start := time.Now()
			var leaked context.Context
			var once sync.Once
			background := make(chan error, 1)
			_, err := s.AtomicState(t.Context(), func(ctx context.Context, b *counts) error {
				leaked = context.WithoutCancel(ctx)
				_, data := s.IncState(ctx, "n", 1)
				assert.ErrorIs(t, data, pawl.ErrReentrant, name)
				_, fn := s.AtomicState(ctx, func(context.Context, *counts) error { return nil })
				assert.ErrorIs(t, fn, pawl.ErrReentrant, name)
				// A call through another scope is still inside the function, and fails too.
				_, far := pawl.Memory[counts](rt, "other").AtomicState(ctx, func(ctx context.Context, _ *counts) error {
					_, err := s.IncState(ctx, "n", 1)
					return err
				})
				assert.ErrorIs(t, far, pawl.ErrReentrant, name)
				once.Do(func() { // the function runs again if the detached call commits first
					go func() { // the function does not wait for it
						_, err := s.IncState(pawl.Detach(ctx), "n", 10)
						background <- err
					}()
				})
				b.N++
				return nil
			})
			require.NoError(t, err, name)
			require.NoError(t, <-background, name)
			assert.Zero(t, time.Since(start), name)
			_, err = s.IncState(leaked, "n", 100)
			require.NoError(t, err, "the function has returned, so the call is not reentrant")
			b, err := s.State(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 111, b.N, name)
		}
	})
}

// A function can mutate another scope, whether the two are in memory or persisted. Proves LOCK-10.
func TestMutatingAnotherScopeFromAFunction(t *testing.T) {
	bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
		scopes := map[string]pawl.Scope[counts]{
			"in memory": pawl.Memory[counts](rt, "a"), "persisted": pawl.Session[counts](rt, "a"),
			"in memory 2": pawl.Memory[counts](rt, "b"), "persisted 2": pawl.Session[counts](rt, "b"),
		}
		for outer, a := range scopes {
			for inner, b := range scopes {
				if inner == outer {
					continue
				}
				_, err := a.AtomicState(t.Context(), func(ctx context.Context, state *counts) error {
					_, err := b.AtomicState(ctx, func(_ context.Context, s *counts) error { s.N++; return nil })
					state.N++
					return err
				})
				require.NoError(t, err, "%s from inside %s", inner, outer)
			}
		}
		for name, s := range scopes {
			b, err := s.State(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 6, b.N, name)
		}
	})
}
