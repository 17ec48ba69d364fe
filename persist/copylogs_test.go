package persist_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// logged writes records with logs to a store, one commit after the other.
type logged struct {
	require.TestingT
	ctx     context.Context
	store   persist.Logger
	version map[string]uint64
	next    map[string]uint64
	commits int
}

func newLogged(t require.TestingT, store persist.Store) *logged {
	return &logged{t, context.Background(), persist.Logs(store), map[string]uint64{}, map[string]uint64{}, 0}
}

func logKey(id string) persist.Key { return persist.Key{Kind: "log", ID: id} }

// write commits a change of the record id and its log. It tries again if the version floor has
// moved, because entries of another log were removed.
func (l *logged) write(id string, log *persist.LogWrite) {
	key := logKey(id)
	l.commits++
	var conflict *persist.Conflict
	for err := l.tryWrite(key, log); err != nil; err = l.tryWrite(key, log) {
		require.ErrorAs(l, err, &conflict)
		require.True(l, conflict.Winners[0].Absent(), "%v", err)
	}
	if log != nil && log.Clear && len(log.Entries) == 0 {
		l.next[id] = 0
	}
}

func (l *logged) tryWrite(key persist.Key, log *persist.LogWrite) error {
	r, err := l.store.Load(l.ctx, key)
	if err != nil {
		require.ErrorIs(l, err, persist.ErrNotFound)
	}
	w := persist.Write{Key: key, Version: r.Version + 1, Doc: []byte(`{}`), Log: log}
	if !r.Absent() {
		w.Expected, w.Gone = r.Version, r.Deleted
	}
	if log != nil && log.Clear && len(log.Entries) == 0 {
		w.Doc, w.Deleted = nil, true
	}
	_, err = l.store.Commit(l.ctx, persist.Commit{ID: fmt.Sprintf("log.%d", l.commits), Writes: []persist.Write{w}})
	return err
}

// add adds n entries.
func (l *logged) add(id string, n int) {
	log := &persist.LogWrite{First: l.next[id]}
	for range n {
		log.Entries = append(log.Entries, fmt.Appendf(nil, `{"entry": %d, "of": %q}`, l.next[id], id))
		l.next[id]++
	}
	l.write(id, log)
}

// drop removes the entries below number.
func (l *logged) drop(id string, number uint64) { l.write(id, &persist.LogWrite{Drop: number}) }

// end deletes the record and its log.
func (l *logged) end(id string) { l.write(id, &persist.LogWrite{Clear: true}) }

// order returns all entries of a store.
func order(t require.TestingT, store persist.Store) (all []persist.LogEntry) {
	entries, err := persist.Logs(store).ReadOrder(context.Background(), persist.OrderQuery{Limit: 10_000})
	require.NoError(t, err)
	for _, e := range entries {
		e.At = e.At.UTC()
		all = append(all, e)
	}
	return all
}

// requireSameLogs asserts that two stores have the same entries, in the order and by number, and the
// same last position.
func requireSameLogs(t require.TestingT, from, to persist.Store) {
	ctx := context.Background()
	want := order(t, from)
	require.Equal(t, want, order(t, to))
	counts := map[persist.Key]int{}
	for _, e := range want {
		counts[e.Key]++
	}
	for key, n := range counts {
		a, err := persist.Logs(from).ReadLog(ctx, persist.LogQuery{Key: key, Limit: 10_000})
		require.NoError(t, err)
		b, err := persist.Logs(to).ReadLog(ctx, persist.LogQuery{Key: key, Limit: 10_000})
		require.NoError(t, err)
		require.Len(t, a, n)
		require.Equal(t, a, b)
	}
	last, err := persist.Logs(from).LastPosition(ctx)
	require.NoError(t, err)
	copied, err := persist.Logs(to).LastPosition(ctx)
	require.NoError(t, err)
	require.Equal(t, last, copied)
}

