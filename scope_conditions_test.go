package pawl_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// A condition that does not hold is refused before the function runs, on absent and existing
// scopes. Proves SCOPE-12.
func TestConditions(t *testing.T) {
	absent := func(*testing.T, pawl.Scope[board]) {}
	alive := func(t *testing.T, s pawl.Scope[board]) {
		for range 3 {
			_, err := s.IncState(t.Context(), "count", 1)
			require.NoError(t, err)
		}
	}
	cases := []struct {
		name  string
		start func(*testing.T, pawl.Scope[board])
		opt   pawl.CallOption
		want  func(pawl.Key) error // nil: the mutation commits
		as    error                // instead: errors.Is
	}{
		{"IfVersion, as expected", alive, pawl.IfVersion(3), nil, nil},
		{"IfVersion, older", alive, pawl.IfVersion(2), func(k pawl.Key) error { return &pawl.ConcurrencyError{Scope: k, Expected: 2, Actual: 3} }, nil},
		{"IfVersion, newer", alive, pawl.IfVersion(4), func(k pawl.Key) error { return &pawl.ConcurrencyError{Scope: k, Expected: 4, Actual: 3} }, nil},
		{"IfVersion, largest", alive, pawl.IfVersion(math.MaxUint64), func(k pawl.Key) error {
			return &pawl.ConcurrencyError{Scope: k, Expected: math.MaxUint64, Actual: 3}
		}, nil},
		{"IfVersion, largest, absent", absent, pawl.IfVersion(math.MaxUint64), func(k pawl.Key) error {
			return &pawl.ConcurrencyError{Scope: k, Expected: math.MaxUint64}
		}, nil},
		{"IfVersion, absent", absent, pawl.IfVersion(1), func(k pawl.Key) error { return &pawl.ConcurrencyError{Scope: k, Expected: 1} }, nil},
		{"IfVersion 0, absent", absent, pawl.IfVersion(0), nil, nil},
		{"IfVersion 0, alive", alive, pawl.IfVersion(0), nil, pawl.ErrExists},
		{"IfAbsent, absent", absent, pawl.IfAbsent(), nil, nil},
		{"IfAbsent, alive", alive, pawl.IfAbsent(), nil, pawl.ErrExists},
		{"IfExists, absent", absent, pawl.IfExists(), nil, pawl.ErrNotFound},
		{"IfExists, alive", alive, pawl.IfExists(), nil, nil},
	}
	onPaths(t, func(t *testing.T, p path) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				s := scopeOf[board](p, c.name)
				c.start(t, s)
				before, err := s.Snapshot(t.Context())
				require.NoError(t, err)
				ran := 0
				after, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error { ran++; b.Count += 10; return nil }, c.opt)
				if c.want == nil && c.as == nil {
					require.NoError(t, err)
					require.Equal(t, before.Version+1, after.Version)
					require.Equal(t, 1, ran)
					requireState(t, p, s, after.Version, board{Count: before.State().Count + 10})
					return
				}
				if c.as != nil {
					require.ErrorIs(t, err, c.as)
					require.Contains(t, err.Error(), s.Key().String())
				} else {
					require.Equal(t, c.want(s.Key()), err)
					require.ErrorIs(t, err, pawl.ErrConflict)
				}
				require.Equal(t, c.want != nil, pawl.IsRetryable(err), "only IfVersion can be retried, with a version that was read again")
				require.Zero(t, ran, "the function does not run")
				now, err := s.Snapshot(t.Context())
				require.NoError(t, err)
				require.Equal(t, before.Version, now.Version)
				require.Equal(t, before.State(), now.State())
			})
		}
	})
}

// A condition is decided by the state in the store, not by the cached state, and the function runs
// only once. Proves SCOPE-12.
func TestConditionsAgainstAnotherProcess(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		there := p.another(t)
		for i, c := range []struct {
			opt    pawl.CallOption
			before func(pawl.Scope[board]) error // seen by both runtimes
			after  func(pawl.Scope[board]) error // seen only by the other runtime
			check  func(pawl.Key, error)
			runs   int
		}{
			{pawl.IfVersion(1), create, increment, func(k pawl.Key, err error) {
				require.Equal(t, &pawl.ConcurrencyError{Scope: k, Expected: 1, Actual: 2}, err)
			}, 1},
			{pawl.IfVersion(2), create, increment, func(_ pawl.Key, err error) { require.NoError(t, err) }, 1},
			{pawl.IfVersion(1), create, remove, func(k pawl.Key, err error) {
				require.Equal(t, &pawl.DeletedError{Scope: k, Version: 2}, err)
			}, 1},
			{pawl.IfAbsent(), remove, create, func(_ pawl.Key, err error) { require.ErrorIs(t, err, pawl.ErrExists) }, 1},
			{pawl.IfExists(), create, remove, func(_ pawl.Key, err error) { require.ErrorIs(t, err, pawl.ErrDeleted) }, 1},
		} {
			id := fmt.Sprint(i)
			here, other := scopeOf[board](p, id), pawl.Session[board](there, id)
			require.NoError(t, c.before(here))
			_, err := here.State(t.Context())
			require.NoError(t, err)
			require.NoError(t, c.after(other))
			written, ran := p.record(t, here.Key()), 0
			_, err = here.AtomicState(t.Context(), func(_ context.Context, b *board) error { ran++; b.Count += 100; return nil }, c.opt)
			c.check(here.Key(), err)
			require.Equal(t, c.runs, ran, i)
			if err != nil {
				now := p.record(t, here.Key())
				require.Equal(t, written.Version, now.Version)
				require.Equal(t, string(written.Doc), string(now.Doc))
			}
		}
	})
}

