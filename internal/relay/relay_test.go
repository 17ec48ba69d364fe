package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/relay"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/persisttest"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// open returns a relay in front of a database.
func open(location string) (persist.Store, error) {
	store, err := sqlite.Open(context.Background(), location, sqlite.Config{})
	if err != nil {
		return nil, err
	}
	return relay.New(store, pass), nil
}

// pass is a hook that passes all calls on.
func pass(ctx context.Context, _ relay.Call, next func(context.Context) error) error {
	return next(ctx)
}

func TestMain(m *testing.M) {
	testkit.Main(func() int { return persisttest.Main(m, open) })
}

// All interfaces of a store work through a relay.
func TestConformance(t *testing.T) {
	persisttest.Run(t, open, persisttest.Options{Location: func(t *testing.T) string { return t.TempDir() + "/state.db" }})
}

// bare has none of the optional interfaces.
type bare struct{ persist.Store }

// emulated has the optional interfaces that a relay provides for any store.
type emulated struct {
	persist.Logger
	persist.Reader
	persist.Prober
}

// A relay in front of a store without optional interfaces reads several records at one moment,
// probes versions, and keeps logs.
func TestConformanceOfBareStore(t *testing.T) {
	openBare := func(string) (persist.Store, error) {
		r := relay.New(bare{memory.New()}, nil)
		return emulated{r, r, r}, nil
	}
	persisttest.Run(t, openBare, persisttest.Options{Volatile: true})
}

// What a relay cannot provide for a store, it does not pretend to do.
func TestBareStore(t *testing.T) {
	ctx := t.Context()
	r := relay.New(bare{memory.New()}, nil)
	_, err := r.Take(ctx, persist.Query{Kind: "k"}, persist.Acquire{Holder: "h", For: 1}, nil)
	require.ErrorIs(t, err, persist.ErrUnsupported)
	require.ErrorIs(t, r.Watch(ctx, func(persist.Hint) {}), persist.ErrUnsupported)
	require.ErrorIs(t, r.Restore(ctx, nil, 1), persist.ErrUnsupported)
	require.ErrorIs(t, r.RestoreLog(ctx, nil, 1), persist.ErrUnsupported)
	_, err = r.CommitWith(ctx, persist.Commit{}, func(context.Context, any) error { return nil })
	require.ErrorIs(t, err, persist.ErrUnsupported)
	require.Nil(t, r.NativeType())
	removed, err := r.Purge(ctx, persist.Query{Kind: "k"})
	require.NoError(t, err)
	require.Zero(t, removed)
}

func TestNativeType(t *testing.T) {
	store, err := open(t.TempDir() + "/state.db")
	require.NoError(t, err)
	defer store.Close()
	require.Equal(t, reflect.TypeFor[*sql.Tx](), store.(persist.Native).NativeType())
}

// Every call except Close and NativeType passes through the hook, under its own name, and returns
// the error of the hook.
func TestHook(t *testing.T) {
	store, err := sqlite.Open(t.Context(), t.TempDir()+"/state.db", sqlite.Config{})
	require.NoError(t, err)
	refused := errors.New("refused")
	var last relay.Call
	r := relay.New(store, func(_ context.Context, call relay.Call, _ func(context.Context) error) error {
		last = call
		return refused
	})
	ctx, c := t.Context(), persist.Commit{ID: "test.1"}
	for method, run := range map[string]func() error{
		"Load":         func() error { _, err := r.Load(ctx, persist.Key{}); return err },
		"Commit":       func() error { _, err := r.Commit(ctx, c); return err },
		"List":         func() error { _, err := r.List(ctx, persist.Query{}); return err },
		"LoadAll":      func() error { _, err := r.LoadAll(ctx, nil); return err },
		"Versions":     func() error { _, err := r.Versions(ctx, nil); return err },
		"Take":         func() error { _, err := r.Take(ctx, persist.Query{}, persist.Acquire{}, nil); return err },
		"Purge":        func() error { _, err := r.Purge(ctx, persist.Query{}); return err },
		"Watch":        func() error { return r.Watch(ctx, nil) },
		"ReadLog":      func() error { _, err := r.ReadLog(ctx, persist.LogQuery{}); return err },
		"ReadOrder":    func() error { _, err := r.ReadOrder(ctx, persist.OrderQuery{}); return err },
		"LastPosition": func() error { _, err := r.LastPosition(ctx); return err },
		"Restore":      func() error { return r.Restore(ctx, nil, 0) },
		"RestoreLog":   func() error { return r.RestoreLog(ctx, nil, 0) },
		"CommitWith":   func() error { _, err := r.CommitWith(ctx, c, nil); return err },
	} {
		require.ErrorIs(t, run(), refused, method)
		require.Equal(t, method, last.Method)
		require.Equal(t, method == "Commit" || method == "CommitWith", last.Commit != nil, method)
	}
	require.NoError(t, r.Close())
}