// kinds of stores: one keeps logs itself, the other one as documents.
var logStores = map[string]func() persist.Store{
	"logs":      func() persist.Store { return memory.New() },
	"documents": func() persist.Store { return hideLogs(memory.New()) },
}

// eachPair runs test on a source and a destination of either kind.
func eachPair(t *testing.T, test func(t *testing.T, from, to persist.Store)) {
	for a, from := range logStores {
		for b, to := range logStores {
			t.Run(a+" to "+b, func(t *testing.T) { test(t, from(), to()) })
		}
	}
}

// records returns the records of a store without the documents of logs.
func records(t require.TestingT, store persist.Store) map[persist.Key]persist.Record {
	all, _ := dump(t, store)
	for key := range all {
		if key.Kind != "log" {
			delete(all, key)
		}
	}
	return all
}

// TestCopyLogs: entries keep their positions, whether the stores keep logs themselves or as
// documents. A second run writes nothing. A third one copies what has changed since, also entries
// that are gone, and a log that started over.
//
// Proves STORE-15.
func TestCopyLogs(t *testing.T) {
	eachPair(t, func(t *testing.T, from, to persist.Store) {
		l := newLogged(t, from)
		for i := range 5 {
			l.add("a", 3)
			l.add(fmt.Sprint("b", i), 1)
		}
		l.drop("a", 4)
		l.add("ended", 2)
		l.end("ended")
		const n = 11 + 5
		report, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{PageSize: 4})
		require.NoError(t, err)
		require.Equal(t, persist.CopyReport{Copied: 7, Verified: 7, Logs: persist.CopiedLogs{Copied: n, Verified: n}}, report)
		requireSameLogs(t, from, to)
		require.Equal(t, records(t, from), records(t, to))

		report, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		require.NoError(t, err)
		require.Equal(t, persist.CopyReport{Unchanged: 7, Verified: 7, Logs: persist.CopiedLogs{Unchanged: n, Verified: n}}, report)

		l.drop("a", 9) // 4 to 8
		l.end("b0")
		l.end("b1")
		l.add("b1", 2) // starts over
		l.add("ended", 1)
		report, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{PageSize: 3})
		require.NoError(t, err)
		require.Equal(t, persist.CopyReport{
			Copied: 4, Unchanged: 3, Verified: 7,
			Logs: persist.CopiedLogs{Copied: 3, Removed: 5 + 2, Unchanged: n - 7, Verified: n - 4},
		}, report)
		requireSameLogs(t, from, to)
		require.Equal(t, records(t, from), records(t, to))
	})
}

// TestCopiedLogContinues: the destination gives positions above all that the source has given, also
// above those whose entries are gone. So a reader of the source misses nothing in the destination.
//
// Proves STORE-15.
func TestCopiedLogContinues(t *testing.T) {
	eachPair(t, func(t *testing.T, from, to persist.Store) {
		l := newLogged(t, from)
		l.add("a", 2)
		l.add("b", 7)
		last, err := l.store.LastPosition(t.Context())
		require.NoError(t, err)
		l.end("b")
		_, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		require.NoError(t, err)
		l.store = persist.Logs(to)
		l.add("a", 1)
		l.add("b", 1)
		entries, err := l.store.ReadOrder(t.Context(), persist.OrderQuery{After: last})
		require.NoError(t, err)
		require.Len(t, entries, 2)
		require.EqualValues(t, 2, entries[0].Number)
		require.EqualValues(t, 0, entries[1].Number)
	})
}

// brokenLog is a destination whose RestoreLog calls before, which may replace the entries or fail.
type brokenLog struct {
	*memory.Store
	before func(entries []persist.LogEntry) ([]persist.LogEntry, error)
}

func (b *brokenLog) RestoreLog(ctx context.Context, entries []persist.LogEntry, last uint64) error {
	kept, err := b.before(entries)
	return errors.Join(b.Store.RestoreLog(ctx, kept, last), err)
}

