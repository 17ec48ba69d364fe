package main

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
)

// A child process of a test runs the program of the test.
func TestMain(m *testing.M) {
	if isChild() {
		return
	}
	os.Exit(m.Run())
}

func benchFor(t *testing.T) *bench {
	b := newBench(t.Context(), true)
	t.Cleanup(b.close)
	return b
}

// withPostgres gives b a server that ends with the test. Without PostgreSQL it skips the test.
func withPostgres(t *testing.T, b *bench) { b.server = pgtest.New(t, "max_connections=300") }

// No contender loses an acknowledged unit, in any store, and none fails but a naive loop that gives up.
func TestContendersLoseNothing(t *testing.T) {
	for _, store := range []string{inPostgres, inSlowPostgres, inSQLite, inFiles} {
		t.Run(store, func(t *testing.T) {
			b := benchFor(t)
			if store == inPostgres || store == inSlowPostgres {
				withPostgres(t, b)
			}
			check := func(a access, s strategy) {
				t.Run(s.key+", "+a.name, func(t *testing.T) {
					m, err := b.once(a.on(s, store), load{writers: 8, each: 5})
					require.NoError(t, err)
					require.Zero(t, m.lost)
					require.EqualValues(t, 40, m.acknowledged+m.failed)
					if m.failed > 0 { // only the naive loops give up
						require.ErrorIs(t, m.err, errGaveUp)
					}
				})
			}
			for _, s := range []strategy{atomically, observed, byIncrement, naive8, naive8Wide, naive3, locking} {
				check(hotRow, s)
				check(hotReads, s)
			}
			if store == inFiles {
				return
			}
			for _, s := range []strategy{atomically, naive8, naive8Wide, locking} {
				check(uniform, s)
				check(zipfian, s)
			}
			for _, s := range []strategy{transact, swapBoth, lockBoth} {
				check(hotWallets, s)
			}
		})
	}
}

// Units that are missing or applied twice are counted, and so is a wrong sum of balances.
func TestLossIsCounted(t *testing.T) {
	for _, store := range []string{inSQLite, inFiles} {
		b := benchFor(t)
		c, err := b.openContender(naive8, store, hotWallets)
		require.NoError(t, err)
		forget := strategy{key: naive8.key, name: naive8.name}
		add := c.add
		for lost, do := range map[int64]func(context.Context, string) error{
			1:  func(context.Context, string) error { return nil },
			-1: func(ctx context.Context, id string) error { _ = add(ctx, id); return add(ctx, id) },
			0:  add,
		} {
			c.add = func(ctx context.Context, _ string) error { return do(ctx, "wallet-a") }
			m, err := b.once(hotWallets.on(forget, store), load{writers: 1, each: 1})
			require.NoError(t, err)
			require.Equal(t, lost, m.lost, store)
		}
		table := b.tables[store+", 0 connections"]
		c.add = func(ctx context.Context, _ string) error { // a unit, and a balance without a counterpart
			return table.update(ctx, "wallet-b", func([]byte) ([]byte, error) { return []byte(`{"count": 1, "balance": 2}`), nil })
		}
		m, err := b.once(hotWallets.on(forget, store), load{writers: 1, each: 1})
		require.NoError(t, err)
		require.EqualValues(t, 2, m.lost, store)
	}
}

// The units of both processes are counted.
func TestSecondProcess(t *testing.T) {
	b := benchFor(t)
	withPostgres(t, b)
	for _, s := range []strategy{atomically, naive8} {
		m, err := b.once(hotRow.on(s, inPostgres), load{writers: 8, each: 5, twice: true})
		require.NoError(t, err)
		require.EqualValues(t, 40, m.acknowledged, s.key)
		require.EqualValues(t, 40, m.latency.total, s.key)
		require.Zero(t, m.lost, s.key)
	}
	_, err := b.driveTwice(&instance{remote: "unknown"}, load{writers: 2, each: 1})
	require.ErrorContains(t, err, "did not start")
}

// In a closed loop, units that are acknowledged after the time was over do not count for the rate.
// With load.cut, sleeping writers end.
func TestTimeIsOver(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context()) // ends the time, when both writers are in their last unit
	over, slow := make(chan struct{}), new(sync.WaitGroup)
	slow.Add(2)
	go func() { slow.Wait(); stop() }()
	in := &instance{ending: func() { close(over) }, do: func(_ context.Context, writer, i int) error {
		if i < 3 {
			return nil
		}
		slow.Done()
		<-over
		if writer == 0 {
			return errCut
		}
		return nil
	}}
	m, err := drive(ctx, in, load{writers: 2, lasts: time.Hour, cut: true})
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 7, m.acknowledged)
	require.EqualValues(t, 1, m.late)
	require.EqualValues(t, 8, m.latency.total)
	require.Zero(t, m.failed)
}

// The naive loop returns errGaveUp after its last try.
func TestNaiveGivesUp(t *testing.T) {
	c := &contender{}
	tries := 0
	err := retrying(t.Context(), c, 4, func(int) time.Duration { return 0 }, func() (bool, error) { tries++; return false, nil })
	require.ErrorIs(t, err, errGaveUp)
	require.Equal(t, 4, tries)
	require.EqualValues(t, 3, c.conflicts.Load())
	for lost := 1; lost < 8; lost++ {
		require.Less(t, jittered(lost), 10*time.Millisecond<<(lost-1))
	}
}
