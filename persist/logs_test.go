package persist_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/persisttest"
)

// unlogged is a store that is no Logger and refuses logs. It has no optional interface.
type unlogged struct{ persist.Store }

func (u unlogged) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if slices.ContainsFunc(c.Writes, func(w persist.Write) bool { return w.Log != nil }) {
		return time.Time{}, persist.ErrUnsupported
	}
	return u.Store.Commit(ctx, c)
}

// withoutLogs is an unlogged store with some optional interfaces.
type withoutLogs struct {
	unlogged
	persist.Reader
	persist.Purger
	persist.Restorer
}

func hideLogs(s *memory.Store) withoutLogs { return withoutLogs{unlogged{s}, s, s, s} }

// TestLogs: logs that are kept as documents pass the tests of logs, with and without the optional
// interfaces of the store.
//
// Proves STORE-1, STORE-2.
func TestLogs(t *testing.T) {
	for name, store := range map[string]func() persist.Store{
		"a plain store":         func() persist.Store { return unlogged{memory.New()} },
		"a store that restores": func() persist.Store { return hideLogs(memory.New()) },
	} {
		t.Run(name, func(t *testing.T) {
			open := func(string) (persist.Store, error) { return persist.Logs(store()), nil }
			persisttest.RunLogs(t, open, persisttest.Options{Volatile: true})
		})
	}
}

// TestLogsOfALogger: a store that keeps logs is used as it is.
//
// Proves STORE-1.
func TestLogsOfALogger(t *testing.T) {
	store := memory.New()
	require.Same(t, store, persist.Logs(store))
	wrapped := persist.Logs(hideLogs(store))
	require.Same(t, wrapped, persist.Logs(wrapped))
	_, restores := wrapped.(persist.LogRestorer)
	require.True(t, restores)
	_, restores = persist.Logs(unlogged{store}).(persist.LogRestorer)
	require.False(t, restores)
}

// hooked is a store without logs that calls functions before its own. Nil: none.
type hooked struct {
	withoutLogs
	commit func(c persist.Commit, next func() (time.Time, error)) (time.Time, error) // instead of Commit
	list   func(q persist.Query)
	load   func(keys []persist.Key)
}

func (h *hooked) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	if h.load != nil {
		h.load(keys)
	}
	return h.withoutLogs.LoadAll(ctx, keys)
}

func (h *hooked) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	next := func() (time.Time, error) { return h.withoutLogs.Commit(ctx, c) }
	if h.commit == nil {
		return next()
	}
	return h.commit(c, next)
}

func (h *hooked) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	if h.list != nil {
		h.list(q)
	}
	return h.withoutLogs.List(ctx, q)
}

// entryOf returns the commit of one entry with a number, on the version of the record before.
func entryOf(id string, version, number uint64) persist.Commit {
	return persist.Commit{ID: fmt.Sprintf("w.%s.%d", id, number), Writes: []persist.Write{{
		Key: logKey(id), Expected: version, Version: version + 1, Doc: []byte(`{}`),
		Log: &persist.LogWrite{First: number, Entries: []json.RawMessage{fmt.Appendf(nil, "%d", number)}},
	}}}
}

// readLog returns the numbers of the log of a record.
func readLog(t require.TestingT, store persist.Logger, id string) []uint64 {
	entries, err := store.ReadLog(context.Background(), persist.LogQuery{Key: logKey(id), Limit: 10_000})
	require.NoError(t, err)
	var numbers []uint64
	for _, e := range entries {
		numbers = append(numbers, e.Number)
	}
	return numbers
}