// TestCopyLogsIsResumed: a run that ends after any number of entries is completed by the next one,
// which does not write the entries that are there.
//
// Proves STORE-15.
func TestCopyLogsIsResumed(t *testing.T) {
	const n = 12
	from := memory.New()
	l := newLogged(t, from)
	for i := range n / 2 {
		l.add(fmt.Sprint(i%3), 2)
	}
	for limit := range n {
		to := &brokenLog{Store: memory.New()}
		written := 0
		to.before = func(entries []persist.LogEntry) ([]persist.LogEntry, error) {
			left := min(limit-written, len(entries))
			written += left
			if left < len(entries) {
				return entries[:left], errCrash
			}
			return entries, nil
		}
		_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{PageSize: 5})
		require.ErrorIs(t, err, errCrash)
		require.Len(t, order(t, to), limit)
		report, err := persist.Copy(t.Context(), from, to.Store, persist.CopyOptions{PageSize: 5})
		require.NoError(t, err)
		require.Equal(t, persist.CopiedLogs{Copied: n - limit, Unchanged: limit, Verified: n}, report.Logs)
		requireSameLogs(t, from, to.Store)
	}
}

// TestCopyLogsVerifies: the comparison finds an entry that the destination lost or changed, and a
// last position that it did not keep. An entry that the destination refuses is named.
//
// Proves STORE-15.
func TestCopyLogsVerifies(t *testing.T) {
	from := memory.New()
	l := newLogged(t, from)
	l.add("a", 3)
	change := func(change func(*persist.LogEntry)) func([]persist.LogEntry) ([]persist.LogEntry, error) {
		return func(entries []persist.LogEntry) ([]persist.LogEntry, error) {
			for i := range entries {
				if entries[i].Number == 1 {
					change(&entries[i])
				}
			}
			return entries, nil
		}
	}
	for want, before := range map[string]func([]persist.LogEntry) ([]persist.LogEntry, error){
		`1 log entries differ, the first is "log/a": log entry 1 has other data in the destination`: change(func(e *persist.LogEntry) { e.Data = []byte(`{}`) }),
		`the first is "log/a": log entry 1 has another time in the destination`:                     change(func(e *persist.LogEntry) { e.At = e.At.Add(1000) }),
		`the first is "log/a": log entry 1 only in the source`:                                      change(func(e *persist.LogEntry) { e.Data = nil }),
		`position 2 is that of entry 1 of the log of "log/a" in the source, of entry 7`:             change(func(e *persist.LogEntry) { e.Number = 7 }),
		`2 log entries differ, the first is "log/a": log entry 1 only in the source`:                change(func(e *persist.LogEntry) { e.Position = 9 }),
		`"log/a": refused`: func(entries []persist.LogEntry) ([]persist.LogEntry, error) {
			for _, e := range entries {
				if e.Number == 1 {
					return nil, errors.New("refused")
				}
			}
			return entries, nil
		},
	} {
		to := &brokenLog{memory.New(), before}
		report, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		require.ErrorContains(t, err, want)
		require.Equal(t, report.Logs.Differing, len(report.Differences))
		require.Zero(t, report.Differing)
	}

	l.end("a")
	_, err := persist.Copy(t.Context(), from, &forgetful{memory.New()}, persist.CopyOptions{})
	require.EqualError(t, err, "persist: copy: last position 3 of log entries in the source, 0 in the destination")
}

// forgetful is a destination that does not keep the last position.
type forgetful struct{ *memory.Store }

func (f *forgetful) RestoreLog(ctx context.Context, entries []persist.LogEntry, _ uint64) error {
	return f.Store.RestoreLog(ctx, entries, 0)
}

