package pawl_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requireClosed asserts that every verb and read of s gives ErrClosed.
func requireClosed(t *testing.T, s pawl.Scope[board]) {
	t.Helper()
	for name, m := range everyVerb {
		_, err := s.Apply(t.Context(), m)
		require.ErrorIs(t, err, pawl.ErrClosed, name)
	}
	require.ErrorIs(t, s.Delete(t.Context()), pawl.ErrClosed)
	_, err := s.State(t.Context())
	require.ErrorIs(t, err, pawl.ErrClosed)
	_, err = s.Snapshot(t.Context())
	require.ErrorIs(t, err, pawl.ErrClosed)
}

// After Close, old and new handles refuse every call, and the store stays open. Proves SCOPE-18.
func TestClose(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s, local := scopeOf[board](p, "a"), pawl.NewLocal(p.rt)
		inLocal := pawl.Sequencer[board](local, "a")
		require.NoError(t, increment(s))
		require.NoError(t, increment(inLocal))
		require.NoError(t, p.rt.Close(t.Context()))
		requireClosed(t, s)
		requireClosed(t, scopeOf[board](p, "a"))
		requireClosed(t, scopeOf[board](p, "b"))
		requireClosed(t, inLocal)
		requireClosed(t, pawl.Sequencer[board](local, "a"))
		requireClosed(t, pawl.Sequencer[board](local, "b"))
		requireClosed(t, pawl.Sequencer[board](pawl.NewLocal(p.rt), "a"))
		for _, err := range (pawl.Kind[board]{Name: pawl.KindSession}).List(t.Context(), p.rt, pawl.Query{}) {
			if p.store != nil {
				require.ErrorIs(t, err, pawl.ErrClosed)
			}
		}
		require.NoError(t, p.rt.Close(t.Context()), "a second Close succeeds")
		if p.store != nil {
			got, err := pawl.Session[board](p.another(t), "a").State(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 1, got.Count)
		}
	})
}

// Mutations that were accepted before Close commit, and their callers get their answers.
// Proves SCOPE-18.
func TestCloseFinishesAcceptedMutations(t *testing.T) {
	for _, stored := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New()
			rt, err := pawl.Open(pawl.Config{Store: store})
			require.NoError(t, err)
			s := pawl.Kind[board]{Name: "any", InMemory: !stored}.Scope(rt, "a")
			running := make(chan struct{})
			started := sync.OnceFunc(func() { close(running) }) // a persisted scope may run the function again
			var wg sync.WaitGroup
			wg.Go(func() {
				snap, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error {
					started()
					time.Sleep(time.Second)
					b.Title = "slow"
					return nil
				})
				assert.NoError(t, err)
				assert.Equal(t, "slow", snap.State().Title)
			})
			<-running
			for range 3 {
				wg.Go(func() { assert.NoError(t, increment(s)) })
			}
			synctest.Wait()
			var order []string
			wg.Go(func() { assert.NoError(t, rt.Close(t.Context())); order = append(order, "closed") })
			synctest.Wait()
			require.Empty(t, order, "Close waits")
			requireClosed(t, s)
			wg.Wait()
			if stored {
				r, err := store.Load(t.Context(), s.Key())
				require.NoError(t, err)
				require.EqualValues(t, 4, r.Version)
				require.JSONEq(t, `{"title":"slow","count":3,"tags":null,"notes":null}`, string(r.Doc))
			}
		})
	}
}

// Close finishes the waiters that the worker has taken and those that arrived before Close.
// Proves SCOPE-18.
func TestCloseFinishesTakenWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, err := pawl.Open(pawl.Config{})
		require.NoError(t, err)
		s := pawl.Memory[counts](rt, "a")
		var second <-chan error
		release, result := takeTogether(t, s, appendDone("first"), func() { second = push(s, "second") })
		third, closed := push(s, "third"), make(chan error, 1)
		go func() { closed <- rt.Close(context.Background()) }()
		synctest.Wait()
		require.ErrorIs(t, <-push(s, "refused"), pawl.ErrClosed)
		release()
		for _, done := range []<-chan error{result, second, third, closed} {
			require.NoError(t, <-done)
		}
	})
}

