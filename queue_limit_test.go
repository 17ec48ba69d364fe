package pawl_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A full queue refuses further mutations. A mutation that is withdrawn makes room for another.
// Proves LOCK-14.
func TestQueueIsBounded(t *testing.T) {
	bubble(t, pawl.Config{MaxQueue: 3}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		release, _ := block(s)
		for _, name := range []string{"1", "2"} {
			push(s, name)
		}
		third := push(s, "3", pawl.WithTimeout(time.Second))
		err := <-push(s, "4")
		var overloaded *pawl.OverloadedError
		require.ErrorAs(t, err, &overloaded)
		assert.Equal(t, pawl.OverloadedError{Scope: s.Key(), Queue: 3}, *overloaded)
		assert.True(t, pawl.IsRetryable(err))
		assert.ErrorIs(t, <-third, pawl.ErrTimeout)
		fifth := push(s, "5") // the withdrawn mutation made room
		release()
		require.NoError(t, <-fifth)
		b, _ := s.State(t.Context())
		assert.Equal(t, []string{"blocker", "1", "2", "5"}, b.Done)
	})
}

// Between two turns, waiters that the worker has taken still count towards the limit.
// Proves LOCK-14.
func TestQueueIsBoundedBetweenTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int32
		between, release := make(chan struct{}), make(chan struct{})
		s := pawl.Memory[counts](openRuntime(t, pawl.Config{MaxQueue: 3, Observer: pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
			if e.Type == pawl.EventCommitted && ended.Add(1) == 2 { // after the blocker, the first of three
				close(between)
				<-release
			}
		})}), "a")
		free, _ := block(s)
		var answers []<-chan error
		for range 3 {
			answers = append(answers, push(s, "x"))
		}
		free()
		<-between
		answers = append(answers, push(s, "there is room for one"))
		for range 5 {
			require.ErrorIs(t, <-push(s, "too many"), pawl.ErrOverloaded)
		}
		close(release)
		for _, err := range answers {
			require.NoError(t, <-err)
		}
	})
}

// Waiters that the worker has taken count as waiting until they have their turn or leave.
// Proves LOCK-14.
func TestTakenWaitersCountAsWaiting(t *testing.T) {
	bubble(t, pawl.Config{MaxQueue: 3}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		var late <-chan error
		release, _ := takeTogether(t, s, appendDone("first"), func() {
			push(s, "second")
			late = push(s, "late", pawl.WithTimeout(time.Second))
		})
		third := push(s, "third")
		var overloaded *pawl.OverloadedError
		require.ErrorAs(t, <-push(s, "too many"), &overloaded)
		assert.Equal(t, 3, overloaded.Queue)
		require.ErrorIs(t, <-late, pawl.ErrTimeout)
		fourth := push(s, "fourth") // there is room again
		require.ErrorAs(t, <-push(s, "too many"), &overloaded)
		release()
		require.NoError(t, <-third)
		require.NoError(t, <-fourth)
		assert.Equal(t, []string{"blocker", "first", "second", "third", "fourth"}, doneList(t, s))
	})
}

// A refused or withdrawn call frees its memory at once, not at its deadline. Proves LOCK-14.
func TestRefusedCallsFreeTheirMemory(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{MaxQueue: 1})
	require.NoError(t, err)
	s := pawl.Memory[counts](rt, "a")
	started, stop := make(chan struct{}), make(chan struct{})
	go s.AtomicState(context.Background(), func(context.Context, *counts) error { close(started); <-stop; return nil })
	<-started
	ctx, cancel := context.WithCancel(context.Background())
	var made, freed atomic.Int32
	call := func() error {
		payload := new([1 << 16]byte)
		made.Add(1)
		runtime.AddCleanup(payload, func(int) { freed.Add(1) }, 0)
		_, err := s.AtomicState(ctx, func(context.Context, *counts) error { payload[0] = 1; return nil })
		return err
	}
	left := make(chan error, 2)
	for range 2 { // one of them fills the queue, the other is refused as long as it is full
		go func() {
			for {
				err := call()
				if !errors.Is(err, pawl.ErrOverloaded) || ctx.Err() != nil {
					left <- err
					return
				}
				runtime.Gosched()
			}
		}()
	}
	testkit.Eventually(t, func() bool { return made.Load() > 20 })
	cancel()
	<-left
	<-left
	testkit.Eventually(t, func() bool { runtime.GC(); return freed.Load() == made.Load() },
		"refused and withdrawn calls must not keep memory until their deadline")
	close(stop)
	require.NoError(t, rt.Close(context.Background()))
}
