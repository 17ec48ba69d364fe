package fs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// TestNamesLock: no record is renamed while another store reads names, and no names are read while
// another store renames.
//
// Proves STORE-3.
func TestNamesLock(t *testing.T) {
	s := openAt(t, t.TempDir(), impatient)
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	foreign := newLocks(s.locks.folder, time.Minute)

	release := take(t, foreign, wanted{namesLock: exclusive})
	_, err = s.Commit(t.Context(), put("a", 1))
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.EqualValues(t, 1, load(t, s, thing("a")).Version)
	require.Empty(t, inFolder(t, s.journals, ""))
	makeTentative(t, s, thing("a"))
	_, err = s.Load(t.Context(), thing("a"))
	require.ErrorIs(t, err, persist.ErrUnavailable)
	require.True(t, isTentativeFile(t, s, thing("a")))
	require.Empty(t, tempsOf(t, s))
	release()
	require.EqualValues(t, 1, load(t, s, thing("a")).Version)

	release = take(t, foreign, wanted{namesLock: shared})
	_, err = s.Commit(t.Context(), put("a", 1))
	require.NoError(t, err)
	_, err = s.List(t.Context(), persist.Query{})
	require.ErrorIs(t, err, persist.ErrUnavailable)
	release()
	_, err = s.List(t.Context(), persist.Query{})
	require.NoError(t, err)
}

