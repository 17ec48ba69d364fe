//go:build unix

package stream_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// A process is paused at each point of the work of a reaction for longer than its leases, while
// another one finishes the work. When it continues, its commits are refused, and all stays as it is.
// Proves LEASE-2, LEASE-5, STREAM-5.
func TestReactionPausedAtEveryPoint(t *testing.T) {
	t.Parallel() // it mostly waits
	visits := reactVisits(t, false)
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel()
		store := stores.OpenFor(t, location)
		rt := reactOpen(t, store, "host")
		for _, v := range visits {
			reactPrepare(t, rt, v)
		}
		p := reactBlock(t, "react-sleeper", location, visits)
		p.Pause(stores.Unlocked(store))
		reactFinish(t, rt, visits)
		versions := func() map[string]uint64 {
			all := map[string]uint64{}
			for _, v := range visits {
				for _, kind := range []string{v.id(), v.id() + ".position", v.id() + ".cursor"} {
					page, err := store.List(t.Context(), persist.Query{Kind: kind})
					require.NoError(t, err)
					for _, r := range page.Records {
						all[r.Key.String()] = r.Version
					}
				}
			}
			return all
		}
		before := versions()
		p.Resume()
		p.Go()
		p.Wait()
		for _, v := range visits {
			require.Equal(t, reactWant(), reactOutcomeOf(t, rt, v), v.id())
		}
		require.Equal(t, before, versions())
	})
}
