package persisttest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) native() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"the transaction has NativeType":                  s.nativeType,
		"an error is returned unchanged and undoes all":   s.nativeError,
		"a panic is passed on and undoes all":             s.nativePanic,
		"a refused commit does not run the function":      s.nativeRefused,
		"a commit may have no writes and no guards":       s.nativeEmpty,
		"one of many commits wins, its function ran once": s.nativeRace,
	}
}

// native returns the store as a Native.
func (f *fixture) native() persist.Native {
	f.Helper()
	native, ok := f.store.(persist.Native)
	if !ok {
		f.Skip("the store is not a persist.Native")
	}
	return native
}

// inTx commits writes with fn.
func (f *fixture) inTx(fn func(context.Context, any) error, writes ...persist.Write) (time.Time, error) {
	return f.native().CommitWith(f.Context(), persist.Commit{ID: commitID(), Writes: writes}, fn)
}

func nothing(context.Context, any) error { return nil }

// Proves TX-6.
func (s suite) nativeType(t *testing.T) {
	f := s.fresh(t)
	native := f.native()
	want := native.NativeType()
	require.NotNil(t, want)
	var got reflect.Type
	at, err := f.inTx(func(ctx context.Context, tx any) error {
		got = reflect.TypeOf(tx)
		return ctx.Err()
	}, create(thing))
	require.NoError(t, err)
	require.NotNil(t, got)
	require.True(t, got.AssignableTo(want), "%s is not assignable to %s", got, want)
	r := f.load(thing)
	require.EqualValues(t, 1, r.Version)
	require.True(t, r.Updated.Equal(at))
	require.Len(t, r.Commits, 1)
}

// nativeError: any error of the function is returned unchanged, also an error that the store itself
// uses. A store that mixed them up would retry, or report a wrong outcome.
//
// Proves TX-6.
func (s suite) nativeError(t *testing.T) {
	f := s.fresh(t)
	f.native()
	f.must(acquire(thing, 0, "me", time.Hour))
	before := f.load(thing)
	for _, own := range []error{
		errors.New("no"),
		&persist.Conflict{},
		&persist.Fenced{},
		fmt.Errorf("mine: %w", persist.ErrUnavailable),
		persist.ErrNotFound,
		context.Canceled,
		context.DeadlineExceeded,
	} {
		calls := 0
		_, err := f.native().CommitWith(t.Context(), persist.Commit{
			ID:     commitID(),
			Writes: []persist.Write{update(thing, 1)},
			Guards: []persist.Guard{{Key: thing, Token: 1, Release: true}},
		}, func(context.Context, any) error {
			calls++
			return own
		})
		require.True(t, err == own, "%v became %v", own, err)
		require.Equal(t, 1, calls)
		same(t, before, f.load(thing))
	}
	_, err := f.inTx(nothing, update(thing, 1))
	require.NoError(t, err, "a commit after the rollback succeeds")
}

// nativePanic: the test repeats it, so that a transaction that is left open would be noticed.
//
// Proves TX-6.
func (s suite) nativePanic(t *testing.T) {
	f := s.fresh(t)
	f.native()
	f.must(create(thing))
	before := f.load(thing)
	value := &struct{ text string }{"help"}
	for range 30 {
		func() {
			defer func() { require.True(t, recover() == any(value)) }()
			_, err := f.inTx(func(context.Context, any) error { panic(value) }, update(thing, 1))
			t.Errorf("CommitWith returned %v instead of panicking", err)
		}()
	}
	same(t, before, f.load(thing))
	_, err := f.inTx(nothing, update(thing, 1))
	require.NoError(t, err)
	require.EqualValues(t, 2, f.load(thing).Version)
}

// Proves TX-6.
func (s suite) nativeRefused(t *testing.T) {
	f := s.fresh(t)
	native := f.native()
	f.must(acquire(thing, 0, "me", time.Hour))
	before := f.load(thing)
	never := func(context.Context, any) error {
		t.Error("the function ran in a commit that was refused")
		return nil
	}
	_, err := f.inTx(never, create(thing))
	same(t, before, lost(t, err)[0])
	_, err = f.inTx(never, update(thing, 7))
	lost(t, err)
	_, err = f.inTx(never, acquire(thing, 1, "you", time.Hour))
	lost(t, err)
	guarded := func(ctx context.Context, guard persist.Guard, writes ...persist.Write) error {
		_, err := native.CommitWith(ctx, persist.Commit{ID: commitID(), Writes: writes, Guards: []persist.Guard{guard}}, never)
		return err
	}
	lost(t, guarded(t.Context(), persist.Guard{Key: thing, Read: true, Version: 3}))
	same(t, before, fenced(t, guarded(t.Context(), persist.Guard{Key: thing, Token: 9}, update(thing, 1))))
	fenced(t, guarded(t.Context(), persist.Guard{Key: thing, Token: 9, Release: true}))
	require.ErrorIs(t, guarded(t.Context(), persist.Guard{Key: thing}), persist.ErrNotApplied)
	_, err = f.inTx(never, persist.Write{Key: thing, Expected: 1, Version: 1, Doc: doc(1)})
	require.ErrorIs(t, err, persist.ErrNotApplied)
	if !s.options.SingleKey {
		_, err = f.inTx(never, update(thing, 1), update(key("absent"), 3))
		require.Len(t, lost(t, err), 1)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err = guarded(ended, persist.Guard{Key: thing, Token: 1}, update(thing, 1))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	same(t, before, f.load(thing))
	require.NoError(t, f.store.Close())
	require.ErrorIs(t, guarded(t.Context(), persist.Guard{Key: thing, Token: 1}), persist.ErrClosed)
}

// Proves TX-6.
func (s suite) nativeEmpty(t *testing.T) {
	f := s.fresh(t)
	native := f.native()
	for _, id := range []string{"", commitID()} {
		calls := 0
		at, err := native.CommitWith(t.Context(), persist.Commit{ID: id}, func(context.Context, any) error {
			calls++
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, 1, calls)
		require.False(t, at.IsZero(), "CommitWith returned no time")
	}
	own := errors.New("no")
	_, err := native.CommitWith(t.Context(), persist.Commit{}, func(context.Context, any) error { return own })
	require.True(t, err == own)
	_, err = f.store.Commit(t.Context(), persist.Commit{ID: commitID()})
	require.ErrorIs(t, err, persist.ErrNotApplied, "an empty commit without a function is malformed")
}

// nativeRace: under contention, the function runs in the commit that wins and in no other.
//
// Proves TX-6, STORE-2.
func (s suite) nativeRace(t *testing.T) {
	f := s.fresh(t)
	f.native()
	f.must(create(thing))
	const contenders, rounds = 8, 5
	for round := range uint64(rounds) {
		errs, calls := make([]error, contenders), make([]int, contenders)
		together(contenders, func(i int) {
			_, errs[i] = f.inTx(func(context.Context, any) error {
				calls[i]++
				return nil
			}, update(thing, round+1))
		})
		won := 0
		for i, err := range errs {
			if err == nil {
				won++
				require.Equal(t, 1, calls[i])
				continue
			}
			lost(t, err)
			require.Zero(t, calls[i])
		}
		require.Equal(t, 1, won)
		require.Equal(t, round+2, f.load(thing).Version)
	}
}
