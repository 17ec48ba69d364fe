package pawl_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// replaceHolder ends the lease of the scope id without its holder's knowledge, and acquires it in
// rt.
func replaceHolder(t *testing.T, rt *pawl.Runtime, id string) *pawl.Lease {
	t.Helper()
	s := pawl.Session[counts](rt, id)
	require.NoError(t, s.Delete(t.Context()))
	l, err := s.Acquire(t.Context(), pawl.WithMutation(pawl.All{}, pawl.IfAbsent()))
	require.NoError(t, err)
	return l
}

// A context tells which leases guard commits that are made with it: those that it was made under, until
// WithoutLeases.
func TestLeaseGuardsContext(t *testing.T) {
	rt := openRuntime(t, pawl.Config{Store: memory.New()})
	outer, err := pawl.Session[counts](rt, "outer").Acquire(t.Context())
	require.NoError(t, err)
	inner, err := pawl.Session[counts](rt, "inner").Acquire(outer.Context())
	require.NoError(t, err)
	_, err = pawl.Memory[counts](rt, "a").AtomicState(inner.Context(), func(ctx context.Context, _ *counts) error {
		for _, under := range []context.Context{ctx, pawl.Detach(ctx), context.WithoutCancel(ctx)} {
			require.True(t, inner.Guards(under))
			require.True(t, outer.Guards(under))
		}
		require.False(t, inner.Guards(pawl.WithoutLeases(ctx)))
		return nil
	})
	require.NoError(t, err)
	require.False(t, inner.Guards(outer.Context()))
	require.False(t, inner.Guards(t.Context()))
	require.NoError(t, inner.Release(t.Context()))
	require.True(t, inner.Guards(inner.Context()), "and refuses them")
	require.NoError(t, outer.Release(t.Context()))
}

// A commit under two nested leases is refused as soon as either is lost. A commit under the outer
// lease alone needs only that one.
//
// Proves STORE-13.
func TestNestedLeases(t *testing.T) {
	type calls = func(ctx context.Context, rt *pawl.Runtime, s pawl.Scope[counts]) error
	for name, call := range map[string]calls{
		"verb": func(ctx context.Context, _ *pawl.Runtime, s pawl.Scope[counts]) error {
			_, err := s.IncState(ctx, "n", 1)
			return err
		},
		"expiry": func(ctx context.Context, _ *pawl.Runtime, s pawl.Scope[counts]) error {
			_, err := s.PatchState(ctx, pawl.Patch{}, pawl.WithTTL(time.Hour))
			return err
		},
		"transaction": func(ctx context.Context, rt *pawl.Runtime, s pawl.Scope[counts]) error {
			return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := s.In(tx).IncState(ctx, "n", 1)
				return err
			})
		},
		"expiry in a transaction": func(ctx context.Context, rt *pawl.Runtime, s pawl.Scope[counts]) error {
			return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := s.In(tx).PatchState(ctx, pawl.Patch{}, pawl.WithTTL(time.Hour))
				return err
			})
		},
		"verb in a transaction without a lease": func(ctx context.Context, rt *pawl.Runtime, s pawl.Scope[counts]) error {
			return pawl.Transact(context.Background(), rt, func(inside context.Context, tx *pawl.Tx) error {
				_, err := s.In(tx).IncState(ctx, "n", 1)
				return err
			})
		},
		"verb on the outer scope": func(ctx context.Context, rt *pawl.Runtime, _ pawl.Scope[counts]) error {
			_, err := pawl.Session[counts](rt, "outer").IncState(ctx, "n", 1)
			return err
		},
		"acquiring a third lease": func(ctx context.Context, rt *pawl.Runtime, _ pawl.Scope[counts]) error {
			l, err := pawl.Session[counts](rt, "third").Acquire(ctx)
			if err == nil {
				err = l.Release(ctx)
			}
			return err
		},
	} {
		for _, lost := range []string{"outer", "inner"} {
			t.Run(name+", "+lost, func(t *testing.T) {
				persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
					_, err := s.SetState(t.Context(), counts{}, pawl.WithTTL(time.Minute))
					require.NoError(t, err)
					elsewhere := openAnother(t, h)
					outer, err := pawl.Session[counts](rt, "outer").Acquire(t.Context())
					require.NoError(t, err)
					inner, err := pawl.Session[counts](rt, "inner").Acquire(outer.Context())
					require.NoError(t, err)
					ctx := context.WithoutCancel(inner.Context())
					require.NoError(t, call(ctx, rt, s))
					other := replaceHolder(t, elsewhere, lost)
					before, err := h.Store.List(t.Context(), persist.Query{})
					require.NoError(t, err)
					for range 2 { // the second time this process knows it, too
						var e *pawl.LeaseLostError
						require.ErrorAs(t, call(ctx, rt, s), &e)
						require.Equal(t, lost, e.Scope.ID)
						require.Equal(t, "another", e.Holder)
					}
					after, err := h.Store.List(t.Context(), persist.Query{})
					require.NoError(t, err)
					for i, r := range after.Records {
						require.Equal(t, before.Records[i].Version, r.Version)
						require.Equal(t, before.Records[i].Expires, r.Expires)
					}
					if lost == "inner" {
						require.NoError(t, outer.Context().Err())
						_, err = s.IncState(outer.Context(), "n", 1)
						require.NoError(t, err, "a commit under the outer lease alone must succeed")
					} else {
						require.Error(t, inner.Context().Err(), "the inner context must end with the outer one")
					}
					require.NoError(t, inner.Release(t.Context()))
					require.NoError(t, outer.Release(t.Context()))
					require.NoError(t, other.Release(t.Context()))
					require.NoError(t, elsewhere.Close(t.Context()))
				})
			})
		}
	}
}