// TestLogConflicts: a commit that loses only the counter to another process is tried again. A
// conflict that reaches the caller names the caller's records only.
//
// Proves STORE-2.
func TestLogConflicts(t *testing.T) {
	inner := hideLogs(memory.New())
	other := persist.Logs(inner) // another process
	attempts := 0
	store := persist.Logs(&hooked{withoutLogs: inner, commit: func(c persist.Commit, next func() (time.Time, error)) (time.Time, error) {
		if attempts++; attempts <= 3 {
			_, err := other.Commit(t.Context(), entryOf("other", uint64(attempts-1), uint64(attempts-1)))
			require.NoError(t, err)
		}
		return next()
	}})
	_, err := store.Commit(t.Context(), entryOf("a", 0, 0))
	require.NoError(t, err)
	require.Equal(t, 4, attempts)
	all := order(t, inner)
	require.Len(t, all, 4)
	require.Equal(t, logKey("a"), all[3].Key)

	attempts = -1000
	store = persist.Logs(&hooked{withoutLogs: inner, commit: func(c persist.Commit, next func() (time.Time, error)) (time.Time, error) {
		if attempts++; attempts == -999 {
			_, err := other.Commit(t.Context(), entryOf("a", 1, 1))
			require.NoError(t, err)
		}
		return next()
	}})
	_, err = store.Commit(t.Context(), entryOf("a", 1, 1))
	var conflict *persist.Conflict
	require.ErrorAs(t, err, &conflict)
	require.Len(t, conflict.Winners, 1)
	require.Equal(t, logKey("a"), conflict.Winners[0].Key)
	require.Equal(t, []persist.Expected{{Version: 1}}, conflict.Expected)
	require.Equal(t, []uint64{0, 1}, readLog(t, store, "a"))
}

// TestLogsReadBesideCommits: another commit between the steps of a commit is noticed, and the
// conflict shows the record that it left.
//
// Proves STORE-2, STORE-5.
func TestLogsReadBesideCommits(t *testing.T) {
	inner := hideLogs(memory.New())
	other := persist.Logs(inner)
	between := func(other func()) persist.Logger {
		return persist.Logs(&hooked{withoutLogs: inner, load: func(keys []persist.Key) {
			if keys[0].Kind == "pawl.log" { // the records and the counter were read before
				run := other
				if other = nil; run != nil {
					run()
				}
			}
		}})
	}
	commit := func(c persist.Commit) func() {
		return func() {
			_, err := other.Commit(t.Context(), c)
			require.NoError(t, err)
		}
	}
	commit(entryOf("a", 0, 0))()
	_, err := between(commit(entryOf("b", 0, 0))).Commit(t.Context(), entryOf("a", 1, 1)) // uses the position
	require.NoError(t, err)
	rival := entryOf("a", 2, 2)
	rival.ID = "rival.1"
	_, err = between(commit(rival)).Commit(t.Context(), entryOf("a", 2, 2)) // uses the number
	var conflict *persist.Conflict
	require.ErrorAs(t, err, &conflict)
	require.Len(t, conflict.Winners, 1)
	require.EqualValues(t, 3, conflict.Winners[0].Version)
	require.Contains(t, conflict.Winners[0].Commits, "rival.1")
	plain := entryOf("a", 3, 9)
	plain.Writes[0].Log = nil
	_, err = between(commit(plain)).Commit(t.Context(), entryOf("a", 3, 0)) // the number was used before
	require.ErrorAs(t, err, &conflict)
	require.EqualValues(t, 4, conflict.Winners[0].Version)
	require.Equal(t, []uint64{0, 1, 2}, readLog(t, other, "a"))
	require.Len(t, order(t, inner), 4)
}

