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

// requireClosed asserts that s takes no work and answers no read.
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

// After Close nothing is taken any more, through old handles or new ones, and the store stays open. Proves SCOPE-18.
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
		require.NoError(t, p.rt.Close(t.Context()), "twice is safe")
		if p.store != nil {
			got, err := pawl.Session[board](p.another(t), "a").State(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 1, got.Count)
		}
	})
}

// What was accepted before Close is finished: it commits and its callers get their answers. Proves SCOPE-18.
func TestCloseFinishesWhatIsInFlight(t *testing.T) {
	for _, stored := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New()
			rt, err := pawl.Open(pawl.Config{Store: store})
			require.NoError(t, err)
			s := pawl.Kind[board]{Name: "any", InMemory: !stored}.Scope(rt, "a")
			running := make(chan struct{})
			started := sync.OnceFunc(func() { close(running) }) // a persisted scope may run it again
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

// A commit that the store is at work on is finished, too. Proves SCOPE-18.
func TestCloseFinishesCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: memory.New()}
		rt, err := pawl.Open(pawl.Config{Store: store})
		require.NoError(t, err)
		s := pawl.Session[board](rt, "a")
		entered, release := store.hold()
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

// At its deadline Close names what still runs, and how much waits behind it; it can be called again for the rest. Proves SCOPE-18.
func TestCloseNamesWhatRuns(t *testing.T) {
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
			require.NoError(t, rt.Close(t.Context()), "the rest is waited for")
			wg.Wait()
			require.NoError(t, rt.Close(t.Context()))
		})
	}
}

// A store that is closed under a runtime gives a clear error: nothing hangs, nothing is lost. Proves SCOPE-18.
func TestStoreClosedInMidFlight(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		entered, release := p.store.hold()
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

// A commit whose answer was lost with the store is not taken for a failure. Proves SCOPE-18.
func TestStoreClosedBeforeTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: memory.New()}
		rt := openRuntime(t, pawl.Config{Store: store})
		store.onCommitted(func(at time.Time, err error) (time.Time, error) {
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
