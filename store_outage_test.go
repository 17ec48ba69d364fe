package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist/sqlite"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

const (
	cutRate    = 0.15 // share of commits whose connection is cut
	cutPurses  = 4
	cutWriters = 6 // per runtime
)

// Writers in two runtimes count, alone and in transactions, while connections to PostgreSQL are cut
// around their commits. No change is lost or doubled, and no outcome stays unknown.
//
// Proves CAS-6, CAS-7, TX-1, STORE-14.
func TestCutConnections(t *testing.T) {
	proxy, location, direct := proxied(t)
	var runtimes []*pawl.Runtime
	for range 2 {
		runtimes = append(runtimes, openRuntime(t, pawl.Config{Store: stores.OpenFor(t, location)}))
	}
	control := openRuntime(t, pawl.Config{Store: stores.OpenFor(t, direct)})
	var added [cutPurses]atomic.Int64
	for i := range cutPurses {
		seed(t, purses.Scope(control, fmt.Sprint(i)), purse{})
	}
	var refused, moved atomic.Int64
	proxy.Cut(cutRate, rand.Uint64())
	ctx, wantCuts := t.Context(), testkit.Times(500, 90, "PAWL_CUTS")
	// work makes one change and counts it if it was acknowledged. A refused change must not be in
	// the store.
	work := func(rt *pawl.Runtime) error {
		i, j := rand.IntN(cutPurses), rand.IntN(cutPurses)
		scope := purses.Scope(rt, fmt.Sprint(i))
		var err error
		switch rand.IntN(4) {
		case 0:
			_, err = scope.IncState(ctx, "balance", 1)
		case 1:
			_, err = scope.AtomicState(ctx, func(_ context.Context, s *purse) error { s.Balance++; return nil })
		case 2, 3:
			reads := rand.IntN(2) == 0
			err = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
				if reads {
					if _, err := scope.In(tx).State(ctx); err != nil {
						return err
					}
				}
				if _, err := scope.In(tx).IncState(ctx, "balance", 1001); err != nil {
					return err
				}
				_, err := purses.Scope(tx, fmt.Sprint(j)).IncState(ctx, "balance", -1000)
				return err
			})
			if err == nil {
				moved.Add(1)
				added[i].Add(1000)
				added[j].Add(-1000)
			}
		}
		switch {
		case err == nil:
			added[i].Add(1)
		case errors.Is(err, pawl.ErrUnavailable), errors.Is(err, pawl.ErrConflict):
			refused.Add(1)
		default:
			return err
		}
		return nil
	}
	var g errgroup.Group
	for _, rt := range runtimes {
		for range cutWriters {
			g.Go(func() error {
				for proxy.Counts().Cuts() < wantCuts {
					if err := work(rt); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	require.NoError(t, g.Wait())
	proxy.Script(func(pgproxy.Commit) pgproxy.Action { return pgproxy.Pass })
	counts := proxy.Counts()
	for i := range cutPurses {
		s, err := purses.Scope(control, fmt.Sprint(i)).State(ctx)
		require.NoError(t, err)
		require.Equal(t, added[i].Load(), s.Balance, "purse %d", i)
	}
	testkit.Figures(t, "cuts %+v; %d transfers acknowledged, %d changes refused", counts, moved.Load(), refused.Load())
	for name, n := range map[string]int{"before": counts.BeforeCommit, "after sending": counts.AfterSend, "after executing": counts.AfterExecute} {
		require.Greater(t, n, wantCuts/6, "too few connections cut %s the commit", name)
	}
	require.Positive(t, moved.Load())
}

// A caller whose answer does not arrive within the budget is in doubt. Its commit is applied once,
// and later changes of the scope succeed.
//
// Proves CAS-7.
func TestAnswerAfterTheBudget(t *testing.T) {
	proxy, location, direct := proxied(t)
	rt := openRuntime(t, pawl.Config{Store: stores.OpenFor(t, location), Retry: pawl.Retry{Within: 500 * time.Millisecond}})
	control := openRuntime(t, pawl.Config{Store: stores.OpenFor(t, direct)})
	for _, id := range []string{"a", "b"} {
		seed(t, purses.Scope(rt, id), purse{})
	}
	for name, change := range map[string]func() error{
		"verb": func() error {
			_, err := purses.Scope(rt, "a").IncState(t.Context(), "balance", 1)
			return err
		},
		"transaction": func() error {
			return pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1); err != nil {
					return err
				}
				_, err := purses.Scope(tx, "b").IncState(ctx, "balance", 1)
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := purses.Scope(control, "a").State(t.Context())
			require.NoError(t, err)
			release := make(chan struct{})
			var once sync.Once
			proxy.Script(func(pgproxy.Commit) pgproxy.Action {
				action := pgproxy.Pass
				once.Do(func() { action = pgproxy.HoldUntil(release) })
				return action
			})
			var unknown *pawl.UnknownOutcomeError
			require.ErrorAs(t, change(), &unknown)
			require.True(t, pawl.OutcomeUnknown(unknown))
			close(release)
			testkit.Eventually(t, func() bool { return assert.NoError(t, change()) })
			after, err := purses.Scope(control, "a").State(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, before.Balance+2, after.Balance)
		})
	}
}

// PostgreSQL is killed and restarted repeatedly under load. Acknowledged changes are present once,
// refused changes are absent, and writers continue without help.
//
// Proves CAS-6, CAS-7, STORE-14.
func TestServerKilled(t *testing.T) {
	stores.Need(t, "postgres")
	kills := killsOf(12)
	server := pgtest.New(t)
	rt := openRuntime(t, pawl.Config{Store: stores.OpenFor(t, server.URL("postgres"))})
	seed(t, purses.Scope(rt, "bank"), purse{})
	w := startTellers(rt)
	for range kills {
		was, _, _ := w.sum()
		testkit.Eventually(t, func() bool { now, _, _ := w.sum(); return now > was+20 }, "writers make no progress")
		server.Kill()
		server.Start()
	}
	w.check(t)
	acknowledged, refused, unknown := w.sum()
	require.Zero(t, unknown, "changes of unknown outcome")
	testkit.Figures(t, "%d kills, %d changes acknowledged, %d refused", kills, acknowledged, refused)
}

// A mutation of a scope whose database file was removed gives *UnavailableError, and nothing is
// acknowledged. It works again once the file is back.
//
// Proves STORE-14.
func TestRemovedDatabaseFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not rename open files")
	}
	file := filepath.Join(t.TempDir(), "state.db")
	store, err := sqlite.Open(t.Context(), file, sqlite.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	rt := openRuntime(t, pawl.Config{Store: store, Retry: pawl.Retry{Within: 200 * time.Millisecond}})
	s := purses.Scope(rt, "a")
	seed(t, s, purse{})
	require.NoError(t, os.Rename(file, file+".moved"))
	_, err = s.IncState(t.Context(), "balance", 1)
	var unavailable *pawl.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	_, err = s.Snapshot(t.Context())
	require.ErrorAs(t, err, &unavailable)
	require.NoError(t, os.Rename(file+".moved", file))
	snap, err := s.IncState(t.Context(), "balance", 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, snap.ReadOnly().Balance)
}
