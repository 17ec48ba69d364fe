package flow_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/persist/memory"
)

// An action that takes hours, longer than an idle gate lives, keeps its place, even after its
// caller has left. Proves FLOW-4.
func TestLongAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := pawl.Open(pawl.Config{Store: memory.New()})
		require.NoError(t, err)
		f, err := flow.New(rt, flow.Config{Kind: "chat", Admit: flow.Reject})
		require.NoError(t, err)
		a := flow.Define(f, "a", func(_ context.Context, _ *flow.Call, d time.Duration) (string, error) {
			time.Sleep(d)
			return "", nil
		})
		ctx, leave := context.WithTimeout(t.Context(), 30*time.Minute)
		defer leave()
		done := make(chan error, 1)
		go func() {
			_, err := a.Do(ctx, flow.IDs{Request: "long", Session: "s"}, 4*time.Hour)
			done <- err
		}()
		for range 7 {
			time.Sleep(34 * time.Minute)
			_, err = a.Do(t.Context(), flow.IDs{Session: "s"}, 0)
			require.ErrorIs(t, err, pawl.ErrHeld)
		}
		require.NoError(t, <-done)
		_, err = a.Do(t.Context(), flow.IDs{Session: "s"}, 0)
		require.NoError(t, err)
		require.NoError(t, f.Stop(t.Context()))
		require.NoError(t, rt.Close(t.Context()))
	})
}

// A nested call at another gate keeps its place there for hours. Proves FLOW-4.
func TestLongNestedAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := pawl.Open(pawl.Config{Store: memory.New()})
		require.NoError(t, err)
		f, err := flow.New(rt, flow.Config{Kind: "chat", Admit: flow.Reject})
		require.NoError(t, err)
		a := flow.Define(f, "a", func(_ context.Context, _ *flow.Call, d time.Duration) (string, error) {
			time.Sleep(d)
			return "", nil
		})
		outer := flow.Define(f, "outer", func(ctx context.Context, c *flow.Call, d time.Duration) (string, error) {
			return a.Do(ctx, flow.IDs{Request: c.Request, Session: "t"}, d)
		})
		done := make(chan error, 1)
		go func() {
			_, err := outer.Do(t.Context(), flow.IDs{Request: "long", Session: "s"}, 4*time.Hour)
			done <- err
		}()
		for range 7 {
			time.Sleep(34 * time.Minute)
			_, err = a.Do(t.Context(), flow.IDs{Session: "t"}, 0)
			require.ErrorIs(t, err, pawl.ErrHeld)
		}
		require.NoError(t, <-done)
		_, err = a.Do(t.Context(), flow.IDs{Session: "t"}, 0)
		require.NoError(t, err)
		require.NoError(t, f.Stop(t.Context()))
		require.NoError(t, rt.Close(t.Context()))
	})
}
