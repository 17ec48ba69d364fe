package pawl_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
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

var errMutator = errors.New("no")

// A mutator's error comes back as it is, whatever its type, and nothing happened. Proves SCOPE-4.
func TestMutatorError(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		start := board{Title: "t", Tags: []string{"a"}, Notes: map[string]string{"k": "v"}}
		seed(t, s, start)
		for _, want := range []error{
			errMutator, fmt.Errorf("wrapped: %w", errMutator), context.Canceled,
			&pawl.FieldError{Reason: "mine"}, &pawl.ConcurrentModificationError{}, pawl.ErrClosed, pawl.ErrConflict,
		} {
			snap, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error {
				b.Title, b.Count, b.Tags[0], b.Notes["k"] = "changed", 9, "changed", "changed"
				return want
			})
			require.True(t, err == want, "got %v, not the very error that was returned", err)
			require.False(t, snap.Exists())
			requireState(t, p, s, 1, start)
		}
		if p.store != nil {
			require.EqualValues(t, 1, p.store.commits.Load(), "only the seed was written")
		}
	})
}

// The same where the error leaves nothing behind to be current. Proves SCOPE-4.
func TestMutatorErrorOnAbsentScope(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		_, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error {
			b.Count = 1
			return errMutator
		})
		require.True(t, err == errMutator)
		requireAbsent(t, p, s)
	})
}

// Those who share the commit with a mutator that fails are not concerned. Proves SCOPE-4, SCOPE-5.
func TestFailuresConcernNobodyElse(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		seed(t, s, board{Title: "t"})
		const each = 20
		var wg sync.WaitGroup
		for range each {
			wg.Go(func() {
				_, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error { b.Count++; return nil })
				if err != nil {
					t.Errorf("a good mutator: %v", err)
				}
			})
			wg.Go(func() {
				_, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error { b.Count += 1000; return errMutator })
				if err != errMutator {
					t.Errorf("a failing mutator: %v", err)
				}
			})
			wg.Go(func() {
				defer func() {
					if raised, ok := recover().(*pawl.PanicError); !ok || raised.Value != "boom" {
						t.Errorf("a panicking mutator: %v", raised)
					}
				}()
				_, _ = s.AtomicState(t.Context(), func(_ context.Context, b *board) error { b.Count += 1000; panic("boom") })
			})
			wg.Go(func() {
				_, _ = s.AtomicState(t.Context(), func(_ context.Context, b *board) error { b.Count += 1000; runtime.Goexit(); return nil })
				t.Error("a mutator that calls Goexit lets its caller go on")
			})
		}
		wg.Wait()
		requireState(t, p, s, 1+each, board{Title: "t", Count: each})
	})
}

// panicky is what the stack of its panic must name.
func panicky(_ context.Context, b *board) error {
	b.Count = 99
	panic(errMutator)
}

// A panic is raised again in the caller, with its value and the stack of where it began. Proves SCOPE-5.
func TestPanicInMutator(t *testing.T) {
	var events eventLog
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		seed(t, s, board{Count: 1})
		func() {
			defer func() {
				got, ok := recover().(*pawl.PanicError)
				require.True(t, ok, "the caller got no panic")
				require.Equal(t, errMutator, got.Value)
				require.ErrorIs(t, got, errMutator, "a panic with an error is that error")
				require.Contains(t, string(got.Stack), "panicky")
				require.Contains(t, got.Error(), "panicky", "an uncaught panic prints the original stack")
			}()
			_, _ = s.AtomicState(t.Context(), panicky)
			t.Error("the caller went on")
		}()
		requireState(t, p, s, 1, board{Count: 1})
		last := events.find(pawl.Panicked)
		require.Equal(t, s.Key(), last.Key)
		require.Contains(t, string(last.Stack), "panicky")
		_, err := s.IncState(t.Context(), "count", 1)
		require.NoError(t, err, "the queue goes on")
		requireState(t, p, s, 2, board{Count: 2})
	}, func(c *pawl.Config) { c.Observer = &events })
}

// runtime.Goexit in a mutator, as testing's FailNow does it, ends the caller's goroutine and nothing else. Proves SCOPE-5.
func TestGoexitInMutator(t *testing.T) {
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
		require.False(t, returned, "the caller went on")
		_, err := s.IncState(t.Context(), "count", 1)
		require.NoError(t, err, "the queue goes on")
		_, err = s.AtomicState(t.Context(), func(_ context.Context, b *board) error { b.Count++; return nil })
		require.NoError(t, err)
		requireState(t, p, s, 3, board{Count: 3})
	})
}

