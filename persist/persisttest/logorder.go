package persisttest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

func (s suite) logOrder() map[string]func(*testing.T) {
	tests := map[string]func(*testing.T){
		"positions grow from commit to commit":          s.positionsGrow,
		"entries of some kinds are read":                s.orderOfKinds,
		"a page ends at the limit":                      s.orderPages,
		"the position of a removed entry is not reused": s.positionsOnce,
		"a commit that ends late has a late position":   s.lateCommit,
		"a reader beside writers misses nothing":        s.followed,
		"random log writes do the same as a list":       s.likeList,
	}
	if !s.options.Volatile {
		tests["an opened store has the logs"] = s.logsReopened
		tests["processes append to shared logs"] = s.appendTogether
		tests["a killed appender loses no entry"] = s.killedAppender
	}
	return tests
}

// positionsGrow: a commit that begins after another was acknowledged has higher positions, whatever
// its record is. Within a record positions follow the numbers.
//
// Proves STORE-1.
func (s suite) positionsGrow(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	var want []string
	for i := range 12 {
		k := key(fmt.Sprint("9876"[i%4]))
		w := update(k, uint64(i/4))
		f.must(adding(w, uint64(2*(i/4)), fmt.Sprint(2*i), fmt.Sprint(2*i+1)))
		for n := range 2 {
			want = append(want, fmt.Sprintf("%d %d", 2*(i/4)+n, 2*i+n))
		}
		ordered := f.order(0)
		require.Equal(t, want, spelled(ordered))
		require.Equal(t, ordered[len(ordered)-1].Position, f.last())
	}
}

// Proves STORE-1.
func (s suite) orderOfKinds(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	kinds := []string{"a", "b", "ab", "A"}
	for i, kind := range kinds {
		f.must(adding(create(persist.Key{Kind: kind, ID: "1"}), 0, fmt.Sprint(i)))
	}
	for i, kind := range kinds {
		f.must(adding(update(persist.Key{Kind: kind, ID: "1"}, 1), 1, fmt.Sprint(10+i)))
	}
	for _, c := range []struct{ kinds, want []string }{
		{nil, []string{"0 0", "0 1", "0 2", "0 3", "1 10", "1 11", "1 12", "1 13"}},
		{[]string{"a"}, []string{"0 0", "1 10"}},
		{[]string{"ab", "b"}, []string{"0 1", "0 2", "1 11", "1 12"}},
		{[]string{"b", "b", "none"}, []string{"0 1", "1 11"}},
		{[]string{"none"}, []string{}},
	} {
		require.Equal(t, c.want, spelled(f.order(0, c.kinds...)), "%q", c.kinds)
	}
	first := f.order(0, "ab")[0]
	require.Equal(t, []string{"1 12"}, spelled(f.order(first.Position, "ab")))
	require.Equal(t, []string{"1 10"}, spelled(f.order(first.Position, "a")))
}

// Proves STORE-1.
func (s suite) orderPages(t *testing.T) {
	f := s.fresh(t)
	logger := f.logger()
	var texts []string
	for i := range 130 {
		texts = append(texts, fmt.Sprint(i))
	}
	f.appendAll(thing, 0, 0, texts[:60]...)
	f.must(adding(create(persist.Key{Kind: "other", ID: "1"}), 0, `"other"`))
	f.appendAll(key("2"), 0, 60, texts[60:]...)
	page, err := logger.ReadOrder(t.Context(), persist.OrderQuery{})
	require.NoError(t, err)
	require.Len(t, page, persist.DefaultLimit)
	for _, limit := range []int{1, 7, 130, 500} {
		var read []string
		for after := uint64(0); ; {
			page, err := logger.ReadOrder(t.Context(), persist.OrderQuery{Kinds: []string{"thing"}, After: after, Limit: limit})
			require.NoError(t, err)
			require.LessOrEqual(t, len(page), limit)
			if len(page) == 0 {
				break
			}
			for _, e := range page {
				require.Greater(t, e.Position, after)
				after = e.Position
				read = append(read, string(e.Data))
			}
		}
		require.Equal(t, texts, read)
	}
	for _, after := range []uint64{f.last(), math.MaxInt64, math.MaxUint64} {
		require.Empty(t, f.order(after))
	}
}