// TestLogAttemptsEnd: a commit that loses every time gives up and says that nothing was written.
//
// Proves STORE-2.
func TestLogAttemptsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := hideLogs(memory.New())
		attempts := 0
		store := persist.Logs(&hooked{withoutLogs: inner, commit: func(persist.Commit, func() (time.Time, error)) (time.Time, error) {
			attempts++
			return time.Time{}, &persist.Conflict{Winners: []persist.Record{{Key: persist.Key{Kind: "pawl.log.next", ID: "next"}, Version: 7, Updated: time.Now()}}}
		}})
		begin := time.Now()
		_, err := store.Commit(t.Context(), entryOf("a", 0, 0))
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.ErrorIs(t, err, persist.ErrUnavailable)
		require.Equal(t, 64, attempts)
		require.Positive(t, time.Since(begin))
		require.Less(t, time.Since(begin), 3*time.Second)

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err = store.Commit(ctx, entryOf("a", 0, 0))
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// TestLogInDoubt: a commit whose answer was lost is not repeated by itself. If the caller sends it
// again, also while the first attempt is still on its way, it succeeds once.
//
// Proves STORE-2.
func TestLogInDoubt(t *testing.T) {
	errLost := errors.New("answer lost")
	for name, lands := range map[string]bool{"landed": true, "lost": false} {
		inner := hideLogs(memory.New())
		attempts := 0
		hook := &hooked{withoutLogs: inner}
		store := persist.Logs(hook)
		hook.commit = func(_ persist.Commit, next func() (time.Time, error)) (time.Time, error) {
			if attempts++; lands {
				_, err := next()
				require.NoError(t, err)
			}
			return time.Time{}, errLost
		}
		c := entryOf("a", 0, 0)
		_, err := store.Commit(t.Context(), c)
		require.Equal(t, errLost, err, name)
		require.Equal(t, 1, attempts)
		hook.commit = nil
		_, err = store.Commit(t.Context(), c)
		if lands {
			var conflict *persist.Conflict
			require.ErrorAs(t, err, &conflict)
			require.Contains(t, conflict.Winners[0].Commits, c.ID)
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, []uint64{0}, readLog(t, store, "a"))
		require.Len(t, order(t, inner), 1)
	}

	// The first attempt reaches the store after the second one, which has other positions.
	inner := hideLogs(memory.New())
	hook := &hooked{withoutLogs: inner}
	first, second := persist.Logs(hook), persist.Logs(inner)
	sent, arrive := make(chan struct{}), make(chan struct{})
	hook.commit = func(_ persist.Commit, next func() (time.Time, error)) (time.Time, error) {
		if sent != nil {
			close(sent)
			sent = nil
			<-arrive
		}
		return next()
	}
	var late errgroup.Group
	c, waiting := entryOf("a", 0, 0), sent
	late.Go(func() error {
		_, err := first.Commit(t.Context(), c)
		return err
	})
	<-waiting
	_, err := second.Commit(t.Context(), entryOf("b", 0, 0))
	require.NoError(t, err)
	_, err = second.Commit(t.Context(), c)
	require.NoError(t, err)
	close(arrive)
	var conflict *persist.Conflict
	require.ErrorAs(t, late.Wait(), &conflict)
	require.Equal(t, logKey("a"), conflict.Winners[0].Key)
	require.Equal(t, []string{c.ID}, conflict.Winners[0].Commits)
	require.Len(t, order(t, inner), 2)
	require.Equal(t, []uint64{0}, readLog(t, first, "a"))
}

// documentsOf returns the number of documents of logs by kind, and of their tombstones.
func documentsOf(t require.TestingT, store persist.Store) (alive map[string]int, tombstones int) {
	alive = map[string]int{}
	for _, q := range []persist.Query{{Limit: 100_000}, {Limit: 100_000, Deleted: true}} {
		page, err := store.List(context.Background(), q)
		require.NoError(t, err)
		for _, r := range page.Records {
			switch {
			case !strings.HasPrefix(r.Kind, "pawl.log"):
			case q.Deleted:
				tombstones++
			default:
				alive[r.Kind]++
			}
		}
	}
	return alive, tombstones
}

// TestRemovedLogDocuments: a removal takes effect with its commit. The documents are removed after
// it, at most 1,000 entries at a time; the next removal, or the next append after a Clear, removes
// the rest. The store keeps only the counter when all logs are gone.
//
// Proves STORE-1.
func TestRemovedLogDocuments(t *testing.T) {
	inner := memory.New()
	l := newLogged(t, hideLogs(inner))
	for range 5 {
		l.add("a", 500)
	}
	l.add("b", 2)
	l.drop("a", 2_300)
	require.Len(t, readLog(t, l.store, "a"), 200)
	require.Len(t, order(t, l.store), 202)
	alive, _ := documentsOf(t, inner)
	require.Equal(t, map[string]int{"pawl.log": 1_502, "pawl.log.order": 1_502, "pawl.log.state": 2, "pawl.log.next": 1}, alive)
	l.drop("a", 2_301)
	l.drop("a", 2_302)
	require.Len(t, readLog(t, l.store, "a"), 198)
	alive, tombstones := documentsOf(t, inner)
	require.Equal(t, map[string]int{"pawl.log": 200, "pawl.log.order": 200, "pawl.log.state": 2, "pawl.log.next": 1}, alive)
	require.Zero(t, tombstones, "the store is a Purger")

	for range 2 {
		l.add("a", 800)
	}
	l.end("a")
	require.Empty(t, readLog(t, l.store, "a"))
	require.Len(t, order(t, l.store), 2)
	l.add("a", 1)
	require.Equal(t, []uint64{0}, readLog(t, l.store, "a"))
	require.Len(t, order(t, l.store), 3)
	alive, _ = documentsOf(t, inner)
	require.Equal(t, 3, alive["pawl.log"])
	l.end("a")
	l.end("b")
	alive, tombstones = documentsOf(t, inner)
	require.Equal(t, map[string]int{"pawl.log.next": 1}, alive)
	require.Zero(t, tombstones)
}

