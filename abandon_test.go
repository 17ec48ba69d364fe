package pawl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
)

// Whoever came after the function that is given up, and was not taken yet, has its turn without anybody else coming. Proves LOCK-11.
func TestAbandonedBeforeOthersThatCame(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, result := block(s)
		second, third := push(s, "second", pawl.WithTimeout(time.Second)), push(s, "third", pawl.WithTimeout(time.Second))
		require.True(t, s.Abandon())
		require.ErrorIs(t, <-result, pawl.ErrAbandoned)
		require.NoError(t, <-second)
		require.NoError(t, <-third)
		release()
		synctest.Wait()
		assert.Equal(t, []string{"second", "third"}, said(t, s))
	})
}
