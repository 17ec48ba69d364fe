package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Mutations that queue up during a commit share the next one, in submission order, each with a
// version of its own. Proves CAS-4, CAS-5.
func TestWritersShareACommit(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := gate(h)
		first := push(s, "first")
		<-entered // mutations submitted during this commit share the next one
		want := []string{"first"}
		var answers []<-chan error
		versions := make([]uint64, 50)
		for i := range versions {
			name := fmt.Sprint(i)
			want = append(want, name)
			done := make(chan error, 1)
			answers = append(answers, done)
			go func() {
				snap, err := s.PushState(context.Background(), "done", name)
				versions[i] = snap.Version
				done <- err
			}()
			synctest.Wait()
		}
		open()
		require.NoError(t, <-first)
		for _, a := range answers {
			require.NoError(t, <-a)
		}
		assert.EqualValues(t, 2, h.Commits.Load(), "one commit for the first, one for all the others")
		for i, v := range versions {
			assert.EqualValues(t, i+2, v, "each mutation has its own version, in submission order")
		}
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, snap.ReadOnly().Done)
		assert.EqualValues(t, 51, snap.Version)
	})
}

// An answer computed on uncommitted state is given only after that state is committed. If the commit
// loses, the answer is computed again on the state that won: then the no-op changes something, and
// the error, the panic and the refusal do not happen. Proves CAS-4.
func TestEveryAnswerWaitsForTheCommit(t *testing.T) {
	for _, loses := range []bool{false, true} {
		t.Run(fmt.Sprintf("loses=%v", loses), func(t *testing.T) {
			persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
				_, err := s.SetState(t.Context(), counts{N: 1}) // version 1
				require.NoError(t, err)
				open, entered := gate(h)
				first := push(s, "first") // version 2
				<-entered
				boom := errors.New("boom")
				type result struct {
					snap     pawl.Snapshot[counts]
					err      error
					panicked any
				}
				results := map[string]chan result{}
				submit := func(name string, m pawl.Mutation, opts ...pawl.CallOption) {
					done := make(chan result, 1)
					results[name] = done
					go func() {
						var r result
						defer func() {
							r.panicked = recover()
							done <- r
						}()
						r.snap, r.err = s.Apply(t.Context(), m, opts...)
					}()
					synctest.Wait()
				}
				on11 := func(fail func() error) pawl.Mutation {
					return pawl.Atomic(func(_ context.Context, b *counts) error {
						if b.N == 11 {
							return fail()
						}
						return nil
					})
				}
				// All of these are computed on the uncommitted increment of "success": n is 11 at
				// version 3. If its commit loses, n is 1011 at version 4.
				submit("success", pawl.Inc{Field: "n", By: 10})
				submit("error", on11(func() error { return boom }))
				submit("panic", on11(func() error { panic(boom) }))
				submit("refusal", pawl.Push{Field: "done", Values: []any{"refused"}}, pawl.IfVersion(4))
				submit("no-op", pawl.Patch{"n": 11})
				submit("last", pawl.Inc{Field: "n", By: 100})

				hold := make(chan struct{})
				second := make(chan struct{}, 10)
				overtaken := !loses
				h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
					if !overtaken {
						overtaken = true
						foreign(t, h, s.Key(), 1000)
					}
					second <- struct{}{}
					<-hold
					return commit()
				})
				open()
				require.NoError(t, <-first)
				<-second
				synctest.Wait()
				for name, done := range results {
					assert.Empty(t, done, "%s was answered before the commit", name)
				}
				close(hold)
				got := map[string]result{}
				for name, done := range results {
					got[name] = <-done
				}
				for _, name := range []string{"success", "no-op", "last"} {
					assert.NoError(t, got[name].err, name)
				}
				assert.Equal(t, 11, got["no-op"].snap.ReadOnly().N)
				if loses {
					assert.Equal(t, 1011, got["success"].snap.ReadOnly().N)
					for _, name := range []string{"error", "panic", "refusal"} {
						assert.NoError(t, got[name].err, name)
						assert.Nil(t, got[name].panicked, name)
					}
					assert.Equal(t, []string{"first", "refused"}, got["refusal"].snap.ReadOnly().Done)
					assert.EqualValues(t, 6, got["no-op"].snap.Version, "it changes n from 1011")
					assert.EqualValues(t, 7, got["last"].snap.Version)
				} else {
					assert.Equal(t, 11, got["success"].snap.ReadOnly().N)
					assert.Equal(t, boom, got["error"].err)
					raised, _ := got["panic"].panicked.(*pawl.PanicError)
					assert.ErrorIs(t, raised, boom)
					assert.ErrorIs(t, got["refusal"].err, pawl.ErrConflict)
					assert.EqualValues(t, 3, got["no-op"].snap.Version, "it changes nothing")
					assert.EqualValues(t, 4, got["last"].snap.Version)
				}
				assert.Equal(t, 111, got["last"].snap.ReadOnly().N)
			})
		})
	}
}

