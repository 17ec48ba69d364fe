package pawl_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

type errand struct {
	Due  time.Time `json:"due"`
	Runs int       `json:"runs"`
}

var errands = pawl.Kind[errand]{Name: "errand", Due: "due"}

// plainStore has nothing but what every store must have.
type plainStore struct{ persist.Store }

// TestTake: workers of two runtimes share out what is due; each errand is run once at a time, and none is left.
//
// Proves STORE-13.
func TestTake(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for _, plain := range []bool{false, true} { // a store that can take several at once, and one that cannot
			t.Run(fmt.Sprint("plain=", plain), func(t *testing.T) {
				config := p.config
				if plain {
					config.Store = plainStore{p.store}
				}
				testTake(t, config, fmt.Sprint(plain))
			})
		}
	})
}

func testTake(t *testing.T, config pawl.Config, prefix string) {
	ctx := t.Context()
	runtimes := []*pawl.Runtime{openRuntime(t, config), openRuntime(t, config)}
	const count = 40
	for i := range count {
		at := time.Now().Add(-time.Minute)
		if i%4 == 0 {
			at = at.Add(time.Hour) // not due
		}
		_, err := errands.Scope(runtimes[0], fmt.Sprint(prefix, i)).SetState(ctx, errand{Due: at})
		require.NoError(t, err)
	}
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			rt := runtimes[w%2]
			for {
				taken, err := errands.Take(ctx, rt, pawl.Query{Prefix: prefix, Due: true, Limit: 3}, pawl.LeaseFor(time.Minute), pawl.HeldBy(fmt.Sprint("worker ", w)))
				if err != nil {
					t.Error(err)
					return
				}
				if len(taken) == 0 {
					return
				}
				for _, job := range taken {
					err := job.Lease.Run(func(ctx context.Context, l *pawl.Lease) error {
						_, err := errands.Scope(rt, job.ID).AtomicState(ctx, func(_ context.Context, e *errand) error {
							e.Runs++
							e.Due = time.Time{}
							return nil
						}, pawl.IfVersion(job.Version))
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	ran := 0
	for snap, err := range errands.List(ctx, runtimes[0], pawl.Query{Prefix: prefix}) {
		require.NoError(t, err)
		require.LessOrEqual(t, snap.ReadOnly().Runs, 1)
		ran += snap.ReadOnly().Runs
	}
	require.Equal(t, count*3/4, ran)
	_, err := errands.Take(ctx, runtimes[0], pawl.Query{}, pawl.Wait())
	var argument *pawl.ArgumentError
	require.ErrorAs(t, err, &argument)
}

// TestWakeups: whoever waits for scopes of a kind is woken by changes, those of other runtimes too where the store gives hints.
//
// Proves SCOPE-13.
func TestWakeups(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		wake := errands.Wakeups(ctx, p.rt)
		for i := range 3 {
			_, err := errands.Scope(p.another(t), fmt.Sprint(i)).SetState(ctx, errand{})
			require.NoError(t, err)
			select {
			case <-wake:
			case <-time.After(20 * time.Second):
				t.Fatal("nobody was woken")
			}
		}
	})
}
