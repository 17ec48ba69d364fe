package pawl_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
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

// panicky panics. The stack of the panic must name it.
func panicky(_ context.Context, b *board) error {
	b.Count = 99
	panic(errMutator)
}

// A panic in a function is raised again in its caller, with its value and its original stack.
// Proves SCOPE-5.
func TestPanicInFunction(t *testing.T) {
	var events eventLog
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		seed(t, s, board{Count: 1})
		func() {
			defer func() {
				got, ok := recover().(*pawl.PanicError)
				require.True(t, ok, "the caller did not panic")
				require.Equal(t, errMutator, got.Value)
				require.ErrorIs(t, got, errMutator, "a panic with an error wraps that error")
				require.Contains(t, string(got.Stack), "panicky")
				require.Contains(t, got.Error(), "panicky", "an uncaught panic prints the original stack")
			}()
			_, _ = s.AtomicState(t.Context(), panicky)
			t.Error("the caller continued")
		}()
		requireState(t, p, s, 1, board{Count: 1})
		last := events.find(pawl.EventPanicked)
		require.Equal(t, s.Key(), last.Key)
		require.Contains(t, string(last.Stack), "panicky")
		_, err := s.IncState(t.Context(), "count", 1)
		require.NoError(t, err, "the queue continues")
		requireState(t, p, s, 2, board{Count: 2})
	}, func(c *pawl.Config) { c.Observer = &events })
}

// runtime.Goexit in a function, called by testing's FailNow for example, ends the goroutine of its
// caller only. Proves SCOPE-5.
func TestGoexitInFunction(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		seed(t, s, board{Count: 1})
		var ran, returned bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = s.AtomicState(t.Context(), func(_ context.Context, b *board) error {
				ran, b.Count = true, 99
				runtime.Goexit()
				return nil
			})
			returned = true
		}()
		<-done
		require.True(t, ran)
		require.False(t, returned, "the caller continued")
		_, err := s.IncState(t.Context(), "count", 1)
		require.NoError(t, err, "the queue continues")
		_, err = s.AtomicState(t.Context(), func(_ context.Context, b *board) error { b.Count++; return nil })
		require.NoError(t, err)
		requireState(t, p, s, 3, board{Count: 3})
	})
}

// A deferred function that panics during runtime.Goexit blocks neither its caller nor the queue.
// Proves SCOPE-5, LOCK-11.
func TestPanicDuringGoexit(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[counts](p, "a")
		ended := make(chan any, 1)
		go func() {
			defer func() { ended <- recover() }()
			s.AtomicState(context.Background(), func(context.Context, *counts) error {
				defer func() { panic("cleanup") }()
				runtime.Goexit()
				return nil
			})
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		select {
		case <-ended:
		case <-ctx.Done():
			require.Fail(t, "the caller still waits")
		}
		_, err := s.AtomicState(ctx, func(_ context.Context, b *counts) error { b.N++; return nil })
		require.NoError(t, err)
	})
}

// After a function calls runtime.Goexit, the waiters that the worker has taken with it run in
// order. Proves LOCK-1, SCOPE-5.
func TestGoexitBeforeTakenWaiters(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[counts](rt, "a")
		var second, third <-chan error
		release, _ := takeTogether(t, s, func(context.Context, *counts) error { runtime.Goexit(); return nil }, func() {
			second = push(s, "second")
			third = push(s, "third")
		})
		release()
		require.NoError(t, <-second)
		require.NoError(t, <-third)
		assert.Equal(t, []string{"blocker", "second", "third"}, doneList(t, s))
	})
}

// A panic after the caller has left is reported once, with its stack: by EventPanicked if there is an
// observer, otherwise in the log. Proves SCOPE-5.
func TestPanicAfterCallerLeft(t *testing.T) {
	for _, stored := range []bool{false, true} {
		for _, goexit := range []bool{false, true} {
			for _, observed := range []bool{false, true} {
				t.Run(fmt.Sprintf("stored %v, Goexit %v, observed %v", stored, goexit, observed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testPanicAfterCallerLeft(t, stored, goexit, observed) })
				})
			}
		}
	}
}