// TestCopyLogsOfAWrittenDestination: Copy does not replace or remove an entry that was written in
// the destination, and names it.
//
// Proves STORE-15.
func TestCopyLogsOfAWrittenDestination(t *testing.T) {
	eachPair(t, func(t *testing.T, from, to persist.Store) {
		newLogged(t, from).add("a", 2)
		newLogged(t, to).add("other", 1)
		before := order(t, to)
		_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		require.ErrorContains(t, err, `"log/other": written in the destination: position 1 is that of entry 0 of the log of "log/a" in the source, of entry 0 of the log of "log/other" in the destination`)
		require.Equal(t, before, order(t, to))
	})
	eachPair(t, func(t *testing.T, from, to persist.Store) {
		newLogged(t, from).add("a", 2)
		_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		require.NoError(t, err)
		newLogged(t, to).add("other", 1)
		report, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		require.ErrorContains(t, err, `"log/other": version 1 only in the destination`)
		require.Equal(t, persist.CopiedLogs{Unchanged: 2, Verified: 2, Differing: 1}, report.Logs)
		require.Len(t, order(t, to), 3)
	})
}

// logger is a destination that is no LogRestorer.
type logger struct {
	persist.Restorer
	persist.Logger
}

// TestCopyLogsNeedsALogRestorer: only a source that has given a position needs one.
//
// Proves STORE-15.
func TestCopyLogsNeedsALogRestorer(t *testing.T) {
	store, from := memory.New(), filled(t, 3)
	to := logger{store, struct{ persist.Logger }{store}}
	_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
	require.NoError(t, err)
	l := newLogged(t, from)
	l.add("a", 1)
	_, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{})
	require.ErrorIs(t, err, persist.ErrUnsupported)
	l.end("a")
	_, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{})
	require.ErrorIs(t, err, persist.ErrUnsupported)
}

// TestCopyLogsBesideWriters: a first run while logs grow, are dropped from and cleared, and a second
// run after the writers have stopped, leave two equal stores.
//
// Proves STORE-15.
func TestCopyLogsBesideWriters(t *testing.T) {
	eachPair(t, func(t *testing.T, from, to persist.Store) {
		stop := make(chan struct{})
		var writers sync.WaitGroup
		for writer := range 2 {
			l := newLogged(t, from)
			id := fmt.Sprint("writer", writer)
			l.add(id, 40)
			writers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					if l.add(id, 1); i%10 == 9 {
						l.drop(id, l.next[id]-min(l.next[id], 20))
					}
					if i%37 == 36 {
						l.end(id)
					}
				}
			})
		}
		_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{PageSize: 3, SkipVerify: true})
		close(stop)
		writers.Wait()
		require.NoError(t, err)
		_, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{PageSize: 3})
		require.NoError(t, err)
		requireSameLogs(t, from, to)
		require.Equal(t, records(t, from), records(t, to))
	})
}

// TestCopyLogsRandomly: any logs are copied by a run that stops anywhere and a second run, over
// changes of the source in between.
//
// Proves STORE-15.
func TestCopyLogsRandomly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := memory.New(), &brokenLog{Store: memory.New()}
		l := newLogged(t, from)
		change := func() {
			for range rapid.IntRange(0, 8).Draw(t, "changes") {
				id := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id")
				switch rapid.IntRange(0, 4).Draw(t, "change") {
				case 0:
					l.drop(id, rapid.Uint64Range(0, l.next[id]).Draw(t, "drop"))
				case 1:
					l.end(id)
				default:
					l.add(id, rapid.IntRange(1, 3).Draw(t, "entries"))
				}
			}
		}
		change()
		left := rapid.IntRange(0, 13).Draw(t, "written before the crash")
		to.before = func(entries []persist.LogEntry) ([]persist.LogEntry, error) {
			if left < len(entries) {
				return entries[:left], errCrash
			}
			left -= len(entries)
			return entries, nil
		}
		opts := persist.CopyOptions{PageSize: rapid.IntRange(1, 5).Draw(t, "page")}
		if _, err := persist.Copy(t.Context(), from, to, opts); err != nil {
			require.ErrorIs(t, err, errCrash)
		}
		change()
		_, err := persist.Copy(t.Context(), from, to.Store, opts)
		require.NoError(t, err)
		requireSameLogs(t, from, to.Store)
	})
}

