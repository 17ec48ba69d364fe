package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// row is a Persist as a caller could write it for a row of a table.
type row struct {
	mu      sync.Mutex
	now     pawl.Snapshot[board]
	loads   int
	commits int
	before  func() (pawl.Snapshot[board], error) // its error is returned instead of committing
	after   func() error                         // its error is returned after committing
}

func (r *row) Load(context.Context) (pawl.Snapshot[board], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loads++
	return r.now, nil
}

func (r *row) Commit(_ context.Context, expected uint64, next pawl.Snapshot[board]) (pawl.Snapshot[board], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commits++
	if r.before != nil {
		if s, err := r.before(); err != nil {
			return s, err
		}
	}
	if r.now.Version != expected {
		return r.now, fmt.Errorf("%w: the version has changed", pawl.ErrConflict)
	}
	r.now = next
	if r.after != nil {
		if err := r.after(); err != nil {
			return pawl.Snapshot[board]{}, err
		}
	}
	return r.now, nil
}

// write changes the row as another writer would.
func (r *row) write(state board) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = pawl.NewSnapshot(state, r.now.Version+1, time.Now())
}

// ApplyMutation changes a container in the same way with a Persist and without one. Proves SCOPE-2,
// SCOPE-1.
func TestApplyMutation(t *testing.T) {
	for name, options := range map[string]pawl.ContainerOptions[board]{"lock": {Name: "own"}, "cas": {Name: "own", Persist: &row{}}} {
		t.Run(name, func(t *testing.T) {
			var c pawl.Container[board]
			var events eventLog
			options.Observer = &events
			apply := func(m pawl.Mutation, opts ...pawl.CallOption) (pawl.Snapshot[board], error) {
				return pawl.ApplyMutation(t.Context(), &c, options, m, opts...)
			}
			require.False(t, c.Snapshot().Exists())
			want := board{}
			for i, step := range []struct {
				m    pawl.Mutation
				want func()
			}{
				{pawl.Inc{Field: "count", By: 2}, func() { want.Count = 2 }},
				{pawl.Patch{"title": "t"}, func() { want.Title = "t" }},
				{pawl.Push{Field: "tags", Values: []any{"a"}}, func() { want.Tags = []string{"a"} }},
				{pawl.SetRecord{Field: "notes", Key: "k", Value: "v"}, func() { want.Notes = map[string]string{"k": "v"} }},
				{pawl.Atomic(func(_ context.Context, b *board) error { b.Count *= 5; return nil }), func() { want.Count = 10 }},
				{pawl.DeleteRecord{Field: "notes", Key: "k"}, func() { want.Notes = map[string]string{} }},
				{pawl.Set{State: fullBoard}, func() { want = fullBoard }},
			} {
				snap, err := apply(step.m)
				require.NoError(t, err)
				step.want()
				require.EqualValues(t, i+1, snap.Version)
				require.Equal(t, want, snap.State())
				require.Equal(t, want, c.Snapshot().State())
				require.Equal(t, snap.Version, c.Snapshot().Version)
				require.Equal(t, name, events.find(pawl.EventCommitted).Path)
			}
			for _, m := range noOps {
				snap, err := apply(m)
				require.NoError(t, err)
				require.EqualValues(t, 7, snap.Version)
			}
			_, err := apply(pawl.Atomic(func(context.Context, *board) error { return errMutator }))
			require.True(t, err == errMutator)
			_, err = apply(pawl.Inc{Field: "count", By: 1}, pawl.IfVersion(3))
			require.Equal(t, &pawl.ConcurrencyError{Scope: pawl.Key{Kind: "own"}, Expected: 3, Actual: 7}, err)
			_, err = apply(pawl.Inc{Field: "title", By: 1})
			var field *pawl.FieldError
			require.ErrorAs(t, err, &field)
			func() {
				defer func() { require.IsType(t, &pawl.PanicError{}, recover()) }()
				_, _ = apply(pawl.Atomic(panicky))
			}()
			_, err = apply(pawl.Atomic(func(ctx context.Context, _ *board) error {
				_, err := pawl.ApplyMutation(ctx, &c, options, pawl.Inc{Field: "count", By: 1})
				return err
			}))
			require.ErrorIs(t, err, pawl.ErrReentrant)
			require.EqualValues(t, 7, c.Snapshot().Version)
			require.Equal(t, fullBoard, c.Snapshot().State())
		})
	}
}

