package job_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/job"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

func init() { testkit.Child("victim", victimChild) }

// shortLease is the lease of processes that the tests kill. It survives a short pause of a busy
// machine.
const shortLease = 1500 * time.Millisecond

// openGiven opens, in a child, the store that the parent named.
func openGiven() (*pawl.Runtime, error) {
	store, err := stores.OpenGiven()
	if err != nil {
		return nil, err
	}
	return pawl.Open(pawl.Config{Store: store})
}

// victimChild blocks forever in each job, at the moment that is the id of the job.
func victimChild() error {
	rt, err := openGiven()
	if err != nil {
		return err
	}
	block := func(moment string) {
		testkit.Say("%s", moment)
		select {}
	}
	w, err := job.New(rt, job.Config[reminder]{Kind: reminders, Lease: shortLease, Logger: quiet, Handle: func(ctx context.Context, j *job.Job[reminder]) error {
		if j.ID == "handler" {
			block(j.ID)
		}
		if err := send(ctx, j); err != nil {
			return err
		}
		j.OnCommit(func(context.Context, *pawl.Tx) error {
			block(j.ID)
			return nil
		})
		return nil
	}})
	if err != nil {
		return err
	}
	if err := w.Start(context.Background()); err != nil {
		return err
	}
	select {}
}

// A process is killed inside a handler, and between a handler and its commit. After the lease
// another process handles each job again, and it commits once. Proves JOB-1.
func TestKilledWorker(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		rt := open(t, stores.OpenFor(t, location))
		moments := []string{"handler", "commit"}
		for _, id := range moments {
			put(t, rt, id, 0)
		}
		p := testkit.Start(t, "victim", stores.Env(location))
		require.ElementsMatch(t, moments, []string{p.Line(), p.Line()})
		p.Kill()
		require.Zero(t, sent(t, rt))

		attempts := make(chan int, 10)
		start(t, rt, func(ctx context.Context, j *job.Job[reminder]) error {
			attempts <- j.Attempt
			return send(ctx, j)
		}, func(c *job.Config[reminder]) { c.Poll = 50 * time.Millisecond })
		for range moments {
			require.Equal(t, 2, testkit.Receive(t, attempts), "the attempt of the killed process counts")
		}
		testkit.Eventually(t, func() bool { return sent(t, rt) == 2 }, "both jobs are committed")
		for _, id := range moments {
			_, exists := get(t, rt, id)
			require.False(t, exists, id)
		}
		testkit.Figures(t, "%d jobs whose worker was killed, each committed once", len(moments))
		require.Empty(t, attempts, "each job was handled once more")
	})
}
