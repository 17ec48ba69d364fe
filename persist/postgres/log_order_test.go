package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// TestLateCommitGetsALatePosition: of two transactions, the first to draw its seq commits last. A
// reader that reads in between and goes on after the last position does not miss it.
//
// Proves STORE-1.
func TestLateCommitGetsALatePosition(t *testing.T) {
	f := newJoined(t, 3)
	must(t, f.s, put("early", 0))
	early, j := f.begin(pgx.TxOptions{})
	_, err := j.Commit(t.Context(), adding(put("early", 1), 0, `"first seq"`, `"second seq"`))
	require.NoError(t, err)
	late, j := f.begin(pgx.TxOptions{})
	_, err = j.Commit(t.Context(), adding(put("late", 0), 0, `"third seq"`))
	require.NoError(t, err)
	require.Empty(t, orderAfter(t, f.s, 0))
	require.NoError(t, late.Commit(t.Context()))

	between := orderAfter(t, f.s, 0)
	require.Equal(t, []string{`late 0 "third seq"`}, spelled(between))
	must(t, f.s, adding(put("later", 0), 0, `"fourth seq"`))
	require.NoError(t, early.Commit(t.Context()))
	after := orderAfter(t, f.s, between[0].Position)
	require.Equal(t, []string{`early 0 "first seq"`, `early 1 "second seq"`, `later 0 "fourth seq"`}, spelled(after))
	require.Equal(t, append(between, after...), orderAfter(t, f.s, 0), "positions do not change")
}

// follow reads the order until written is closed and no entry is left, whatever outages there are. It
// asserts that nothing was missed.
func follow(t *testing.T, s *Store, written <-chan struct{}) (followed []persist.LogEntry) {
	var after uint64
	var deadline time.Time
	for {
		ended := isClosed(written) // all commits were answered before the page was read
		if !ended {
			deadline = time.Now().Add(testkit.Patience)
		}
		page, err := s.ReadOrder(t.Context(), persist.OrderQuery{After: after, Limit: 50})
		switch {
		case err == nil && len(page) == 0 && ended:
			all, err := s.ReadOrder(t.Context(), persist.OrderQuery{Limit: math.MaxInt})
			if err != nil || !reflect.DeepEqual(all, followed) {
				t.Errorf("followed %d entries, and %d are there: %v", len(followed), len(all), err)
			}
			return followed
		case err != nil && (!errors.Is(err, persist.ErrUnavailable) || ended && time.Now().After(deadline)):
			t.Error(err)
			return followed
		case len(page) > 0:
			followed, after = append(followed, page...), page[len(page)-1].Position
		}
	}
}

// clocked gives every event a time of its own.
type clocked struct {
	clock atomic.Int64
	mu    sync.Mutex // protects times
	times map[string]span
}

// span is the time of one commit.
type span struct{ began, answered int64 }

// landed notes that the commit that added a text was acknowledged.
func (c *clocked) landed(text string, began int64) {
	answered := c.clock.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times[text] = span{began, answered}
}

