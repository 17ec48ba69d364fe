package pawl_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pawl-go/pawl"
)

// TestWatchIterator: a loop over a watch can be left and started again, and ends with its context, without an error.
//
// Proves SCOPE-13.
func TestWatchIterator(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := scopeOf[ship](p, "argo")
		watch := s.Watch(ctx)
		for range 3 { // the same one, again
			for change, err := range watch {
				require.NoError(t, err)
				if change.Version%5 == 4 {
					break
				}
				_, err := s.IncState(ctx, "miles", 1)
				require.NoError(t, err)
				require.Less(t, change.Version, uint64(5))
			}
			snap, err := s.Snapshot(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 4, snap.Version)
		}
		got := 0
		for change, err := range watch {
			require.NoError(t, err)
			require.EqualValues(t, 4, change.Version)
			require.Zero(t, change.Missed, "it is the first")
			got++
			cancel()
		}
		require.Equal(t, 1, got)
		for _, err := range watch { // whose context has ended
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Panics(t, func() {
			for range s.Watch(t.Context()) {
				panic("the loop's own")
			}
		})
	})
}

// TestWatchErrors: what cannot be watched says so, once, in both forms.
//
// Proves SCOPE-13.
func TestWatchErrors(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
		refuse := func(ctx context.Context, s pawl.Scope[ship], want error) {
			t.Helper()
			errs := 0
			for change, err := range s.Watch(ctx) {
				require.ErrorIs(t, err, want)
				require.False(t, change.Exists())
				errs++
			}
			for change := range s.Changes(ctx) {
				require.ErrorIs(t, change.Err, want)
				errs++
			}
			require.Equal(t, 2, errs)
		}
		ctx := t.Context()
		s := scopeOf[ship](p, "argo")
		argument := func(ctx context.Context, s pawl.Scope[ship]) {
			t.Helper()
			var wrong *pawl.ArgumentError
			for _, err := range s.Watch(ctx) {
				require.ErrorAs(t, err, &wrong)
			}
			for change := range s.Changes(ctx) {
				require.ErrorAs(t, change.Err, &wrong)
			}
			require.NotNil(t, wrong)
		}
		argument(nil, s) //nolint:staticcheck // that is the point
		argument(ctx, pawl.Scope[ship]{})
		if p.store != nil {
			require.NoError(t, pawl.Transact(ctx, p.rt, func(inside context.Context, tx *pawl.Tx) error {
				refuse(inside, s.In(tx), pawl.ErrInTx)
				refuse(inside, s, pawl.ErrOutsideTx)
				return nil
			}))
			p.store.onLoad(func(context.Context) error { return errors.New("down") })
			refuse(ctx, s, pawl.ErrUnavailable)
			p.store.onLoad(func(context.Context) error { panic("the store's own") })
			require.Panics(t, func() {
				for range s.Watch(ctx) {
				}
			})
			var raised *pawl.PanicError
			for change := range s.Changes(ctx) {
				require.ErrorAs(t, change.Err, &raised)
			}
			require.Equal(t, "the store's own", raised.Value)
			p.store.onLoad(nil)
		}
		require.NoError(t, p.rt.Close(ctx))
		refuse(ctx, s, pawl.ErrClosed)
	})
}

// TestWatchClose: closing its owner ends a watch with ErrClosed, whether somebody receives at that moment or not.
//
// Proves SCOPE-13.
func TestWatchClose(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
		local := pawl.NewLocal(p.rt)
		ends := func(s pawl.Scope[ship], close func()) {
			t.Helper()
			seed(t, s, ship{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			busy := s.Changes(ctx)
			receive(t, busy)
			var wg sync.WaitGroup
			ready := make(chan struct{})
			wg.Go(func() {
				var last error
				for _, err := range s.Watch(ctx) {
					if last = err; err == nil {
						ready <- struct{}{}
					}
				}
				require.ErrorIs(t, last, pawl.ErrClosed)
			})
			<-ready
			close()
			wg.Wait()
			var last error
			for change := range busy {
				last = change.Err
			}
			require.ErrorIs(t, last, pawl.ErrClosed)
		}
		ends(pawl.Memory[ship](local, "argo"), local.Close)
		ends(pawl.Memory[ship](pawl.NewLocal(p.rt), "argo"), func() { require.NoError(t, p.rt.Close(t.Context())) })
		p.rt = p.another(t)
		ends(scopeOf[ship](p, "argo"), func() { require.NoError(t, p.rt.Close(t.Context())) })
	})
}

