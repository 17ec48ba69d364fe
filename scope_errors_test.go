package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errMutator = errors.New("no")

// The error of a function reaches its caller unchanged, whatever its type, and nothing is
// committed. Proves SCOPE-4.
func TestFunctionError(t *testing.T) {
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
			require.True(t, err == want, "got %v instead of the error that the function returned", err)
			require.False(t, snap.Exists())
			requireState(t, p, s, 1, start)
		}
		if p.store != nil {
			require.EqualValues(t, 1, p.store.Commits.Load(), "only the seed was written")
		}
	})
}

// A function that fails on an absent scope does not create the scope. Proves SCOPE-4.
func TestFunctionErrorOnAbsentScope(t *testing.T) {
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

// Failing functions do not affect the other mutations of their batch. Proves SCOPE-4, SCOPE-5.
func TestFailuresDoNotAffectTheBatch(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		seed(t, s, board{Title: "t"})
		const each = 20
		var wg sync.WaitGroup
		for range each {
			wg.Go(func() {
				_, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error { b.Count++; return nil })
				if err != nil {
					t.Errorf("function that succeeds: %v", err)
				}
			})
			wg.Go(func() {
				_, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error { b.Count += 1000; return errMutator })
				if err != errMutator {
					t.Errorf("function that fails: %v", err)
				}
			})
			wg.Go(func() {
				defer func() {
					if raised, ok := recover().(*pawl.PanicError); !ok || raised.Value != "boom" {
						t.Errorf("function that panics: %v", raised)
					}
				}()
				_, _ = s.AtomicState(t.Context(), func(_ context.Context, b *board) error { b.Count += 1000; panic("boom") })
			})
			wg.Go(func() {
				_, _ = s.AtomicState(t.Context(), func(_ context.Context, b *board) error { b.Count += 1000; runtime.Goexit(); return nil })
				t.Error("the caller of a function that called Goexit continued")
			})
		}
		wg.Wait()
		requireState(t, p, s, 1+each, board{Title: "t", Count: each})
	})
}

// In a commit that fails or is in doubt, a panic is still raised in its caller. Failed functions
// and no-ops get ErrUnavailable, never an unknown outcome. Proves SCOPE-4, SCOPE-5.
func TestFailuresInFailedCommit(t *testing.T) {
	for _, doubt := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			failure := fmt.Errorf("down: %w: %w", persist.ErrNotApplied, persist.ErrUnavailable)
			if doubt {
				failure = persist.ErrUnavailable
			}
			store := newTap()
			rt := openRuntime(t, pawl.Config{Store: store, Retry: pawl.Retry{Within: time.Second}})
			s := pawl.Session[board](rt, "a")
			seed(t, s, board{Title: "t"})
			entered, release := make(chan struct{}), make(chan struct{})
			first := true
			store.OnCommit(func(context.Context, persist.Commit) error {
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
					t.Error("the caller continued")
				})
				wg.Go(func() {
					_, _ = s.AtomicState(t.Context(), func(context.Context, *board) error { runtime.Goexit(); return nil })
					t.Error("the caller continued")
				})
			}
			synctest.Wait()
			close(release)
			wg.Wait()
			store.OnCommit(nil)
			snap, err := s.Snapshot(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 2, snap.Version)
			require.Equal(t, board{Title: "t", Count: 1}, snap.State())
		})
	}
}

// IsNonRetryable finds the mark inside wrapped errors, and the mark hides nothing of the error.
func TestNonRetryable(t *testing.T) {
	require.NoError(t, pawl.NonRetryable(nil))
	err := fmt.Errorf("around: %w", pawl.NonRetryable(pawl.ErrNotFound))
	require.True(t, pawl.IsNonRetryable(err))
	require.ErrorIs(t, err, pawl.ErrNotFound)
	require.Equal(t, "NOT_FOUND", pawl.Code(err))
	require.Equal(t, 404, pawl.HTTPStatus(err))
	require.Equal(t, pawl.ErrNotFound.Error(), errors.Unwrap(err).Error())
	require.False(t, pawl.IsNonRetryable(pawl.ErrNotFound))
	require.False(t, pawl.IsNonRetryable(nil))
}

// teapot is an error of a caller, whose status depends on its code.
type teapot struct{ error }

func (teapot) Code() string { return "TEAPOT" }

func (e teapot) HTTPStatus() int {
	if pawl.Code(e) == "TEAPOT" {
		return 418
	}
	return 500
}

// Code and HTTPStatus each call only their own method of a caller's error: the one may use the other.
func TestCodedErrorsOfCallers(t *testing.T) {
	err := fmt.Errorf("around: %w", teapot{errors.New("short and stout")})
	require.Equal(t, "TEAPOT", pawl.Code(err))
	require.Equal(t, 418, pawl.HTTPStatus(err))
}

// A message names the object, its state and the values that a reader needs.
func TestErrorMessages(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	s := pawl.Memory[board](rt, "a")
	invalid := func(opt pawl.CallOption) error { _, err := s.IncState(t.Context(), "count", 1, opt); return err }
	for want, err := range map[string]error{
		"pawl: memory/a: queue full: 5 mutations waiting":                                       &pawl.OverloadedError{Scope: s.Key(), Queue: 5},
		"pawl: memory/a: held by host:1":                                                        &pawl.HeldError{Scope: s.Key(), Holder: "host:1"},
		"pawl: memory/a: held by host:1 for another 2s":                                         &pawl.HeldError{Scope: s.Key(), Holder: "host:1", Left: 2 * time.Second},
		"pawl: memory/a: expected version 1, found 2":                                           &pawl.ConcurrencyError{Scope: s.Key(), Expected: 1, Actual: 2},
		"pawl: memory/a: mutation canceled while queued, it was withdrawn: context canceled":    &pawl.CanceledError{Scope: s.Key(), Phase: pawl.PhaseQueued, Cause: context.Canceled},
		"pawl: memory/" + strings.Repeat("x", 93) + "... (5127 bytes): id: limit 255, got 5120": &pawl.LimitError{Scope: pawl.Key{Kind: "memory", ID: strings.Repeat("x", 5120)}, What: "id", Limit: 255, Got: 5120},
		"pawl: m/" + strings.Repeat("€", 32) + "... (302 bytes): id: limit 255, got 300":        &pawl.LimitError{Scope: pawl.Key{Kind: "m", ID: strings.Repeat("€", 100)}, What: "id", Limit: 255, Got: 300},
		"pawl: WithTimeout: must not be negative, got -2s":                                      invalid(pawl.WithTimeout(-2 * time.Second)),
		"pawl: WithDueIn: must not be negative, got -1ns":                                       invalid(pawl.WithDueIn(-1)),
		"pawl: WithTTL: must not be negative, got -1ns":                                         invalid(pawl.WithTTL(-1)),
	} {
		require.EqualError(t, err, want)
	}
}
