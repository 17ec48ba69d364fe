package pawl_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// What a lease's context fences, and what a fence refuses.

// usurp ends the lease of s behind its holder's back and lets another have it.
func usurp(t *testing.T, rt *pawl.Runtime, id string) *pawl.Lease {
	t.Helper()
	s := pawl.Session[counts](rt, id)
	require.NoError(t, s.Delete(t.Context()))
	l, err := s.Acquire(t.Context(), pawl.Applying(pawl.All{}, pawl.IfAbsent()))
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
				persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
					_, err := s.SetState(t.Context(), counts{}, pawl.WithTTL(time.Minute))
					require.NoError(t, err)
					elsewhere := rt2(t, h)
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

// TestWhereALeaseReaches: its context fences scopes in memory by what this process knows, and refuses what it cannot fence: another store, and containers
// of the caller's own. Detached from a mutator or a transaction, a call is still fenced; only
// Unfenced lifts that.
//
// Proves STORE-13.
func TestWhereALeaseReaches(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		there, err := pawl.Open(pawl.Config{Store: memory.New()})
		require.NoError(t, err)
		beside := rt2(t, h)
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
		var own pawl.Container[counts]
		_, err = pawl.ApplyMutation(ctx, &own, pawl.Options[counts]{}, pawl.Inc{Field: "n", By: 1})
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
		require.NoError(t, inc(pawl.Unfenced(ctx)), "no lease is asked about")
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

// TestFencedInDoubt: the answer to a commit under a lease is lost, and sent again it is refused because the lease is gone. If the first sending has
// landed that is the answer; if not, that the lease is lost is.
//
// Proves STORE-13, CAS-7.
func TestFencedInDoubt(t *testing.T) {
	for name, landed := range map[string]bool{"landed": true, "not landed": false} {
		for _, how := range []string{"verb", "shared", "transaction"} {
			t.Run(how+", "+name, func(t *testing.T) {
				persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
					elsewhere := rt2(t, h)
					l, err := pawl.Session[counts](rt, "lock").Acquire(t.Context())
					require.NoError(t, err)
					_, err = s.SetState(t.Context(), counts{})
					require.NoError(t, err)
					var other *pawl.Lease
					writes, entered, hold := 0, make(chan struct{}), make(chan struct{})
					h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
						if !slices.ContainsFunc(c.Writes, func(w persist.Write) bool { return w.Key == s.Key() }) {
							return commit()
						}
						writes++
						if how == "shared" && writes == 1 {
							close(entered)
							<-hold
						}
						if cut := how == "shared"; writes != 1 && !cut || writes != 2 && cut {
							return commit()
						}
						if landed {
							_, err := commit()
							require.NoError(t, err)
						}
						other = usurp(t, elsewhere, "lock")
						return time.Time{}, errAnswerLost
					}
					ctx := context.WithoutCancel(l.Context())
					var beside <-chan error
					switch how {
					case "verb":
						_, err = s.IncState(ctx, "n", 1)
					case "shared":
						first := push(s, "first")
						<-entered // its commit is under way: the next ones share one
						fenced := make(chan error, 1)
						go func() { _, err := s.IncState(ctx, "n", 1); fenced <- err }()
						synctest.Wait()
						beside = push(s, "beside")
						close(hold)
						require.NoError(t, <-first)
						err = <-fenced
					case "transaction":
						err = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
							if _, err := pawl.Session[counts](tx, "z").IncState(ctx, "n", 1); err != nil {
								return err
							}
							_, err := s.In(tx).IncState(ctx, "n", 1)
							return err
						})
					}
					if beside != nil {
						require.NoError(t, <-beside, "who is not under the lease is not concerned")
					}
					got, readErr := s.State(t.Context())
					require.NoError(t, readErr)
					if landed {
						require.NoError(t, err)
						require.Equal(t, 1, got.N)
					} else {
						require.ErrorIs(t, err, pawl.ErrLeaseLost)
						require.Equal(t, 0, got.N)
					}
					if beside != nil {
						require.Equal(t, []string{"first", "beside"}, got.Done)
					}
					require.NoError(t, other.Release(t.Context()))
					require.NoError(t, elsewhere.Close(t.Context()))
				})
			})
		}
	}
}