// TestOneOrderForAllReaders: several stores write in every way at the same time, while the readers
// of several stores give positions. All readers get the same entries in the same order, without a
// gap. A commit that was acknowledged before another one began is before it, and the entries of a
// record are in the order of their numbers.
//
// Proves STORE-1, STORE-3.
func TestOneOrderForAllReaders(t *testing.T) {
	url := pgtest.URL(t)
	const writers, rounds, readers, keys, each = 8, 40, 4, 5, 2 // entries in a commit
	var stores []*Store
	for range 3 {
		stores = append(stores, openAt(t, connections(t, url, 6), Config{}))
	}
	stores[1].queue.maxDirect = 0
	noted := clocked{times: make(map[string]span)}
	var writing, reading sync.WaitGroup
	var done atomic.Bool
	for n := range writers {
		s := stores[n%len(stores)]
		writing.Go(func() {
			for round := range rounds {
				if err := appendSomehow(t.Context(), s, &noted, fmt.Sprintf("w%d.%d", n, round), rand.N(keys), each); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	read := make([][]persist.LogEntry, readers)
	for n := range readers {
		s, q := stores[n%len(stores)], persist.OrderQuery{}
		if n%2 == 1 {
			q.Kinds = []string{"none", "thing", "thing"}
		}
		reading.Go(func() {
			for ended := false; ; {
				q.Limit = 1 + rand.N(20)
				before := done.Load() // all commits were acknowledged before the page was read
				page, err := s.ReadOrder(t.Context(), q)
				if err != nil {
					t.Error(err)
					return
				}
				if ended = before && len(page) == 0; ended {
					return
				}
				for _, e := range page {
					if e.Position <= q.After {
						t.Errorf("position %d after %d", e.Position, q.After)
					}
					q.After = e.Position
				}
				read[n] = append(read[n], page...)
			}
		})
	}
	writing.Wait()
	done.Store(true)
	reading.Wait()

	require.Greater(t, len(noted.times), 50)
	require.Len(t, read[0], each*len(noted.times))
	for n := range readers {
		require.Equal(t, read[0], read[n])
	}
	next, latest := make(map[string]uint64), int64(0)
	for _, e := range read[0] {
		require.GreaterOrEqual(t, e.Number, next[e.ID], e.ID)
		next[e.ID] = e.Number + 1
		times, ok := noted.times[string(e.Data)]
		require.True(t, ok, "%s was not acknowledged", e.Data)
		require.Greater(t, times.answered, latest, "a commit that began later is before %s", e.Data)
		latest = max(latest, times.began)
	}
}

// appendSomehow adds entries to the log of one of several records, in one of the ways to commit. A
// conflict is no error.
func appendSomehow(ctx context.Context, s *Store, noted *clocked, id string, key, each int) error {
	began := noted.clock.Add(1)
	c, err := next(ctx, s, fmt.Sprint(key), "w", 0)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%q", id)
	c.ID, c.Writes[0].Recent = id, []string{}
	texts := make([]string, each)
	for i := range texts {
		texts[i] = text
	}
	adding(c, uint64(each)*c.Writes[0].Expected, texts...)
	switch rand.N(8) {
	case 0: // several records
		beside := put("beside-"+id, 0)
		beside.ID = id
		_, err = s.Commit(ctx, together(c, beside))
	case 1:
		_, err = s.CommitWith(ctx, c, func(context.Context, any) error { return nil })
	case 2: // a transaction of the caller, half of which are rolled back
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if _, err := s.Join(tx).Commit(ctx, c); err != nil {
				return err
			}
			if rand.N(2) == 0 {
				return errRegret
			}
			return nil
		})
		if err == errRegret {
			return nil
		}
	case 3:
		_, err = s.Commit(ctx, insisting(c))
	default:
		_, err = s.Commit(ctx, c)
	}
	if err == nil {
		noted.landed(text, began)
	} else if isConflict(err) {
		err = nil
	}
	return err
}

// TestPositionsAreGivenInSteps: entries without a position that are more than one transaction
// numbers all get positions before a page is read that is not full.
//
// Proves STORE-1.
func TestPositionsAreGivenInSteps(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	const count = 2*numberStep + 100
	execute(t, url, fmt.Sprintf("INSERT INTO pawl_log (kind, id, number, at, data) SELECT 'k', 'many', n, now(), n::text FROM generate_series(1, %d) n", count))
	must(t, s, adding(put("a", 0), 0, `"last"`))
	entries, err := s.ReadOrder(t.Context(), persist.OrderQuery{Kinds: []string{"thing"}})
	require.NoError(t, err)
	require.Equal(t, []string{`a 0 "last"`}, spelled(entries))
	require.EqualValues(t, count+1, entries[0].Position)
	conn := pgtest.Connect(t, url)
	require.EqualValues(t, count, value[int64](t, conn, "SELECT count(*) FROM pawl_log WHERE position = number"))
	must(t, s, adding(put("a", 1), 1, `"more"`))
	last, err := s.LastPosition(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, count+2, last)
}

// TestOrderNeedsNoLock: while another transaction gives positions, a page is read of entries that
// have some. Only a reader that finds an entry without a position waits.
//
// Proves STORE-14.
func TestOrderNeedsNoLock(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, connections(t, url, 2), Config{})
	must(t, s, adding(put("a", 0), 0, `0`, `1`))
	require.Len(t, orderAfter(t, s, 0), 2)
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", s.names.orderLock())
	require.NoError(t, err)
	require.Len(t, orderAfter(t, s, 0), 2)
	last, err := s.LastPosition(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, last)

	must(t, s, adding(put("a", 1), 2, `2`))
	full, err := s.ReadOrder(t.Context(), persist.OrderQuery{Limit: 2})
	require.NoError(t, err)
	require.Len(t, full, 2, "an entry without a position comes later")
	const waiting = 5
	pages := make(chan []persist.LogEntry, waiting)
	var all sync.WaitGroup
	for range waiting {
		all.Go(func() {
			page, err := s.ReadOrder(t.Context(), persist.OrderQuery{After: 2})
			if err != nil {
				t.Error(err)
			}
			pages <- page
		})
	}
	eventually(t, pgtest.Connect(t, url), someoneWaits)
	for version := uint64(2); version < 12; version++ {
		must(t, s, put("a", version)) // the readers occupy one connection
	}
	require.Empty(t, pages)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.ReadOrder(ctx, persist.OrderQuery{})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, tx.Rollback(t.Context()))
	all.Wait()
	for range waiting {
		require.Equal(t, []string{`a 2 2`}, spelled(<-pages))
	}
}

