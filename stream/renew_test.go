package stream_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// A stream expires with the document that it belongs to, if the transactions that write the document
// renew it. Proves STREAM-7.
func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		rt, err := pawl.Open(pawl.Config{Store: memory.New()})
		require.NoError(t, err)
		defer func() { require.NoError(t, rt.Close(ctx)) }()
		log, err := stream.New(rt, stream.Config{Events: []stream.Type{stream.Of[said]("said")}, TTL: time.Hour})
		require.NoError(t, err)
		require.ErrorIs(t, log.Renew(ctx, "kept"), pawl.ErrNotFound)
		for _, name := range []string{"kept", "left"} {
			_, err = log.Append(ctx, name, stream.Absent, said{1})
			require.NoError(t, err)
		}
		session := pawl.Kind[pawl.Doc]{Name: "session", TTL: time.Hour}.Scope(rt, "kept")
		write := func() error {
			return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := session.In(tx).IncState(ctx, "n", 1); err != nil {
					return err
				}
				return log.In(tx).Renew(ctx, "kept")
			})
		}
		last := func(name string) int64 {
			h, err := log.Head(ctx, name)
			require.NoError(t, err)
			return h.Last
		}
		time.Sleep(40 * time.Minute)
		require.NoError(t, write())
		time.Sleep(40 * time.Minute)
		require.EqualValues(t, 0, last("kept"))
		require.EqualValues(t, -1, last("left"))
		snap, err := session.Snapshot(ctx)
		require.NoError(t, err)
		require.True(t, snap.Exists())
		time.Sleep(21 * time.Minute)
		require.EqualValues(t, -1, last("kept"))
		snap, err = session.Snapshot(ctx)
		require.NoError(t, err)
		require.False(t, snap.Exists(), "both have expired")
	})
}