// Close waits for a commit that the store is working on, and the commit succeeds. Proves SCOPE-18.
func TestCloseFinishesCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		s := pawl.Session[board](rt, "a")
		entered, release := store.Hold()
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, increment(s)) })
		<-entered
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = rt.Close(ctx)
		require.Equal(t, &pawl.BusyError{Running: []pawl.Running{{Scope: s.Key(), Verb: "Inc"}}, Cause: context.DeadlineExceeded}, err)
		closed := make(chan error)
		go func() { closed <- rt.Close(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("the second Close returned %v while a commit was under way", err)
		default:
		}
		release()
		wg.Wait()
		require.NoError(t, <-closed)
		r, err := store.Load(t.Context(), s.Key())
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Version)
	})
}

// At its deadline Close names the functions that still run and counts their waiters. A later call
// waits for the rest. Proves SCOPE-18.
func TestCloseNamesRunningMutations(t *testing.T) {
	for _, stored := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			rt, err := pawl.Open(pawl.Config{Store: memory.New()})
			require.NoError(t, err)
			local := pawl.NewLocal(rt)
			scopes := []pawl.Scope[board]{pawl.Kind[board]{Name: "any", InMemory: !stored}.Scope(rt, "a"), pawl.Target[board](local, "b")}
			leave := make(chan struct{})
			var wg sync.WaitGroup
			for _, s := range scopes {
				running := make(chan struct{})
				wg.Go(func() {
					_, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error { close(running); <-leave; b.Count = 7; return nil })
					assert.NoError(t, err)
				})
				<-running
			}
			for range 2 {
				wg.Go(func() { assert.NoError(t, increment(scopes[1])) })
			}
			synctest.Wait()
			local.Close()
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				err = rt.Close(ctx)
				cancel()
				var busy *pawl.BusyError
				require.ErrorAs(t, err, &busy)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ElementsMatch(t, []pawl.Running{{Scope: scopes[0].Key(), Verb: "Atomic"}, {Scope: scopes[1].Key(), Verb: "Atomic", Waiting: 2}}, busy.Running)
				require.Contains(t, err.Error(), scopes[0].Key().String())
				require.Equal(t, "BUSY", pawl.Code(err))
			}
			close(leave)
			require.NoError(t, rt.Close(t.Context()), "Close waits for the rest")
			wg.Wait()
			require.NoError(t, rt.Close(t.Context()))
		})
	}
}

// A waiter can be reused by another scope before its batch has ended. Close then names the other
// scope only once. Proves SCOPE-18.
func TestCloseNamesEachScopeOnce(t *testing.T) {
	for range 10 { // a pool decides whether the waiter is reused
		synctest.Test(t, func(t *testing.T) {
			free := make(chan struct{})
			rt, err := pawl.Open(pawl.Config{Store: memory.New(), Observer: pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
				if e.Type == pawl.EventStarted && e.Verb == "Push" {
					<-free
				}
			})})
			require.NoError(t, err)
			s, other := pawl.Memory[counts](rt, "a"), pawl.Session[counts](rt, "b")
			release, _ := block(s)
			go func() {
				_, err := s.AtomicState(context.Background(), appendDone("first"))
				assert.NoError(t, err)
				_, err = other.AtomicState(context.Background(), func(context.Context, *counts) error { <-free; return nil })
				assert.NoError(t, err)
			}()
			synctest.Wait()
			second := push(s, "second")
			release()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			var busy *pawl.BusyError
			require.ErrorAs(t, rt.Close(ctx), &busy)
			named := 0
			for _, r := range busy.Running {
				if r.Scope == other.Key() {
					named++
				}
			}
			assert.Equal(t, 1, named)
			close(free)
			require.NoError(t, <-second)
			require.NoError(t, rt.Close(context.Background()))
		})
	}
}