// TestWatchNobodyReceives: a channel that nobody reads from holds nothing back, gets the newest when somebody does, and ends with its context.
//
// Proves SCOPE-13.
func TestWatchNobodyReceives(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := scopeOf[ship](p, "argo")
		var all []<-chan pawl.Change[ship]
		for range 20 {
			all = append(all, s.Changes(ctx))
			receive(t, all[len(all)-1])
		}
		for range 30 {
			_, err := s.IncState(ctx, "miles", 1)
			require.NoError(t, err)
		}
		for _, c := range all[10:] {
			for missed := 0; ; {
				change := receive(t, c)
				if missed += 1 + change.Missed; change.Version == 30 {
					require.Equal(t, 30, missed)
					break
				}
			}
		}
		cancel()
		for _, c := range all {
			for range c {
			}
		}
	})
}

// TestWatchTwoTypes: one scope is watched as two types, each of which sees its fields.
//
// Proves SCOPE-13.
func TestWatchTwoTypes(t *testing.T) {
	type log struct {
		Miles int64 `json:"miles"`
	}
	onStores(t, func(t *testing.T, p path) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		boats, logs := pawl.Session[ship](p.rt, "argo"), pawl.Session[log](p.another(t), "argo")
		here := pawl.Session[log](p.rt, "argo")
		seed(t, boats, ship{"jason", 1})
		a, b, c := boats.Changes(ctx), logs.Changes(ctx), here.Changes(ctx)
		for miles := 1; miles < 5; miles++ {
			if miles > 1 {
				_, err := boats.IncState(ctx, "miles", 1)
				require.NoError(t, err)
			}
			require.Equal(t, ship{"jason", miles}, receive(t, a).State())
			require.EqualValues(t, miles, receive(t, b).State().Miles)
			require.EqualValues(t, miles, receive(t, c).State().Miles)
		}
		cancel()
	})
}

// TestWatchSchema: a version that this process cannot read ends a watch.
//
// Proves SCOPE-13.
func TestWatchSchema(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
		s := articles(1).Scope(p.rt, "a")
		p.put(t, s.Key(), `{"title":"old"}`, 1)
		changes := s.Changes(t.Context())
		require.Equal(t, "old", receive(t, changes).State().Title)
		p.put(t, s.Key(), `{"title":"new"}`, 2)
		var schema *pawl.SchemaError
		last := <-changes
		require.ErrorAs(t, last.Err, &schema)
		require.Equal(t, 2, schema.Stored)
		require.False(t, last.Exists())
		_, open := <-changes
		require.False(t, open)
		for _, err := range s.Watch(t.Context()) {
			require.ErrorAs(t, err, &schema)
		}
	})
}

// TestWatchAnew: deletion and creation anew are changes, in one sequence of versions.
//
// Proves SCOPE-13.
func TestWatchAnew(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := scopeOf[ship](p, "argo")
		changes := s.Changes(ctx)
		receive(t, changes)
		for version := uint64(1); version < 9; version += 2 {
			_, err := s.SetState(ctx, ship{Miles: int(version)}, pawl.IfAbsent())
			require.NoError(t, err)
			change := receive(t, changes)
			require.Equal(t, version, change.Version)
			require.Equal(t, int(version), change.State().Miles)
			require.NoError(t, s.Delete(ctx))
			change = receive(t, changes)
			require.Equal(t, version+1, change.Version)
			require.False(t, change.Exists())
			require.Equal(t, "argo", change.ID)
		}
		cancel()
		for range changes {
		}
	})
}

// TestWatchAboveTheFloor: versions in memory start above those that were forgotten; a watcher of what is new there has missed nothing.
//
// Proves SCOPE-13.
func TestWatchAboveTheFloor(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	local := pawl.NewLocal(rt)
	s := pawl.Memory[ship](local, "argo")
	changes := s.Changes(t.Context())
	require.False(t, receive(t, changes).Exists())
	old := pawl.Memory[ship](local, "old")
	for range 9 {
		_, err := old.IncState(t.Context(), "miles", 1, pawl.WithTTL(time.Nanosecond))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { // it is forgotten when others are opened
		snap, err := pawl.Memory[ship](local, time.Now().String()).IncState(t.Context(), "miles", 1)
		return err == nil && snap.Version > 1
	}, waitLong, time.Millisecond)
	snap, err := s.IncState(t.Context(), "miles", 1)
	require.NoError(t, err)
	require.Greater(t, snap.Version, uint64(1))
	change := receive(t, changes)
	require.Equal(t, snap.Version, change.Version)
	require.Zero(t, change.Missed)
}