// An answer that writes nothing is checked against the store, so a stale cached state cannot decide
// it. Proves CAS-4.
func TestAnswersThatWroteNothingAreConfirmed(t *testing.T) {
	boom := errors.New("boom")
	for name, verb := range map[string]func(s pawl.Scope[counts]) error{
		"no-op": func(s pawl.Scope[counts]) error {
			snap, err := s.PatchState(context.Background(), pawl.Patch{"n": 1})
			if err == nil && snap.Version != 3 {
				err = fmt.Errorf("version %d", snap.Version)
			}
			return err
		},
		"error": func(s pawl.Scope[counts]) error {
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				if b.N == 1 {
					return boom
				}
				return nil
			})
			return err
		},
		"refusal": func(s pawl.Scope[counts]) error {
			_, err := s.PatchState(context.Background(), pawl.Patch{"n": 5}, pawl.IfVersion(2))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
				_, err := s.SetState(t.Context(), counts{N: 1})
				require.NoError(t, err)
				foreign(t, h, s.Key(), 100) // the cached state is stale now
				assert.NoError(t, verb(s), "the answer was computed on the stale state")
			})
		})
	}
}

// A function's panic on stale state does not reach its caller. On the current state the condition
// refuses the call before the function runs.
//
// Proves CAS-4, SCOPE-12.
func TestPanicOnStaleStateIsDiscarded(t *testing.T) {
	store := memory.New()
	here, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	there, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	stale := storedScope(here, "x")
	_, err = stale.Snapshot(t.Context())
	require.NoError(t, err)
	_, err = storedScope(there, "x").IncState(t.Context(), "n", 1)
	require.NoError(t, err)
	require.NotPanics(t, func() {
		_, err = stale.AtomicState(t.Context(), func(context.Context, *histState) error { panic("stale") }, pawl.IfAbsent())
	})
	require.ErrorIs(t, err, pawl.ErrExists)
	require.NoError(t, here.Close(t.Context()))
	require.NoError(t, there.Close(t.Context()))
}

// A function that panics on a state that the store disproved gets a conflict when its attempts are
// spent, as a function that returns an error does. Proves CAS-4.
func TestPanicOnALostStateIsDiscarded(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, _ *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := gate(h)
		first := push(s, "first")
		<-entered
		sibling := push(s, "sibling") // it changes the state that the function sees, so the batch commits
		panicked := make(chan any, 1)
		var err error
		go func() {
			defer func() { panicked <- recover() }()
			_, err = s.AtomicState(t.Context(), func(context.Context, *counts) error { panic("lost") }, pawl.WithRetry(pawl.Retry{Attempts: 1}))
		}()
		synctest.Wait()
		lost := 0
		h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if lost++; lost <= 2 { // the first conflict of a cached state costs no attempt
				foreign(t, h, s.Key(), 1)
			}
			return commit()
		})
		open()
		require.NoError(t, <-first)
		assert.Nil(t, <-panicked)
		assert.ErrorAs(t, err, new(*pawl.ConcurrentModificationError))
		require.NoError(t, <-sibling)
	})
}