// The context of a lease fences persisted, in-memory and detached calls, and refuses another store.
// Only WithoutLeases lifts the fence.
//
// Proves STORE-13.
func TestCallsFencedByALease(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		there, err := pawl.Open(pawl.Config{Store: memory.New()})
		require.NoError(t, err)
		beside := openAnother(t, h)
		l, err := pawl.Session[counts](rt, "lock").Acquire(t.Context())
		require.NoError(t, err)
		ctx := l.Context()
		inMemory := pawl.Memory[counts](rt, "m")
		_, err = inMemory.IncState(ctx, "n", 1)
		require.NoError(t, err)
		var argument *pawl.ArgumentError
		_, err = pawl.Session[counts](there, "a").IncState(ctx, "n", 1)
		require.ErrorAs(t, err, &argument)
		err = pawl.Transact(ctx, there, func(context.Context, *pawl.Tx) error { t.Error("the function ran"); return nil })
		require.ErrorAs(t, err, &argument)
		_, err = pawl.Session[counts](there, "a").Acquire(ctx)
		require.ErrorAs(t, err, &argument)
		_, err = pawl.Session[counts](beside, "a").IncState(ctx, "n", 1)
		require.NoError(t, err, "another runtime on the same store is allowed")

		atomically := func(call func(ctx context.Context) error) error {
			_, err := pawl.Session[counts](rt, "b").AtomicState(ctx, func(ctx context.Context, b *counts) error { b.N++; return call(ctx) })
			return err
		}
		inc := func(ctx context.Context) error { _, err := s.IncState(ctx, "n", 1); return err }
		require.NoError(t, atomically(inc), "inside a function")
		require.NoError(t, atomically(func(ctx context.Context) error { return inc(pawl.Detach(ctx)) }))
		require.NoError(t, pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error { return inc(pawl.Detach(ctx)) }))
		_, err = pawl.Session[counts](rt, "b").AtomicState(ctx, func(ctx context.Context, b *counts) error {
			_, err := pawl.Session[counts](rt, "b").Acquire(ctx)
			return err
		})
		require.ErrorIs(t, err, pawl.ErrReentrant)
		require.ErrorIs(t, pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := s.Acquire(ctx)
			return err
		}), pawl.ErrOutsideTx)
		_, err = inMemory.Acquire(ctx)
		require.ErrorIs(t, err, pawl.ErrNotPersisted)

		other := replaceHolder(t, beside, "lock")
		ctx = context.WithoutCancel(ctx)
		before, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.NoError(t, inc(pawl.WithoutLeases(ctx)), "WithoutLeases must lift the fence")
		before, err = s.Snapshot(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, atomically(func(inside context.Context) error {
			// So far only the store knows that the lease is lost.
			err := inc(pawl.Detach(inside))
			require.ErrorIs(t, err, pawl.ErrLeaseLost)
			return err
		}), pawl.ErrLeaseLost)
		for name, err := range map[string]error{
			"in memory": func() error { _, err := inMemory.IncState(ctx, "n", 1); return err }(),
			"function":  atomically(func(context.Context) error { t.Error("the function ran"); return nil }),
			"Transact":  pawl.Transact(ctx, rt, func(context.Context, *pawl.Tx) error { t.Error("the function ran"); return nil }),
			"Acquire":   func() error { _, err := s.Acquire(ctx); return err }(),
		} {
			require.ErrorIs(t, err, pawl.ErrLeaseLost, name)
		}
		after, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, before.Version, after.Version)
		m, err := inMemory.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, m.N)
		require.NoError(t, other.Release(t.Context()))
		require.NoError(t, beside.Close(t.Context()))
		require.NoError(t, there.Close(t.Context()))
	})
}