// Proves STORE-1.
func (s suite) positionsOnce(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.must(adding(create(thing), 0, `0`, `1`))
	highest := f.order(0)[1].Position
	version := uint64(1)
	for _, remove := range []persist.LogWrite{{Drop: 2}, {Clear: true}} {
		w := update(thing, version)
		w.Log = &remove
		f.must(w)
		require.Empty(t, f.order(0))
		require.GreaterOrEqual(t, f.last(), highest)
		f.must(adding(update(thing, version+1), 2, `2`))
		ordered := f.order(highest)
		require.Len(t, ordered, 1)
		highest = ordered[0].Position
		version += 2
	}
}

// lateCommit: while a commit is open, another one is committed and read. The open one ends after
// that and has a higher position, or the store makes the other one wait.
//
// Proves STORE-1.
func (s suite) lateCommit(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.native()
	f.must(adding(create(thing), 0, `"first"`))
	after := f.last()
	var other errgroup.Group
	var read []persist.LogEntry
	_, err := f.inTx(func(context.Context, any) error {
		committed := make(chan struct{})
		other.Go(func() error {
			defer close(committed)
			_, err := f.write(adding(create(key("other")), 0, `"other"`))
			return err
		})
		select {
		case <-committed:
		case <-time.After(200 * time.Millisecond):
		}
		var err error
		read, err = f.logger().ReadOrder(t.Context(), persist.OrderQuery{After: after})
		return err
	}, adding(update(thing, 1), 1, `"late"`))
	require.NoError(t, err)
	require.NoError(t, other.Wait())
	require.LessOrEqual(t, len(read), 1)
	if len(read) > 0 {
		require.Equal(t, `"other"`, string(read[0].Data))
		after = read[0].Position
	}
	require.Len(t, f.order(after), 2-len(read))
}

// appendTo adds an entry that names the commit to the log of each key. The document of a key counts
// the entries. It retries after a conflict.
func appendTo(ctx context.Context, store persist.Store, id string, keys ...persist.Key) error {
	for {
		var writes []persist.Write
		for _, k := range keys {
			r, err := store.Load(ctx, k)
			if err != nil && !errors.Is(err, persist.ErrNotFound) {
				return err
			}
			w := persist.Write{Key: k, Version: r.Version + 1}
			var content tally
			if !r.Absent() {
				w.Expected = r.Version
				if err := json.Unmarshal(r.Doc, &content); err != nil {
					return err
				}
			}
			w.Doc = fmt.Appendf(nil, `{"sum": %d}`, content.Sum+1)
			writes = append(writes, adding(w, uint64(content.Sum), fmt.Sprintf("%q", id)))
		}
		if _, err := store.Commit(ctx, persist.Commit{ID: id, Writes: writes}); !isConflict(err) {
			return err
		}
	}
}

// whole asserts that the order has each entry of each log once, that logs have no gaps, and that
// positions follow the numbers. It returns how often each commit id is there.
func (f *fixture) whole(ordered []persist.LogEntry) map[string]int {
	f.Helper()
	next, count := map[persist.Key]uint64{}, map[string]int{}
	for i, e := range ordered {
		require.Equal(f, next[e.Key], e.Number, "log of %s", e.Key)
		next[e.Key]++
		require.True(f, i == 0 || ordered[i-1].Position < e.Position, "positions do not grow")
		var id string
		require.NoError(f, json.Unmarshal(e.Data, &id))
		count[id]++
	}
	for k, n := range next {
		found, err := f.logger().ReadLog(f.Context(), persist.LogQuery{Key: k, Limit: len(ordered) + 1})
		require.NoError(f, err)
		require.EqualValues(f, n, len(found), "log of %s", k)
		require.EqualValues(f, n, parseTally(f, f.load(k)).Sum)
	}
	return count
}

// everything returns the whole order.
func (f *fixture) everything() (ordered []persist.LogEntry) {
	f.Helper()
	for after := uint64(0); ; {
		page := f.order(after)
		if len(page) == 0 {
			return ordered
		}
		ordered = append(ordered, page...)
		after = page[len(page)-1].Position
	}
}

