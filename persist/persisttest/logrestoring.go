package persisttest

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) logRestoring() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"a restored entry has all fields":              s.restoredLog,
		"a restored entry replaces and removes others": s.restoredLogOver,
		"later commits have higher positions":          s.restoredLast,
		"a malformed entry is refused":                 s.restoreLogMalformed,
		"an ended context and Close stop RestoreLog":   s.restoreLogEnds,
	}
}

// logRestorer returns the store as a LogRestorer.
func (f *fixture) logRestorer() persist.LogRestorer {
	f.Helper()
	restorer, ok := f.store.(persist.LogRestorer)
	if !ok {
		f.Skip("the store is not a persist.LogRestorer")
	}
	return restorer
}

// restoreLog restores entries and fails the test on an error.
func (f *fixture) restoreLog(last uint64, entries ...persist.LogEntry) {
	f.Helper()
	require.NoError(f, f.logRestorer().RestoreLog(f.Context(), entries, last))
}

// entry returns an entry of the log of k that was committed an hour ago.
func entry(k persist.Key, number, position uint64, text string) persist.LogEntry {
	at := time.Now().UTC().Truncate(time.Microsecond).Add(-time.Hour)
	return persist.LogEntry{Key: k, Number: number, Position: position, At: at, Data: []byte(text)}
}

// sameEntries asserts that two lists of entries are equal, also in their times.
func sameEntries(t require.TestingT, want, got []persist.LogEntry) {
	require.Len(t, got, len(want))
	for i := range want {
		require.True(t, want[i].At.Equal(got[i].At), "%s is not %s", got[i].At, want[i].At)
		want[i].At = got[i].At
		require.Equal(t, want[i], got[i])
	}
}

// restoredLog: entries may be restored in any order, before their records and twice.
//
// Proves STORE-15.
func (s suite) restoredLog(t *testing.T) {
	f := s.fresh(t)
	f.logRestorer()
	var want []persist.LogEntry
	for i, text := range spellings {
		want = append(want, entry(thing, uint64(i), uint64(10+3*i), text))
	}
	for i, name := range hostile {
		want = append(want, entry(persist.Key{Kind: name, ID: name}, 1<<40, uint64(1000+i), `"x"`))
	}
	for range 2 {
		f.restoreLog(0, want[20:]...)
		f.restoreLog(0, want[:20]...)
		sameEntries(t, want, f.order(0))
		require.Equal(t, want[len(want)-1].Position, f.last())
	}
	for i, e := range f.read(persist.LogQuery{Key: thing}) {
		require.Equal(t, spellings[i], string(e.Data))
		require.True(t, e.At.Equal(want[i].At))
	}
	f.restoreLog(0)
	f.must(create(thing))
	_, err := f.write(adding(update(thing, 1), 3, `"taken"`))
	lost(t, err)
	f.must(adding(update(thing, 1), uint64(len(spellings)), `"next"`))
	ordered := f.order(want[len(want)-1].Position)
	require.Len(t, ordered, 1)
	require.Equal(t, `"next"`, string(ordered[0].Data))
}

// Proves STORE-15.
func (s suite) restoredLogOver(t *testing.T) {
	f := s.fresh(t)
	f.logRestorer()
	f.must(adding(create(thing), 0, `0`, `1`, `2`))
	f.must(adding(create(key("other")), 0, `"other"`))
	other := f.order(0)[3]
	f.restoreLog(0,
		persist.LogEntry{Key: thing, Number: 0},
		entry(thing, 1, 70, `"moved"`),
		persist.LogEntry{Key: thing, Number: 9},
		persist.LogEntry{Key: key("absent"), Number: 0},
	)
	require.Equal(t, []string{`1 "moved"`, `2 2`}, f.log(thing))
	ordered := f.order(0)
	require.Equal(t, []string{`2 2`, `0 "other"`, `1 "moved"`}, spelled(ordered))
	require.EqualValues(t, 70, ordered[2].Position)
	sameEntries(t, []persist.LogEntry{other}, ordered[1:2])
	f.must(adding(update(thing, 1), 0, `"again"`))
	require.Equal(t, []string{`0 "again"`, `1 "moved"`, `2 2`}, f.log(thing))
	require.Len(t, f.order(70), 1)
}

// restoredLast: the last position is kept although the entry that had it is gone, and it is never
// lowered.
//
// Proves STORE-15.
func (s suite) restoredLast(t *testing.T) {
	f := s.fresh(t)
	f.logRestorer()
	f.restoreLog(41)
	require.EqualValues(t, 41, f.last())
	require.Empty(t, f.order(0))
	f.restoreLog(7, entry(key("other"), 0, 20, `0`))
	require.EqualValues(t, 41, f.last())
	f.must(adding(create(thing), 0, `0`))
	require.Len(t, f.order(41), 1)
	require.Len(t, f.order(0), 2)
	f.restoreLog(0, entry(key("other"), 1, 5000, `1`))
	f.must(adding(update(thing, 1), 1, `1`))
	require.Equal(t, []string{`1 1`}, spelled(f.order(5000)))
}

// Proves STORE-15.
func (s suite) restoreLogMalformed(t *testing.T) {
	f := s.fresh(t)
	restorer := f.logRestorer()
	ok := entry(thing, 0, 1, `0`)
	with := func(change func(*persist.LogEntry)) []persist.LogEntry {
		e := ok
		change(&e)
		return []persist.LogEntry{e}
	}
	for name, entries := range map[string][]persist.LogEntry{
		"no id":            with(func(e *persist.LogEntry) { e.ID = "" }),
		"position 0":       with(func(e *persist.LogEntry) { e.Position = 0 }),
		"high position":    with(func(e *persist.LogEntry) { e.Position = 1 << 62 }),
		"high number":      with(func(e *persist.LogEntry) { e.Number = 1 << 62 }),
		"no time":          with(func(e *persist.LogEntry) { e.At = time.Time{} }),
		"nanoseconds":      with(func(e *persist.LogEntry) { e.At = e.At.Add(1) }),
		"not JSON":         with(func(e *persist.LogEntry) { e.Data = []byte(`{`) }),
		"same number":      {ok, entry(thing, 0, 2, `0`)},
		"same position":    {ok, entry(thing, 1, 1, `0`)},
		"removed and kept": {{Key: thing}, ok},
	} {
		require.ErrorIs(t, restorer.RestoreLog(t.Context(), entries, 0), persist.ErrNotApplied, name)
	}
	require.ErrorIs(t, restorer.RestoreLog(t.Context(), nil, math.MaxUint64), persist.ErrNotApplied)
	require.Empty(t, f.order(0))
	require.Zero(t, f.last())
}

// Proves STORE-15.
func (s suite) restoreLogEnds(t *testing.T) {
	f := s.fresh(t)
	restorer := f.logRestorer()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, restorer.RestoreLog(ended, []persist.LogEntry{entry(thing, 0, 1, `0`)}, 7), context.Canceled)
	require.Empty(t, f.order(0))
	require.Zero(t, f.last())
	require.NoError(t, f.store.Close())
	require.ErrorIs(t, restorer.RestoreLog(t.Context(), []persist.LogEntry{entry(thing, 0, 1, `0`)}, 7), persist.ErrClosed)
}
