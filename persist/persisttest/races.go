package persisttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) races() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"every acknowledged increment counts once":  s.increments,
		"one creator wins":                          s.creators,
		"writers of different keys do not conflict": s.disjoint,
		"transfers conserve the sum":                s.transfers,
		"one of a delete and updates wins":          s.lateWriters,
	}
}

// tally is a document with a sum and the ids of the changes that made it.
type tally struct {
	Sum  int      `json:"sum"`
	Acks []string `json:"acks"`
}

func parseTally(t require.TestingT, r persist.Record) tally {
	var content tally
	require.NoError(t, json.Unmarshal(r.Doc, &content))
	return content
}

// increment adds one to the tally of k under the name id. It retries after a conflict.
func increment(ctx context.Context, store persist.Store, k persist.Key, id string) error {
	current, err := store.Load(ctx, k)
	if err != nil && !errors.Is(err, persist.ErrNotFound) {
		return err
	}
	for {
		var content tally
		expected := uint64(0)
		if !current.Absent() {
			expected = current.Version
			if err := json.Unmarshal(current.Doc, &content); err != nil {
				return err
			}
		}
		content.Sum++
		content.Acks = append(content.Acks, id)
		text, err := json.Marshal(content)
		if err != nil {
			return err
		}
		_, err = store.Commit(ctx, persist.Commit{ID: id, Writes: []persist.Write{
			{Key: k, Expected: expected, Version: current.Version + 1, Doc: text},
		}})
		var conflict *persist.Conflict
		if !errors.As(err, &conflict) {
			return err
		}
		current = conflict.Winners[0]
	}
}

// increments: the write itself compares the version, so two writers cannot both replace it.
//
// Proves STORE-2, STORE-5.
func (s suite) increments(t *testing.T) {
	f := s.fresh(t)
	const writers, each = 8, 12
	together(writers, func(i int) {
		for n := range each {
			if err := increment(f.Context(), f.store, thing, fmt.Sprintf("w%d.%d", i, n)); err != nil {
				t.Errorf("writer %d: %v", i, err)
			}
		}
	})
	var want []string
	for i := range writers {
		for n := range each {
			want = append(want, fmt.Sprintf("w%d.%d", i, n))
		}
	}
	r := f.load(thing)
	require.EqualValues(t, writers*each, r.Version)
	require.ElementsMatch(t, want, parseTally(t, r).Acks)
}

// Proves STORE-2.
func (s suite) creators(t *testing.T) {
	f := s.fresh(t)
	for round := range 10 {
		k := key(fmt.Sprint(round))
		var won atomic.Int64
		errs := make([]error, 6)
		together(len(errs), func(i int) {
			w := create(k)
			w.Doc = doc(i)
			if _, errs[i] = f.write(w); errs[i] == nil {
				won.Store(int64(i))
			}
		})
		r := f.load(k)
		require.EqualValues(t, 1, r.Version)
		sameDoc(t, doc(int(won.Load())), r.Doc)
		successes := 0
		for _, err := range errs {
			if err == nil {
				successes++
				continue
			}
			same(t, r, lost(t, err)[0])
		}
		require.Equal(t, 1, successes)
	}
}

// Proves STORE-2.
func (s suite) disjoint(t *testing.T) {
	f := s.fresh(t)
	const writers, each = 16, 8
	together(writers, func(i int) {
		for n := range uint64(each) {
			if _, err := f.write(update(key(fmt.Sprint(i)), n)); err != nil {
				t.Errorf("writer %d: %v", i, err)
			}
		}
	})
	for i := range writers {
		require.EqualValues(t, each, f.load(key(fmt.Sprint(i))).Version)
	}
}

// transfer moves one from a to b. It retries after a conflict.
func transfer(ctx context.Context, store persist.Store, a, b persist.Key, id string) error {
	for {
		var records [2]persist.Record
		var writes []persist.Write
		for i, k := range []persist.Key{a, b} {
			var err error
			if records[i], err = store.Load(ctx, k); err != nil {
				return err
			}
			var content tally
			if err := json.Unmarshal(records[i].Doc, &content); err != nil {
				return err
			}
			content.Sum += []int{-1, 1}[i]
			text, err := json.Marshal(content)
			if err != nil {
				return err
			}
			writes = append(writes, persist.Write{Key: k, Expected: records[i].Version, Version: records[i].Version + 1, Doc: text})
		}
		_, err := store.Commit(ctx, persist.Commit{ID: id, Writes: writes})
		if !isConflict(err) {
			return err
		}
	}
}

// transfers: commits name their keys in both orders and do not deadlock.
//
// Proves STORE-2.
func (s suite) transfers(t *testing.T) {
	s.needsSeveralKeys(t)
	f := s.fresh(t)
	accounts := []persist.Key{key("a"), key("b"), key("c")}
	for _, k := range accounts {
		w := create(k)
		w.Doc = []byte(`{"sum": 100}`)
		f.must(w)
	}
	const movers, each = 6, 8
	together(movers, func(i int) {
		for n := range each {
			from, to := accounts[(i+n)%3], accounts[(i+2*n+1)%3]
			if from == to {
				continue
			}
			if err := transfer(f.Context(), f.store, from, to, fmt.Sprintf("m%d.%d", i, n)); err != nil {
				t.Errorf("mover %d: %v", i, err)
			}
		}
	})
	sum := 0
	for _, k := range accounts {
		sum += parseTally(t, f.load(k)).Sum
	}
	require.Equal(t, 300, sum)
}

// lateWriters: of a delete and several updates of one version, one succeeds.
//
// Proves STORE-2, STORE-5.
func (s suite) lateWriters(t *testing.T) {
	f := s.fresh(t)
	for round := range 10 {
		k := key(fmt.Sprint(round))
		f.must(create(k))
		errs := make([]error, 4)
		together(len(errs), func(i int) {
			w := update(k, 1)
			if i == 0 {
				w = remove(k, 1)
			}
			_, errs[i] = f.write(w)
		})
		require.Equal(t, 1, len(errs)-len(slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })))
		r := f.load(k)
		require.Equal(t, errs[0] == nil, r.Deleted)
	}
}
