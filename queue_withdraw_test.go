package pawl_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A queued mutation whose context ends never runs. If its function already runs, the result may
// still commit. Proves LOCK-7, LOCK-8.
func TestCancelWhileQueuedAndWhileRunning(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		why := errors.New("the client left")
		running, stop := context.WithCancelCause(context.Background())
		free, done := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := s.AtomicState(running, func(ctx context.Context, b *counts) error {
				<-ctx.Done() // the function's context ends with that of its caller
				<-free
				b.N = 1
				return nil
			})
			done <- err
		}()
		synctest.Wait()

		queued, leave := context.WithCancelCause(context.Background())
		ran, left := false, make(chan error, 1)
		go func() {
			_, err := s.AtomicState(queued, func(context.Context, *counts) error { ran = true; return nil })
			left <- err
		}()
		synctest.Wait()
		leave(why)
		err := <-left
		var canceled *pawl.CanceledError
		require.ErrorAs(t, err, &canceled)
		assert.Equal(t, pawl.PhaseQueued, canceled.Phase)
		assert.ErrorIs(t, err, why)
		assert.False(t, pawl.OutcomeUnknown(err))

		stop(why)
		err = <-done
		require.ErrorAs(t, err, &canceled)
		assert.Equal(t, pawl.PhaseRunning, canceled.Phase)
		assert.ErrorIs(t, err, why)
		assert.True(t, pawl.OutcomeUnknown(err), "the result may still commit")
		assert.Equal(t, 499, pawl.HTTPStatus(err))

		close(free)
		synctest.Wait()
		b, _ := s.State(t.Context())
		assert.Equal(t, 1, b.N, "here it does commit")
		assert.False(t, ran, "a withdrawn mutation never runs")
	})
}

// Withdrawn mutations take up no place in the queue and never run. Proves LOCK-7, LOCK-14.
func TestWithdrawnMutationsLeaveNothingBehind(t *testing.T) {
	bubble(t, pawl.Config{MaxQueue: 10}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, _ := block(s, pawl.WithTimeout(pawl.NoTimeout))
		for range 1000 { // a thousand times the limit, ten at a time
			var wave []<-chan error
			for range 10 {
				wave = append(wave, push(s, "x", pawl.WithTimeout(time.Millisecond)))
			}
			for _, err := range wave {
				require.ErrorIs(t, <-err, pawl.ErrTimeout)
			}
		}
		release()
		synctest.Wait()
		b, _ := s.State(t.Context())
		assert.Equal(t, []string{"blocker"}, b.Done)
	})
}

// A mutation that the worker has taken can be withdrawn until its turn, and the others keep their
// order. Proves LOCK-1, LOCK-7.
func TestWithdrawATakenMutation(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		ctx, cancel := context.WithCancel(context.Background())
		var late, left, stays <-chan error
		release, result := takeTogether(t, s, appendDone("first"), func() {
			late = push(s, "late", pawl.WithTimeout(time.Second))
			gone := make(chan error, 1)
			go func() { _, err := s.PushState(ctx, "done", "left"); gone <- err }()
			left = gone
			synctest.Wait()
			stays = push(s, "stays")
		})
		var timeout *pawl.ScopeMutationTimeoutError
		require.ErrorAs(t, <-late, &timeout)
		assert.Equal(t, pawl.PhaseQueued, timeout.Phase)
		cancel()
		var canceled *pawl.CanceledError
		require.ErrorAs(t, <-left, &canceled)
		assert.Equal(t, pawl.PhaseQueued, canceled.Phase)
		last := push(s, "last")
		release()
		for _, done := range []<-chan error{result, stays, last} {
			require.NoError(t, <-done)
		}
		assert.Equal(t, []string{"blocker", "first", "stays", "last"}, doneList(t, s))
	})
}

// blockingHandler is a log handler that blocks until free is closed.
type blockingHandler struct {
	slog.Handler
	asked, free chan struct{}
}

func (h blockingHandler) Handle(context.Context, slog.Record) error {
	h.asked <- struct{}{}
	<-h.free
	return nil
}

