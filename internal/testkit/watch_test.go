package testkit_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// source is a watcher of the hints that the test sends.
type source chan persist.Hint

func (s source) Watch(ctx context.Context, wake func(persist.Hint)) error {
	for {
		select {
		case hint := <-s:
			wake(hint)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestWatch(t *testing.T) {
	a := persist.Hint{Key: persist.Key{Kind: "thing", ID: "a"}, Version: 1}
	b := persist.Hint{Key: persist.Key{Kind: "thing", ID: "b"}}
	hints := make(source, 10)
	hints <- persist.Hint{}
	w := testkit.NewWatch(t, hints)
	require.Empty(t, w.All())
	hints <- a
	hints <- b
	require.Equal(t, a, w.Next())
	w.Named(b.Key)
	require.Equal(t, b, w.Next())
	require.Equal(t, []persist.Hint{a, b}, w.Take())
	require.Empty(t, w.All())
	hints <- persist.Hint{}
	w.Of(a.Key)
	require.ErrorIs(t, w.Stop(), context.Canceled)
}

func TestWatchWithoutZeroHint(t *testing.T) {
	f := testkit.Failure(t, func(t testing.TB) {
		w := testkit.StartWatch(t, func(_ context.Context, wake func(persist.Hint)) error {
			wake(persist.Hint{Version: 1})
			return nil
		})
		_ = w.Ended()
	})
	require.Contains(t, f, "not the zero hint")
}
