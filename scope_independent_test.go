package pawl_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A function that hangs delays neither other scopes nor reads of its own scope. Proves LOCK-12,
// LOCK-13.
func TestOtherScopesAndReadsDoNotWait(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		hung := pawl.Memory[counts](rt, "hung")
		_, err := hung.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		release, _ := block(hung, pawl.WithTimeout(pawl.NoTimeout))
		push(hung, "behind", pawl.WithTimeout(pawl.NoTimeout))
		start := time.Now()
		for i := range 100 {
			other := pawl.Memory[counts](rt, strconv.Itoa(i))
			_, err := other.AtomicState(t.Context(), func(_ context.Context, b *counts) error { b.N++; return nil })
			require.NoError(t, err)
			snap, err := hung.Snapshot(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 1, snap.ReadOnly().N)
			last, ok := hung.LastSeen()
			assert.True(t, ok)
			assert.EqualValues(t, 1, last.Version)
		}
		assert.Zero(t, time.Since(start))
		release()
	})
}

// A scope whose commits hang or are rejected does not delay other scopes. Proves CAS-11.
func TestPersistedScopesAreIndependent(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		locked := make(chan struct{})
		h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			switch c.Writes[0].ID {
			case "locked":
				<-locked
			case "rejected":
				return time.Time{}, fmt.Errorf("%w: not this one", persist.ErrNotApplied)
			}
			return commit()
		})
		hung := push(pawl.Session[counts](rt, "locked"), "x")
		start := time.Now()
		for i := range 20 {
			_, err := pawl.Session[counts](rt, "rejected").IncState(t.Context(), "n", 1)
			var rejected *pawl.FieldError
			require.ErrorAs(t, err, &rejected)
			assert.False(t, pawl.IsRetryable(err))
			snap, err := pawl.Session[counts](rt, "fine").IncState(t.Context(), "n", 1)
			require.NoError(t, err)
			assert.Equal(t, i+1, snap.ReadOnly().N)
		}
		assert.Zero(t, time.Since(start))
		close(locked)
		require.NoError(t, <-hung)
	})
}