func testPanicAfterCallerLeft(t *testing.T, stored, goexit, observed bool) {
	var log syncBuffer
	var events eventLog
	logger := slog.New(slog.NewTextHandler(&log, nil))
	config := pawl.Config{Store: memory.New(), Logger: logger}
	if observed {
		config.Observer = pawl.Observers(&events, pawl.LogObserver(logger))
	}
	rt := openRuntime(t, config)
	s := pawl.Memory[board](rt, "a")
	if stored {
		s = pawl.Session[board](rt, "a")
	}
	ctx, cancel := context.WithCancel(t.Context())
	started, leave := make(chan struct{}), make(chan struct{})
	go func() { <-started; cancel() }()
	_, err := s.AtomicState(ctx, func(ctx context.Context, b *board) error {
		close(started)
		<-leave
		if goexit {
			runtime.Goexit()
		}
		return panicky(ctx, b)
	})
	require.ErrorIs(t, err, context.Canceled)
	close(leave)
	synctest.Wait()
	time.Sleep(time.Minute)
	synctest.Wait()
	require.Equal(t, 1, strings.Count(log.String(), "verb=Atomic"), log.String())
	require.Contains(t, log.String(), s.Key().String())
	switch {
	case !goexit:
		require.Contains(t, log.String(), "panicky")
	case !observed:
		require.Contains(t, log.String(), "Goexit")
	}
	if observed {
		require.Equal(t, 1, events.count(pawl.EventPanicked))
		require.Equal(t, s.Key(), events.find(pawl.EventPanicked).Key)
		require.Equal(t, !goexit, strings.Contains(string(events.find(pawl.EventPanicked).Stack), "panicky"))
	}
	snap, err := s.IncState(t.Context(), "count", 1)
	require.NoError(t, err, "the queue continues")
	require.EqualValues(t, 1, snap.Version)
	require.Equal(t, board{Count: 1}, snap.State())
}

// A panic is never lost: it is raised in the caller if it comes before the deadline, and logged if
// the caller has left. Proves SCOPE-5.
func TestPanicWhileTheCallerLeaves(t *testing.T) {
	t.Run("in memory", func(t *testing.T) {
		slow := pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
			if e.Type == pawl.EventPanicked {
				time.Sleep(time.Minute)
			}
		})
		bubble(t, pawl.Config{Observer: slow}, func(t *testing.T, rt *pawl.Runtime) {
			assert.Panics(t, func() {
				pawl.Memory[counts](rt, "a").AtomicState(t.Context(), func(context.Context, *counts) error { panic("boom") })
			}, "the deadline came after the panic")
		})
	})
	t.Run("persisted", func(t *testing.T) {
		var log bytes.Buffer
		persisted(t, pawl.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			open, entered := gate(h)
			first := push(s, "first")
			<-entered
			second := push(s, "second")
			ctx, leave := context.WithCancel(context.Background())
			left := make(chan error, 1)
			go func() {
				_, err := s.AtomicState(ctx, func(context.Context, *counts) error { panic("boom") })
				left <- err
			}()
			synctest.Wait()
			h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				h.Around(nil)
				leave() // the panic is part of a commit that is about to conflict
				require.ErrorIs(t, <-left, context.Canceled)
				foreign(t, h, s.Key(), 1)
				return commit()
			})
			open()
			require.NoError(t, <-first)
			require.NoError(t, <-second)
			assert.Contains(t, log.String(), "boom")
		})
	})
}

var marshals atomic.Int64
var marshalLimit atomic.Int64

// limitedJSON has a MarshalJSON that panics after marshalLimit calls, if that is positive.
type limitedJSON struct{ N int }

func (m limitedJSON) MarshalJSON() ([]byte, error) {
	if marshals.Add(1) > marshalLimit.Load() && marshalLimit.Load() > 0 {
		panic("too many calls of MarshalJSON")
	}
	return json.Marshal(map[string]int{"n": m.N})
}
func (m *limitedJSON) UnmarshalJSON(b []byte) error {
	var x map[string]int
	err := json.Unmarshal(b, &x)
	m.N = x["n"]
	return err
}

type limitedState struct {
	M limitedJSON `json:"m"`
}
type plainState struct {
	M map[string]int `json:"m"`
}

// The MarshalJSON of one type does not run in the turn of a data verb on another type.
// Proves SCOPE-5.
func TestMarshalJSONOfAnotherType(t *testing.T) {
	marshalLimit.Store(0)
	for limit := int64(1); limit < 12; limit++ {
		h := newTap()
		bubble(t, pawl.Config{Store: h}, func(t *testing.T, rt *pawl.Runtime) {
			marshalLimit.Store(0)
			a, b := pawl.Session[limitedState](rt, "a"), pawl.Session[plainState](rt, "a")
			_, err := b.SetStateRecord(t.Context(), "m", "n", 1)
			require.NoError(t, err)
			open, entered := gate(h)
			go b.IncState(context.Background(), "m.n", 1)
			<-entered
			resA, resB := make(chan any, 1), make(chan any, 1)
			go func() {
				defer func() { resA <- recover() }()
				a.AtomicState(context.Background(), func(context.Context, *limitedState) error { return nil })
			}()
			synctest.Wait()
			go func() {
				defer func() { resB <- recover() }()
				_, err := b.IncState(context.Background(), "m.n", 1)
				if err != nil {
					panic(err)
				}
			}()
			synctest.Wait()
			marshals.Store(0)
			marshalLimit.Store(limit)
			open()
			<-resA
			assert.Nil(t, <-resB, "limit %d", limit)
			marshalLimit.Store(0)
		})
	}
}