// followed: writers of the same and of different records append while a reader goes on after the
// last position that it has read. It reads each entry once, in an order that agrees with the order
// of acknowledgements.
//
// Proves STORE-1, STORE-2.
func (s suite) followed(t *testing.T) {
	f := s.fresh(t)
	logger := f.logger()
	const writers, each = 6, 9
	type span struct{ began, acked int64 } // of a commit, by a counter
	var (
		counter atomic.Int64
		mu      sync.Mutex // protects spans
		spans   = map[string]span{}
		done    = make(chan struct{})
		reader  errgroup.Group
		read    []persist.LogEntry
	)
	reader.Go(func() error {
		for after, last := uint64(0), false; ; {
			page, err := logger.ReadOrder(t.Context(), persist.OrderQuery{After: after, Limit: 7})
			if err != nil {
				return err
			}
			for _, e := range page {
				if e.Position <= after {
					return fmt.Errorf("position %d was read after position %d", e.Position, after)
				}
				after = e.Position
			}
			if read = append(read, page...); len(page) > 0 {
				continue
			}
			if last {
				return nil
			}
			select {
			case <-done:
				last = true // one more read
			case <-time.After(time.Millisecond):
			}
		}
	})
	together(writers, func(i int) {
		for n := range each {
			id := fmt.Sprintf("w%d.%d", i, n)
			keys := [][]persist.Key{{key("shared")}, {key(fmt.Sprint(i))}, {key(fmt.Sprint(i)), key("shared")}}[n%3]
			if s.options.SingleKey {
				keys = keys[:1]
			}
			start := counter.Add(1)
			if err := appendTo(t.Context(), f.store, id, keys...); err != nil {
				t.Errorf("writer %d: %v", i, err)
				return
			}
			mu.Lock()
			spans[id] = span{start, counter.Add(1)}
			mu.Unlock()
		}
	})
	close(done)
	require.NoError(t, reader.Wait())
	require.Equal(t, f.everything(), read)
	count := f.whole(read)
	require.Len(t, count, writers*each)
	began := int64(0) // when the commit of an entry so far began at the latest
	for _, e := range read {
		var id string
		require.NoError(t, json.Unmarshal(e.Data, &id))
		require.Greater(t, spans[id].acked, began, "%s was acknowledged before the commit of an entry with a lower position began", id)
		began = max(began, spans[id].began)
	}
}

// likeList runs random log writes on the store and on lists, and compares answers and entries.
//
// Proves STORE-1, STORE-2.
func (s suite) likeList(t *testing.T) {
	f := s.fresh(t)
	logger := f.logger()
	check := 0
	rapid.Check(t, func(r *rapid.T) {
		check++
		kind := fmt.Sprintf("list-%d", check)
		model, versions, after := map[persist.Key][]persist.LogEntry{}, map[persist.Key]uint64{}, f.last()
		dropped := map[persist.Key]uint64{} // the lowest number that may be used
		for step := range rapid.IntRange(2, 6).Draw(r, "steps") {
			k := persist.Key{Kind: kind, ID: rapid.SampledFrom([]string{"a", "b"}).Draw(r, "id")}
			log := persist.LogWrite{Clear: rapid.IntRange(0, 5).Draw(r, "clear") == 0}
			if rapid.Bool().Draw(r, "drops") {
				log.Drop = rapid.Uint64Range(0, 12).Draw(r, "drop")
			}
			lowest := max(dropped[k], log.Drop)
			if log.Clear {
				lowest = log.Drop
			}
			log.First = lowest + rapid.Uint64Range(0, 5).Draw(r, "first")
			if n := len(model[k]); n > 0 && rapid.Bool().Draw(r, "next") {
				log.First = max(lowest, model[k][n-1].Number+1)
			}
			for i := range rapid.IntRange(0, 3).Draw(r, "entries") {
				log.Entries = append(log.Entries, fmt.Appendf(nil, "[%d, %d]", step, i))
			}
			w := update(k, versions[k])
			if versions[k] == 0 {
				w = f.aboveFloor(w)
			}
			w.Log = &log
			_, err := logger.Commit(t.Context(), persist.Commit{ID: commitID(), Writes: []persist.Write{w}})
			kept := slices.DeleteFunc(slices.Clone(model[k]), func(e persist.LogEntry) bool { return log.Clear || e.Number < log.Drop })
			taken := slices.ContainsFunc(kept, func(e persist.LogEntry) bool {
				return e.Number >= log.First && e.Number-log.First < uint64(len(log.Entries))
			})
			if taken {
				require.True(r, isConflict(err), "want a conflict, got %v for %+v", err, log)
				continue
			}
			require.NoError(r, err, "%+v", log)
			versions[k] = w.Version
			dropped[k] = lowest
			for i, data := range log.Entries {
				kept = append(kept, persist.LogEntry{Key: k, Number: log.First + uint64(i), Data: data})
			}
			slices.SortFunc(kept, func(a, b persist.LogEntry) int { return cmp.Compare(a.Number, b.Number) })
			model[k] = kept
		}
		total := 0
		for k, want := range model {
			total += len(want)
			found, err := logger.ReadLog(t.Context(), persist.LogQuery{Key: k})
			require.NoError(r, err)
			require.Equal(r, spelled(want), spelled(found))
			for i := range want {
				part, err := logger.ReadLog(t.Context(), persist.LogQuery{Key: k, From: want[i].Number, Limit: 2})
				require.NoError(r, err)
				require.Equal(r, spelled(want[i:min(i+2, len(want))]), spelled(part))
			}
		}
		ordered, err := logger.ReadOrder(t.Context(), persist.OrderQuery{After: after, Kinds: []string{kind}})
		require.NoError(r, err)
		require.Len(r, ordered, total)
		for k, version := range versions { // stores that read whole folders get slower with each check otherwise
			w := update(k, version)
			w.Log = &persist.LogWrite{Clear: true}
			_, err := logger.Commit(t.Context(), persist.Commit{ID: commitID(), Writes: []persist.Write{w}})
			require.NoError(r, err)
		}
	})
}