// nonComparable is a store whose values == cannot compare.
type nonComparable struct {
	persist.Store
	_ []int
}

// Hold works on a store whose type is not comparable. Proves STORE-13.
func TestLeaseInNonComparableStore(t *testing.T) {
	rt := openRuntime(t, pawl.Config{Store: nonComparable{Store: memory.New()}})
	s := ships.Scope(rt, "argo")
	require.NoError(t, s.Hold(t.Context(), func(ctx context.Context, _ *pawl.Lease) error {
		_, err := s.IncState(ctx, "miles", 1)
		return err
	}))
}

// Two runtimes on a store that is not comparable count as runtimes on different stores.
func TestNonComparableStoreOfAnotherRuntime(t *testing.T) {
	store := stores.Bare{Store: nonComparable{Store: memory.New()}} // the type is comparable, its value is not
	one, other := openRuntime(t, pawl.Config{Store: store}), openRuntime(t, pawl.Config{Store: store})
	l, err := ships.Scope(one, "argo").Acquire(t.Context())
	require.NoError(t, err)
	_, err = ships.Scope(other, "argo").IncState(l.Context(), "miles", 1)
	var argument *pawl.ArgumentError
	require.ErrorAs(t, err, &argument)
	require.NoError(t, l.Release(t.Context()))
}

// The result of a function on an in-memory scope is discarded if this process knows by then that
// the lease is lost.
func TestLeaseLostDuringInMemoryFunction(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		lock, m := ships.Scope(p.rt, "lock"), pawl.Memory[ship](p.rt, "argo")
		l, err := lock.Acquire(ctx)
		require.NoError(t, err)
		_, err = m.AtomicState(context.WithoutCancel(l.Context()), func(_ context.Context, s *ship) error {
			s.Miles++
			return l.Release(ctx)
		})
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		snap, err := m.Snapshot(ctx)
		require.NoError(t, err)
		require.False(t, snap.Exists())
	})
}

