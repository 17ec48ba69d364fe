package pawl_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// A transaction that reads scopes under constant writes of this process needs at most two runs on
// average, and never fails.
//
// Proves TX-7.
func TestHotScopesDoNotStarveATransaction(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		const writers, transfers = 8, 30
		seed(t, purses.Scope(p.rt, "a"), purse{Balance: 1000})
		seed(t, purses.Scope(p.rt, "b"), purse{})
		stop := make(chan struct{})
		var g errgroup.Group
		var written atomic.Int64
		for i := range writers {
			g.Go(func() error {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return nil
					default:
					}
					_, err := purses.Scope(p.rt, []string{"a", "b"}[(n+i)%2]).SetStateRecord(context.Background(), "notes", fmt.Sprint(i), fmt.Sprint(n))
					if err != nil {
						return err
					}
					written.Add(1)
				}
			})
		}
		testkit.Eventually(t, func() bool { return written.Load() > writers })
		runs := 0
		for range transfers {
			err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				runs++
				return pay(ctx, tx, "a", "b", 1)
			}, pawl.WithRetry(pawl.Retry{Attempts: 2}))
			assert.NoError(t, err)
		}
		close(stop)
		require.NoError(t, g.Wait())
		require.LessOrEqual(t, runs, 2*transfers)
		b, err := purses.Scope(p.rt, "b").State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, transfers, b.Balance)
	})
}

// Slow functions that left their queue give way to a transaction that waits for it.
//
// Proves TX-7.
func TestSlowFunctionsDoNotStarveATransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := openOn(t, memory.New())
		a := purses.Scope(rt, "a")
		seed(t, a, purse{Balance: 1000})
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		for i := range 24 {
			g.Go(func() error {
				for ctx.Err() == nil {
					_, _ = a.AtomicState(context.Background(), func(_ context.Context, p *purse) error {
						time.Sleep(time.Duration(15+i) * time.Millisecond)
						p.Balance++
						return nil
					})
				}
				return nil
			})
		}
		time.Sleep(time.Second)
		failed, most := 0, 0 // most is the largest number of runs
		for range 10 {
			runs := 0
			err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				runs++
				most = max(most, runs)
				s, err := a.In(tx).State(ctx)
				if err != nil {
					return err
				}
				time.Sleep(40 * time.Millisecond)
				s.Balance--
				_, err = a.In(tx).SetState(ctx, s)
				return err
			})
			if err != nil {
				failed++
				t.Log(err)
			}
		}
		cancel()
		_ = g.Wait()
		assert.Zero(t, failed)
		assert.LessOrEqual(t, most, 4, "functions that left their queue did not give way")
	})
}

// A transaction whose function touches a different scope in each run still commits.
//
// Proves TX-7.
func TestAlternatingScopesDoNotStarve(t *testing.T) {
	rt := openOn(t, memory.New())
	for _, id := range []string{"a", "b"} {
		seed(t, purses.Scope(rt, id), purse{})
	}
	runs := 0
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		runs++
		s := purses.Scope(rt, []string{"a", "b"}[runs%2])
		v, err := s.In(tx).State(ctx)
		if err != nil {
			return err
		}
		wrote := make(chan struct{})
		go func() { defer close(wrote); _, _ = s.IncState(context.Background(), "balance", 1) }() // this process keeps writing
		select {
		case <-wrote:
		case <-time.After(20 * time.Millisecond):
		}
		v.Balance += 100
		_, err = s.In(tx).SetState(ctx, v)
		return err
	})
	require.NoError(t, err)
}
