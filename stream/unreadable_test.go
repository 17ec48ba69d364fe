package stream_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/stream"
)

// An entry that is no event is yielded with an error, and does not hide the events after it. A
// reaction is blocked there.
func TestEntryThatIsNoEvent(t *testing.T) {
	store := memory.New()
	log, _ := logOn(t, store)
	require.NoError(t, log.React(stream.Reaction{Name: "r", Handle: func(context.Context, *stream.Delivery) error { return nil }}))
	_, err := log.Append(t.Context(), "a", stream.Any, said{0})
	require.NoError(t, err)

	rt, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	heads := pawl.Kind[pawl.Doc]{Name: stream.DefaultName, Log: true}.Scope(rt, "a")
	_, err = heads.AtomicState(t.Context(), func(ctx context.Context, d *pawl.Doc) error {
		(*d)["next"] = 2
		return heads.AppendLog(ctx, 1, json.RawMessage(`"no event"`))
	})
	require.NoError(t, err)
	_, err = log.Append(t.Context(), "a", stream.Any, said{2})
	require.NoError(t, err)

	var versions []int64
	for e, err := range log.Read(t.Context(), "a", stream.Query{}) {
		versions = append(versions, e.Version)
		var bad *stream.EventError
		if e.Version == 1 {
			require.ErrorAs(t, err, &bad)
		} else {
			require.NoError(t, err)
		}
	}
	require.Equal(t, []int64{0, 1, 2}, versions)
	_, _, err = stream.Load(t.Context(), log, "a", stream.Fold[int]{Apply: func(*int, stream.Event) error { return nil }})
	require.Error(t, err)
	_, err = log.Drain(t.Context())
	require.NoError(t, err)
	for p, err := range log.Positions(t.Context(), stream.Filter{}) {
		require.NoError(t, err)
		require.True(t, p.Blocked)
		require.EqualValues(t, 1, p.Next)
	}
}