// When its store is closed, a runtime returns ErrClosed: no call hangs, and the outcome is known.
// Proves SCOPE-18.
func TestStoreClosedDuringACommit(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		entered, release := p.store.Hold()
		errs := make(chan error)
		go func() { errs <- increment(s) }()
		<-entered
		require.NoError(t, p.store.Close())
		release()
		err := <-errs
		require.ErrorIs(t, err, pawl.ErrClosed)
		require.False(t, pawl.OutcomeUnknown(err), "nothing was written")
		require.ErrorIs(t, increment(s), pawl.ErrClosed)
		_, err = s.State(t.Context())
		require.ErrorIs(t, err, pawl.ErrClosed)
	})
}

// A commit whose answer is lost because the store was closed has an unknown outcome.
// Proves SCOPE-18.
func TestStoreClosedBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		rt := openRuntime(t, pawl.Config{Store: store})
		store.OnCommitted(func(_ persist.Commit, at time.Time, err error) (time.Time, error) {
			store.Close()
			return time.Time{}, persist.ErrUnavailable
		})
		_, err := pawl.Session[board](rt, "a").IncState(t.Context(), "count", 1)
		var unknown *pawl.UnknownOutcomeError
		require.ErrorAs(t, err, &unknown)
		require.True(t, pawl.OutcomeUnknown(err))
		require.False(t, pawl.IsRetryable(err))
		require.NotEmpty(t, unknown.Commit)
	})
}

// Close refuses new transactions and waits for running ones. Proves SCOPE-18.
func TestCloseWaitsForTransactions(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		rt, err := pawl.Open(p.config)
		require.NoError(t, err)
		inside, goOn := make(chan struct{}), make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := purses.Scope(tx, "a").State(ctx); err != nil {
					return err
				}
				close(inside)
				<-goOn
				return nil
			})
		}()
		<-inside
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var busy *pawl.BusyError
		require.ErrorAs(t, rt.Close(ctx), &busy)
		require.Equal(t, []pawl.Running{{Scope: purses.Scope(p.rt, "a").Key(), Verb: "Transact"}}, busy.Running)
		require.ErrorIs(t, pawl.Transact(t.Context(), rt, func(context.Context, *pawl.Tx) error { return nil }), pawl.ErrClosed)
		close(goOn)
		require.NoError(t, rt.Close(t.Context()))
		require.NoError(t, <-done)
	})
}

// A transaction that was accepted before Close can still commit. Proves SCOPE-18.
func TestCloseLetsTransactionsFinish(t *testing.T) {
	rt := openOn(t, memory.New())
	a := purses.Scope(rt, "a")
	inside, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := a.In(tx).IncState(ctx, "balance", 1)
			close(inside)
			<-goOn
			return err
		})
	}()
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var busy *pawl.BusyError
	require.ErrorAs(t, rt.Close(ctx), &busy)
	close(goOn)
	require.NoError(t, rt.Close(t.Context()), "Close waits for the transaction")
	require.NoError(t, <-done, "the transaction was accepted before Close")
}

// Transactions are refused after a Close that returned while a function was still running.
// Proves SCOPE-18.
func TestTransactAfterAnUnfinishedClose(t *testing.T) {
	rt := openOn(t, memory.New())
	a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
	seed(t, b, purse{Balance: 1})
	inside, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := a.AtomicState(context.Background(), func(context.Context, *purse) error { close(inside); <-goOn; return nil })
		done <- err
	}()
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var busy *pawl.BusyError
	require.ErrorAs(t, rt.Close(ctx), &busy)
	defer func() { close(goOn); <-done }()
	_, err := b.State(t.Context())
	require.ErrorIs(t, err, pawl.ErrClosed)
	ran := false
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		ran = true
		_, err := b.In(tx).State(ctx)
		return err
	})
	require.ErrorIs(t, err, pawl.ErrClosed)
	require.False(t, ran)
}
