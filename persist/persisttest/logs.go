package persisttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) logs() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"entries and document change together":       s.appended,
		"a refused commit changes no log":            s.appendRefused,
		"a taken number is a conflict":               s.takenNumber,
		"a taken number among several records":       s.takenAmongSeveral,
		"a commit that is sent again is a conflict":  s.appendedTwice,
		"Drop removes the first entries":             s.dropped,
		"Clear removes all entries":                  s.cleared,
		"a write without a log leaves the log alone": s.logLeftAlone,
		"a deleted record starts its log over":       s.logStartsOver,
		"a log is written under a lease":             s.logUnderLease,
		"several records have logs in one commit":    s.severalLogs,
		"a log is written inside a transaction":      s.logInTransaction,
	}
}

// logger returns the store as a Logger.
func (f *fixture) logger() persist.Logger {
	f.Helper()
	logger, ok := f.store.(persist.Logger)
	if !ok {
		f.Skip("the store is not a persist.Logger")
	}
	return logger
}

// entries returns JSON texts as entries of a log.
func entries(texts ...string) []json.RawMessage {
	all := make([]json.RawMessage, len(texts))
	for i, text := range texts {
		all[i] = json.RawMessage(text)
	}
	return all
}

// adding returns w with new entries in its log.
func adding(w persist.Write, first uint64, texts ...string) persist.Write {
	w.Log = &persist.LogWrite{First: first, Entries: entries(texts...)}
	return w
}

// appendAll adds entries to the log of k, whose version is expected, in as few commits as the limits
// of the store allow. It returns the new version.
func (f *fixture) appendAll(k persist.Key, expected, first uint64, texts ...string) uint64 {
	f.Helper()
	limits := f.stated()
	for version := expected; ; version++ {
		n, size := 0, 0
		for n < len(texts) && (limits.MaxEntries == 0 || n < limits.MaxEntries) {
			if size += len(texts[n]); n > 0 && limits.MaxBytes > 0 && size > limits.MaxBytes*3/4 {
				break
			}
			n++
		}
		if n == 0 {
			return version
		}
		f.must(adding(update(k, version), first, texts[:n]...))
		texts, first = texts[n:], first+uint64(n)
	}
}

// aboveFloor returns the write of an absent key with a version above the floor, which a store may
// raise when it removes entries.
func (f *fixture) aboveFloor(w persist.Write) persist.Write {
	f.Helper()
	w.Version += f.floor(w.Key)
	return w
}

// read returns the entries that match q.
func (f *fixture) read(q persist.LogQuery) []persist.LogEntry {
	f.Helper()
	found, err := f.logger().ReadLog(f.Context(), q)
	require.NoError(f, err)
	for _, e := range found {
		require.Equal(f, q.Key, e.Key)
		require.Zero(f, e.Position, "an entry that is read by number has a position")
		require.False(f, e.At.IsZero(), "LogEntry.At is not set")
	}
	return found
}

// log returns the log of k as "number text".
func (f *fixture) log(k persist.Key) []string {
	f.Helper()
	return spelled(f.read(persist.LogQuery{Key: k, Limit: 1000}))
}

// order returns the entries after a position.
func (f *fixture) order(after uint64, kinds ...string) []persist.LogEntry {
	f.Helper()
	found, err := f.logger().ReadOrder(f.Context(), persist.OrderQuery{Kinds: kinds, After: after, Limit: 1000})
	require.NoError(f, err)
	for _, e := range found {
		require.Greater(f, e.Position, after, "positions do not grow")
		require.False(f, e.At.IsZero(), "LogEntry.At is not set")
		after = e.Position
	}
	return found
}

// last returns the highest position that was ever given.
func (f *fixture) last() uint64 {
	f.Helper()
	last, err := f.logger().LastPosition(f.Context())
	require.NoError(f, err)
	return last
}

// spelled returns entries as "number text".
func spelled(entries []persist.LogEntry) []string {
	texts := []string{}
	for _, e := range entries {
		texts = append(texts, fmt.Sprintf("%d %s", e.Number, e.Data))
	}
	return texts
}

