package postgres

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// creating creates rows in another transaction, without their advisory locks, and returns the
// function that rolls it back.
func creating(t testing.TB, url string, ids ...string) (undo func()) {
	t.Helper()
	tx, err := pgtest.Connect(t, url).Begin(t.Context())
	require.NoError(t, err)
	for _, id := range ids {
		_, err = tx.Exec(t.Context(), foreignCreation, id)
		require.NoError(t, err)
	}
	return func() { require.NoError(t, tx.Rollback(context.Background())) }
}

// TestForeignCreatorHoldsUpNoBatch: an uncommitted row of another program, which only the unique
// index contains, delays the commit of its own key and no other commit of the batch.
//
// Proves CAS-11.
func TestForeignCreatorHoldsUpNoBatch(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	undo := creating(t, url, "x")
	s.queue.maxDirect = 0
	back := usedUp(t, s)
	var answers []<-chan result
	for _, id := range []string{"x", "y", "z"} {
		answers = append(answers, commitLater(t.Context(), s, put(id, 0)))
	}
	inQueue(t, s, len(answers))
	back()
	require.NoError(t, answered(t, answers[1]).err)
	require.NoError(t, answered(t, answers[2]).err)
	require.Empty(t, answers[0], "its row is not committed yet")
	undo()
	require.NoError(t, answered(t, answers[0]).err)
}

// TestForeignCreatorsLeaveConnections: as many uncommitted rows as the pool has connections leave
// some for others.
//
// Proves CAS-11, STORE-14.
func TestForeignCreatorsLeaveConnections(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, connections(t, url, 4), Config{CommitTimeout: time.Minute})
	ids := []string{"0", "1", "2", "3"}
	undo := creating(t, url, ids...)
	var answers []<-chan result
	for _, id := range ids {
		answers = append(answers, commitLater(t.Context(), s, put(id, 0)))
	}
	eventually(t, pgtest.Connect(t, url), someoneWaits)
	for version := range uint64(20) {
		must(t, s, put("free", version))
	}
	for _, answer := range answers {
		require.Empty(t, answer, "its row is not committed yet")
	}
	undo()
	for _, answer := range answers {
		require.NoError(t, answered(t, answer).err)
	}
}

// TestReadersDoNotStarveAWriter: a record that others read all the time, so that it is always
// locked for sharing, can be written.
//
// Proves CAS-11.
func TestReadersDoNotStarveAWriter(t *testing.T) {
	for name, company := range map[string][]persist.Commit{"one": nil, "several": {put("audit", 0)}} {
		t.Run(name, func(t *testing.T) {
			url := pgtest.URL(t)
			s := openAt(t, url, Config{})
			execute(t, url, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(0.01 + random() * 0.02); RETURN NULL; END$$`,
				`CREATE TRIGGER slow AFTER INSERT OR UPDATE ON pawl_records FOR EACH ROW WHEN (NEW.id LIKE 'own-%') EXECUTE FUNCTION slow()`)
			must(t, s, put("config", 0))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var group sync.WaitGroup
			var commits, version atomic.Uint64
			version.Store(1)
			const stores, readers = 4, 16
			for n := range stores {
				reading := openAt(t, connections(t, url, 4), Config{})
				for i := range readers / stores {
					group.Go(func() {
						for own := uint64(0); ctx.Err() == nil; {
							c := put(fmt.Sprintf("own-%d-%d", n, i), own)
							c.Guards = []persist.Guard{{Key: thing("config"), Read: true, Version: version.Load()}}
							if _, err := reading.Commit(context.Background(), c); err == nil {
								own++
								commits.Add(1)
							}
						}
					})
				}
			}
			for v := uint64(1); v <= 3; v++ {
				before := commits.Load()
				testkit.Eventually(t, func() bool { return commits.Load() > before+readers })
				c := put("config", v)
				if v == 1 {
					c = together(append([]persist.Commit{c}, company...)...)
				}
				_, err := s.Commit(t.Context(), c)
				require.NoError(t, err)
				version.Store(v + 1)
			}
			cancel()
			group.Wait()
		})
	}
}

// TestWaitIsBounded: a wait for a record that others share in turn, each for less than the limit,
// ends as a whole, and it is known that nothing was written.
func TestWaitIsBounded(t *testing.T) {
	url := pgtest.URL(t)
	s := openAt(t, url, Config{})
	must(t, s, put("a", 0))
	s.config.CommitTimeout = time.Hour // so that only the wait's own bound can end it
	const wait = 200 * time.Millisecond
	var sharers [2]*pgx.Conn
	for i := range sharers {
		sharers[i] = pgtest.Connect(t, url)
	}
	share := func(i int) {
		if _, err := sharers[i].Exec(context.Background(), "BEGIN; SELECT FROM pawl_records WHERE id = 'a' FOR SHARE"); err != nil {
			t.Error(err)
		}
	}
	share(0)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	var relay sync.WaitGroup
	relay.Go(func() {
		for n := 1; ctx.Err() == nil; n++ {
			share(n % 2) // before the other one lets go
			if _, err := sharers[(n+1)%2].Exec(context.Background(), "COMMIT"); err != nil {
				t.Error(err)
			}
			pause(ctx, wait/10)
		}
		for _, sharer := range sharers {
			_, _ = sharer.Exec(context.Background(), "ROLLBACK")
		}
	})
	for _, c := range []persist.Commit{put("a", 1), together(put("a", 1), put("b", 0))} {
		r := &request{ctx: t.Context(), commit: c, keys: c.Keys(), done: make(chan struct{})}
		_, err := s.attempt(r, wait)
		require.True(t, inTheWay(err), "%v", err)
	}
	cancel()
	relay.Wait()
}

// TestWinnerIsNotFromBeforeAWait: a conflict contains the current record if that was purged and
// created again while the commit waited for it or for another record.
//
// Proves STORE-5.
func TestWinnerIsNotFromBeforeAWait(t *testing.T) {
	for _, waitsFor := range []string{"a", "b"} { // b is purged
		t.Run(waitsFor, func(t *testing.T) {
			url := pgtest.URL(t)
			s, other := openAt(t, url, Config{}), openAt(t, url, Config{})
			must(t, s, put("a", 0), put("b", 0), persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: thing("b"), Expected: 1, Version: 2, Deleted: true}}})
			again := put("b", 2)
			again.Writes[0].Gone = true
			var answer <-chan result
			if waitsFor == "a" {
				release := locked(t, url, "a")
				answer = commitLater(t.Context(), s, together(put("a", 1), again))
				eventually(t, pgtest.Connect(t, url), someoneWaits)
				removed, err := other.Purge(t.Context(), persist.Query{})
				require.NoError(t, err)
				require.Equal(t, 1, removed)
				created := put("b", 0)
				created.Writes[0].Version = 3
				must(t, other, created)
				release()
			} else {
				tx, err := pgtest.Connect(t, url).Begin(t.Context())
				require.NoError(t, err)
				_, err = tx.Exec(t.Context(), "DELETE FROM pawl_records WHERE id = 'b'")
				require.NoError(t, err)
				_, err = tx.Exec(t.Context(), foreignCreation, "b")
				require.NoError(t, err)
				answer = commitLater(t.Context(), s, again)
				eventually(t, pgtest.Connect(t, url), someoneWaits)
				require.NoError(t, tx.Commit(t.Context()))
			}
			r := winner(t, answered(t, answer).err)
			require.Equal(t, map[string]uint64{"a": 3, "b": 7}[waitsFor], r.Version)
			require.False(t, r.Absent())
		})
	}
}