// Every caller gets the answer to its own mutation, also while functions leave the queue, callers leave
// their mutations, and others look at the queue. Proves CAS-4.
func TestAnswersReachTheirOwnCallers(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		const writers, each = 8, 40
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				for i := range each {
					s := scopeOf[counts](p, fmt.Sprint((w+i)%2))
					mine := fmt.Sprint(w, " ", i)
					ctx, cancel := context.WithCancel(t.Context())
					snap, err := s.AtomicState(ctx, func(_ context.Context, c *counts) error {
						if w%2 == 0 && i%4 == 0 {
							time.Sleep(12 * time.Millisecond) // long enough to leave the queue
						}
						if w == 1 {
							cancel()
						}
						c.N++
						c.Done = []string{mine}
						return nil
					})
					cancel()
					if w == 1 {
						continue // its caller may have left
					}
					if assert.NoError(t, err) {
						assert.Equal(t, []string{mine}, snap.ReadOnly().Done)
						assert.EqualValues(t, snap.Version, snap.ReadOnly().N)
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { all.Wait(); close(done) }()
		for {
			select {
			case <-done:
				return
			default:
				p.rt.Stats()
			}
		}
	})
}

// A panic whose caller has left is logged when the other callers of the commit are on their way: they do
// not wait for the logger. Proves CAS-4.
func TestLoggerDelaysNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answered, h := make(chan error, 1), newTap()
		log := blockingHandler{slog.NewTextHandler(io.Discard, nil), make(chan struct{}, 1), make(chan struct{})}
		s := pawl.Session[counts](openRuntime(t, pawl.Config{Store: h, Logger: slog.New(log)}), "a")
		open, entered := gate(h)
		first := push(s, "first")
		<-entered
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := s.AtomicState(ctx, func(context.Context, *counts) error { panic("boom") })
			left <- err
		}()
		synctest.Wait()
		go func() {
			_, err := s.IncState(context.Background(), "n", 1)
			answered <- err
		}()
		synctest.Wait()
		hold := make(chan struct{})
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			<-hold
			return commit()
		})
		open()
		require.NoError(t, <-first)
		synctest.Wait()
		cancel()
		assert.ErrorIs(t, <-left, context.Canceled)
		close(hold)
		<-log.asked
		assert.NoError(t, <-answered)
		close(log.free)
	})
}

// lateLoad is a store that calls after before one Load returns, which delays that Load.
type lateLoad struct {
	*memory.Store
	after atomic.Pointer[func()]
}

func (s *lateLoad) Load(ctx context.Context, k persist.Key) (persist.Record, error) {
	r, err := s.Store.Load(ctx, k)
	if f := s.after.Swap(nil); f != nil {
		(*f)()
	}
	return r, err
}

// A Load that started before the latest write and returns after it does not confirm a cached state
// as current. Proves CAS-4.
func TestLateReadDoesNotConfirm(t *testing.T) {
	store := &lateLoad{Store: memory.New()}
	rt, other := openOn(t, store), openOn(t, store.Store)
	a := purses.Scope(rt, "a")
	seed(t, a, purse{Balance: 1}) // v1
	set := func(n int64) {
		_, err := purses.Scope(other, "a").SetState(t.Context(), purse{Balance: n})
		require.NoError(t, err)
	}
	set(10) // v2
	loaded, goOn, read := make(chan struct{}), make(chan struct{}), make(chan struct{})
	f := func() { close(loaded); <-goOn }
	store.after.Store(&f)
	go func() { defer close(read); _, _ = a.Snapshot(context.Background()) }() // loads v2 and returns late
	<-loaded
	set(1) // v3: the balance is 1 during the whole transaction
	runs := 0
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := a.In(tx).PatchState(ctx, pawl.Patch{"balance": 10})
		if runs++; runs == 1 {
			close(goOn)
			<-read
		}
		return err
	})
	require.NoError(t, err)
	s, err := a.State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 10, s.Balance, "Transact succeeded, but its write is missing")
}