// TestLogDocumentsAreNotCopied: the documents of logs stay in the store that keeps them.
//
// Proves STORE-15.
func TestLogDocumentsAreNotCopied(t *testing.T) {
	inner := memory.New()
	from, to := hideLogs(inner), memory.New()
	newLogged(t, from).add("a", 3)
	all, _ := dump(t, inner)
	require.Len(t, all, 1+3+3+1+1, "record, entries, positions, state and counter")
	_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
	require.NoError(t, err)
	copied, _ := dump(t, to)
	require.Len(t, copied, 1)
	entries, err := to.ReadLog(t.Context(), persist.LogQuery{Key: logKey("a")})
	require.NoError(t, err)
	require.Len(t, entries, 3)
	require.Equal(t, json.RawMessage(`{"entry": 2, "of": "a"}`), entries[2].Data)
}

// cutOff is a store whose Restore fails when it has written a number of records.
type cutOff struct {
	withoutLogs
	backward bool // the last record of a call is written first
	left     int
}

func (c *cutOff) Restore(ctx context.Context, records []persist.Record, floor uint64) error {
	if c.backward {
		records = slices.Clone(records)
		slices.Reverse(records)
	}
	for _, r := range records {
		if c.left == 0 {
			return errCrash
		}
		c.left--
		if err := c.withoutLogs.Restore(ctx, []persist.Record{r}, floor); err != nil {
			return err
		}
	}
	return nil
}

// TestCopyLogsCutOff: a Copy that is cut off between any two documents is completed by the next one,
// for entries that are new and for entries that are removed.
//
// Proves STORE-15.
func TestCopyLogsCutOff(t *testing.T) {
	for _, backward := range []bool{false, true} {
		for cut := 0; testCopyLogsCutOff(t, backward, cut); cut++ {
		}
	}
}

// testCopyLogsCutOff reports whether the Copy was cut off.
func testCopyLogsCutOff(t *testing.T, backward bool, cut int) bool {
	t.Helper()
	from := memory.New()
	to := &cutOff{hideLogs(memory.New()), backward, 1_000}
	l := newLogged(t, from)
	l.add("a", 3)
	_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
	require.NoError(t, err)
	l.drop("a", 2)
	l.add("a", 2)
	l.add("b", 2)
	to.left = cut
	_, interrupted := persist.Copy(t.Context(), from, to, persist.CopyOptions{SkipVerify: true})
	to.left = 1_000
	_, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{})
	require.NoError(t, err, "cut off after %d documents", cut)
	copied := persist.Logs(to)
	require.Equal(t, order(t, from), order(t, copied), "cut off after %d documents", cut)
	for _, id := range []string{"a", "b"} {
		require.Equal(t, readLog(t, from, id), readLog(t, copied, id), "cut off after %d documents", cut)
	}
	alive, _ := documentsOf(t, to)
	require.Equal(t, len(order(t, copied)), alive["pawl.log"], "cut off after %d documents", cut)
	require.Equal(t, len(order(t, copied)), alive["pawl.log.order"], "cut off after %d documents", cut)
	if interrupted != nil {
		require.ErrorIs(t, interrupted, errCrash)
	}
	return interrupted != nil
}

// TestCopyLogsCutOffThenEnded: a stream that ends in the source, after a Copy of it was cut off, has no
// entry in the target after the next Copy.
//
// Proves STORE-15.
func TestCopyLogsCutOffThenEnded(t *testing.T) {
	for cut, interrupted := 0, true; interrupted; cut++ {
		from := memory.New()
		to := &cutOff{hideLogs(memory.New()), false, cut}
		l := newLogged(t, from)
		l.add("a", 1)
		l.add("b", 2)
		_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{SkipVerify: true})
		interrupted = err != nil
		l.end("b")
		to.left = 1_000
		_, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		require.NoError(t, err, "cut off after %d documents", cut)
		require.Empty(t, readLog(t, persist.Logs(to), "b"), "cut off after %d documents", cut)
		require.Len(t, readLog(t, persist.Logs(to), "a"), 1)
	}
}
