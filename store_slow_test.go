package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// tellers are writers that each count in a purse of their own and in a shared one, by a verb or in a
// transaction, until stop is closed.
type tellers struct {
	rt     *pawl.Runtime
	stop   chan struct{}
	group  errgroup.Group
	counts [cutWriters]struct{ acknowledged, refused, unknown atomic.Int64 }
}

func startTellers(rt *pawl.Runtime) *tellers {
	w := &tellers{rt: rt, stop: make(chan struct{})}
	for i := range cutWriters {
		w.group.Go(func() error {
			for {
				select {
				case <-w.stop:
					return nil
				default:
				}
				switch err := w.change(i); {
				case err == nil:
					w.counts[i].acknowledged.Add(1)
				case pawl.OutcomeUnknown(err):
					w.counts[i].unknown.Add(1)
				// A transaction that waited for the bank's queue until its budget was spent finds what it
				// has read outdated, and sends nothing.
				case errors.Is(err, pawl.ErrUnavailable), errors.Is(err, pawl.ErrConflict):
					w.counts[i].refused.Add(1)
				default:
					return err
				}
			}
		})
	}
	return w
}

func (w *tellers) change(i int) error {
	ctx, own := context.Background(), purses.Scope(w.rt, fmt.Sprint(i))
	if i%2 == 0 {
		_, err := own.IncState(ctx, "balance", 1)
		return err
	}
	return pawl.Transact(ctx, w.rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := own.In(tx).IncState(ctx, "balance", 1); err != nil {
			return err
		}
		_, err := purses.Scope(tx, "bank").IncState(ctx, "balance", 1)
		return err
	})
}

// sum returns how many changes had an outcome, over all tellers.
func (w *tellers) sum() (acknowledged, refused, unknown int64) {
	for i := range w.counts {
		c := &w.counts[i]
		acknowledged, refused, unknown = acknowledged+c.acknowledged.Load(), refused+c.refused.Load(), unknown+c.unknown.Load()
	}
	return acknowledged, refused, unknown
}

// check stops the tellers and compares the purses with the answers: what was acknowledged is there
// once, what is unknown at most once, and what was refused is not there.
func (w *tellers) check(t *testing.T) {
	t.Helper()
	close(w.stop)
	require.NoError(t, w.group.Wait())
	shared := int64(0)
	for i := range w.counts {
		s, err := purses.Scope(w.rt, fmt.Sprint(i)).State(t.Context())
		require.NoError(t, err)
		acknowledged, unknown := w.counts[i].acknowledged.Load(), w.counts[i].unknown.Load()
		require.GreaterOrEqual(t, s.Balance, acknowledged, "teller %d", i)
		require.LessOrEqual(t, s.Balance, acknowledged+unknown, "teller %d", i)
		if i%2 == 1 {
			shared += s.Balance
		}
	}
	s, err := purses.Scope(w.rt, "bank").State(t.Context())
	require.NoError(t, err)
	require.Equal(t, shared, s.Balance, "a transaction is there in part")
}

// PostgreSQL answers some commits later than the budget of their callers: after PAWL_SLOW seconds.
// Acknowledged changes are there once, those of unknown outcome at most once, and other callers are
// served meanwhile.
//
// Proves CAS-7, TX-1, STORE-14.
func TestLateAnswers(t *testing.T) {
	delay := time.Duration(testkit.Times(2, 2, "PAWL_SLOW")) * time.Second
	proxy, location, _ := proxied(t)
	rt := openRuntime(t, pawl.Config{Store: stores.OpenFor(t, location), Retry: pawl.Retry{Within: 500 * time.Millisecond}})
	seed(t, purses.Scope(rt, "bank"), purse{})
	for i := range cutWriters {
		seed(t, purses.Scope(rt, fmt.Sprint(i)), purse{})
	}
	var held atomic.Int64
	proxy.Script(func(pgproxy.Commit) pgproxy.Action {
		if rand.IntN(50) > 0 || held.Load() >= 8 {
			return pgproxy.Pass
		}
		held.Add(1)
		return pgproxy.Hold(delay)
	})
	w := startTellers(rt)
	testkit.EventuallyWithin(t, 2*time.Minute, func() bool { _, _, unknown := w.sum(); return unknown >= 4 && held.Load() >= 8 }, "answers are late")
	before, _, _ := w.sum()
	testkit.EventuallyWithin(t, 2*time.Minute, func() bool { now, _, _ := w.sum(); return now > before+100 }, "other changes are acknowledged")
	proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.Pass })
	w.check(t)
	acknowledged, refused, unknown := w.sum()
	testkit.Figures(t, "%d answers %v late: %d changes acknowledged, %d refused, %d of unknown outcome", held.Load(), delay, acknowledged, refused, unknown)
}

// PostgreSQL has no connection left. Changes are refused in time, or succeed on connections that the
// store has. They succeed again, without help, when connections are free.
//
// Proves CAS-6, STORE-14.
func TestOutOfConnections(t *testing.T) {
	stores.Need(t, "postgres")
	server := pgtest.New(t, "max_connections=12")
	rt := openRuntime(t, pawl.Config{Store: stores.OpenFor(t, server.URL("postgres")), Retry: pawl.Retry{Within: 500 * time.Millisecond}})
	seed(t, purses.Scope(rt, "bank"), purse{})
	w := startTellers(rt)
	ctx := t.Context()
	rounds := testkit.Times(10, 3, "PAWL_ROUNDS")
	for range rounds {
		was, _, _ := w.sum()
		testkit.Eventually(t, func() bool { now, _, _ := w.sum(); return now > was+20 }, "changes are acknowledged")
		var taken []*pgx.Conn
		_, before, _ := w.sum()
		testkit.Eventually(t, func() bool { // takes the connections of the store, too, as soon as these are cut
			if len(taken) > 0 {
				_, err := taken[0].Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'")
				require.NoError(t, err)
			}
			conn, err := pgx.Connect(ctx, server.URL("template1"))
			if err == nil {
				taken = append(taken, conn)
			} else {
				var full *pgconn.PgError
				require.ErrorAs(t, err, &full)
				require.Equal(t, "53300", full.Code)
			}
			_, refused, _ := w.sum()
			return refused > before+5
		}, "changes are refused")
		for _, conn := range taken {
			require.NoError(t, conn.Close(ctx))
		}
	}
	was, _, _ := w.sum()
	testkit.Eventually(t, func() bool { now, _, _ := w.sum(); return now > was+20 }, "changes are acknowledged again")
	w.check(t)
	acknowledged, refused, unknown := w.sum()
	testkit.Figures(t, "%d times without connections: %d changes acknowledged, %d refused, %d of unknown outcome", rounds, acknowledged, refused, unknown)
}
