package pawltest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/pawltest"
)

func TestRequire(t *testing.T) {
	store := pawltest.NewStore()
	rt := open(t, store)
	scope := counters.Scope(rt, "a")
	pawltest.RequireAbsent(t, scope)
	pawltest.RequireVersion(t, scope, 0)
	fails(t, "counter/a: no state, want", func(t testing.TB) { pawltest.RequireState(t, scope, counter{}) })

	_, err := scope.SetState(t.Context(), counter{N: 1, Seen: map[string]int{"x": 1, "y": 2}})
	require.NoError(t, err)
	pawltest.RequireState(t, scope, counter{N: 1, Seen: map[string]int{"y": 2, "x": 1}})
	pawltest.RequireVersion(t, scope, 1)
	fails(t, `state is {"n":1,"seen":{"x":1,"y":2}} at version 1, want {"n":2}`, func(t testing.TB) {
		pawltest.RequireState(t, scope, counter{N: 2})
	})
	fails(t, "version is 1, want 2", func(t testing.TB) { pawltest.RequireVersion(t, scope, 2) })
	fails(t, "at version 1, want none", func(t testing.TB) { pawltest.RequireAbsent(t, scope) })

	require.NoError(t, scope.Delete(t.Context()))
	pawltest.RequireAbsent(t, scope)
	store.Down()
	fails(t, "counter/a", func(t testing.TB) { pawltest.RequireAbsent(t, scope) })
	store.Up()

	docs := pawl.Kind[pawl.Doc]{Name: "doc"}.Scope(rt, "a")
	_, err = docs.SetState(t.Context(), pawl.Doc{"n": 1, "list": []any{"a"}})
	require.NoError(t, err)
	pawltest.RequireState(t, docs, pawl.Doc{"list": []string{"a"}, "n": 1.0})

	inMemory := pawl.Memory[counter](rt, "a")
	_, err = inMemory.IncState(t.Context(), "n", 3)
	require.NoError(t, err)
	pawltest.RequireState(t, inMemory, counter{N: 3})
}

// fails runs f with a test that fails with a message.
func fails(t *testing.T, message string, f func(t testing.TB)) {
	t.Helper()
	require.Contains(t, testkit.Failure(t, f), message)
}

func TestRecorder(t *testing.T) {
	var events pawltest.Recorder
	require.Equal(t, "[]", events.String())
	scope := created(t, open(t, pawltest.NewStore(), &events))
	require.EqualValues(t, 1, events.Wait(t, pawl.EventCommitted).Version) // it happened before
	require.Equal(t, 1, events.Count(pawl.EventCommitted))
	require.Zero(t, events.Count(pawl.EventConflicted))
	require.Contains(t, events.String(), "committed counter/a")

	events.Reset()
	require.Empty(t, events.Events())
	found := make(chan pawl.Event, 1)
	go func() {
		found <- events.WaitFor(t, "version 4", func(e pawl.Event) bool { return e.Type == pawl.EventCommitted && e.Version == 4 })
	}()
	for range 4 {
		_, err := scope.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
	}
	require.EqualValues(t, 4, testkit.Receive(t, found).Version)
	require.Equal(t, 4, events.Count(pawl.EventCommitted))
}

func TestRecorderWaitsInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events pawltest.Recorder
		events.Observe(t.Context(), pawl.Event{Type: pawl.EventStarted, Key: pawl.Key{Kind: "counter", ID: "a"}})
		start := time.Now()
		fails(t, "no event within 30s: lease lost; events so far: [started counter/a]", func(t testing.TB) {
			events.Wait(t, pawl.EventLeaseLost)
		})
		require.Equal(t, 30*time.Second, time.Since(start))
	})
}

// count returns the counter as Race wants it.
func count(scope pawl.Scope[counter]) func(ctx context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		c, err := scope.State(ctx)
		return c.N, err
	}
}
