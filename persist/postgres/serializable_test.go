package postgres

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
)

// state is a version of a record; version 0 is its absence.
type state struct {
	key     persist.Key
	version uint64
}

// history is what commits that succeeded have seen and written.
type history struct {
	mu       sync.Mutex // protects what follows
	seen     map[state][]int
	replaced map[state]int // by which commit
	written  map[state]int
	commits  int
	twice    []string
}

// add adds a commit that succeeded.
func (h *history) add(c persist.Commit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.commits++
	for _, g := range c.Guards {
		seen := state{g.Key, g.Version}
		h.seen[seen] = append(h.seen[seen], h.commits)
	}
	for _, w := range c.Writes {
		before, after := state{w.Key, w.Expected}, state{w.Key, w.Version}
		if other, ok := h.replaced[before]; ok {
			h.twice = append(h.twice, fmt.Sprintf("%v was replaced by %d and %d", before, other, h.commits))
		}
		h.replaced[before], h.written[after] = h.commits, h.commits
	}
}

// order returns for each commit the commits that must come after it: those that have read or
// replaced what it wrote, or replaced what it read.
func (h *history) order() map[int][]int {
	after := make(map[int][]int)
	for s, writer := range h.written {
		after[writer] = append(after[writer], h.seen[s]...)
		if next, ok := h.replaced[s]; ok {
			after[writer] = append(after[writer], next)
		}
	}
	for s, readers := range h.seen {
		if next, ok := h.replaced[s]; ok {
			for _, reader := range readers {
				if reader != next {
					after[reader] = append(after[reader], next)
				}
			}
		}
	}
	return after
}

// circle returns commits of which each must come before the next, and the last before the first.
func circle(after map[int][]int) []int {
	const under, done = 1, 2
	marks := make(map[int]int)
	var path []int
	var visit func(int) bool
	visit = func(n int) bool {
		marks[n] = under
		path = append(path, n)
		for _, next := range after[n] {
			if marks[next] == under || marks[next] == 0 && visit(next) {
				return true
			}
		}
		marks[n] = done
		path = path[:len(path)-1]
		return false
	}
	for n := range after {
		if marks[n] == 0 && visit(n) {
			return path
		}
	}
	return nil
}

// TestSerializable has many commit at random to few records, from several stores, by every way that
// a commit can go. What succeeded must have an order in which each commit saw what the ones before
// it had left.
//
// Proves STORE-2, STORE-3.
func TestSerializable(t *testing.T) {
	url := pgtest.URL(t)
	h := &history{seen: make(map[state][]int), replaced: make(map[state]int), written: make(map[state]int)}
	var stores []*Store
	for _, direct := range []int{1 << 20, 0, 2} {
		s := openAt(t, connections(t, url, 4), Config{})
		s.queue.maxDirect = direct
		stores = append(stores, s)
	}
	var group sync.WaitGroup
	for worker := range 18 {
		group.Go(func() {
			s := stores[worker%len(stores)]
			for n := range 60 {
				var keys []persist.Key
				for range 3 {
					keys = append(keys, thing(fmt.Sprint(n/10*4+rand.IntN(4)))) // new ones now and then
				}
				keys = persist.Commit{Guards: []persist.Guard{{Key: keys[0]}, {Key: keys[1]}, {Key: keys[2]}}}.Keys()
				records, err := s.LoadAll(t.Context(), keys)
				if err != nil {
					t.Error(err)
					return
				}
				c := randomCommit(fmt.Sprintf("w%d.%d", worker, n), records)
				_, err = s.Commit(t.Context(), c)
				switch conflict := (*persist.Conflict)(nil); {
				case err == nil:
					h.add(c)
				case !errors.As(err, &conflict):
					t.Errorf("%v", err)
				}
			}
		})
	}
	group.Wait()
	require.Empty(t, h.twice)
	require.Empty(t, circle(h.order()))
	require.Greater(t, h.commits, 100)
	t.Logf("%d of %d commits succeeded", h.commits, 18*60)
}

// randomCommit reads or writes, at random, records as they were found.
func randomCommit(id string, records []persist.Record) persist.Commit {
	c := persist.Commit{ID: id}
	for i, r := range records {
		version, gone := r.Version, false
		if r.Absent() {
			version = 0
		} else {
			gone = r.Gone(r.Now)
		}
		kind := rand.IntN(4)
		if kind == 0 || i == 0 && len(records) == 1 {
			w := persist.Write{Key: r.Key, Expected: version, Gone: gone, Version: version + 1, Doc: []byte(`{}`)}
			if rand.IntN(4) == 0 {
				w.Deleted, w.Doc = true, nil
			}
			c.Writes = append(c.Writes, w)
			continue
		}
		c.Guards = append(c.Guards, persist.Guard{Key: r.Key, Read: true, Version: version, Gone: gone})
	}
	return c
}