// When the caller has left, the log and the observer hear of a panic, with its stack. Proves SCOPE-5.
func TestPanicAfterCallerLeft(t *testing.T) {
	for _, stored := range []bool{false, true} {
		for _, goexit := range []bool{false, true} {
			t.Run(fmt.Sprintf("stored %v, Goexit %v", stored, goexit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testPanicAfterCallerLeft(t, stored, goexit) })
			})
		}
	}
}

func testPanicAfterCallerLeft(t *testing.T, stored, goexit bool) {
	var log syncBuffer
	var events eventLog
	rt := openRuntime(t, pawl.Config{Store: memory.New(), Observer: &events, Logger: slog.New(slog.NewTextHandler(&log, nil))})
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
	require.Equal(t, s.Key(), events.find(pawl.Panicked).Key)
	require.Contains(t, log.String(), s.Key().String())
	if goexit {
		require.Contains(t, log.String(), "Goexit")
	} else {
		require.Contains(t, log.String(), "panicky")
		require.Contains(t, string(events.find(pawl.Panicked).Stack), "panicky")
	}
	snap, err := s.IncState(t.Context(), "count", 1)
	require.NoError(t, err, "the queue goes on")
	require.EqualValues(t, 1, snap.Version)
	require.Equal(t, board{Count: 1}, snap.State())
}

// eventLog is an Observer that remembers.
type eventLog struct {
	mu     sync.Mutex
	events []pawl.Event
}

func (l *eventLog) Observe(_ context.Context, e pawl.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// find returns the last event of type typ, the zero Event if there is none.
func (l *eventLog) find(typ pawl.EventType) pawl.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.events) - 1; i >= 0; i-- {
		if l.events[i].Type == typ {
			return l.events[i]
		}
	}
	return pawl.Event{}
}

// count returns how many events of type typ there were.
func (l *eventLog) count(typ pawl.EventType) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Type == typ {
			n++
		}
	}
	return n
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// In a commit that fails, or of which nobody knows, those who had nothing in it are told no more than that: a panic is still
// raised, and an error or a no-op that cannot be confirmed was certainly not applied. Proves SCOPE-4, SCOPE-5.
func TestFailuresInFailedCommit(t *testing.T) {
	for _, doubt := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			failure := fmt.Errorf("down: %w", persist.ErrNotApplied)
			if doubt {
				failure = persist.ErrUnavailable
			}
			store := &tap{Store: memory.New()}
			rt := openRuntime(t, pawl.Config{Store: store, Retry: pawl.Retry{Within: time.Second}})
			s := pawl.Session[board](rt, "a")
			seed(t, s, board{Title: "t"})
			entered, release := make(chan struct{}), make(chan struct{})
			first := true
			store.onCommit(func(context.Context, persist.Commit) error {
				if first { // the queue's commits come one after another
					first = false
					close(entered)
					<-release
					return nil
				}
				return failure
			})
			var wg sync.WaitGroup
			wg.Go(func() { assert.NoError(t, increment(s)) })
			<-entered
			for range 3 {
				wg.Go(func() {
					err := increment(s)
					assert.Equal(t, doubt, pawl.OutcomeUnknown(err))
					assert.Equal(t, !doubt, pawl.IsRetryable(err))
				})
				wg.Go(func() {
					_, err := s.AtomicState(t.Context(), func(context.Context, *board) error { return errMutator })
					assert.ErrorIs(t, err, pawl.ErrUnavailable)
					assert.False(t, pawl.OutcomeUnknown(err))
				})
				wg.Go(func() {
					_, err := s.PatchState(t.Context(), pawl.Patch{"title": "t"})
					assert.ErrorIs(t, err, pawl.ErrUnavailable)
					assert.False(t, pawl.OutcomeUnknown(err))
				})
				wg.Go(func() {
					defer func() { assert.IsType(t, &pawl.PanicError{}, recover()) }()
					_, _ = s.AtomicState(t.Context(), panicky)
					t.Error("the caller went on")
				})
				wg.Go(func() {
					_, _ = s.AtomicState(t.Context(), func(context.Context, *board) error { runtime.Goexit(); return nil })
					t.Error("the caller went on")
				})
			}
			synctest.Wait()
			close(release)
			wg.Wait()
			store.onCommit(nil)
			snap, err := s.Snapshot(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 2, snap.Version)
			require.Equal(t, board{Title: "t", Count: 1}, snap.State())
		})
	}
}