// While the panic of a function whose caller has left is being logged, the next waiter can still be
// withdrawn. Proves LOCK-7.
func TestWithdrawWhileAPanicIsLogged(t *testing.T) {
	for _, exits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			log := blockingHandler{slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError}), make(chan struct{}, 1), make(chan struct{})}
			s := pawl.Memory[counts](openRuntime(t, pawl.Config{Logger: slog.New(log)}), "a")
			ctx, leave := context.WithCancel(t.Context())
			end := make(chan struct{})
			_, err := s.AtomicState(ctx, func(context.Context, *counts) error {
				leave()
				<-end
				if exits {
					runtime.Goexit()
				}
				panic("too late")
			})
			require.ErrorIs(t, err, context.Canceled)
			withdrawn := push(s, "withdrawn", pawl.WithTimeout(time.Second))
			after := push(s, "after")
			close(end)
			<-log.asked
			var late *pawl.ScopeMutationTimeoutError
			require.ErrorAs(t, <-withdrawn, &late)
			require.Equal(t, pawl.PhaseQueued, late.Phase)
			close(log.free)
			require.NoError(t, <-after)
			snap, _ := s.LastSeen()
			require.Equal(t, []string{"after"}, snap.State().Done)
		})
	}
}

// Withdrawn mutations free their memory while the function that they waited for still runs.
// Proves LOCK-7.
func TestWithdrawnMutationsFreeTheirMemory(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	s := pawl.Memory[counts](rt, "a")
	free, runs := make(chan struct{}), make(chan struct{})
	blocked := make(chan error, 1)
	go func() {
		_, err := s.AtomicState(context.Background(), func(context.Context, *counts) error { close(runs); <-free; return nil })
		blocked <- err
	}()
	<-runs
	const callers = 2000
	kept := make([]weak.Pointer[[1 << 10]byte], callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			large := new([1 << 10]byte)
			kept[i] = weak.Make(large)
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error { b.N += int(large[0]); return nil }, pawl.WithTimeout(5*time.Millisecond))
			assert.ErrorIs(t, err, pawl.ErrTimeout)
		})
	}
	wg.Wait()
	testkit.Eventually(t, func() bool {
		runtime.GC()
		alive := len(slices.DeleteFunc(slices.Clone(kept), func(p weak.Pointer[[1 << 10]byte]) bool { return p.Value() == nil }))
		return alive < callers/10
	})
	close(free)
	require.NoError(t, <-blocked)
}

// Calls that fail, panic, leave or are refused keep no memory until their budget would have ended.
func TestEndedCallsFreeTheirMemory(t *testing.T) {
	entered, hangs := make(chan struct{}), make(chan struct{})
	store := newTap()
	rt := openRuntime(t, pawl.Config{Store: store, MaxQueue: 1, Retry: pawl.Retry{Within: time.Hour}})
	s := pawl.Session[counts](rt, "a")
	const many = 2000
	kept := func(call func() error) uint64 {
		var before, after runtime.MemStats
		measure := func(m *runtime.MemStats) {
			collect()
			runtime.ReadMemStats(m)
		}
		require.Error(t, call())
		measure(&before)
		for range many {
			require.Error(t, call())
		}
		measure(&after)
		return max(after.HeapObjects, before.HeapObjects) - before.HeapObjects
	}
	inc := func(ctx context.Context) error {
		_, err := s.IncState(ctx, "n", 1)
		return err
	}

	store.Around(func(persist.Commit, func() (time.Time, error)) (time.Time, error) {
		return time.Time{}, persist.ErrNotApplied
	})
	require.Less(t, kept(func() error { return inc(t.Context()) }), uint64(many), "failed calls")
	require.Less(t, kept(func() (err error) {
		defer func() { err = recover().(error) }()
		_, _ = s.AtomicState(t.Context(), func(context.Context, *counts) error { panic("a bug") })
		return nil
	}), uint64(many), "calls that panicked")

	store.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
		select {
		case entered <- struct{}{}:
		case <-hangs: // the call that waited behind it
		}
		<-hangs
		return commit()
	})
	answered := make(chan error, 1)
	go func() { answered <- inc(context.Background()) }()
	<-entered
	defer func() {
		close(hangs)
		require.NoError(t, <-answered)
	}()
	require.Less(t, kept(func() error {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Microsecond, cancel)
		return inc(ctx)
	}), uint64(many), "calls that left")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := func(within time.Duration) error {
		brief, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return inc(brief)
	}
	go func() {
		for ctx.Err() == nil {
			_ = inc(ctx) // takes the only place in the queue
			time.Sleep(time.Millisecond)
		}
	}()
	testkit.Eventually(t, func() bool { return errors.As(refused(time.Millisecond), new(*pawl.OverloadedError)) })
	require.Less(t, kept(func() error {
		err := refused(time.Minute)
		require.ErrorAs(t, err, new(*pawl.OverloadedError))
		return err
	}), uint64(many), "refused calls")
}
