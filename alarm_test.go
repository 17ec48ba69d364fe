package pawl_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
)

// Proves LOCK-5.
func TestReusedWaiterKeepsItsDeadline(t *testing.T) {
	bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
		s, stored := pawl.Memory[counts](rt, "a"), pawl.Session[counts](rt, "b")
		for i := range 20 {
			// Waiters are used again, those of persisted scopes with their alarms still set: here for ten seconds from now.
			release, blocked := block(s, pawl.WithTimeout(10*time.Second))
			queued := push(s, "x", pawl.WithTimeout(10*time.Second))
			release()
			require.NoError(t, <-blocked)
			require.NoError(t, <-queued)
			budget := []time.Duration{3 * time.Second, time.Minute}[i%2] // before the alarm, and after it
			release, _ = block(s, pawl.WithTimeout(time.Hour))
			_, err := stored.IncState(context.Background(), "n", 1, pawl.WithRetry(pawl.Retry{Within: 10 * time.Second}))
			require.NoError(t, err)
			start := time.Now()
			_, err = s.IncState(context.Background(), "n", 1, pawl.WithTimeout(budget))
			assert.ErrorIs(t, err, pawl.ErrTimeout)
			assert.Equal(t, budget, time.Since(start))
			release()
			synctest.Wait()
		}
	})
}
