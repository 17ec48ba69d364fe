package flow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// Calls that have ended leave only an empty gate with an expiry. The flow's sweeper purges the
// tombstones of their records, and no other kinds. Proves FLOW-4.
func TestEndedCallsLeaveNothing(t *testing.T) {
	onStores(t, func(t *testing.T, s site) {
		f, rt := s.flow(t, flow.Config{Admit: flow.Queue})
		store := s.store(t)
		a := flow.Define(f, "a", func(_ context.Context, _ *flow.Call, err error) (string, error) { return "", err })
		for i := range 20 {
			_, err := a.Do(t.Context(), flow.IDs{Request: fmt.Sprint(i), Session: fmt.Sprint("s", i%3)}, []error{nil, errOfTheAction}[i%2])
			require.ErrorIs(t, err, []error{nil, errOfTheAction}[i%2])
		}
		nothingLeft(t, rt, "s0", "s1", "s2")
		gates := 0
		for snap, err := range (pawl.Kind[door]{Name: "flow.chat.session"}).List(t.Context(), rt, pawl.Query{}) {
			require.NoError(t, err)
			require.Empty(t, snap.ReadOnly().Tickets)
			gates++
			r, err := store.Load(t.Context(), persist.Key{Kind: "flow.chat.session", ID: snap.ID})
			require.NoError(t, err)
			require.False(t, r.Expires.IsZero(), "an idle gate expires")
		}
		require.Equal(t, 3, gates)
		require.NoError(t, session(rt, "mine").Delete(t.Context()))
		_, err := session(rt, "mine").SetState(t.Context(), thread{}, pawl.IfAbsent())
		require.NoError(t, err)
		require.NoError(t, session(rt, "mine").Delete(t.Context()))
		swept, err := f.Sweep(t.Context(), time.Hour)
		require.NoError(t, err)
		require.Zero(t, swept)
		testkit.Eventually(t, func() bool { // tombstones must be older than a millisecond
			more, err := f.Sweep(t.Context(), time.Millisecond)
			require.NoError(t, err)
			swept.Purged += more.Purged
			return swept.Purged >= 20
		})
		_, err = store.Load(t.Context(), persist.Key{Kind: "flow.chat.call", ID: "7"})
		require.ErrorIs(t, err, persist.ErrNotFound)
		_, err = store.Load(t.Context(), session(rt, "mine").Key())
		require.NoError(t, err, "the document does not belong to the flow")
		_, err = a.Do(t.Context(), flow.IDs{Request: "7", Session: "s0"}, nil)
		require.NoError(t, err)
	})
}

// The number of round trips of a call is as documented in docs/flows.md.
func TestCostOfACall(t *testing.T) {
	for _, c := range []struct {
		name    string
		config  flow.Config
		commits int64
	}{
		{"allow", flow.Config{}, 2},
		{"queue", flow.Config{Admit: flow.Queue}, 3},
		{"reject", flow.Config{Admit: flow.Reject}, 3},
	} {
		rt, store := inMemory(t).runtime(t)
		f := newFlow(t, rt, c.config)
		a := flow.Define(f, "a", func(context.Context, *flow.Call, string) (string, error) { return "", nil })
		_, err := a.Do(t.Context(), flow.IDs{Session: "s"}, "")
		require.NoError(t, err)
		require.Equal(t, c.commits, store.Commits.Load(), c.name)
		loads, commits := store.Loads.Load(), store.Commits.Load()
		_, err = a.Do(t.Context(), flow.IDs{Session: "s"}, "")
		require.NoError(t, err)
		require.NoError(t, f.Stop(t.Context()))
		t.Logf("%s: first %d loads, %d commits; then %d, %d", c.name, loads, commits, store.Loads.Load()-loads, store.Commits.Load()-commits)
		require.Equal(t, c.commits, store.Commits.Load()-commits, c.name)
		require.LessOrEqual(t, store.Loads.Load()-loads, int64(1), "%s: the gate", c.name)
	}
}
