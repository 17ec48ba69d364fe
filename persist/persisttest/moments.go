package persisttest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) moments() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"LoadAll returns the same records as Load": s.loadAllLikeLoad,
		"LoadAll shows no commit in part":          s.loadAllWhole,
		"a page of a list shows no commit in part": s.listWholeCommits,
	}
}

// reader returns the store as a persist.Reader, or skips.
func (f *fixture) reader() persist.Reader {
	f.Helper()
	r, ok := f.store.(persist.Reader)
	if !ok {
		f.Skip("the store is not a persist.Reader")
	}
	return r
}

// Proves STORE-1.
func (s suite) loadAllLikeLoad(t *testing.T) {
	f := s.fresh(t)
	reader := f.reader()
	f.must(create(key("a")))
	f.must(create(key("it's \"quoted\", \\ and ü")))
	f.must(acquire(key("held"), 0, "me", 1<<40))
	f.must(create(key("deleted")))
	f.must(persist.Write{Key: key("deleted"), Expected: 1, Version: 2, Deleted: true})
	keys := []persist.Key{key("deleted"), key("absent"), key("a"), key("it's \"quoted\", \\ and ü"), key("held"), {Kind: "other", ID: "a"}}
	records, err := reader.LoadAll(t.Context(), keys)
	require.NoError(t, err)
	require.Len(t, records, len(keys))
	for i, k := range keys {
		require.Equal(t, k, records[i].Key)
		require.False(t, records[i].Now.IsZero(), "Record.Now is not set")
		if records[i].Absent() {
			require.Equal(t, f.floor(k), records[i].Version)
			continue
		}
		same(t, f.load(k), records[i])
	}
	records, err = reader.LoadAll(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, records)
}

// moving calls look 100 times while two writers change all keys. Each commit writes the same number
// into every key.
func (s suite) moving(t *testing.T, look func(f *fixture, keys []persist.Key)) {
	s.needsSeveralKeys(t)
	f := s.fresh(t)
	keys := []persist.Key{key("a"), key("b"), {Kind: "other", ID: "c"}, key("d")}
	var first []persist.Write
	for _, k := range keys {
		first = append(first, persist.Write{Key: k, Version: 1, Doc: doc(1)})
	}
	f.must(first...)
	ctx, cancel := context.WithCancel(context.Background())
	var g errgroup.Group
	for range 2 {
		g.Go(func() error {
			for ctx.Err() == nil {
				r, err := f.store.Load(context.Background(), keys[0])
				if err != nil {
					return err
				}
				c := persist.Commit{ID: commitID()}
				for _, k := range keys {
					c.Writes = append(c.Writes, persist.Write{Key: k, Expected: r.Version, Version: r.Version + 1, Doc: doc(int(r.Version + 1))})
				}
				if _, err := f.store.Commit(context.Background(), c); err != nil && !isConflict(err) {
					return err
				}
			}
			return nil
		})
	}
	defer func() {
		cancel()
		require.NoError(t, g.Wait())
	}()
	for range 100 {
		look(f, keys)
	}
}

// sameNumber asserts that all records contain the same number, which is their version.
func sameNumber(t *testing.T, records []persist.Record) {
	t.Helper()
	for _, r := range records {
		var d struct{ N uint64 }
		require.NoError(t, json.Unmarshal(r.Doc, &d))
		require.Equal(t, r.Version, d.N, "the document belongs to another version")
		require.Equal(t, records[0].Version, r.Version, "a commit is seen in part: %s", fmt.Sprint(r.Key))
	}
}

// Proves STORE-1.
func (s suite) loadAllWhole(t *testing.T) {
	s.moving(t, func(f *fixture, keys []persist.Key) {
		records, err := f.reader().LoadAll(t.Context(), keys)
		require.NoError(t, err)
		require.Len(t, records, len(keys))
		sameNumber(t, records)
	})
}

// Proves STORE-1.
func (s suite) listWholeCommits(t *testing.T) {
	s.moving(t, func(f *fixture, keys []persist.Key) {
		page, err := f.store.List(t.Context(), persist.Query{})
		require.NoError(t, err)
		require.Len(t, page.Records, len(keys))
		sameNumber(t, page.Records)
	})
}
