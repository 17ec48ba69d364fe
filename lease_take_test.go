package pawl_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
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
		for name, store := range map[string]persist.Store{
			"leaser": p.store,
			"plain":  stores.Bare{Store: p.store},
			"front":  &stores.Tap{Store: stores.Bare{Store: p.store}}, // its Take returns ErrUnsupported
		} {
			t.Run(name, func(t *testing.T) {
				config := p.config
				config.Store = store
				testTake(t, config, name)
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

// Take with a mutation moves each scope by one version, which has the lease, the label, the due time
// and the fields of the mutation. Workers of two runtimes take each scope once.
//
// Proves STORE-13.
func TestTakeWithMutation(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for _, plain := range []bool{false, true} { // plain: a store without persist.Leaser
			for name, run := range map[string]pawl.Mutation{
				"data": pawl.All{pawl.Patch{"status": "running"}, pawl.Inc{Field: "n", By: 1}},
				"function": pawl.Atomic(func(_ context.Context, c *chore) error {
					c.Status = "running"
					c.N++
					return nil
				}),
			} {
				t.Run(fmt.Sprint(name, " plain=", plain), func(t *testing.T) {
					config := p.config
					if plain {
						config.Store = stores.Bare{Store: p.store}
					}
					testTakeWithMutation(t, p, config, fmt.Sprint(name, plain, "-"), run)
				})
			}
		}
	})
}

func testTakeWithMutation(t *testing.T, p path, config pawl.Config, prefix string, run pawl.Mutation) {
	ctx := t.Context()
	runtimes := []*pawl.Runtime{openRuntime(t, config), openRuntime(t, config)}
	const count = 24
	for i := range count {
		due := pawl.WithDueIn(0)
		if i%4 == 0 {
			due = pawl.WithDueIn(time.Hour)
		}
		_, err := chores.Scope(runtimes[0], fmt.Sprint(prefix, i)).SetState(ctx, chore{Status: "open"}, due, pawl.WithTTL(time.Hour))
		require.NoError(t, err)
	}
	q := pawl.Query{Prefix: prefix, Labels: []string{"open"}, Due: true, Limit: 3}
	var mu sync.Mutex // protects taken
	var all []pawl.Taken[chore]
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for {
				taken, err := chores.Take(ctx, runtimes[w%2], q, pawl.WithMutation(run, pawl.WithDueIn(time.Minute), pawl.WithTTL(time.Hour)))
				if err != nil {
					t.Error(err)
				}
				if err != nil || len(taken) == 0 {
					return
				}
				mu.Lock()
				all = append(all, taken...)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, all, count*3/4)
	for _, job := range all {
		require.Equal(t, chore{Status: "running", N: 1}, job.State())
		r := p.record(t, chores.Scope(runtimes[0], job.ID).Key())
		require.EqualValues(t, 2, r.Version)
		require.EqualValues(t, 2, job.Version)
		require.EqualValues(t, 2, job.Lease.Token())
		require.True(t, r.Held(r.Now))
		require.Equal(t, "running", r.Label)
		require.Equal(t, r.Updated.Add(time.Minute), r.Due)
		require.Equal(t, r.Updated.Add(time.Hour), r.Expires)
		require.NoError(t, job.Lease.Release(ctx))
	}
}

// A mutation of Take that fails on a scope leaves it alone, is reported, and does not keep Take from
// the others.
func TestTakeWithFailingMutation(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		full, other := chores.Scope(p.rt, "a"), chores.Scope(p.rt, "b")
		seed(t, full, chore{N: math.MaxInt})
		seed(t, other, chore{})
		taken, err := chores.Take(ctx, p.rt, pawl.Query{Limit: 2}, pawl.WithMutation(pawl.Inc{Field: "n", By: 1}))
		var field *pawl.FieldError
		require.ErrorAs(t, err, &field)
		require.Len(t, taken, 1)
		require.Equal(t, "b", taken[0].ID)
		requireState(t, p, full, 1, chore{N: math.MaxInt})
		requireState(t, p, other, 2, chore{N: 1})
		for _, m := range []pawl.Mutation{nil, pawl.Inc{Field: "absent", By: 1}, pawl.Atomic(func(context.Context, *errand) error { return nil })} {
			taken, err := chores.Take(ctx, p.rt, pawl.Query{}, pawl.WithMutation(m))
			require.Error(t, err)
			require.Empty(t, taken)
		}
		requireState(t, p, full, 1, chore{N: math.MaxInt})
	})
}

