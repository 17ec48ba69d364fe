package stream_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// A stream that expires before its events are handled leaves nothing to handle: its position is
// claimed once, and is idle then.
func TestReactionOnExpiredStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var claims atomic.Int64
		rt, err := pawl.Open(pawl.Config{Store: memory.New(), Observer: pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
			if e.Type == pawl.EventNoted && e.Verb == stream.VerbClaimed {
				if claims.Add(1) > 10 {
					cancel() // it would go on without an end
				}
			}
		})})
		require.NoError(t, err)
		defer rt.Close(context.Background())
		log, err := stream.New(rt, stream.Config{TTL: time.Hour})
		require.NoError(t, err)
		require.NoError(t, log.React(stream.Reaction{Name: "later", Handle: func(context.Context, *stream.Delivery) error {
			return stream.Defer(2 * time.Hour)
		}}))
		_, err = log.Append(ctx, "ticket", stream.Any, stream.Raw{Type: "opened", Data: []byte(`{}`)})
		require.NoError(t, err)
		n, err := log.Drain(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, n)

		time.Sleep(3 * time.Hour)
		n, err = log.Drain(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		for p, err := range log.Positions(ctx, stream.Filter{}) {
			require.NoError(t, err)
			require.False(t, p.Pending)
		}
	})
}
