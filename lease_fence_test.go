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
)

// What a lease's context fences, and what a fence refuses.

// usurp ends the lease of s behind its holder's back and lets another have it.
func usurp(t *testing.T, rt *pawl.Runtime, id string) *pawl.Lease {
	t.Helper()
	s := pawl.Session[counts](rt, id)
	require.NoError(t, s.Delete(t.Context()))
	l, err := s.Acquire(t.Context(), pawl.WithMutation(pawl.All{}, pawl.IfAbsent()))
	require.NoError(t, err)
	return l
}

// TestNestedLeases: what is committed under two leases is refused as soon as either is lost, the inner or the outer one; the other one is not.
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
		"verb in another's transaction": func(ctx context.Context, rt *pawl.Runtime, s pawl.Scope[counts]) error {
			return pawl.Transact(context.Background(), rt, func(inside context.Context, tx *pawl.Tx) error {
				_, err := s.In(tx).IncState(ctx, "n", 1)
				return err
			})
		},
		"on the outer scope": func(ctx context.Context, rt *pawl.Runtime, _ pawl.Scope[counts]) error {
			_, err := pawl.Session[counts](rt, "outer").IncState(ctx, "n", 1)
			return err
		},
		"taking a third": func(ctx context.Context, rt *pawl.Runtime, _ pawl.Scope[counts]) error {
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
					other := usurp(t, elsewhere, lost)
					before, err := h.Store.List(t.Context(), persist.Query{})
					require.NoError(t, err)
					for range 2 { // the second time it is known here, too
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
						require.NoError(t, err, "what is not under the inner one goes on")
					} else {
						require.Error(t, inner.Context().Err(), "its context is derived from one that has ended")
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

// TestWhereALeaseReaches: its context fences scopes in memory by what this process knows, and refuses
// another store. Detached from a mutator or a transaction, a call is still fenced; only WithoutLeases
// lifts that.
//
// Proves STORE-13.
func TestWhereALeaseReaches(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		there, err := pawl.Open(pawl.Config{Store: memory.New()})
		require.NoError(t, err)
		beside := openAnother(t, h)
		l, err := pawl.Session[counts](rt, "lock").Acquire(t.Context())
		require.NoError(t, err)
		ctx := l.Context()
		in := pawl.Memory[counts](rt, "m")
		_, err = in.IncState(ctx, "n", 1)
		require.NoError(t, err)
		var argument *pawl.ArgumentError
		_, err = pawl.Session[counts](there, "a").IncState(ctx, "n", 1)
		require.ErrorAs(t, err, &argument)
		err = pawl.Transact(ctx, there, func(context.Context, *pawl.Tx) error { t.Error("it runs"); return nil })
		require.ErrorAs(t, err, &argument)
		_, err = pawl.Session[counts](there, "a").Acquire(ctx)
		require.ErrorAs(t, err, &argument)
		_, err = pawl.Session[counts](beside, "a").IncState(ctx, "n", 1)
		require.NoError(t, err, "another runtime on the same store will do")

		atomically := func(call func(ctx context.Context) error) error {
			_, err := pawl.Session[counts](rt, "b").AtomicState(ctx, func(ctx context.Context, b *counts) error { b.N++; return call(ctx) })
			return err
		}
		inc := func(ctx context.Context) error { _, err := s.IncState(ctx, "n", 1); return err }
		require.NoError(t, atomically(inc), "inside a mutator")
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
		_, err = in.Acquire(ctx)
		require.ErrorIs(t, err, pawl.ErrNotPersisted)

		other := usurp(t, beside, "lock")
		ctx = context.WithoutCancel(ctx)
		before, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.NoError(t, inc(pawl.WithoutLeases(ctx)), "no lease is asked about")
		before, err = s.Snapshot(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, atomically(func(inside context.Context) error {
			// Only the store knows yet.
			err := inc(pawl.Detach(inside))
			require.ErrorIs(t, err, pawl.ErrLeaseLost)
			return err
		}), pawl.ErrLeaseLost)
		for name, err := range map[string]error{
			"in memory": func() error { _, err := in.IncState(ctx, "n", 1); return err }(),
			"a mutator": atomically(func(context.Context) error { t.Error("it runs"); return nil }),
			"Transact":  pawl.Transact(ctx, rt, func(context.Context, *pawl.Tx) error { t.Error("it runs"); return nil }),
			"Acquire":   func() error { _, err := s.Acquire(ctx); return err }(),
		} {
			require.ErrorIs(t, err, pawl.ErrLeaseLost, name)
		}
		after, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, before.Version, after.Version)
		m, err := in.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, m.N)
		require.NoError(t, other.Release(t.Context()))
		require.NoError(t, beside.Close(t.Context()))
		require.NoError(t, there.Close(t.Context()))
	})
}

// byValue is a store that cannot be compared.
type byValue struct {
	persist.Store
	_ []int
}