// Proves STORE-1, STORE-3.
func (s suite) logsReopened(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	f.must(adding(create(thing), 0, spellings...))
	w := update(thing, 1)
	w.Log = &persist.LogWrite{Drop: 3}
	f.must(w)
	ends := f.aboveFloor(adding(create(key("gone")), 0, `0`))
	f.must(ends)
	gone := remove(ends.Key, ends.Version)
	gone.Log = &persist.LogWrite{Clear: true}
	f.must(gone)
	log, ordered, last := f.log(thing), f.order(0), f.last()
	other := s.at(t, f.location)
	require.NoError(t, f.store.Close())
	for i, f := range []*fixture{other, s.at(t, f.location)} {
		require.Equal(t, log, f.log(thing))
		require.Equal(t, spelled(ordered), spelled(f.order(0)))
		require.Equal(t, last, f.last())
		f.must(f.aboveFloor(adding(create(key(fmt.Sprint("next", i))), 0, `0`)))
		require.Len(t, f.order(last), 1)
		last = f.last()
		ordered = f.order(0)
	}
}

const appendsEach = 10

// appendRole uses persist.Logs, because the opener of a child knows nothing of a store around its
// own.
func appendRole(ctx context.Context, c *child) error {
	var writers errgroup.Group
	store := persist.Logs(c.store)
	for i := range 2 {
		writers.Go(func() error {
			for n := range appendsEach {
				id := fmt.Sprintf("%s-%d.%d", c.name, i, n)
				if err := appendTo(ctx, store, id, []persist.Key{key("shared"), key(c.name)}[n%2]); err != nil {
					return err
				}
				testkit.Say("%s", id)
			}
			return nil
		})
	}
	return writers.Wait()
}

// Proves STORE-3, STORE-2.
func (s suite) appendTogether(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	said := slices.Concat(s.crowd(t, 3, "append", f.location)...)
	require.Len(t, said, 3*2*appendsEach)
	count := f.whole(f.everything())
	require.Len(t, count, len(said))
	for _, id := range said {
		require.Equal(t, 1, count[id], "%s", id)
	}
}

func appendForeverRole(ctx context.Context, c *child) error {
	store := persist.Logs(c.store)
	for n := 0; ; n++ {
		id := fmt.Sprintf("%s.%d", c.name, n)
		if err := appendTo(ctx, store, id, key(fmt.Sprint(n%2))); err != nil {
			return err
		}
		testkit.Say("%s", id)
	}
}

// killedAppender: kill -9 at any moment loses no acknowledged entry and leaves no gap, neither in
// the logs nor for a reader that goes on after the last position it has read.
//
// Proves STORE-3, STORE-7.
func (s suite) killedAppender(t *testing.T) {
	f := s.fresh(t)
	f.logger()
	acked := map[string]bool{}
	var read []persist.LogEntry
	for round := range 8 {
		p := s.spawn(t, "append forever", f.location, fmt.Sprintf("p%d", round))
		p.Go()
		for range 1 + rand.IntN(6) {
			acked[p.Line()] = true
		}
		after := uint64(0)
		if len(read) > 0 {
			after = read[len(read)-1].Position
		}
		read = append(read, f.order(after)...)
		for _, line := range p.Kill() {
			acked[line] = true
		}
		id := fmt.Sprintf("survivor.%d", round)
		require.NoError(t, appendTo(t.Context(), f.store, id, key("0")))
		acked[id] = true
	}
	all := f.everything()
	read = append(read, f.order(read[len(read)-1].Position)...)
	require.Equal(t, all, read[:len(all)])
	count := f.whole(read)
	for id := range acked {
		require.Equal(t, 1, count[id], "%s was acknowledged", id)
	}
	for id, n := range count {
		require.Equal(t, 1, n, "%s was applied twice", id)
	}
}
