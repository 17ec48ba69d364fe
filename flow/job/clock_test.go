package job_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// slowCommits is a store whose commits take a second.
type slowCommits struct{ persist.Store }

func (s slowCommits) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	time.Sleep(time.Second)
	return s.Store.Commit(ctx, c)
}

// The time of a job is not ahead of the store's clock, however long taking it took. So a job that is
// due again at once is taken at once.
func TestTimeOfAJobIsNotAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		rt, err := pawl.Open(pawl.Config{Store: slowCommits{store}, Kinds: []pawl.AnyKind{reminders, totals}})
		require.NoError(t, err)
		put(t, rt, "1", 0)
		attempts := 0
		w := newWorker(t, rt, func(_ context.Context, j *job.Job[reminder]) error {
			require.False(t, j.Now().After(time.Now()))
			if attempts++; attempts < 3 {
				j.Again(0)
			}
			return nil
		}, nil)
		n, err := w.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, n)
		require.NoError(t, rt.Close(t.Context()))
		require.NoError(t, store.Close())
	})
}
