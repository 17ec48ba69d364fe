package adk_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/session"
)

func init() {
	testkit.Child("counter", func() error { return given(counter) })
	testkit.Child("appender", func() error { return given(appender) })
	testkit.Child("deleter", func() error { return given(deleter) })
}

// given runs work with a service on the store that the parent named.
func given(work func(ctx context.Context, s *adk.Service) error) (err error) {
	ctx := context.Background()
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: adk.Kinds()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rt.Close(ctx)) }()
	s, err := adk.New(rt, adk.Config{})
	if err != nil {
		return err
	}
	testkit.Begin()
	return work(ctx, s)
}

// again calls work until the session that it got was not stale.
func again(work func() error) error {
	for budget, n := pawl.DefaultRetry, 1; ; n++ {
		err := work()
		if !errors.Is(err, adk.ErrStale) || n == 1000 {
			return err
		}
		time.Sleep(budget.Delay(min(n, 4)))
	}
}

// count adds 1 to three numbers: it reads, adds, and appends.
func count(ctx context.Context, s session.Service, user, id, event string) error {
	return again(func() error {
		r, err := s.Get(ctx, &session.GetRequest{AppName: appName, UserID: user, SessionID: id, NumRecentEvents: 1})
		if err != nil {
			return err
		}
		delta := map[string]any{"sum": adk.Inc(1), "user:sum": adk.Inc(1), "app:sum": adk.Inc(1)}
		for _, key := range []string{"n", "user:n", "app:n"} {
			v, err := r.Session.State().Get(key)
			if err != nil && !errors.Is(err, session.ErrStateKeyNotExist) {
				return err
			}
			n, _ := v.(float64)
			delta[key] = n + 1
		}
		e := session.NewEvent(ctx, "count")
		e.ID, e.Actions.StateDelta = event, delta
		return s.AppendEvent(ctx, r.Session, e)
	})
}

const counterEnv = "ADK_TEST_COUNTER"