func create(s pawl.Scope[board]) error {
	_, err := s.SetState(context.Background(), board{}, pawl.IfAbsent())
	return err
}

func increment(s pawl.Scope[board]) error {
	_, err := s.IncState(context.Background(), "count", 1)
	return err
}

func remove(s pawl.Scope[board]) error { return s.Delete(context.Background()) }

// A condition that stops holding between the read and the commit is refused at once, whatever the
// retry budget. Proves SCOPE-12.
func TestConditionFailsInTheCommit(t *testing.T) {
	for _, attempts := range []int{1, 16} {
		synctest.Test(t, func(t *testing.T) {
			store := newTap()
			rt, other := openRuntime(t, pawl.Config{Store: store}), openRuntime(t, pawl.Config{Store: store.Store})
			for name, c := range map[string]struct {
				before func(pawl.Scope[board]) error
				opt    pawl.CallOption
				want   error
			}{
				"IfVersion": {create, pawl.IfVersion(1), pawl.ErrConflict},
				"IfAbsent":  {func(pawl.Scope[board]) error { return nil }, pawl.IfAbsent(), pawl.ErrExists},
			} {
				s, theirs := pawl.Session[board](rt, name), pawl.Session[board](other, name)
				require.NoError(t, c.before(theirs))
				var once sync.Once
				store.OnCommit(func(context.Context, persist.Commit) error {
					once.Do(func() { require.NoError(t, increment(theirs)) })
					return nil
				})
				ran, start := 0, time.Now()
				_, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error { ran++; b.Count += 100; return nil },
					c.opt, pawl.WithRetry(pawl.Retry{Attempts: attempts, First: time.Second}))
				require.ErrorIs(t, err, c.want, name)
				require.Equal(t, name == "IfVersion", pawl.IsRetryable(err), "%s: %v", name, err)
				require.Equal(t, 1, ran)
				require.Zero(t, time.Since(start), "no backoff")
				store.OnCommit(nil)
				snap, err := s.Snapshot(t.Context())
				require.NoError(t, err)
				require.Equal(t, board{Count: 1}, snap.State())
			}
		})
	}
}

// On an expired scope IfVersion gives ErrExpired, IfExists gives ErrNotFound, and IfAbsent
// succeeds. Proves SCOPE-12.
func TestConditionsAfterExpiry(t *testing.T) {
	for _, stored := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			rt := openRuntime(t, pawl.Config{Store: memory.New()})
			s := pawl.Kind[board]{Name: "expiring", InMemory: !stored, TTL: time.Minute}.Scope(rt, "a")
			require.NoError(t, increment(s))
			time.Sleep(time.Minute)
			_, err := s.IncState(t.Context(), "count", 1, pawl.IfVersion(1))
			require.ErrorIs(t, err, pawl.ErrExpired)
			require.Equal(t, "EXPIRED", pawl.Code(err))
			_, err = s.IncState(t.Context(), "count", 1, pawl.IfExists())
			require.ErrorIs(t, err, pawl.ErrNotFound)
			snap, err := s.IncState(t.Context(), "count", 5, pawl.IfAbsent())
			require.NoError(t, err)
			require.EqualValues(t, 2, snap.Version, "in the same sequence of versions")
			require.Equal(t, board{Count: 5}, snap.State())
		})
	}
}

// The largest version is printed as it was given.
func TestLargestVersionIsPrinted(t *testing.T) {
	err := &pawl.ConcurrencyError{Scope: pawl.Key{Kind: "k", ID: "a"}, Expected: math.MaxUint64, Actual: 3}
	require.EqualError(t, err, "pawl: k/a: expected version 18446744073709551615, found 3")
}
