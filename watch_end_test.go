package pawl_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// A scope that cannot be watched yields exactly one error, from Watch and from Changes.
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
		argument(nil, s) //nolint:staticcheck // the nil context is under test
		argument(ctx, pawl.Scope[ship]{})
		if p.store != nil {
			require.NoError(t, pawl.Transact(ctx, p.rt, func(inside context.Context, tx *pawl.Tx) error {
				refuse(inside, s.In(tx), pawl.ErrInTx)
				refuse(inside, s, pawl.ErrOutsideTx)
				return nil
			}))
			p.store.OnLoad(func(context.Context, ...persist.Key) error { return errors.New("down") })
			refuse(ctx, s, pawl.ErrUnavailable)
			p.store.OnLoad(func(context.Context, ...persist.Key) error { panic("panic of the store") })
			require.Panics(t, func() {
				for range s.Watch(ctx) {
				}
			})
			var raised *pawl.PanicError
			for change := range s.Changes(ctx) {
				require.ErrorAs(t, change.Err, &raised)
			}
			require.Equal(t, "panic of the store", raised.Value)
			p.store.OnLoad(func(context.Context, ...persist.Key) error { runtime.Goexit(); return nil })
			for change := range s.Changes(ctx) {
				require.ErrorAs(t, change.Err, &raised)
			}
			require.Equal(t, "runtime.Goexit was called", raised.Value)
			p.store.OnLoad(nil)
		}
		require.NoError(t, p.rt.Close(ctx))
		refuse(ctx, s, pawl.ErrClosed)
	})
}

// A watch yields the last version that was committed before Close, and then ErrClosed. In the bubble
// the notifier pauses after the first commit, and has not passed on the second one when Close begins.
// Proves SCOPE-13.
func TestWatchYieldsTheLastVersionBeforeClose(t *testing.T) {
	for _, stored := range []bool{false, true} {
		bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
			s := pawl.Memory[ship](rt, "argo")
			if stored {
				s = ships.Scope(rt, "argo")
			}
			changes := s.Changes(t.Context())
			receive(t, changes)
			seed(t, s, ship{})
			require.EqualValues(t, 1, receive(t, changes).Version)
			synctest.Wait()
			_, err := s.IncState(t.Context(), "miles", 1)
			require.NoError(t, err)
			require.NoError(t, rt.Close(t.Context()))
			require.EqualValues(t, 2, receive(t, changes).Version)
			require.ErrorIs(t, (<-changes).Err, pawl.ErrClosed)
		})
	}
}

// Closing the owner of a scope ends a watch with ErrClosed, whether its caller is receiving or not.
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

// A version with a schema that this process cannot read ends a watch with SchemaError.
//
// Proves SCOPE-13.
func TestWatchSchema(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		defer leavesNothing(t)()
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