// ApplyMutation is refused when this process knows that the lease is lost, before the mutation or
// while it runs.
func TestLeaseAndApplyMutation(t *testing.T) {
	for name, options := range map[string]pawl.ContainerOptions[board]{"lock": {Name: "own"}, "cas": {Name: "own", Persist: &row{}}} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			s := ships.Scope(openRuntime(t, pawl.Config{Store: memory.New()}), "argo")
			var c pawl.Container[board]
			inc := pawl.Inc{Field: "count", By: 1}
			var held context.Context
			require.NoError(t, s.Hold(ctx, func(ctx context.Context, _ *pawl.Lease) error {
				held = context.WithoutCancel(ctx)
				_, err := pawl.ApplyMutation(ctx, &c, options, inc)
				require.NoError(t, err)
				_, err = s.AtomicState(ctx, func(ctx context.Context, _ *ship) error {
					_, err := pawl.ApplyMutation(ctx, &c, options, inc)
					return err
				})
				return err
			}))
			_, err := pawl.ApplyMutation(held, &c, options, inc)
			require.ErrorIs(t, err, pawl.ErrLeaseLost)
			_, err = pawl.ApplyMutation(pawl.WithoutLeases(held), &c, options, inc)
			require.NoError(t, err)
			outer, err := ships.Scope(openRuntime(t, pawl.Config{Store: memory.New()}), "outer").Acquire(ctx)
			require.NoError(t, err)
			inner, err := s.Acquire(pawl.WithoutLeases(outer.Context()))
			require.NoError(t, err)
			for _, l := range []*pawl.Lease{outer, inner} {
				_, err = pawl.ApplyMutation(context.WithoutCancel(l.Context()), &c, options, pawl.Atomic(func(_ context.Context, b *board) error {
					b.Count += 100
					return l.Release(ctx)
				}))
				require.ErrorIs(t, err, pawl.ErrLeaseLost)
			}
			require.EqualValues(t, 3, c.Snapshot().State().Count)
			require.EqualValues(t, 3, c.Snapshot().Version)
		})
	}
}

// In a shared commit, a lost token drops only its own mutations.
//
// Proves STORE-13.
func TestLeaseInASharedCommit(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s, lock := ships.Scope(p.rt, "argo"), ships.Scope(p.rt, "lock")
		l, err := lock.Acquire(ctx, pawl.LeaseFor(time.Minute))
		require.NoError(t, err)
		seed(t, s, ship{})
		// The lease ends without its holder's knowledge.
		require.NoError(t, ships.Scope(p.another(t), "lock").Delete(ctx))
		entered, release := p.store.Hold()
		var wg sync.WaitGroup
		wg.Go(func() { _, err := s.IncState(ctx, "miles", 1); require.NoError(t, err) })
		<-entered
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				under := ctx
				if i%2 == 0 {
					under = l.Context()
				}
				_, errs[i] = s.IncState(under, "miles", 10)
			})
		}
		release()
		wg.Wait()
		for i, err := range errs {
			if i%2 == 0 {
				require.ErrorIs(t, err, pawl.ErrLeaseLost, i)
			} else {
				require.NoError(t, err, i)
			}
		}
		state, err := s.State(ctx)
		require.NoError(t, err)
		require.Equal(t, 41, state.Miles)
		require.Error(t, l.Context().Err(), "the context of the lost lease did not end")
	})
}