// Proves STORE-1.
func (s suite) appended(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	require.Empty(t, f.log(thing))
	require.Empty(t, f.order(0))
	require.Zero(t, f.last())
	first := f.must(adding(create(thing), 0, `"a"`, `"b"`))
	second := f.must(adding(update(thing, 1), 2, `"c"`))
	r := f.load(thing)
	require.EqualValues(t, 2, r.Version)
	sameDoc(t, doc(2), r.Doc)
	require.Len(t, r.Commits, 2)

	found := f.read(persist.LogQuery{Key: thing})
	require.Equal(t, []string{`0 "a"`, `1 "b"`, `2 "c"`}, spelled(found))
	ordered := f.order(0)
	require.Equal(t, spelled(found), spelled(ordered))
	for i, at := range []time.Time{first, first, second} {
		require.True(t, found[i].At.Equal(at), "%s is not the time of the commit, %s", found[i].At, at)
		require.True(t, ordered[i].At.Equal(at))
		require.Equal(t, thing, ordered[i].Key)
	}
	f.floor(key("other"))
	require.Empty(t, f.log(key("other")))
}

// appendRefused: a commit that fails for any reason leaves logs, order and records as they were.
//
// Proves STORE-2.
func (s suite) appendRefused(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.must(adding(acquire(thing, 0, "me", time.Hour), 0, `0`))
	before, ordered, last := f.load(thing), f.order(0), f.last()
	unchanged := func(err error) {
		t.Helper()
		require.Error(t, err)
		same(t, before, f.load(thing))
		require.Equal(t, []string{`0 0`}, f.log(thing))
		require.Equal(t, ordered, f.order(0))
		require.Equal(t, last, f.last())
		f.floor(key("other"))
		require.Empty(t, f.log(key("other")))
	}
	next := adding(update(thing, 1), 1, `1`)
	clear := next
	clear.Log = &persist.LogWrite{Clear: true, Entries: entries(`2`)}
	for _, w := range []persist.Write{next, clear} {
		commit := func(guards []persist.Guard, writes ...persist.Write) error {
			_, err := f.store.Commit(t.Context(), persist.Commit{ID: commitID(), Writes: writes, Guards: guards})
			return err
		}
		stale, gone := w, w
		stale.Expected, stale.Version, gone.Gone = 7, 8, true
		unchanged(commit(nil, stale))
		unchanged(commit(nil, gone))
		lease := w
		lease.Acquire = &persist.Acquire{Holder: "you", For: time.Hour}
		err := commit(nil, lease)
		unchanged(err)
		same(t, before, lost(t, err)[0])
		err = commit([]persist.Guard{{Key: thing, Token: 9}}, w)
		unchanged(err)
		fenced(t, err)
		broken := w
		broken.Doc = []byte(`{`)
		unchanged(commit(nil, broken))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = f.store.Commit(ended, persist.Commit{ID: commitID(), Writes: []persist.Write{w}})
		unchanged(err)
		if s.options.SingleKey {
			continue
		}
		other := adding(create(key("other")), 0, `0`)
		err = commit(nil, other, stale)
		unchanged(err)
		require.Len(t, lost(t, err), 1)
		unchanged(commit([]persist.Guard{{Key: key("other"), Read: true, Version: 4}}, w))
		unchanged(commit([]persist.Guard{{Key: thing, Token: 9}}, other))
		missing := update(key("other"), 3)
		unchanged(commit(nil, w, missing))
	}
}