// insideTake is a store that knows whether its Take runs.
type insideTake struct {
	*stores.Tap
	runs atomic.Bool
}

func (s *insideTake) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	s.runs.Store(true)
	defer s.runs.Store(false)
	return s.Tap.Take(ctx, q, a, change)
}

// Take with a mutation upgrades a document of an older schema, in the same version. Upgrades,
// functions and JSON code of the state type do not run while the store's Take does.
//
// Proves STORE-13.
func TestTakeRunsNoUserCodeInTheStore(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		store := &insideTake{Tap: p.store}
		rt := openRuntime(t, pawl.Config{Store: store})
		outside := func() {
			if store.runs.Load() {
				t.Error("code of the caller's runs inside the store")
			}
		}
		upgraded := pawl.Kind[chore]{Name: "upgraded", Label: "status", Upgrades: []pawl.Upgrade{func(d pawl.Doc) error {
			outside()
			d["n"] = 7
			return nil
		}}}
		for i, m := range []pawl.Mutation{
			pawl.Patch{"status": "running"},
			pawl.Atomic(func(_ context.Context, c *chore) error {
				outside()
				c.Status = "running"
				return nil
			}),
		} {
			s := upgraded.Scope(rt, fmt.Sprint(i))
			p.put(t, s.Key(), `{"status":"open"}`, 0)
			taken, err := upgraded.Take(t.Context(), rt, pawl.Query{Prefix: fmt.Sprint(i)}, pawl.WithMutation(m))
			require.NoError(t, err)
			require.Len(t, taken, 1)
			require.EqualValues(t, 2, taken[0].Version)
			require.Equal(t, chore{Status: "running", N: 7}, taken[0].State())
			require.NoError(t, taken[0].Lease.Release(t.Context()))
		}
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
			for i := range 6 {
				var opts []pawl.LeaseOption
				if i%2 == 0 {
					opts = append(opts, pawl.WithMutation(pawl.Inc{Field: "runs", By: 1}))
				}
				taken, err := errands.Take(t.Context(), rt, pawl.Query{Prefix: prefix, Limit: 2}, opts...)
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

func (s *shortListStore) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	return s.Store.(persist.Leaser).Take(ctx, q, a, change)
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

// fuse is a field whose UnmarshalJSON panics on a fuse that is lit.
type fuse string

func (f *fuse) UnmarshalJSON(b []byte) error {
	if string(b) == `"lit"` {
		panic("boom")
	}
	*f = fuse(b)
	return nil
}

type charge struct {
	Fuse fuse `json:"fuse"`
	Runs int  `json:"runs"`
}

// A document whose UnmarshalJSON or Upgrade panics is unreadable: Take leaves it alone, and returns
// the others. Proves STORE-13.
func TestTakeLeavesPanickingDocumentsAlone(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for _, plain := range []bool{false, true} { // plain: a store without persist.Leaser
			config := p.config
			if plain {
				config.Store = stores.Bare{Store: p.store}
			}
			rt := openRuntime(t, config)
			testTakePanics(t, p, pawl.Kind[charge]{Name: fmt.Sprint("charge-", plain)}, rt)
			testTakePanics(t, p, pawl.Kind[errand]{Name: fmt.Sprint("upgraded-", plain), Upgrades: []pawl.Upgrade{func(d pawl.Doc) error {
				if d["fuse"] == "lit" {
					panic("boom")
				}
				return nil
			}}}, rt)
		}
	})
}

func testTakePanics[T any](t *testing.T, p path, kind pawl.Kind[T], rt *pawl.Runtime) {
	ctx := t.Context()
	for i, fuse := range []string{"wet", "lit", "dry"} {
		p.put(t, kind.Scope(rt, fmt.Sprint(i)).Key(), fmt.Sprintf(`{"fuse":%q}`, fuse), 0)
	}
	before := p.record(t, kind.Scope(rt, "1").Key())
	for _, opts := range [][]pawl.LeaseOption{nil, {pawl.WithMutation(pawl.Inc{Field: "runs", By: 1})}} {
		taken, err := kind.Take(ctx, rt, pawl.Query{Limit: 3}, opts...)
		var unreadable *pawl.SchemaError
		require.ErrorAs(t, err, &unreadable)
		require.Equal(t, before.Key, unreadable.Scope)
		var raised *pawl.PanicError
		require.ErrorAs(t, err, &raised, "the panic is the cause")
		require.Equal(t, "boom", raised.Value)
		require.Len(t, taken, 2)
		for i, id := range []string{"0", "2"} {
			require.Equal(t, id, taken[i].ID)
			require.NoError(t, taken[i].Lease.Release(ctx))
		}
		now := p.record(t, before.Key)
		now.Now = before.Now
		require.Equal(t, before, now)
	}
}

