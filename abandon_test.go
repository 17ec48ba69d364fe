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