// After a conflict the mutation runs again on the state that the other writer has committed.
// Proves SCOPE-2.
func TestApplyMutationConflict(t *testing.T) {
	for _, told := range []bool{true, false} { // whether the Persist returns the state that won
		synctest.Test(t, func(t *testing.T) {
			r, c := &row{}, &pawl.Container[board]{}
			options := pawl.ContainerOptions[board]{Name: "own", Persist: r}
			inc := pawl.Inc{Field: "count", By: 1}
			_, err := pawl.ApplyMutation(t.Context(), c, options, inc)
			require.NoError(t, err)
			r.write(board{Count: 50})
			r.before = func() (pawl.Snapshot[board], error) {
				if r.now.Version == 2 && r.commits == 2 && !told {
					return pawl.Snapshot[board]{}, pawl.ErrConflict
				}
				return pawl.Snapshot[board]{}, nil
			}
			var saw []int64
			snap, err := pawl.ApplyMutation(t.Context(), c, options, pawl.Atomic(func(_ context.Context, b *board) error {
				saw = append(saw, b.Count)
				b.Count++
				return nil
			}))
			require.NoError(t, err)
			require.EqualValues(t, 3, snap.Version)
			require.EqualValues(t, 51, snap.State().Count)
			require.Equal(t, []int64{1, 50}, saw, "the function saw only states that were committed")
			// A Persist that always conflicts ends in an error after the last attempt.
			r.before = func() (pawl.Snapshot[board], error) {
				r.now = pawl.NewSnapshot(board{}, r.now.Version+1, time.Now())
				return r.now, pawl.ErrConflict
			}
			_, err = pawl.ApplyMutation(t.Context(), c, options, inc, pawl.WithRetry(pawl.Retry{Attempts: 3}))
			var lost *pawl.ConcurrentModificationError
			require.ErrorAs(t, err, &lost)
			require.Equal(t, 3, lost.Attempts)
			require.Equal(t, pawl.Key{Kind: "own"}, lost.Scope)
			require.True(t, pawl.IsRetryable(err))
		})
	}
}

// The error of a Persist tells the caller whether nothing was written or the outcome is unknown.
// Proves SCOPE-2.
func TestApplyMutationFailures(t *testing.T) {
	r, c := &row{}, &pawl.Container[board]{}
	options := pawl.ContainerOptions[board]{Name: "own", Persist: r}
	inc := pawl.Inc{Field: "count", By: 1}
	down := errors.New("connection refused")

	r.before = func() (pawl.Snapshot[board], error) {
		return pawl.Snapshot[board]{}, fmt.Errorf("%w: %w", persist.ErrNotApplied, down)
	}
	_, err := pawl.ApplyMutation(t.Context(), c, options, inc)
	require.ErrorIs(t, err, pawl.ErrUnavailable)
	require.ErrorIs(t, err, down)
	require.True(t, pawl.IsRetryable(err))
	require.False(t, pawl.OutcomeUnknown(err))

	// The answer is lost after the write: the outcome is unknown, and the commit is not sent again.
	r.before, r.after = nil, func() error { return fmt.Errorf("reset: %w", &pawl.LimitError{What: "of theirs"}) }
	commits := r.commits
	_, err = pawl.ApplyMutation(t.Context(), c, options, inc)
	var unknown *pawl.UnknownOutcomeError
	require.ErrorAs(t, err, &unknown)
	require.Empty(t, unknown.Commit)
	require.True(t, pawl.OutcomeUnknown(err))
	require.False(t, pawl.IsRetryable(err))
	require.Equal(t, commits+1, r.commits, "the commit is not sent twice")

	r.after = nil
	snap, err := pawl.ApplyMutation(t.Context(), c, options, inc)
	require.NoError(t, err, "the next mutation loads the state again")
	require.EqualValues(t, 2, snap.Version)
	require.EqualValues(t, 2, snap.State().Count)
}

// Concurrent callers of one container lose no increment, with a Persist and without one.
// Proves SCOPE-2.
func TestConcurrentApplyMutation(t *testing.T) {
	for _, persisted := range []bool{false, true} {
		r, c := &row{}, &pawl.Container[board]{}
		options := pawl.ContainerOptions[board]{}
		if persisted {
			options.Persist = r
		}
		const callers, each = 8, 50
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range each {
					_, err := pawl.ApplyMutation(t.Context(), c, options, pawl.Atomic(func(_ context.Context, b *board) error { b.Count++; return nil }))
					assert.NoError(t, err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, callers*each, c.Snapshot().Version)
		require.EqualValues(t, callers*each, c.Snapshot().State().Count)
		if persisted {
			require.EqualValues(t, callers*each, r.now.Version)
		}
	}
}

// ApplyMutation refuses an invalid argument with an error that names it. Proves SCOPE-2.
func TestApplyMutationBadArguments(t *testing.T) {
	inc := pawl.Inc{Field: "count", By: 1}
	var none context.Context
	var c pawl.Container[board]
	for argument, do := range map[string]func() error{
		"container": func() error {
			_, err := pawl.ApplyMutation(t.Context(), nil, pawl.ContainerOptions[board]{}, inc)
			return err
		},
		"ctx": func() error { _, err := pawl.ApplyMutation(none, &c, pawl.ContainerOptions[board]{}, inc); return err },
		"mutation": func() error {
			_, err := pawl.ApplyMutation(t.Context(), &c, pawl.ContainerOptions[board]{}, nil)
			return err
		},
		"ContainerOptions.Timeout": func() error {
			_, err := pawl.ApplyMutation(t.Context(), &c, pawl.ContainerOptions[board]{Timeout: -5}, inc)
			return err
		},
		"ContainerOptions.Retry": func() error {
			_, err := pawl.ApplyMutation(t.Context(), &c, pawl.ContainerOptions[board]{Retry: pawl.Retry{Attempts: -1}}, inc)
			return err
		},
	} {
		var e *pawl.ArgumentError
		require.ErrorAs(t, do(), &e)
		require.Equal(t, argument, e.Argument)
	}
	var functions pawl.Container[func()]
	_, err := pawl.ApplyMutation(t.Context(), &functions, pawl.ContainerOptions[func()]{Name: "own"}, pawl.Set{})
	var e *pawl.KindError
	require.ErrorAs(t, err, &e)
	require.False(t, c.Snapshot().Exists())
}