// TestRemovalInterrupted: if the process ends before it has removed the documents, no read shows
// the entries, and the numbers can be used again.
//
// Proves STORE-1.
func TestRemovalInterrupted(t *testing.T) {
	inner := memory.New()
	hook := &hooked{withoutLogs: hideLogs(inner)}
	l := newLogged(t, hook)
	l.add("a", 3)
	hook.commit = func(c persist.Commit, next func() (time.Time, error)) (time.Time, error) {
		if !strings.HasPrefix(c.ID, "log.") {
			return time.Time{}, errCrash
		}
		return next()
	}
	l.drop("a", 2)
	require.Equal(t, []uint64{2}, readLog(t, l.store, "a"))
	require.Len(t, order(t, l.store), 1)
	l.end("a")
	require.Empty(t, readLog(t, l.store, "a"))
	require.Empty(t, order(t, l.store))
	l.add("a", 2)
	require.Equal(t, []uint64{0, 1}, readLog(t, l.store, "a"))
	require.Len(t, order(t, l.store), 2)
	alive, _ := documentsOf(t, inner)
	require.Equal(t, 5, alive["pawl.log"])
	hook.commit = nil
	l.end("a")
	l.add("a", 1)
	alive, _ = documentsOf(t, inner)
	require.Equal(t, map[string]int{"pawl.log": 1, "pawl.log.order": 1, "pawl.log.state": 1, "pawl.log.next": 1}, alive)
}

// TestLogEndsBesideRemoval: a log that begins and ends again while the documents of its earlier end
// are removed keeps the note that there is more to remove.
//
// Proves ERASE-4.
func TestLogEndsBesideRemoval(t *testing.T) {
	inner := memory.New()
	hook := &hooked{withoutLogs: hideLogs(inner)}
	l, other := newLogged(t, hook), newLogged(t, hideLogs(inner))
	l.add("a", 3)
	removals := 0
	hook.commit = func(c persist.Commit, next func() (time.Time, error)) (time.Time, error) {
		at, err := next()
		if strings.HasPrefix(c.ID, "pawl.log-") && err == nil {
			if removals++; removals == 1 { // all entries are removed, and nothing is purged
				crashed := &hooked{withoutLogs: hideLogs(inner), commit: func(c persist.Commit, next func() (time.Time, error)) (time.Time, error) {
					if strings.HasPrefix(c.ID, "pawl.log-") {
						return time.Time{}, errCrash
					}
					return next()
				}}
				other.store = persist.Logs(crashed)
				other.add("a", 2)
				other.end("a")
			}
		}
		return at, err
	}
	l.end("a")
	require.Positive(t, removals)
	alive, _ := documentsOf(t, inner)
	require.Equal(t, 2, alive["pawl.log"])
	require.NoError(t, l.store.(persist.LogCleaner).CleanLog(t.Context(), logKey("a")))
	alive, tombstones := documentsOf(t, inner)
	require.Equal(t, map[string]int{"pawl.log.next": 1}, alive)
	require.Zero(t, tombstones)
}