// A store need not be comparable. Proves STORE-13.
func TestLeaseInAnyStore(t *testing.T) {
	rt := openRuntime(t, pawl.Config{Store: byValue{Store: memory.New()}})
	s := ships.Scope(rt, "argo")
	require.NoError(t, s.Hold(t.Context(), func(ctx context.Context, _ *pawl.Lease) error {
		_, err := s.IncState(ctx, "miles", 1)
		return err
	}))
}

// TestLeaseOfAStoreThatCannotBeCompared: under a lease of another runtime such a store is another one.
func TestLeaseOfAStoreThatCannotBeCompared(t *testing.T) {
	store := stores.Bare{Store: byValue{Store: memory.New()}} // of a type that looks as if its values could be compared
	one, other := openRuntime(t, pawl.Config{Store: store}), openRuntime(t, pawl.Config{Store: store})
	l, err := ships.Scope(one, "argo").Acquire(t.Context())
	require.NoError(t, err)
	_, err = ships.Scope(other, "argo").IncState(l.Context(), "miles", 1)
	var argument *pawl.ArgumentError
	require.ErrorAs(t, err, &argument)
	require.NoError(t, l.Release(t.Context()))
}

// TestLeaseLostWhileInMemory: what runs on state in memory under a lease is not committed once this process knows that the lease is lost.
func TestLeaseLostWhileInMemory(t *testing.T) {
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

// TestLeaseAndAContainerOfTheCallersOwn: ApplyMutation works under a lease, and is refused once this
// process knows that the lease is lost, before the mutation or while it runs.
func TestLeaseAndAContainerOfTheCallersOwn(t *testing.T) {
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

// TestLeaseInASharedCommit: in a shared commit a lost token drops only its own mutation.
//
// Proves STORE-13.
func TestLeaseInASharedCommit(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		s, lock := ships.Scope(p.rt, "argo"), ships.Scope(p.rt, "lock")
		l, err := lock.Acquire(ctx, pawl.LeaseFor(time.Minute))
		require.NoError(t, err)
		seed(t, s, ship{})
		// The lease is ended behind its holder's back.
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
		require.Error(t, l.Context().Err(), "it has heard of it")
	})
}

// TestOneCommitOfSeveral: in one shared commit a scope is deleted, made anew and taken. No two have the same token, the old holder's write that
// came after the deletion is refused, and the one before counts.
//
// Proves STORE-13.
func TestOneCommitOfSeveral(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		old, err := s.Acquire(t.Context())
		require.NoError(t, err)
		open, entered := gate(h)
		first := push(s, "first")
		<-entered // from here on all share the next commit
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
		anew := push(s, "anew", pawl.IfAbsent())
		late := under(old.Context(), "late")
		taken := acquire(s, pawl.HeldBy("new"), pawl.WithMutation(pawl.Push{Field: "done", Values: []any{"taken"}}))
		later := under(context.WithoutCancel(old.Context()), "later")
		second := acquire(s, pawl.HeldBy("newer"))
		last := push(s, "last")
		open()
		for _, done := range []<-chan error{first, before, deleted, anew, last} {
			require.NoError(t, <-done)
		}
		for _, done := range []<-chan error{late, later} {
			require.ErrorIs(t, <-done, pawl.ErrLeaseLost)
		}
		l := <-taken
		require.NoError(t, l.err)
		require.ErrorIs(t, (<-second).err, pawl.ErrHeld)
		shared := <-entered
		require.True(t, shared.Writes[0].EndLease && shared.Writes[0].Acquire != nil, "one commit for all of them")
		require.EqualValues(t, 7, shared.Writes[0].Version)
		r, err := h.Store.Load(t.Context(), s.Key())
		require.NoError(t, err)
		require.Equal(t, []string{"anew", "taken", "last"}, decode[counts](t, r).Done)
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

// TestStartingOverEndsTheLease: deleting and creating anew in one transaction ends the lease, as it does in two steps.
//
// Proves STORE-13.
func TestStartingOverEndsTheLease(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := ships.Scope(p.rt, "argo")
		old, err := s.Acquire(t.Context())
		require.NoError(t, err)
		anew := func(ctx context.Context) error {
			return pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if err := s.In(tx).Delete(ctx); err != nil {
					return err
				}
				_, err := s.In(tx).SetState(ctx, ship{Captain: "new"}, pawl.IfAbsent())
				return err
			})
		}
		require.NoError(t, anew(old.Context()), "the holder may do so itself")
		require.Zero(t, p.record(t, s.Key()).Lease)
		_, err = s.IncState(old.Context(), "miles", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		next, err := s.Acquire(t.Context())
		require.NoError(t, err)
		require.Greater(t, next.Token(), old.Token())
		require.ErrorIs(t, anew(context.WithoutCancel(old.Context())), pawl.ErrLeaseLost)
		require.NoError(t, anew(t.Context()))
		_, err = s.IncState(context.WithoutCancel(next.Context()), "miles", 1)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		requireState(t, p, s, 6, ship{Captain: "new"})
	})
}
