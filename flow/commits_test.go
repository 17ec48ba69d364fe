package flow_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// TestCommits: a call without contention is two commits, its start and its end. Where calls
// are admitted one at a time, the ticket is a third one: tickets of many calls share their commits,
// which they could not if each belonged to the commit of a record.
//
// Proves FLOW-4.
func TestCommits(t *testing.T) {
	stores.EachCounted(t, func(t *testing.T, location string) {
		rt, _ := site(location).runtime(t)
		count := stores.Commits(t, location)
		for _, c := range []struct {
			name   string
			config flow.Config
			want   int
		}{
			{"free", flow.Config{Kind: "free", Admit: flow.Allow}, 2},
			{"gated", flow.Config{Kind: "gated", Admit: flow.Queue, Per: flow.PerSession}, 3},
		} {
			f, err := flow.New(rt, c.config)
			require.NoError(t, err)
			nothing := flow.Define(f, "nothing", func(context.Context, *flow.Call, int) (int, error) { return 0, nil })
			for range 3 {
				before := count()
				_, err := nothing.Do(t.Context(), flow.IDs{Session: "a"}, 1)
				require.NoError(t, err)
				require.Equal(t, c.want, count()-before, c.name)
			}
			before := count()
			require.NoError(t, f.Stop(t.Context()))
			require.Equal(t, before, count(), "nothing is left to do")
		}
	})
}
