package pawl_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// Of callers who are refused, or leave, or fail, nothing is kept until their budget would have been spent.
func TestCallersWhoAreGoneLeaveNoAlarm(t *testing.T) {
	entered, hangs := make(chan struct{}), make(chan struct{})
	store := &hooked{Store: memory.New()}
	rt := openRuntime(t, pawl.Config{Store: store, MaxQueue: 1, Retry: pawl.Retry{Within: time.Hour}})
	s := pawl.Session[counts](rt, "a")
	const many = 2000
	kept := func(call func() error) uint64 {
		var before, after runtime.MemStats
		measure := func(m *runtime.MemStats) {
			runtime.GC()
			runtime.GC() // the pool, too
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

	store.onCommit = func(persist.Commit, func() (time.Time, error)) (time.Time, error) {
		return time.Time{}, persist.ErrNotApplied
	}
	require.Less(t, kept(func() error { return inc(t.Context()) }), uint64(many), "who failed")
	require.Less(t, kept(func() (err error) {
		defer func() { err = recover().(error) }()
		_, _ = s.AtomicState(t.Context(), func(context.Context, *counts) error { panic("a bug") })
		return nil
	}), uint64(many), "who panicked")

	store.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
		select {
		case entered <- struct{}{}:
		case <-hangs: // the one who waited behind it
		}
		<-hangs
		return commit()
	}
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
	}), uint64(many), "who left")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := func(within time.Duration) error {
		brief, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return inc(brief)
	}
	go func() {
		for ctx.Err() == nil {
			_ = inc(ctx) // nobody else can wait beside it
			time.Sleep(time.Millisecond)
		}
	}()
	require.Eventually(t, func() bool { return errors.As(refused(time.Millisecond), new(*pawl.OverloadedError)) }, 10*time.Second, 20*time.Millisecond)
	require.Less(t, kept(func() error {
		err := refused(time.Minute)
		require.ErrorAs(t, err, new(*pawl.OverloadedError))
		return err
	}), uint64(many), "who was refused")
}
