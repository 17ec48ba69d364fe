//go:build unix

package idempotency_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// A process is paused in its handler for longer than its lease, and another does the work. When it
// resumes it commits nothing, and its client learns that the outcome is unknown.
// Proves IDEM-4, IDEM-6.
func TestPausedHolder(t *testing.T) {
	onSharedStores(t, func(t *testing.T, location string, rt *pawl.Runtime) {
		store := stores.OpenFor(t, location)
		servers := startServers(t, location, time.Second, 2)
		for _, mode := range []string{"plain", "tx"} {
			late := make(chan answer, 1)
			go func() {
				a, _ := ask(servers[0].url, mode, mode, "p", "start")
				late <- a
			}()
			servers[0].Expect("at start")
			servers[0].Pause(stores.Unlocked(store))
			var second answer
			testkit.Eventually(t, func() bool {
				var err error
				second, err = ask(servers[1].url, mode, mode, "p", "")
				return err == nil && second.status == 201
			})
			servers[0].Resume()
			servers[0].Expect("ended")
			servers[0].Expect("refused LEASE_LOST")
			a := <-late
			require.Equal(t, 503, a.status)
			require.Equal(t, "IDEMPOTENCY_OUTCOME_UNKNOWN", a.code(t))
			require.EqualValues(t, 1, times(t, rt, mode))
			again, err := ask(servers[0].url, mode, mode, "p", "")
			require.NoError(t, err)
			require.True(t, again.replayed(), "%+v", again)
			require.JSONEq(t, second.body, again.body)
		}
		for _, s := range servers {
			s.Kill()
		}
	})
}