// takenNumber: a number that an entry has is refused whatever the version is. The winner is the
// current record, and nothing is written.
//
// Proves STORE-2.
func (s suite) takenNumber(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.must(adding(create(thing), 0, `0`, `1`, `2`))
	before, ordered := f.load(thing), f.order(0)
	for _, log := range []persist.LogWrite{
		{First: 0, Entries: entries(`"x"`)},
		{First: 1, Entries: entries(`"x"`)},
		{First: 2, Entries: entries(`"x"`)},
		{First: 2, Entries: entries(`"x"`, `"y"`)},
		{First: 0, Entries: entries(`"x"`, `"y"`, `"z"`, `"w"`)},
		{Drop: 2, First: 2, Entries: entries(`"x"`)},
		{Drop: 1, First: 1, Entries: entries(`"x"`, `"y"`)},
	} {
		w := update(thing, 1)
		w.Log = &log
		_, err := f.write(w)
		winners := lost(t, err)
		require.Len(t, winners, 1)
		same(t, before, winners[0])
		var conflict *persist.Conflict
		require.ErrorAs(t, err, &conflict)
		if len(conflict.Expected) > 0 {
			require.Equal(t, []persist.Expected{{Version: 1}}, conflict.Expected)
		}
		same(t, before, f.load(thing))
		require.Equal(t, []string{`0 0`, `1 1`, `2 2`}, f.log(thing))
		require.Equal(t, ordered, f.order(0))
	}
	f.must(adding(update(thing, 1), 3, `3`))

	// Another version test that fails at the same time is a conflict too.
	_, err := f.write(adding(update(thing, 1), 3, `"x"`))
	same(t, f.load(thing), lost(t, err)[0])
	require.Len(t, f.log(thing), 4)
}

// Proves STORE-2.
func (s suite) takenAmongSeveral(t *testing.T) {
	s.needsSeveralKeys(t)
	f := s.fresh(t)
	f.logger()
	f.must(adding(create(key("a")), 0, `0`), adding(create(key("b")), 0, `0`))
	_, err := f.write(adding(update(key("b"), 1), 1, `1`), adding(update(key("a"), 1), 0, `1`), adding(create(key("c")), 0, `1`))
	winners := lost(t, err)
	require.Len(t, winners, 1)
	require.Equal(t, key("a"), winners[0].Key)
	for _, k := range []persist.Key{key("a"), key("b")} {
		require.Equal(t, []string{`0 0`}, f.log(k))
		require.EqualValues(t, 1, f.load(k).Version)
	}
	require.Empty(t, f.log(key("c")))
	require.Len(t, f.order(0), 2)
}

// appendedTwice: a commit whose answer was lost is sent again. The winner shows its id, so the
// caller learns that it landed, and the entries are there once.
//
// Proves STORE-2.
func (s suite) appendedTwice(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.must(adding(create(thing), 0, `0`))
	c := persist.Commit{ID: "again.1", Writes: []persist.Write{adding(update(thing, 1), 1, `1`, `2`)}}
	_, err := f.store.Commit(t.Context(), c)
	require.NoError(t, err)
	for range 2 {
		_, err = f.store.Commit(t.Context(), c)
		require.Contains(t, lost(t, err)[0].Commits, "again.1")
	}
	f.must(adding(update(thing, 2), 3, `3`))
	_, err = f.store.Commit(t.Context(), c)
	require.Contains(t, lost(t, err)[0].Commits, "again.1")
	require.Equal(t, []string{`0 0`, `1 1`, `2 2`, `3 3`}, f.log(thing))
	require.Len(t, f.order(0), 4)
}

// dropped: entries below Drop vanish from both reads. A drop may reach beyond the last entry, and
// new entries may come with it.
//
// Proves STORE-1.
func (s suite) dropped(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.must(adding(create(thing), 0, `0`, `1`, `2`, `3`))
	f.must(adding(create(key("other")), 0, `"other"`))
	version := uint64(1)
	write := func(log persist.LogWrite) {
		t.Helper()
		w := update(thing, version)
		w.Log = &log
		f.must(w)
		version++
	}
	requireLog := func(want ...string) {
		t.Helper()
		require.Equal(t, append([]string{}, want...), f.log(thing))
		require.ElementsMatch(t, append(want, `0 "other"`), spelled(f.order(0)))
	}
	write(persist.LogWrite{Drop: 1})
	requireLog(`1 1`, `2 2`, `3 3`)
	write(persist.LogWrite{Drop: 1})
	requireLog(`1 1`, `2 2`, `3 3`)
	write(persist.LogWrite{Drop: 3, First: 4, Entries: entries(`4`, `5`)})
	requireLog(`3 3`, `4 4`, `5 5`)
	write(persist.LogWrite{})
	requireLog(`3 3`, `4 4`, `5 5`)
	write(persist.LogWrite{Drop: 6, First: 6, Entries: entries(`6`)})
	requireLog(`6 6`)
	write(persist.LogWrite{Drop: 100})
	requireLog()
	write(persist.LogWrite{First: 100, Entries: entries(`100`)})
	requireLog(`100 100`)
	write(persist.LogWrite{Drop: math.MaxInt64 / 2})
	requireLog()
}