// TestCleanLogs: what is left of the logs of a kind that were cleared is removed, also if the
// tombstones of their records are gone. Entries that count, and logs of other kinds, stay.
//
// Proves ERASE-4.
func TestCleanLogs(t *testing.T) {
	inner := memory.New()
	l := newLogged(t, hideLogs(inner))
	for range 3 {
		l.add("a", 500)
	}
	l.add("b", 2)
	l.end("a")
	_, err := inner.Purge(t.Context(), persist.Query{Kind: logKey("a").Kind})
	require.NoError(t, err)
	alive, _ := documentsOf(t, inner)
	require.Equal(t, map[string]int{"pawl.log": 502, "pawl.log.order": 502, "pawl.log.state": 2, "pawl.log.next": 1}, alive)
	cleaner := l.store.(persist.LogCleaner)
	require.NoError(t, cleaner.CleanLogs(t.Context(), "other"))
	alive, _ = documentsOf(t, inner)
	require.Equal(t, 502, alive["pawl.log"])
	require.NoError(t, cleaner.CleanLogs(t.Context(), logKey("a").Kind))
	alive, tombstones := documentsOf(t, inner)
	require.Equal(t, map[string]int{"pawl.log": 2, "pawl.log.order": 2, "pawl.log.state": 1, "pawl.log.next": 1}, alive)
	require.Zero(t, tombstones)
	require.Equal(t, []uint64{0, 1}, readLog(t, l.store, "b"))
}

// TestRestoredLogDocuments: an entry that is restored under another position leaves the old one. It
// counts even if its number was dropped before, and brings no other dropped entry back. The position
// of another entry is refused.
//
// Proves STORE-15.
func TestRestoredLogDocuments(t *testing.T) {
	inner := memory.New()
	hook := &hooked{withoutLogs: hideLogs(inner)}
	l := newLogged(t, hook)
	restorer := l.store.(persist.LogRestorer)
	entry := func(id string, number, position uint64) persist.LogEntry {
		return persist.LogEntry{Key: logKey(id), Number: number, Position: position, At: started, Data: []byte(`1`)}
	}
	l.add("a", 4)
	require.NoError(t, restorer.RestoreLog(t.Context(), []persist.LogEntry{entry("a", 1, 70)}, 0))
	alive, _ := documentsOf(t, inner)
	require.Equal(t, map[string]int{"pawl.log": 4, "pawl.log.order": 4, "pawl.log.state": 1, "pawl.log.next": 1}, alive)

	hook.commit = func(c persist.Commit, next func() (time.Time, error)) (time.Time, error) {
		if !strings.HasPrefix(c.ID, "log.") {
			return time.Time{}, errCrash // nothing is removed
		}
		return next()
	}
	l.drop("a", 3)
	require.Equal(t, []uint64{3}, readLog(t, l.store, "a"))
	hook.commit = nil
	require.NoError(t, restorer.RestoreLog(t.Context(), []persist.LogEntry{entry("a", 2, 3)}, 0))
	require.Equal(t, []uint64{2, 3}, readLog(t, l.store, "a"))
	require.Len(t, order(t, l.store), 2)

	err := restorer.RestoreLog(t.Context(), []persist.LogEntry{entry("b", 0, 3)}, 0)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorContains(t, err, `position 3 is that of entry 2 of the log of "log/a"`)
	require.NoError(t, restorer.RestoreLog(t.Context(), []persist.LogEntry{{Key: logKey("a"), Number: 2}, entry("b", 0, 3)}, 0))
	all := order(t, l.store)
	require.Len(t, all, 2)
	require.Equal(t, logKey("b"), all[0].Key)
	require.Equal(t, []uint64{3}, readLog(t, l.store, "a"))
}

// TestReadLogBesideRemoval: entries that are removed between two steps of a read do not leave a gap
// in it.
//
// Proves STORE-1.
func TestReadLogBesideRemoval(t *testing.T) {
	inner := hideLogs(memory.New())
	l := newLogged(t, inner)
	l.add("a", 5)
	var between func()
	store := persist.Logs(&hooked{withoutLogs: inner, list: func(persist.Query) {
		if run := between; run != nil {
			between = nil
			run()
		}
	}})
	between = func() { l.drop("a", 3) }
	require.Equal(t, []uint64{3, 4}, readLog(t, store, "a"))
	between = func() {
		l.end("a")
		l.add("a", 2)
	}
	require.Equal(t, []uint64{0, 1}, readLog(t, store, "a"))
	between = func() { l.end("a") }
	require.Empty(t, readLog(t, store, "a"))
}

