package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// ReadAll shows scopes of different kinds at one moment, while a transaction moves both, and asks
// the store once.
//
// Proves STORE-1.
func TestReadAll(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		for _, bare := range []bool{false, true} { // bare: a store without persist.Reader
			config := p.config
			if bare {
				config.Store = stores.Bare{Store: p.store}
			}
			rt, writer := openRuntime(t, config), p.another(t)
			id := fmt.Sprint(bare)
			a, b := chores.Scope(rt, id), errands.Scope(rt, id)
			var stop atomic.Bool
			var wg sync.WaitGroup
			defer wg.Wait() // also when an assertion ends the test
			defer stop.Store(true)
			wg.Go(func() {
				for !stop.Load() {
					err := pawl.Transact(context.Background(), writer, func(ctx context.Context, tx *pawl.Tx) error {
						if _, err := chores.Scope(tx, id).IncState(ctx, "n", 1); err != nil {
							return err
						}
						_, err := errands.Scope(tx, id).IncState(ctx, "runs", 1)
						return err
					})
					if err != nil {
						t.Error(err)
					}
					if bare { // without persist.Reader, a writer that never pauses overtakes most reads
						time.Sleep(rand.N(10 * time.Millisecond))
					}
				}
			})
			read := 0
			for range 30 {
				var one pawl.Snapshot[chore]
				var two pawl.Snapshot[errand]
				var none pawl.Snapshot[chore]
				err := pawl.ReadAll(t.Context(), a.Into(&one), b.Into(&two), chores.Scope(rt, "absent").Into(&none))
				if bare && errors.Is(err, pawl.ErrConflict) {
					continue
				}
				require.NoError(t, err)
				read++
				require.Equal(t, one.State().N, two.State().Runs)
				require.Equal(t, one.Version, two.Version)
				require.False(t, none.Exists())
			}
			stop.Store(true)
			wg.Wait()
			require.Positive(t, read)
			if !bare {
				var one, two pawl.Snapshot[chore]
				before := p.store.Loads.Load()
				require.NoError(t, pawl.ReadAll(t.Context(), a.Into(&one), chores.Scope(rt, "absent").Into(&two)))
				require.EqualValues(t, 1, p.store.Loads.Load()-before)
			}
		}
	})
}

func TestReadAllRefuses(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s := chores.Scope(p.rt, "a")
		seed(t, s, chore{N: 1})
		broken := chores.Scope(p.rt, "b")
		p.put(t, broken.Key(), `{}`, 9)
		var one, two pawl.Snapshot[chore]
		var schema *pawl.SchemaError
		require.ErrorAs(t, pawl.ReadAll(ctx, broken.Into(&two), s.Into(&one)), &schema)
		require.Equal(t, 1, one.State().N, "the others are read")
		require.NoError(t, pawl.ReadAll(ctx))
		var argument *pawl.ArgumentError
		require.ErrorAs(t, pawl.ReadAll(ctx, s.Into(nil)), &argument)
		require.ErrorAs(t, pawl.ReadAll(ctx, nil), &argument)
		require.ErrorAs(t, pawl.ReadAll(ctx, s.Into(&one), chores.Scope(p.another(t), "a").Into(&two)), &argument)
		require.ErrorIs(t, pawl.ReadAll(ctx, s.Into(&one), pawl.Memory[chore](p.rt, "a").Into(&two)), pawl.ErrNotPersisted)
		require.NoError(t, pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			require.ErrorIs(t, pawl.ReadAll(ctx, s.In(tx).Into(&one)), pawl.ErrInTx)
			require.ErrorIs(t, pawl.ReadAll(ctx, s.Into(&one)), pawl.ErrOutsideTx)
			return nil
		}))
		var limit *pawl.LimitError
		many := make([]pawl.Read, pawl.MaxScopes+1)
		for i := range many {
			many[i] = s.Into(&one)
		}
		require.ErrorAs(t, pawl.ReadAll(ctx, many...), &limit)
	})
}