// A document whose UnmarshalJSON panics, and which the store took before Take had seen it, is given
// back.
func TestTakeReleasesAPanickingDocument(t *testing.T) {
	ctx := t.Context()
	store := &shortListStore{Tap: newTap()}
	rt, kind := openRuntime(t, pawl.Config{Store: store}), pawl.Kind[charge]{Name: "charge"}
	lit := kind.Scope(rt, "b").Key()
	seed(t, kind.Scope(rt, "a"), charge{})
	_, err := store.Commit(ctx, persist.Commit{ID: "lit.1", Writes: []persist.Write{{Key: lit, Version: 1, Doc: []byte(`{"fuse":"lit"}`)}}})
	require.NoError(t, err)
	taken, err := kind.Take(ctx, rt, pawl.Query{Limit: 2})
	var unreadable *pawl.SchemaError
	require.ErrorAs(t, err, &unreadable)
	require.Len(t, taken, 1)
	require.Equal(t, "a", taken[0].ID)
	require.NoError(t, taken[0].Lease.Release(ctx))
	r, err := store.Load(ctx, lit)
	require.NoError(t, err)
	require.Zero(t, r.Lease)
}

// closingTake is a store whose Take calls then before it returns.
type closingTake struct {
	*stores.Tap
	then func()
}

func (s *closingTake) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) ([]persist.Record, error) {
	records, err := s.Tap.Take(ctx, q, a, change)
	s.then()
	return records, err
}

// Take gives back the leases that it took while the runtime was closed, and does not return them.
// Proves STORE-13.
func TestTakeBesideClose(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for _, late := range []bool{false, true} { // late: when the first lease is live
			kind := pawl.Kind[errand]{Name: fmt.Sprint("errand-", late)}
			ids := []string{"a", "b", "c"}
			for _, id := range ids {
				seed(t, kind.Scope(p.rt, id), errand{})
			}
			var rt *pawl.Runtime
			end := func() { require.NoError(t, rt.Close(context.Background())) }
			config, store := p.config, &closingTake{Tap: p.store, then: func() {}}
			config.Store = store
			if late {
				config.Observer = pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
					if e.Type == pawl.EventLeaseAcquired {
						end()
					}
				})
			} else {
				store.then = end
			}
			rt = openRuntime(t, config)
			taken, err := kind.Take(t.Context(), rt, pawl.Query{Limit: 3})
			require.ErrorIs(t, err, pawl.ErrClosed)
			require.Empty(t, taken)
			for _, id := range ids {
				require.Empty(t, p.record(t, kind.Scope(p.rt, id).Key()).Lease.Holder, "late %v, %s", late, id)
			}
		}
	})
}

// If the function of WithMutation panics or calls runtime.Goexit, Take keeps no lease that it took
// before. Proves SCOPE-5.
func TestTakeWithPanickingMutation(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for _, c := range []struct {
			name   string
			end    func()
			raised bool
		}{{"panic", func() { panic("boom") }, true}, {"Goexit", runtime.Goexit, false}} {
			kind := pawl.Kind[errand]{Name: c.name}
			for _, id := range []string{"a", "b"} {
				seed(t, kind.Scope(p.rt, id), errand{Runs: int(id[0] - 'a')})
			}
			var raised any
			returned, done := false, make(chan struct{})
			go func() {
				defer close(done)
				defer func() { raised = recover() }()
				_, _ = kind.Take(context.Background(), p.rt, pawl.Query{Limit: 2}, pawl.WithMutation(pawl.Atomic(func(_ context.Context, e *errand) error {
					if e.Runs == 1 {
						c.end()
					}
					return nil
				})))
				returned = true
			}()
			<-done
			require.False(t, returned, c.name)
			require.Equal(t, c.raised, raised != nil, c.name)
			for _, id := range []string{"a", "b"} {
				require.Empty(t, p.record(t, kind.Scope(p.rt, id).Key()).Lease.Holder, "%s %s", c.name, id)
			}
		}
	})
}