// TestOrderWaitsForARemoval: a transaction that removes entries without positions may be rolled
// back. So the entries behind them get no position before it has ended, and the wait is bounded.
//
// Proves STORE-1, STORE-14.
func TestOrderWaitsForARemoval(t *testing.T) {
	for _, undone := range []bool{true, false} {
		t.Run(fmt.Sprintf("undone=%t", undone), func(t *testing.T) {
			f := newJoined(t, 4)
			must(t, f.s, adding(put("a", 0), 0, `0`, `1`), adding(put("b", 0), 0, `0`))
			tx, j := f.begin(pgx.TxOptions{})
			drop := put("a", 1)
			drop.Writes[0].Log = &persist.LogWrite{Drop: 1}
			_, err := j.Commit(t.Context(), drop)
			require.NoError(t, err)
			f.s.config.CommitTimeout = time.Second
			_, err = f.s.ReadOrder(t.Context(), persist.OrderQuery{})
			require.ErrorIs(t, err, persist.ErrUnavailable)
			f.s.numbering <- struct{}{} // another reader waits
			_, err = f.s.ReadOrder(t.Context(), persist.OrderQuery{})
			require.ErrorIs(t, err, persist.ErrUnavailable)
			<-f.s.numbering

			f.s.config.CommitTimeout = time.Minute
			read := make(chan []persist.LogEntry, 1)
			go func() {
				page, err := f.s.ReadOrder(context.Background(), persist.OrderQuery{})
				if err != nil {
					t.Error(err)
				}
				read <- page
			}()
			eventually(t, f.conn, someoneWaits)
			want := []string{`a 0 0`, `a 1 1`, `b 0 0`}
			if undone {
				require.NoError(t, tx.Rollback(t.Context()))
			} else {
				require.NoError(t, tx.Commit(t.Context()))
				want = want[1:]
			}
			require.Equal(t, want, spelled(testkit.Receive(t, read, "the page was never read")))
		})
	}
}

// TestOrderSurvivesADeadlock: a transaction of another program removes entries in another order than
// they get positions. The server ends one of the two; the reader goes on.
//
// Proves STORE-4.
func TestOrderSurvivesADeadlock(t *testing.T) {
	url := pgtest.URL(t)
	s, conn := openAt(t, url, Config{}), pgtest.Connect(t, url)
	must(t, s, adding(put("a", 0), 0, `0`), adding(put("b", 0), 0, `0`), adding(put("c", 0), 0, `0`))
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "DELETE FROM pawl_log WHERE id = 'b'")
	require.NoError(t, err)
	read := make(chan []persist.LogEntry, 1)
	go func() {
		page, err := s.ReadOrder(context.Background(), persist.OrderQuery{})
		if err != nil {
			t.Error(err)
		}
		read <- page
	}()
	eventually(t, conn, someoneWaits)
	want := []string{`a 0 0`, `b 0 0`, `c 0 0`}
	if _, err = tx.Exec(t.Context(), "DELETE FROM pawl_log WHERE id = 'a'"); err == nil {
		require.NoError(t, tx.Commit(t.Context()))
		want = want[2:]
	} else {
		require.Equal(t, codeDeadlockDetected, sqlState(err))
		require.NoError(t, tx.Rollback(t.Context()))
	}
	require.Equal(t, want, spelled(testkit.Receive(t, read, "the page was never read")))
}

// counting is a connection that counts its writes.
type counting struct {
	net.Conn
	writes *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// TestRoundTripsOfLogs: an append is one round trip, as a commit without entries is. So is a read
// by number, and a read of the order if all entries have positions. Giving positions is one more.
func TestRoundTripsOfLogs(t *testing.T) {
	var writes atomic.Int64
	pool := pooled(t, connections(t, pgtest.URL(t), 1), func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return counting{conn, &writes}, err
		}
	})
	s, err := New(t.Context(), pool, Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	afterCommits(t, s, "hints", 1) // are not sent from now on
	version := uint64(0)
	trips := func(want int64, call func()) {
		t.Helper()
		before := writes.Load()
		call()
		if version > 2 { // the statements are prepared
			require.Equal(t, want, writes.Load()-before)
		}
	}
	for ; version < 6; version++ {
		if version > 0 {
			trips(1, func() { must(t, s, adding(put("a", version), version, `"entry"`)) })
		} else {
			must(t, s, adding(put("a", 0), 0, `"entry"`))
		}
		trips(1, func() { require.Len(t, logOf(t, s, "a"), int(version)+1) })
		trips(2, func() { require.Len(t, orderAfter(t, s, version), 1) })
		trips(1, func() { require.Len(t, orderAfter(t, s, version), 1) })
		trips(1, func() {
			_, err := s.ReadOrder(t.Context(), persist.OrderQuery{Kinds: []string{"thing", "other"}})
			require.NoError(t, err)
		})
		trips(1, func() {
			last, err := s.LastPosition(t.Context())
			require.NoError(t, err)
			require.Equal(t, version+1, last)
		})
	}
}