// DeletePrefix deletes the scopes with the prefix and no others, batch by batch, also leased and
// expired ones and those written meanwhile. A second run finds none.
//
// Proves SCOPE-10.
func TestDeletePrefix(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		const count = 20
		for i := range count {
			seed(t, chores.Scope(p.rt, fmt.Sprintf("old/%d", i)), chore{N: i})
		}
		kept := chores.Scope(p.rt, "older")
		seed(t, kept, chore{N: 7})
		l, err := chores.Scope(p.rt, "old/3").Acquire(ctx)
		require.NoError(t, err)
		expired := chores.Scope(p.rt, "old/expired")
		_, err = expired.SetState(ctx, chore{}, pawl.WithTTL(time.Millisecond))
		require.NoError(t, err)
		testkit.Eventually(t, func() bool { r := p.record(t, expired.Key()); return r.Expired(r.Now) })
		written := false // the first batch conflicts with a writer
		p.store.OnCommit(func(_ context.Context, c persist.Commit) error {
			if len(c.Writes) > 1 && !written {
				written = true
				p.put(t, chores.Scope(p.rt, "old/5").Key(), `{"n":99}`, 0)
			}
			return nil
		})
		n, err := chores.DeletePrefix(ctx, p.rt, "old/")
		require.NoError(t, err)
		require.Equal(t, count+1, n)
		require.True(t, written)
		require.True(t, p.record(t, expired.Key()).Deleted)
		for i := range count {
			_, err := chores.Scope(p.rt, fmt.Sprintf("old/%d", i)).IncState(ctx, "n", 1)
			require.ErrorIs(t, err, pawl.ErrDeleted)
			require.True(t, pawl.IsAbsent(err))
		}
		_, err = chores.DeletePrefix(l.Context(), p.rt, "older") // this process has not heard of the loss
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		_, err = kept.IncState(l.Context(), "n", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		requireState(t, p, kept, 1, chore{N: 7})
		n, err = chores.DeletePrefix(ctx, p.rt, "old/")
		require.NoError(t, err)
		require.Zero(t, n)
		_, err = chores.DeletePrefix(ctx, p.rt, "")
		var argument *pawl.ArgumentError
		require.ErrorAs(t, err, &argument)
	})
}

// A kind may have a smaller limit than the runtime, also inside Transact.
//
// Proves SCOPE-11.
func TestMaxDocOfAKind(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		small := pawl.Kind[chore]{Name: "small", MaxDoc: 64}
		large := pawl.Kind[chore]{Name: "large", MaxDoc: 1 << 30}
		long := strings.Repeat("x", 64)
		s := small.Scope(p.rt, "a")
		refused := func(err error, want int) {
			t.Helper()
			var limit *pawl.LimitError
			require.ErrorAs(t, err, &limit)
			require.Equal(t, "document", limit.What)
			require.Equal(t, want, limit.Limit)
		}
		_, err := s.SetState(t.Context(), chore{Status: long})
		refused(err, 64)
		refused(pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := s.In(tx).SetState(ctx, chore{Status: long})
			return err
		}), 64)
		_, err = s.SetState(t.Context(), chore{Status: "short"})
		require.NoError(t, err)
		_, err = chores.Scope(p.rt, "a").SetState(t.Context(), chore{Status: long})
		require.NoError(t, err)
		_, err = large.Scope(p.rt, "a").SetState(t.Context(), chore{Status: strings.Repeat("x", 1<<20)})
		refused(err, pawl.DefaultMaxDoc)
		_, err = (pawl.Kind[chore]{Name: "negative", MaxDoc: -1}).Scope(p.rt, "a").SetState(t.Context(), chore{})
		var kind *pawl.KindError
		require.ErrorAs(t, err, &kind)
	})
}

// A Snapshot inside Transact has the version that was read, plus one for each change.
//
// Proves TX-1.
func TestVersionInsideTransact(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := chores.Scope(p.rt, "a")
		seed(t, s, chore{N: 1})
		_, err := s.SetState(t.Context(), chore{N: 2})
		require.NoError(t, err)
		require.NoError(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			snap, err := s.In(tx).Snapshot(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 2, snap.Version)
			snap, err = s.In(tx).IncState(ctx, "n", 1, pawl.IfVersion(snap.Version))
			require.NoError(t, err)
			require.EqualValues(t, 3, snap.Version)
			return nil
		}))
	})
}

// IsAbsent is true of the three ways in which a scope has no state.
func TestIsAbsent(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		never, gone, expired := chores.Scope(p.rt, "never"), chores.Scope(p.rt, "gone"), chores.Scope(p.rt, "expired")
		_, err := never.IncState(ctx, "n", 1, pawl.IfExists())
		require.True(t, pawl.IsAbsent(err), err)
		seed(t, gone, chore{})
		require.NoError(t, gone.Delete(ctx))
		_, err = gone.IncState(ctx, "n", 1)
		require.True(t, pawl.IsAbsent(err), err)
		_, err = expired.SetState(ctx, chore{}, pawl.WithTTL(time.Microsecond))
		require.NoError(t, err)
		_, err = expired.IncState(ctx, "n", 1, pawl.IfVersion(1))
		require.True(t, pawl.IsAbsent(err), err)
		_, err = chores.Scope(p.rt, "there").SetState(ctx, chore{})
		require.NoError(t, err)
		_, err = chores.Scope(p.rt, "there").SetState(ctx, chore{}, pawl.IfAbsent())
		require.Error(t, err)
		require.False(t, pawl.IsAbsent(err))
		require.False(t, pawl.IsAbsent(nil))
	})
}