// TestListShowsEachRecordOnce: a record that exists all the time is in every list once, also while
// another store writes to it.
func TestListShowsEachRecordOnce(t *testing.T) {
	const count, looks = 300, 10
	dir := scratch(t) // tmpfs may hide a name that is renamed over
	s, other := openAt(t, dir, Config{LockTimeout: time.Minute}), openAt(t, dir, Config{LockTimeout: time.Minute})
	id := func(i int) string { return fmt.Sprintf("some-long-name-to-fill-the-folder-%d", i) }
	for i := range count {
		_, err := s.Commit(t.Context(), put(id(i), 0))
		require.NoError(t, err)
	}
	var done atomic.Bool
	var writer sync.WaitGroup
	defer writer.Wait()
	defer done.Store(true)
	writer.Go(func() {
		for n := 0; !done.Load(); n++ {
			if _, err := other.Commit(context.Background(), put(id(n%count), uint64(n/count)+1)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range looks {
		page, err := s.List(t.Context(), persist.Query{Kind: "thing", Limit: 2 * count})
		require.NoError(t, err)
		seen := map[string]int{}
		for _, r := range page.Records {
			seen[r.ID]++
		}
		for i := range count {
			require.Equal(t, 1, seen[id(i)], "%s in a list of %d records", id(i), len(page.Records))
		}
	}
}

// brief is a context that ends after some calls of Err.
type brief struct {
	context.Context
	left atomic.Int64
}

func (b *brief) Err() error {
	if b.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// TestListEndsWithItsContext: List stops to complete tentative files when its context ends.
//
// Proves STORE-6.
func TestListEndsWithItsContext(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	const n = 20
	for i := range n {
		_, err := s.Commit(t.Context(), put(fmt.Sprint(i), 0))
		require.NoError(t, err)
		makeTentative(t, s, thing(fmt.Sprint(i)))
	}
	ctx := &brief{Context: context.Background()}
	ctx.left.Store(n + n/2)
	_, err := s.List(ctx, persist.Query{Kind: "thing", Limit: 1000})
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, isTentativeFile(t, s, thing(fmt.Sprint(n-1))))
}

// A listing of several pages reads the folder once: it does not see a record that is created after
// its first page. A store that has forgotten the listing reads the folder again.
//
// Proves SCOPE-20.
func TestListReadsTheFolderOnce(t *testing.T) {
	past := time.Now().Add(-time.Hour)
	for _, q := range []persist.Query{{}, {Due: true}, {Reverse: true}} {
		s := openAt(t, t.TempDir(), Config{})
		other := openAt(t, s.dir, Config{})
		add := func(id string) {
			c := put(id, 0)
			c.Writes[0].Due = past
			_, err := s.Commit(t.Context(), c)
			require.NoError(t, err)
		}
		for i := range 10 {
			add(fmt.Sprint(1, i))
		}
		q.Kind, q.Limit = "thing", 3
		seen := map[string]int{}
		list := func(on *Store) {
			page, err := on.List(t.Context(), q)
			require.NoError(t, err)
			for _, r := range page.Records {
				seen[r.ID]++
			}
			q.After = page.Next
		}
		list(s)
		late := "2"
		if q.Reverse {
			late = "0"
		}
		add(late)
		for range 2 {
			list(s)
		}
		again := q
		list(s)
		require.Empty(t, q.After)
		require.NotContains(t, seen, late)
		require.Len(t, seen, 10)
		q = again
		list(other)
		require.Contains(t, seen, late)
	}
}

// interrupted is a context that calls do at one call of Err.
type interrupted struct {
	context.Context
	left int
	do   func()
}

func (i *interrupted) Err() error {
	if i.left--; i.left == 0 {
		i.do()
	}
	return nil
}

// TestListingsAreNotMixed: a listing shows every record that was there at its first page, also if the
// store remembers an older listing of the same query that stopped at the same record.
//
// Proves SCOPE-17.
func TestListingsAreNotMixed(t *testing.T) {
	q := persist.Query{Kind: "thing", Limit: 2}
	list := func(t *testing.T, on *Store, after string) persist.Page {
		q := q
		q.After = after
		page, err := on.List(t.Context(), q)
		require.NoError(t, err)
		return page
	}
	for name, first := range map[string]func(t *testing.T, s *Store, late func()) persist.Page{
		"of another store": func(t *testing.T, s *Store, late func()) persist.Page {
			list(t, s, "")
			late()
			return list(t, openAt(t, s.dir, Config{}), "")
		},
		"of a slower reader": func(t *testing.T, s *Store, late func()) (page persist.Page) {
			ctx := &interrupted{context.Background(), 2, func() { // List has read the names
				late()
				page = list(t, s, "")
			}}
			older, err := s.List(ctx, q)
			require.NoError(t, err)
			require.Equal(t, older.Records[1].Key, page.Records[1].Key)
			return page
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openAt(t, t.TempDir(), Config{})
			add := func(id string) {
				_, err := s.Commit(t.Context(), put(id, 0))
				require.NoError(t, err)
			}
			add("a")
			add("b")
			add("c")
			page := first(t, s, func() { add("late") })
			page = list(t, s, page.Next)
			require.Len(t, page.Records, 2)
			require.Equal(t, thing("late"), page.Records[1].Key)
		})
	}
}

// TestListIsNotBeforeItsRecords: a record that is written while List reads is not listed with a time
// before its update. A record that was written while the clock was ahead is judged by the clock, as
// commits judge it.
//
// Proves STORE-8.
func TestListIsNotBeforeItsRecords(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	ahead := hostTime().Add(time.Hour)
	require.NoError(t, s.Restore(t.Context(), []persist.Record{
		{Key: thing("b"), Version: 1, Born: 1, Doc: []byte("{}"), Updated: ahead},
	}, 0))
	_, err := s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	ctx := &interrupted{context.Background(), 2, func() { // List has read the clock
		_, err := s.Commit(t.Context(), put("a", 1))
		require.NoError(t, err)
	}}
	page, err := s.List(ctx, persist.Query{Kind: "thing"})
	require.NoError(t, err)
	a, b := page.Records[0], page.Records[1]
	require.EqualValues(t, 2, a.Version)
	require.False(t, a.Now.Before(a.Updated))
	require.True(t, b.Now.Before(ahead))
}

// TestDueListSkipsNothing: a record whose due time moves while List reads does not make a later page
// skip the records in between.
//
// Proves STORE-1.
func TestDueListSkipsNothing(t *testing.T) {
	s := openAt(t, t.TempDir(), Config{})
	past := time.Now().Add(-time.Hour)
	due := func(id string, expected uint64, minutes time.Duration) {
		c := put(id, expected)
		c.Writes[0].Due = past.Add(minutes * time.Minute)
		_, err := s.Commit(t.Context(), c)
		require.NoError(t, err)
	}
	due("a", 0, 1)
	due("b", 0, 2)
	due("c", 0, 3)
	// List has read all records for their order, and reads them again for the page.
	ctx := &interrupted{context.Background(), 5, func() { due("a", 1, 4) }}
	q := persist.Query{Kind: "thing", Due: true, Limit: 1}
	page, err := s.List(ctx, q)
	require.NoError(t, err)
	require.EqualValues(t, 2, page.Records[0].Version)
	for _, on := range []*Store{openAt(t, s.dir, Config{}), s} { // the first one does not know the listing
		q.After = page.Next
		next, err := on.List(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, thing("b"), next.Records[0].Key)
	}
}