// A deletion and the creation queued behind it share a commit that loses to another runtime. The
// creation still runs after the deletion, and is not refused because of the old state.
//
// Proves CAS-4.
func TestSharedCommitThatLosesKeepsItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, gate := t.Context(), make(chan struct{})
		inner := memory.New()
		there, err := pawl.Open(pawl.Config{Store: inner})
		require.NoError(t, err)
		store := &stores.Tap{Store: inner}
		store.OnCommit(func(context.Context, persist.Commit) error {
			switch store.Commits.Load() {
			case 1: // holds the first commit while the others queue up
				<-gate
			case 2:
				_, err := storedScope(there, "x").IncState(ctx, "n", 1)
				assert.NoError(t, err)
			}
			return nil
		})
		here, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		scope := storedScope(here, "x")
		var created pawl.Snapshot[histState]
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := scope.IncState(ctx, "n", 1)
			assert.NoError(t, err)
		})
		synctest.Wait()
		wg.Go(func() { assert.NoError(t, scope.Delete(ctx)) })
		synctest.Wait()
		wg.Go(func() {
			var err error
			created, err = scope.IncState(ctx, "n", 10, pawl.IfAbsent())
			assert.NoError(t, err)
		})
		synctest.Wait()
		close(gate)
		wg.Wait()
		require.EqualValues(t, 4, created.Version, "two increments, a deletion, a creation")
		require.EqualValues(t, 10, created.State().N)
		require.EqualValues(t, 3, store.Commits.Load(), "the deletion and the creation shared a commit, which lost once")
		require.NoError(t, here.Close(ctx))
		require.NoError(t, there.Close(ctx))
	})
}

// A batch accepts new mutations for a limited time and then commits, even if more arrive while
// functions run. Proves CAS-4.
func TestBatchEndsWhileWritersKeepComing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTap()
		s := pawl.Session[counts](openRuntime(t, pawl.Config{Store: h}), "a")
		var all sync.WaitGroup
		for range 400 {
			all.Go(func() {
				_, err := s.AtomicState(t.Context(), func(_ context.Context, c *counts) error {
					time.Sleep(5 * time.Millisecond) // short enough to stay in the queue
					c.Done = append(c.Done, "x")
					return nil
				}, pawl.WithRetry(pawl.Retry{Within: time.Second}))
				assert.NoError(t, err)
			})
			time.Sleep(4900 * time.Microsecond)
		}
		all.Wait()
	})
}

// Writers that return shortly after their last commit share the next one, or the one after it. Writers
// that stay away delay no other. Proves CAS-4.
func TestReturningWritersShareCommits(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		const (
			writers, each = 16, 20
			commitTime    = 10 * time.Millisecond
		)
		commits := 0 // needs no lock: commits do not overlap
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			commits++
			time.Sleep(commitTime)
			return commit()
		})
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				for range each {
					_, err := s.IncState(t.Context(), "n", 1)
					assert.NoError(t, err)
					time.Sleep(time.Duration(w) * 10 * time.Microsecond)
				}
			})
		}
		all.Wait()
		assert.LessOrEqual(t, commits, 2*each+1, "a mutation waits for the commit in progress, and is in the next")

		commits = 0
		start := time.Now()
		for range each {
			_, err := s.IncState(t.Context(), "n", 1)
			require.NoError(t, err)
		}
		assert.Equal(t, each, commits)
		assert.Equal(t, each*commitTime, time.Since(start))
	})
}

// What a mutation costs among 64 writers of one persisted scope, without the store's own time.
func BenchmarkWritersOfOneScope(b *testing.B) {
	rt := openRuntime(b, pawl.Config{Store: memory.New()})
	for name, mutate := range map[string]func(pawl.Scope[counts]) error{
		"function": func(s pawl.Scope[counts]) error {
			_, err := s.AtomicState(b.Context(), func(_ context.Context, c *counts) error { c.N++; return nil })
			return err
		},
		"data": func(s pawl.Scope[counts]) error {
			_, err := s.IncState(b.Context(), "n", 1)
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var writers sync.WaitGroup
			for w := range 64 {
				writers.Go(func() {
					for i := w; i < b.N; i += 64 {
						if err := mutate(pawl.Session[counts](rt, "hot")); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			writers.Wait()
		})
	}
}
