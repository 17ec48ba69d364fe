package pawl_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

type errand struct {
	Due  time.Time `json:"due"`
	Runs int       `json:"runs"`
}

var errands = pawl.Kind[errand]{Name: "errand", Due: "due"}

// Workers of two runtimes take all due scopes, and each scope is processed once.
//
// Proves STORE-13.
func TestTake(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for _, plain := range []bool{false, true} { // plain: a store without persist.Leaser
			t.Run(fmt.Sprint("plain=", plain), func(t *testing.T) {
				config := p.config
				if plain {
					config.Store = stores.Bare{Store: p.store}
				}
				testTake(t, config, fmt.Sprint(plain))
			})
		}
	})
}

func testTake(t *testing.T, config pawl.Config, prefix string) {
	ctx := t.Context()
	runtimes := []*pawl.Runtime{openRuntime(t, config), openRuntime(t, config)}
	const count = 40
	for i := range count {
		at := time.Now().Add(-time.Minute)
		if i%4 == 0 {
			at = at.Add(time.Hour) // not due
		}
		_, err := errands.Scope(runtimes[0], fmt.Sprint(prefix, i)).SetState(ctx, errand{Due: at})
		require.NoError(t, err)
	}
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			rt := runtimes[w%2]
			for {
				taken, err := errands.Take(ctx, rt, pawl.Query{Prefix: prefix, Due: true, Limit: 3}, pawl.LeaseFor(time.Minute), pawl.HeldBy(fmt.Sprint("worker ", w)))
				if err != nil {
					t.Error(err)
					return
				}
				if len(taken) == 0 {
					return
				}
				for _, job := range taken {
					err := job.Lease.Run(func(ctx context.Context, l *pawl.Lease) error {
						_, err := errands.Scope(rt, job.ID).AtomicState(ctx, func(_ context.Context, e *errand) error {
							e.Runs++
							e.Due = time.Time{}
							return nil
						}, pawl.IfVersion(job.Version))
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	ran := 0
	for snap, err := range errands.List(ctx, runtimes[0], pawl.Query{Prefix: prefix}) {
		require.NoError(t, err)
		require.LessOrEqual(t, snap.ReadOnly().Runs, 1)
		ran += snap.ReadOnly().Runs
	}
	require.Equal(t, count*3/4, ran)
	_, err := errands.Take(ctx, runtimes[0], pawl.Query{}, pawl.WaitForLease())
	var argument *pawl.ArgumentError
	require.ErrorAs(t, err, &argument)
}

// Take refuses WithMutation, even with an empty mutation.
func TestTakeRefusesWithMutation(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := errands.Scope(p.rt, "one")
		seed(t, s, errand{})
		for _, m := range []pawl.Mutation{pawl.Inc{Field: "runs", By: 1}, pawl.All{pawl.Inc{Field: "runs", By: 1}}, pawl.All{}} {
			taken, err := errands.Take(t.Context(), p.rt, pawl.Query{}, pawl.WithMutation(m))
			var argument *pawl.ArgumentError
			require.ErrorAs(t, err, &argument)
			require.Empty(t, taken)
		}
		requireState(t, p, s, 1, errand{})
	})
}

// Take under a lost lease is refused, as every other commit is.
//
// Proves STORE-13.
func TestTakeUnderALostLease(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		job := errands.Scope(p.rt, "one")
		seed(t, job, errand{})
		leader, err := ships.Scope(p.rt, "leader").Acquire(ctx)
		require.NoError(t, err)
		taken, err := errands.Take(leader.Context(), p.rt, pawl.Query{})
		require.NoError(t, err)
		require.Len(t, taken, 1)
		require.NoError(t, taken[0].Lease.Release(ctx))
		// The lease ends without its holder's knowledge.
		require.NoError(t, ships.Scope(p.another(t), "leader").Delete(ctx))
		taken, err = errands.Take(leader.Context(), p.rt, pawl.Query{})
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		require.Empty(t, taken)
		requireState(t, p, job, 2, errand{})
	})
}

// Documents that this release cannot read do not prevent Take from returning the others. No call
// changes such a document or its lease.
func TestTakeLeavesUnreadableDocumentsAlone(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for _, plain := range []bool{false, true} { // plain: a store without persist.Leaser
			config := p.config
			if plain {
				config.Store = stores.Bare{Store: p.store}
			}
			prefix := fmt.Sprint(plain)
			rt := openRuntime(t, config)
			var unreadable []persist.Record
			for i, doc := range []string{`{}`, `{"runs":"many"}`, `{}`} {
				key := errands.Scope(rt, fmt.Sprint(prefix, i)).Key()
				p.put(t, key, doc, 9*(1-i%2)) // of a newer schema, or of another shape
				unreadable = append(unreadable, p.record(t, key))
			}
			seed(t, errands.Scope(rt, prefix+"4"), errand{})
			for range 3 {
				taken, err := errands.Take(t.Context(), rt, pawl.Query{Prefix: prefix, Limit: 2})
				var newer *pawl.SchemaError
				require.ErrorAs(t, err, &newer)
				require.Len(t, taken, 1)
				require.Equal(t, prefix+"4", taken[0].ID)
				require.NoError(t, taken[0].Lease.Release(t.Context()))
				for _, r := range unreadable {
					now := p.record(t, r.Key)
					now.Now = r.Now
					require.Equal(t, r, now)
				}
			}
		}
	})
}

// shortListStore is a store whose first List returns one record only, as if the others came later.
type shortListStore struct {
	*stores.Tap
	lists int
}

func (s *shortListStore) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	page, err := s.Tap.List(ctx, q)
	if s.lists++; s.lists == 1 {
		page.Records = page.Records[:1]
	}
	return page, err
}

func (s *shortListStore) Take(ctx context.Context, q persist.Query, a persist.Acquire) ([]persist.Record, error) {
	return s.Store.(persist.Leaser).Take(ctx, q, a)
}

// An unreadable document that the store took before Take had seen it is given back. Later calls
// leave it alone.
func TestTakeReleasesAnUnreadableDocument(t *testing.T) {
	ctx := t.Context()
	store := &shortListStore{Tap: newTap()}
	rt := openRuntime(t, pawl.Config{Store: store})
	readable, unreadable := errands.Scope(rt, "a"), errands.Scope(rt, "b")
	seed(t, readable, errand{})
	_, err := store.Commit(ctx, persist.Commit{ID: "newer.1", Writes: []persist.Write{{Key: unreadable.Key(), Version: 1, Doc: []byte(`{}`), Schema: 9}}})
	require.NoError(t, err)
	for range 3 {
		taken, err := errands.Take(ctx, rt, pawl.Query{Limit: 2})
		var newer *pawl.SchemaError
		require.ErrorAs(t, err, &newer)
		require.Len(t, taken, 1)
		require.Equal(t, "a", taken[0].ID)
		require.NoError(t, taken[0].Lease.Release(ctx))
		r, err := store.Load(ctx, unreadable.Key())
		require.NoError(t, err)
		require.EqualValues(t, 2, r.Version, "only the first call may change the version")
		require.Zero(t, r.Lease)
	}
}
