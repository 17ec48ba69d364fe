package stream_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

type said struct{ N int }

// logOn returns a log on store.
func logOn(t *testing.T, store persist.Store) (*stream.Log, *pawl.Runtime) {
	t.Helper()
	rt, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	log, err := stream.New(rt, stream.Config{Events: []stream.Type{stream.Of[said]("said")}, Poll: time.Hour})
	require.NoError(t, err)
	return log, rt
}

// The errors that are called retryable are so for pawl.IsRetryable, wrapped too.
func TestRetryableErrors(t *testing.T) {
	log, _ := logOn(t, memory.New())
	require.NoError(t, log.React(stream.Reaction{Name: "r", Handle: func(context.Context, *stream.Delivery) error { return nil }}))
	_, err := log.Append(t.Context(), "a", stream.Any, said{0})
	require.NoError(t, err)
	_, err = log.Append(t.Context(), "a", stream.Absent, said{0})
	require.True(t, pawl.IsRetryable(err), "%v", err)
	err = log.Trim(t.Context(), "a", 1)
	require.Equal(t, "STREAM_PENDING", pawl.Code(err))
	require.True(t, pawl.IsRetryable(err), "%v", err)
	require.NoError(t, log.DeleteStream(t.Context(), "a"))
	require.False(t, pawl.IsRetryable(log.CloseStream(t.Context(), "a", stream.Any, nil)))
}
