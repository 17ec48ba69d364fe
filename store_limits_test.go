package pawl_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// limitedStore states limits, and counts the commits that reach it.
type limitedStore struct {
	persist.Store
	limits  persist.Limits
	commits atomic.Int64
	refuse  error         // nil: none
	wait    chan struct{} // a commit waits until it is closed; nil: no commit waits
}

func (s *limitedStore) Limits() persist.Limits { return s.limits }

func (s *limitedStore) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	s.commits.Add(1)
	if s.refuse != nil {
		return time.Time{}, s.refuse
	}
	if s.wait != nil {
		<-s.wait
	}
	return s.Store.Commit(ctx, c)
}

func openLimited(t *testing.T, limits persist.Limits) (*limitedStore, *pawl.Runtime) {
	store := &limitedStore{Store: memory.New(), limits: limits}
	rt, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	return store, rt
}

// A transaction with more scopes than the store accepts in one commit, and a document with more
// bytes, give *LimitError, and nothing is sent.
//
// Proves STORE-16.
func TestStoreLimits(t *testing.T) {
	store, rt := openLimited(t, persist.Limits{MaxKeys: 3, MaxBytes: 1000})
	scope := func(i int) pawl.Scope[map[string]string] {
		return pawl.Session[map[string]string](rt, fmt.Sprint(i))
	}
	change := func(scopes, size int) error {
		return pawl.Transact(t.Context(), rt, func(_ context.Context, tx *pawl.Tx) error {
			for i := range scopes {
				s := scope(i).In(tx)
				if _, err := s.SetState(t.Context(), map[string]string{"text": strings.Repeat("x", size)}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, change(3, 10))
	sent := store.commits.Load()

	var limit *pawl.LimitError
	require.ErrorAs(t, change(4, 20), &limit)
	require.Equal(t, "scopes", limit.What)
	require.Equal(t, []int{3, 4}, []int{limit.Limit, limit.Got})
	require.ErrorAs(t, change(1, 1000), &limit)
	require.Equal(t, "commit", limit.What)
	require.Equal(t, 1000, limit.Limit)
	_, err := scope(0).SetState(t.Context(), map[string]string{"text": strings.Repeat("x", 1000)})
	require.ErrorAs(t, err, &limit)
	require.Equal(t, sent, store.commits.Load(), "a commit beyond the limits was sent")

	snap, err := scope(0).Snapshot(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, snap.Version)
	require.NoError(t, change(3, 30), "the runtime works on")
}

// A store that refuses a commit within its limits, because of the form that it keeps, gives
// *LimitError too.
//
// Proves STORE-16.
func TestStoreRefusesByLimit(t *testing.T) {
	store, rt := openLimited(t, persist.Limits{})
	store.refuse = &persist.LimitError{What: "bytes", Limit: 5, Got: 6}
	_, err := pawl.Session[map[string]string](rt, "a").SetState(t.Context(), map[string]string{"a": "b"})
	var limit *pawl.LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, []int{5, 6}, []int{limit.Limit, limit.Got})
}

// Calls under more leases than the store accepts keys in one commit do not share it, whether they
// change, renew or leave the state as it is.
//
// Proves CAS-4, STORE-16.
func TestManyLeasesInASharedCommit(t *testing.T) {
	for name, c := range map[string]struct {
		by   []int64 // what each call adds
		opts []pawl.CallOption
	}{
		"one changes":  {by: []int64{0, 0, 1, 0, 0}},
		"some change":  {by: []int64{0, 1, 0, 1, 0, 0, 1}},
		"all renew":    {by: []int64{0, 0, 0, 0}, opts: []pawl.CallOption{pawl.WithTTL(time.Hour)}},
		"all the same": {by: []int64{0, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, rt := openLimited(t, persist.Limits{MaxKeys: 3})
				shared := pawl.Session[counts](rt, "shared")
				_, err := shared.IncState(t.Context(), "n", 10, c.opts...)
				require.NoError(t, err)
				var leases []*pawl.Lease
				want := int64(11)
				for i, by := range c.by {
					l, err := pawl.Session[counts](rt, fmt.Sprint(i)).Acquire(t.Context(), pawl.LeaseFor(time.Minute))
					require.NoError(t, err)
					leases = append(leases, l)
					want += by
				}

				store.wait = make(chan struct{})
				var calls errgroup.Group
				calls.Go(func() error {
					_, err := shared.IncState(t.Context(), "n", 1, c.opts...)
					return err
				})
				synctest.Wait() // it is being committed, and the others wait for that
				for i, by := range c.by {
					calls.Go(func() error {
						_, err := shared.IncState(leases[i].Context(), "n", by, c.opts...)
						return err
					})
				}
				synctest.Wait()
				close(store.wait)
				require.NoError(t, calls.Wait())
				n, err := shared.State(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, want, n.N)
				for _, l := range leases {
					require.NoError(t, l.Release(t.Context()))
				}
			})
		})
	}
}