// Proves STORE-1.
func (s suite) cleared(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.must(adding(create(thing), 0, `0`, `1`, `2`))
	f.must(adding(create(key("other")), 0, `"other"`))
	over := update(thing, 1)
	over.Log = &persist.LogWrite{Clear: true, Entries: entries(`"a"`, `"b"`)}
	f.must(over)
	require.Equal(t, []string{`0 "a"`, `1 "b"`}, f.log(thing))
	require.Equal(t, []string{`0 "other"`, `0 "a"`, `1 "b"`}, spelled(f.order(0)))
	empty := update(thing, 2)
	empty.Log = &persist.LogWrite{Clear: true}
	f.must(empty)
	require.Empty(t, f.log(thing))
	require.Equal(t, []string{`0 "other"`}, spelled(f.order(0)))
	both := update(thing, 3)
	both.Log = &persist.LogWrite{Clear: true, Drop: 7, First: 7, Entries: entries(`"c"`)}
	f.must(both)
	require.Equal(t, []string{`7 "c"`}, f.log(thing))
}

// logLeftAlone: a write or a delete without a log, an expiry, a sweep and a purge keep the entries.
//
// Proves STORE-1.
func (s suite) logLeftAlone(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	short := adding(create(thing), 0, `0`)
	short.TTL = time.Millisecond
	f.must(short)
	r := f.eventually(thing, "expired", func(r persist.Record) bool { return r.Expired(r.Now) })
	require.Equal(t, []string{`0 0`}, f.log(thing))
	f.must(sweep(r))
	require.Equal(t, []string{`0 0`}, f.log(thing))
	again := update(thing, 2)
	again.Gone = true
	f.must(again)
	f.must(update(thing, 3))
	f.must(remove(thing, 4))
	require.Equal(t, []string{`0 0`}, f.log(thing))
	require.Equal(t, []string{`0 0`}, spelled(f.order(0)))
	if purger, ok := f.store.(persist.Purger); ok {
		_, err := purger.Purge(t.Context(), persist.Query{Kind: thing.Kind})
		require.NoError(t, err)
		f.floor(thing)
		require.Equal(t, []string{`0 0`}, f.log(thing))
		require.Equal(t, []string{`0 0`}, spelled(f.order(0)))
	}
}

// logStartsOver: a delete with Clear removes the log, and the document that is created again counts
// from 0. So does one that replaces an expired record with Clear.
//
// Proves STORE-1.
func (s suite) logStartsOver(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.must(adding(create(thing), 0, `0`, `1`))
	last := f.last()
	deleted := remove(thing, 1)
	deleted.Log = &persist.LogWrite{Clear: true}
	f.must(deleted)
	require.True(t, f.load(thing).Deleted)
	require.Empty(t, f.log(thing))
	require.Empty(t, f.order(0))
	require.GreaterOrEqual(t, f.last(), last)

	again := adding(update(thing, 2), 0, `"a"`)
	again.Gone, again.TTL = true, time.Millisecond
	f.must(again)
	require.Equal(t, []string{`0 "a"`}, f.log(thing))
	require.Greater(t, f.order(0)[0].Position, last)
	f.eventually(thing, "expired", func(r persist.Record) bool { return r.Expired(r.Now) })
	stale := adding(update(thing, 3), 0, `"b"`)
	stale.Gone = true
	_, err := f.write(stale)
	lost(t, err) // the expired record still has the number
	stale.Log = &persist.LogWrite{Clear: true, Entries: entries(`"b"`)}
	f.must(stale)
	require.Equal(t, []string{`0 "b"`}, f.log(thing))
	require.Len(t, f.order(0), 1)

	fresh := f.aboveFloor(create(key("unused")))
	f.must(fresh)
	unused := remove(fresh.Key, fresh.Version)
	unused.Log = &persist.LogWrite{Clear: true}
	f.must(unused)
	require.Empty(t, f.log(key("unused")))
}