// One shared commit deletes a scope, creates it again and acquires its lease. The old holder's
// writes count before the deletion and are refused after it.
//
// Proves STORE-13.
func TestDeleteCreateAcquireInOneCommit(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		old, err := s.Acquire(t.Context())
		require.NoError(t, err)
		open, entered := gate(h)
		first := push(s, "first")
		<-entered // mutations submitted during this commit share the next one
		under := func(ctx context.Context, name string) <-chan error {
			done := make(chan error, 1)
			go func() { _, err := s.PushState(ctx, "done", name); done <- err }()
			synctest.Wait()
			return done
		}
		before := under(old.Context(), "before")
		deleted := make(chan error, 1)
		go func() { deleted <- s.Delete(context.Background()) }()
		synctest.Wait()
		created := push(s, "created", pawl.IfAbsent())
		late := under(old.Context(), "late")
		taken := acquire(s, pawl.HeldBy("new"), pawl.WithMutation(pawl.Push{Field: "done", Values: []any{"taken"}}))
		later := under(context.WithoutCancel(old.Context()), "later")
		second := acquire(s, pawl.HeldBy("newer"))
		last := push(s, "last")
		open()
		for _, done := range []<-chan error{first, before, deleted, created, last} {
			require.NoError(t, <-done)
		}
		for _, done := range []<-chan error{late, later} {
			require.ErrorIs(t, <-done, pawl.ErrLeaseLost)
		}
		l := <-taken
		require.NoError(t, l.err)
		require.ErrorIs(t, (<-second).err, pawl.ErrHeld)
		shared := <-entered
		require.True(t, shared.Writes[0].EndLease && shared.Writes[0].Acquire != nil, "the commit does not contain the deletion and the Acquire")
		require.EqualValues(t, 7, shared.Writes[0].Version)
		r, err := h.Store.Load(t.Context(), s.Key())
		require.NoError(t, err)
		require.Equal(t, []string{"created", "taken", "last"}, decode[counts](t, r).Done)
		require.Equal(t, l.lease.Token(), r.Lease.Token)
		require.Greater(t, l.lease.Token(), old.Token())
		h.Around(nil)
		_, err = s.IncState(l.lease.Context(), "n", 1)
		require.NoError(t, err)
		_, err = s.IncState(context.WithoutCancel(old.Context()), "n", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		require.NoError(t, old.Release(t.Context()))
		require.NoError(t, l.lease.Release(t.Context()))
	})
}

// A transaction that deletes a scope and creates it again ends its lease.
//
// Proves STORE-13.
func TestRecreatingAScopeEndsItsLease(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		old, err := s.Acquire(t.Context())
		require.NoError(t, err)
		recreate := func(ctx context.Context) error {
			return pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if err := s.In(tx).Delete(ctx); err != nil {
					return err
				}
				_, err := s.In(tx).SetState(ctx, ship{Captain: "new"}, pawl.IfAbsent())
				return err
			})
		}
		require.NoError(t, recreate(old.Context()), "the holder itself may recreate the scope")
		require.Zero(t, p.record(t, s.Key()).Lease)
		_, err = s.IncState(old.Context(), "miles", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		next, err := s.Acquire(t.Context())
		require.NoError(t, err)
		require.Greater(t, next.Token(), old.Token())
		require.ErrorIs(t, recreate(context.WithoutCancel(old.Context())), pawl.ErrLeaseLost)
		require.NoError(t, recreate(t.Context()))
		_, err = s.IncState(context.WithoutCancel(next.Context()), "miles", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		requireState(t, p, s, 6, ship{Captain: "new"})
	})
}

// A function that waits for the lease of its own scope would wait for itself, and is refused at once,
// also while others wait for the lease.
//
// Proves LOCK-9.
func TestWaitForTheLeaseInsideAFunction(t *testing.T) {
	bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Session[counts](rt, "a")
		l, err := s.Acquire(t.Context())
		require.NoError(t, err)
		var other errgroup.Group
		other.Go(func() error {
			l, err := s.Acquire(t.Context(), pawl.WaitForLease())
			if err != nil {
				return err
			}
			return l.Release(t.Context())
		})
		synctest.Wait() // it is in line
		began := time.Now()
		_, err = s.AtomicState(t.Context(), func(ctx context.Context, _ *counts) error {
			_, err := s.Acquire(ctx, pawl.WaitForLease())
			return err
		})
		require.ErrorIs(t, err, pawl.ErrReentrant)
		require.Zero(t, time.Since(began))
		require.NoError(t, l.Release(t.Context()))
		require.NoError(t, other.Wait())
	})
}