// counter runs in a child: it counts in a session of its own and in a common one.
func counter(ctx context.Context, s *adk.Service) error {
	name, rounds, _ := strings.Cut(os.Getenv(counterEnv), "/")
	n, err := strconv.Atoi(rounds)
	if err != nil {
		return err
	}
	for i := range n {
		for _, id := range []string{"common", name} {
			if err := count(ctx, s, userID, id, fmt.Sprintf("%s-%d", name, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Several processes count in one session, and in sessions of one user: no increment is lost.
func TestProcessesLoseNothing(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		s := open(t, location, adk.Config{})
		const processes = 2
		rounds := testkit.Times(20, 8)
		create(t, s, "common", nil)
		var children []*testkit.Process
		for i := range processes {
			create(t, s, fmt.Sprint(i), nil)
			children = append(children, testkit.Start(t, "counter", stores.Env(location), fmt.Sprintf("%s=%d/%d", counterEnv, i, rounds)))
		}
		testkit.Ready(children...)
		for _, c := range children {
			c.Wait()
		}
		common := get(t, s, "common")
		got := state(common)
		for key, want := range map[string]int{"n": rounds * processes, "user:n": 2 * rounds * processes, "app:n": 2 * rounds * processes} {
			require.Equal(t, float64(want), got[key], key)
			require.Equal(t, got[key], got[strings.TrimSuffix(key, "n")+"sum"], key)
		}
		require.Len(t, ids(common), rounds*processes)
	})
}

// appender runs in a child: it appends until it is killed, and says what was acknowledged.
func appender(ctx context.Context, s *adk.Service) error {
	for i := 0; ; i++ {
		r, err := s.Get(ctx, &session.GetRequest{AppName: appName, UserID: userID, SessionID: "s", NumRecentEvents: 1})
		if err != nil {
			return err
		}
		e := session.NewEvent(ctx, "append")
		e.ID = fmt.Sprintf("%d-%d", os.Getpid(), i)
		e.Actions.StateDelta = map[string]any{"n": adk.Inc(1), "user:n": adk.Inc(1), "app:n": adk.Inc(1), "last": e.ID}
		err = s.AppendEvent(ctx, r.Session, e)
		if errors.Is(err, adk.ErrStale) {
			continue // the server has committed the last event of a killed process just now
		}
		if err != nil {
			return err
		}
		testkit.Say("%s", e.ID)
	}
}

// A process that is killed while it appends leaves all acknowledged events, at most one more of its own,
// and a state that fits them.
func TestKilledWhileAppending(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		s := open(t, location, adk.Config{})
		create(t, s, "s", nil)
		var acknowledged []string
		kills := testkit.Times(10, 3, "PAWL_KILLS")
		for range kills {
			p := testkit.Start(t, "appender", stores.Env(location))
			testkit.Ready(p)
			for range 1 + rand.IntN(10) {
				acknowledged = append(acknowledged, p.Line())
			}
			time.Sleep(rand.N(3 * time.Millisecond)) // a random place in an append
			acknowledged = append(acknowledged, p.Kill()...)

			h := get(t, s, "s")
			stored, got := ids(h), state(h)
			require.Subset(t, stored, acknowledged)
			require.Equal(t, stored[len(stored)-1], got["last"])
			for _, key := range []string{"n", "user:n", "app:n"} {
				require.Equal(t, float64(len(stored)), got[key], key)
			}
			// One event of this process may be there without an answer. PostgreSQL may also have committed one
			// of the last process after that was killed.
			require.LessOrEqual(t, len(stored), len(acknowledged)+2)
			acknowledged = stored
		}
		testkit.Figures(t, "%d kills, %d events", kills, len(acknowledged))
	})
}

// deleter runs in a child: it makes a session of some events and deletes it, until it is killed.
func deleter(ctx context.Context, s *adk.Service) error {
	for {
		r, err := s.Create(ctx, &session.CreateRequest{AppName: appName, UserID: userID, SessionID: "s"})
		if err != nil {
			return err
		}
		for i := range 5 {
			e := session.NewEvent(ctx, "append")
			e.ID, e.Actions.StateDelta = fmt.Sprint(i), map[string]any{"n": adk.Inc(1)}
			if err := s.AppendEvent(ctx, r.Session, e); err != nil {
				return err
			}
		}
		testkit.Say("full")
		if err := s.Delete(ctx, &session.DeleteRequest{AppName: appName, UserID: userID, SessionID: "s"}); err != nil {
			return err
		}
		testkit.Say("deleted")
	}
}

// childLocation is the location for a child, whose sessions in PostgreSQL awaitGone recognizes.
func childLocation(location string) string {
	if !strings.HasPrefix(location, "postgres") {
		return location
	}
	return location + "&application_name=child"
}

// awaitGone waits until PostgreSQL has noticed that a child was killed. Until then it may commit what the
// child has sent.
func awaitGone(t *testing.T, location string) {
	if !strings.HasPrefix(location, "postgres") {
		return
	}
	conn := pgtest.Connect(t, location)
	testkit.Eventually(t, func() bool {
		var n int
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'child'").Scan(&n))
		return n == 0
	}, "the sessions of the child end")
	require.NoError(t, conn.Close(t.Context()))
}

// A process that is killed while it deletes leaves the session whole or not at all. The next Delete, of
// this session or of another one, leaves nothing behind.
func TestKilledWhileDeleting(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		s := open(t, location, adk.Config{})
		s.ResumeAfter(0)
		kills, whole := testkit.Times(10, 3, "PAWL_KILLS"), 0
		for range kills {
			p := testkit.Start(t, "deleter", stores.Env(childLocation(location)))
			testkit.Ready(p)
			for range 1 + 2*rand.IntN(3) {
				p.Line()
			}
			time.Sleep(rand.N(5 * time.Millisecond)) // a random place in a deletion
			p.Kill()
			awaitGone(t, location)

			if rand.IntN(2) == 0 {
				create(t, s, "another", nil)
				remove(t, s, "another")
				if _, err := s.Get(t.Context(), &session.GetRequest{AppName: appName, UserID: userID, SessionID: "s"}); err != nil {
					require.ErrorIs(t, err, adk.ErrNotFound)
					requireNothingLeft(t, s)
				}
			}
			r, err := s.Get(t.Context(), &session.GetRequest{AppName: appName, UserID: userID, SessionID: "s"})
			if err != nil {
				require.ErrorIs(t, err, adk.ErrNotFound)
				require.Empty(t, ids(create(t, s, "s", nil)))
				require.Empty(t, ids(get(t, s, "s")))
			} else if n := len(ids(r.Session)); n > 0 {
				whole++
				require.Equal(t, []string{"0", "1", "2", "3", "4"}[:n], ids(r.Session))
				require.Equal(t, float64(n), state(r.Session)["n"])
			}
			remove(t, s, "s")
			requireNothingLeft(t, s)
		}
		testkit.Figures(t, "%d kills, %d before the deletion", kills, whole)
	})
}