// logUnderLease: a log is written with a guard of the lease, with a write that acquires it, and
// beside the guard of another record.
//
// Proves STORE-2.
func (s suite) logUnderLease(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.must(adding(acquire(thing, 0, "me", time.Hour), 0, `0`))
	require.Equal(t, "me", f.load(thing).Lease.Holder)
	_, err := f.store.Commit(t.Context(), persist.Commit{
		ID: commitID(), Writes: []persist.Write{adding(update(thing, 1), 1, `1`)},
		Guards: []persist.Guard{{Key: thing, Token: 1, Extend: 2 * time.Hour}},
	})
	require.NoError(t, err)
	r := f.load(thing)
	require.EqualValues(t, 1, r.Lease.Token)
	require.True(t, r.Lease.Until.After(r.Now.Add(90*time.Minute)))
	w := adding(update(thing, 2), 2, `2`)
	w.TTL, w.Label, w.DueIn = time.Hour, "open", time.Hour
	_, err = f.store.Commit(t.Context(), persist.Commit{ID: commitID(), Writes: []persist.Write{w}, Guards: []persist.Guard{{Key: thing, Token: 1, Release: true}}})
	require.NoError(t, err)
	r = f.load(thing)
	require.Zero(t, r.Lease)
	require.Equal(t, "open", r.Label)
	require.True(t, r.Expires.Equal(r.Updated.Add(time.Hour)))
	require.Equal(t, []string{`0 0`, `1 1`, `2 2`}, f.log(thing))
	if s.options.SingleKey {
		return
	}
	_, err = f.store.Commit(t.Context(), persist.Commit{
		ID: commitID(), Writes: []persist.Write{adding(create(key("other")), 0, `0`)},
		Guards: []persist.Guard{{Key: thing, Read: true, Version: 3}, {Key: key("absent"), Read: true}},
	})
	require.NoError(t, err)
	require.Equal(t, []string{`0 0`}, f.log(key("other")))
}

// Proves STORE-2.
func (s suite) severalLogs(t *testing.T) {
	s.needsSeveralKeys(t)
	f := s.fresh(t)
	f.logger()
	f.must(adding(create(key("c")), 0, `"old"`), create(key("d")))
	over, ends := update(key("c"), 1), remove(key("d"), 1)
	over.Log = &persist.LogWrite{Clear: true, Drop: 3, First: 3, Entries: entries(`"new"`)}
	ends.Log = &persist.LogWrite{Clear: true}
	at := f.must(adding(create(key("b")), 0, `0`, `1`), over, create(key("plain")), ends, adding(create(persist.Key{Kind: "other", ID: "b"}), 0, `2`))
	require.Equal(t, []string{`0 0`, `1 1`}, f.log(key("b")))
	require.Equal(t, []string{`3 "new"`}, f.log(key("c")))
	require.Empty(t, f.log(key("d")))
	require.Equal(t, []string{`0 2`}, f.log(persist.Key{Kind: "other", ID: "b"}))
	ordered := f.order(0)
	require.Len(t, ordered, 4)
	for _, e := range ordered {
		require.True(t, e.At.Equal(at))
	}
	require.EqualValues(t, 1, f.load(key("plain")).Version)
}

// Proves TX-6.
func (s suite) logInTransaction(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.native()
	_, err := f.inTx(nothing, adding(create(thing), 0, `0`))
	require.NoError(t, err)
	before, last := f.load(thing), f.last()
	own := errors.New("no")
	_, err = f.inTx(func(context.Context, any) error { return own }, adding(update(thing, 1), 1, `1`))
	require.True(t, err == own)
	_, err = f.inTx(nothing, adding(update(thing, 1), 0, `1`))
	same(t, before, lost(t, err)[0])
	same(t, before, f.load(thing))
	require.Equal(t, []string{`0 0`}, f.log(thing))
	require.Equal(t, last, f.order(0)[0].Position)
	next := adding(update(thing, 1), 1, `"\u0000"`)
	next.Log.Drop = 1
	_, err = f.inTx(nothing, next)
	require.NoError(t, err)
	require.Equal(t, []string{`1 "\u0000"`}, f.log(thing))
	require.Len(t, f.order(last), 1)
}