// TestOneCommitOfSeveral: in one shared commit a scope is deleted, made anew and taken. No two have the same token, the old holder's write that
// came after the deletion is refused, and the one before counts.
//
// Proves STORE-13.
func TestOneCommitOfSeveral(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		old, err := s.Acquire(t.Context())
		require.NoError(t, err)
		open, entered := h.gate()
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
		taken := acquire(s, pawl.HeldBy("new"), pawl.Applying(pawl.Push{Field: "done", Values: []any{"taken"}}))
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
		h.onCommit = nil
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

// TestEndOfTheContext: a lease that cannot be renewed ends here exactly when the store may give it to another, not later; a commit that was sent before
// and arrives after is refused.
//
// Proves STORE-13.
func TestEndOfTheContext(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		const length = time.Minute
		elsewhere := rt2(t, h)
		var mu sync.Mutex
		renewed, down, cut := 0, false, true
		var late func() (time.Time, error)
		var r persist.Record
		h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			mu.Lock()
			renewal := len(c.Writes) == 0 && c.Guards[0].Extend > 0
			defer func() {
				mu.Unlock()
				if renewal {
					time.Sleep(3 * time.Second) // the way back is long
				}
			}()
			switch {
			case renewal:
				if down {
					return time.Time{}, errors.New("the network is down")
				}
				if renewed++; renewed == 5 {
					down = true
				}
			case len(c.Writes)+len(c.Guards) == 2 && cut: // the write
				if late == nil {
					late = commit
				}
				return time.Time{}, errAnswerLost
			}
			at, err := commit()
			if err == nil {
				r, _ = h.Store.Load(context.Background(), s.Key())
			}
			return at, err
		}
		l, err := s.Acquire(t.Context(), pawl.LeaseFor(length))
		require.NoError(t, err)
		next := acquire(pawl.Session[counts](elsewhere, "a"), pawl.Wait())
		<-l.Context().Done()
		ended := time.Now()
		mu.Lock()
		require.Equal(t, 5, renewed)
		require.False(t, ended.After(r.Lease.Until), "%v, %v", ended, r.Lease.Until)
		require.Less(t, r.Lease.Until.Sub(ended), length/10, "nor much before")
		require.Positive(t, r.Lease.Until.Sub(ended), "before another can have it")
		mu.Unlock()
		require.ErrorIs(t, context.Cause(l.Context()), pawl.ErrLeaseLost)
		got := <-next
		require.NoError(t, got.err)
		require.False(t, time.Now().Before(ended))
		require.NoError(t, got.lease.Release(t.Context()))
		require.NoError(t, elsewhere.Close(t.Context()))

		// A commit is on its way when the lease ends.
		again, err := s.Acquire(t.Context(), pawl.LeaseFor(length))
		require.NoError(t, err)
		write := make(chan error, 1)
		go func() {
			_, err := s.IncState(context.WithoutCancel(again.Context()), "n", 1, pawl.WithRetry(pawl.Retry{Within: time.Hour}))
			write <- err
		}()
		<-again.Context().Done()
		time.Sleep(length / 10) // by now it has ended in the store as well
		mu.Lock()
		_, err = late()
		cut = false
		mu.Unlock()
		require.ErrorAs(t, err, new(*persist.Fenced))
		require.ErrorIs(t, <-write, pawl.ErrLeaseLost)
		n, err := s.State(t.Context())
		require.NoError(t, err)
		require.Zero(t, n.N)
		time.Sleep(length) // the last renewal is on its long way back
	})
}

// TestARenewalWithoutAnAnswer: one that never gets an answer leaves time for others.
//
// Proves STORE-13.
func TestARenewalWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &silent{Store: memory.New()}
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		l, err := pawl.Session[counts](rt, "a").Acquire(t.Context())
		require.NoError(t, err)
		time.Sleep(10 * pawl.DefaultLease)
		require.NoError(t, l.Context().Err())
		require.Positive(t, store.silences.Load())
		require.NoError(t, l.Release(t.Context()))
		require.NoError(t, rt.Close(t.Context()))
	})
}

// silent is a store that does not answer every other renewal.
type silent struct {
	persist.Store
	renewals, silences atomic.Int64
}

func (s *silent) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if len(c.Writes) == 0 && c.Guards[0].Extend > 0 {
		if s.renewals.Add(1)%2 == 1 {
			s.silences.Add(1)
			<-ctx.Done()
			return time.Time{}, ctx.Err()
		}
	}
	return s.Store.Commit(ctx, c)
}
