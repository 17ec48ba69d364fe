package batch_test

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// pausedList is a store whose next listing of items waits.
type pausedList struct {
	*stores.Tap
	arrived, goOn chan struct{}
	once          sync.Once
}

func (s *pausedList) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	if strings.HasSuffix(q.Kind, ".item") {
		s.once.Do(func() {
			close(s.arrived)
			<-s.goOn
		})
	}
	return s.Tap.List(ctx, q)
}

// A Delete that was paused past its lease deletes nothing of a new job with the same id. A second
// Delete waits for the lease of the first. Proves CANCEL-3.
func TestPausedDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, s := memory.New(), newStudio()
		paused := &pausedList{Tap: &stores.Tap{Store: store}, arrived: make(chan struct{}), goOn: make(chan struct{})}
		rt, rtOfPaused := open(t, store), open(t, paused)
		q, late := newQueue(t, rt, s), newQueue(t, rtOfPaused, s)
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(2, 5))
		time.Sleep(time.Millisecond) // the clock of the store stands still otherwise
		once(t, q)
		deleted := make(chan error)
		go func() { deleted <- late.Delete(context.Background(), "j") }()
		<-paused.arrived
		paused.RefuseAll() // as if its process was stopped
		require.NoError(t, q.Delete(t.Context(), "j"))
		paused.Refuse(nil)
		submit(t, q, "j", prompts(2, 5))
		time.Sleep(time.Millisecond) // the clock of the store stands still otherwise
		once(t, q)
		close(paused.goOn)
		require.ErrorIs(t, <-deleted, pawl.ErrLeaseLost)
		require.Equal(t, "made made", states(t, q, "j"))
		require.NoError(t, q.Delete(t.Context(), "j"))
		require.NoError(t, late.Delete(t.Context(), "j"))
		require.Empty(t, states(t, q, "j"))
	})
}

// panicking is a ledger that panics.
type panicking struct {
	batch.Ledger
	on func(points int64) bool
}

func (l panicking) Add(ctx context.Context, tx *pawl.Tx, account string, points int64) error {
	if l.on(points) {
		panic("a bug in the ledger")
	}
	return l.Ledger.Add(ctx, tx, account, points)
}

// A ledger that panics does not end the process: the job says why, and is tried again. Proves
// CANCEL-3.
func TestLedgerPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, broken := newStudio(), true
		rt, q := inMemory(t, s, func(c *config) {
			c.Ledger = panicking{c.Ledger, func(points int64) bool { return broken && points < 0 }}
		})
		submit(t, q, "j", prompts(2, 5))
		time.Sleep(time.Millisecond) // the clock of the store stands still otherwise
		once(t, q)
		p := progress(t, q, "j")
		require.Equal(t, batch.Running, p.Status)
		require.Contains(t, p.Reason, "a bug in the ledger")
		require.Zero(t, s.count())
		broken = false
		time.Sleep(time.Minute)
		once(t, q)
		require.Equal(t, batch.Completed, progress(t, q, "j").Status)
		checkBooks(t, rt, q, 100, "j")
	})
}

// An item has room for the rest of its life in its document: one that does not is refused by Submit,
// and fails if its artifact is too large. Proves CANCEL-3.
func TestItemHasRoomToGrow(t *testing.T) {
	s := newStudio()
	size := 0
	rt, q := inMemory(t, s, func(c *config) {
		c.Make = func(_ context.Context, _ string, p prompt) (image, error) {
			if p.Text != "large" {
				return image{}, errors.New(strings.Repeat("\x01", 10_000)) // six bytes each, as JSON
			}
			return image{Name: strings.Repeat("x", size)}, nil
		}
	})
	give(t, rt, "ada", 1000)
	limit := rt.MaxDoc()
	largest := limit
	for ; ; largest -= 1000 {
		_, _, err := q.Submit(t.Context(), aJob{ID: "j", Account: "ada", Items: []prompt{{Text: strings.Repeat("x", largest), Price: 5}}})
		if err == nil {
			break
		}
		requireCode(t, err, "LIMIT", 413)
	}
	require.Greater(t, largest, limit/2)
	once(t, q)
	require.Equal(t, "failed", states(t, q, "j"))

	// The largest artifact that is stored can be accepted.
	ids := []string{"j"}
	made := sort.Search(limit, func(n int) bool {
		size = limit - n
		id := fmt.Sprint(n)
		ids = append(ids, id)
		submit(t, q, id, []prompt{{Text: "large", Price: 5}})
		once(t, q)
		return states(t, q, id) == "made"
	})
	require.Less(t, made, limit/2)
	require.NoError(t, q.Finalize(t.Context(), fmt.Sprint(made), 0))
	checkBooks(t, rt, q, 1000, ids...)
}

// The clock of a process that is ahead delays no job: one whose worker died is taken over when its
// lease has run out. Proves CANCEL-11.
func TestClockAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, s := &stores.Tap{Store: memory.New()}, newStudio()
		rt := open(t, store)
		q := newQueue(t, rt, s)
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(2, 5))
		now := time.Now()
		q.Hook(func(point, _ string) {
			if point == "charged" {
				store.RefuseAll() // it dies
			}
		})
		store.OnCommitted(func(c persist.Commit, at time.Time, err error) (time.Time, error) {
			for _, w := range c.Writes {
				if strings.HasSuffix(w.Key.Kind, "images") {
					require.False(t, w.Due.After(now), "a due time by the clock of the process: %v", w.Due)
				}
			}
			return at, err
		})
		time.Sleep(time.Hour) // the clock of the store goes on, too: only the times in commits count
		_, _ = q.Once(t.Context())
		store.Refuse(nil)
		store.OnCommitted(nil)
		q.Hook(func(string, string) {})
		time.Sleep(2 * pawl.DefaultLease)
		once(t, q)
		require.Equal(t, batch.Completed, progress(t, q, "j").Status)
		checkBooks(t, rt, q, 100, "j")
	})
}

// A repeated Submit returns the job that it has stored, also if an item has no price any more.
func TestRepeatedSubmitWithoutAPrice(t *testing.T) {
	s, gone := newStudio(), false
	_, q := inMemory(t, s, func(c *config) {
		c.Price = func(p prompt) (int64, error) {
			if gone {
				return 0, errCall
			}
			return p.Price, nil
		}
	})
	submit(t, q, "j", prompts(2, 5))
	gone = true
	p, created, err := q.Submit(t.Context(), aJob{ID: "j", Account: "ada", Items: prompts(2, 5)})
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, batch.Queued, p.Status)
	_, _, err = q.Submit(t.Context(), aJob{ID: "k", Account: "ada", Items: prompts(2, 5)})
	requireCode(t, err, "INVALID_PRICE", 422)
}
