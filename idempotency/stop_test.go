//go:build unix

package idempotency_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// TestStoppedHolder: a process is stopped in its handler for longer than its lease, and another does the work meanwhile. When it wakes up it commits nothing, and its client
// hears that the outcome is unknown.
//
// Proves IDEM-4, IDEM-6.
func TestStoppedHolder(t *testing.T) {
	onSharedStores(t, func(t *testing.T, location string, rt *pawl.Runtime) {
		servers := startServers(t, location, time.Second, 2)
		for _, mode := range []string{"plain", "tx"} {
			late := make(chan answer, 1)
			go func() {
				a, _ := ask(servers[0].url, mode, mode, "p", "start")
				late <- a
			}()
			servers[0].expect(t, "at start")
			require.NoError(t, syscall.Kill(servers[0].pid, syscall.SIGSTOP))
			var second answer
			require.Eventually(t, func() bool {
				var err error
				second, err = ask(servers[1].url, mode, mode, "p", "")
				return err == nil && second.status == 201
			}, patience, 10*time.Millisecond)
			require.NoError(t, syscall.Kill(servers[0].pid, syscall.SIGCONT))
			servers[0].expect(t, "ended")
			servers[0].expect(t, "refused LEASE_LOST")
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