// TestLogDocuments: the format of the documents. They name the record, and their ids are short
// whatever its key is.
//
// Proves STORE-1.
func TestLogDocuments(t *testing.T) {
	inner := memory.New()
	store := persist.Logs(hideLogs(inner))
	key := persist.Key{Kind: "log", ID: strings.Repeat("long/é", 300)}
	at, err := store.Commit(t.Context(), persist.Commit{ID: "w.1", Writes: []persist.Write{{
		Key: key, Version: 5, Doc: []byte(`{}`), Log: &persist.LogWrite{Drop: 16, First: 17, Entries: []json.RawMessage{[]byte(`{"b": 1, "a": "\u0000"}`)}},
	}}})
	require.NoError(t, err)
	all, _ := dump(t, inner)
	require.Len(t, all, 5)
	id := ""
	for k, r := range all {
		require.LessOrEqual(t, len(k.Kind), 14)
		require.True(t, r.Updated.Equal(at))
		require.Equal(t, []string{"w.1"}, r.Commits)
		if k.Kind == "pawl.log.state" {
			id = k.ID
		}
	}
	require.Len(t, id, 64)
	name, err := json.Marshal(key.ID)
	require.NoError(t, err)
	for k, want := range map[persist.Key]string{
		{Kind: "pawl.log", ID: id + "-0000000000000001-0000000000000011"}: `{"kind":"log","id":%s,"number":17,"position":1,"data":"{\"b\": 1, \"a\": \"\\u0000\"}"}`,
		{Kind: "pawl.log.order", ID: "0000000000000001"}:                  `{"kind":"log","id":%s,"epoch":1,"number":17}`,
		{Kind: "pawl.log.state", ID: id}:                                  `{"kind":"log","id":%s,"epoch":1,"first":16}`,
		{Kind: "pawl.log.next", ID: "next"}:                               `{"last":1}`,
	} {
		if strings.Contains(want, "%s") {
			want = fmt.Sprintf(want, name)
		}
		require.Equal(t, want, string(all[k].Doc), "%s", k)
	}
	require.Equal(t, "log", all[persist.Key{Kind: "pawl.log.order", ID: "0000000000000001"}].Label)
}

// TestDamagedLogDocuments: a document that was changed by hand gives an error, and a commit says
// that nothing was written.
//
// Proves STORE-1.
func TestDamagedLogDocuments(t *testing.T) {
	for _, kind := range []string{"pawl.log.next", "pawl.log.state"} {
		inner := memory.New()
		l := newLogged(t, hideLogs(inner))
		l.add("a", 1)
		page, err := inner.List(t.Context(), persist.Query{Kind: kind})
		require.NoError(t, err)
		r := page.Records[0]
		_, err = inner.Commit(t.Context(), persist.Commit{ID: "hand.1", Writes: []persist.Write{{Key: r.Key, Expected: r.Version, Version: r.Version + 1, Doc: []byte(`[]`)}}})
		require.NoError(t, err)
		_, err = l.store.Commit(t.Context(), entryOf("a", 1, 1))
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.ErrorContains(t, err, kind)
		_, err = l.store.ReadOrder(t.Context(), persist.OrderQuery{})
		require.ErrorContains(t, err, kind)
	}
	synctest.Test(t, func(t *testing.T) { // the attempts of the commit take a while
		inner := memory.New()
		l := newLogged(t, hideLogs(inner))
		l.add("a", 2)
		next := persist.Key{Kind: "pawl.log.next", ID: "next"}
		_, err := inner.Commit(t.Context(), persist.Commit{ID: "hand.1", Writes: []persist.Write{{Key: next, Expected: 1, Version: 2, Doc: []byte(`{"last": 1}`)}}})
		require.NoError(t, err)
		_, err = l.store.Commit(t.Context(), entryOf("a", 1, 2))
		require.ErrorIs(t, err, persist.ErrNotApplied)
		require.ErrorContains(t, err, `"pawl.log.order/0000000000000002": expected no record`)
	})
}
