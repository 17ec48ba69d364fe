package pawltest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/pawltest"
)

// plus is the model of a verb that adds n.
func plus(n int) func(counter) counter {
	return func(c counter) counter { c.N += n; return c }
}

// Verbs of all kinds on two runtimes, with faults, are one history.
func TestHistory(t *testing.T) {
	store := pawltest.NewStore()
	scopes := []pawl.Scope[counter]{created(t, open(t, store)), counters.Scope(open(t, store), "a")}
	h := pawltest.NewHistory(t, scopes[0])
	for n := 1; n < 100; n += 5 {
		store.Nth(n, pawltest.LostAnswer)
		store.Nth(n+2, pawltest.LostRequest)
	}
	errRefused := errors.New("refused")
	pawltest.Race(t, 6, func(ctx context.Context, writer int) (acknowledged int, err error) {
		scope := scopes[writer%2]
		for i := range 20 {
			name := fmt.Sprint("writer ", writer, " call ", i)
			_, err := h.Write(name, plus(1), func() (pawl.Snapshot[counter], error) { return scope.IncState(ctx, "n", 1) })
			if err != nil {
				return acknowledged, err
			}
			acknowledged++
			set := func(c counter) counter { // its map is that of the state that it gets
				if c.Seen == nil {
					c.Seen = map[string]int{}
				}
				c.Seen["x"] = i % 3
				return c
			}
			if _, err := h.Write(name+" set", set, func() (pawl.Snapshot[counter], error) {
				return scope.SetStateRecord(ctx, "seen", "x", i%3) // may change nothing
			}); err != nil {
				return acknowledged, err
			}
			if _, err := h.Write(name+" refused", plus(100), func() (pawl.Snapshot[counter], error) {
				return scope.AtomicState(ctx, func(_ context.Context, c *counter) error { c.N += 100; return errRefused })
			}); !errors.Is(err, errRefused) {
				return acknowledged, err
			}
			if _, err := h.Read(name+" read", func() (pawl.Snapshot[counter], error) { return scope.Snapshot(ctx) }); err != nil {
				return acknowledged, err
			}
		}
		return acknowledged, nil
	}, count(scopes[1]))
	h.Check(t)
}

// A history can start with a scope that was never written.
func TestHistoryOfNewScope(t *testing.T) {
	scope := counters.Scope(open(t, pawltest.NewStore()), "new")
	h := pawltest.NewHistory(t, scope)
	_, err := h.Read("read", func() (pawl.Snapshot[counter], error) { return scope.Snapshot(t.Context()) })
	require.NoError(t, err)
	_, err = h.Write("add", plus(1), func() (pawl.Snapshot[counter], error) { return scope.IncState(t.Context(), "n", 1) })
	require.NoError(t, err)
	h.Check(t)
}

// The history says what is wrong with the calls.
func TestHistoryFindsFaults(t *testing.T) {
	type run struct {
		*testing.T
		h     *pawltest.History[counter]
		scope pawl.Scope[counter]
		other pawl.Scope[counter] // in another process
	}
	increment := func(r run, scope pawl.Scope[counter]) {
		r.Helper()
		_, err := r.h.Write("add", plus(1), func() (pawl.Snapshot[counter], error) { return scope.IncState(r.Context(), "n", 1) })
		require.NoError(r, err)
	}
	for message, calls := range map[string]func(r run){
		// Another process adds between the read and the write of get-then-set.
		`get-then-set made {"n":1} of {"n":2} at version 4, its model makes {"n":3}`: func(r run) {
			_, err := r.h.Write("get-then-set", plus(1), func() (pawl.Snapshot[counter], error) {
				c, err := r.scope.State(r.Context())
				require.NoError(r, err)
				increment(r, r.other)
				increment(r, r.other)
				c.N++
				return r.scope.SetState(r.Context(), c)
			})
			require.NoError(r, err)
		},
		// LastSeen does not ask the store, so it may go back behind an acknowledged write.
		"add answered version 2 before a call began that answered an earlier version": func(r run) {
			_, err := r.scope.Snapshot(r.Context())
			require.NoError(r, err)
			increment(r, r.other)
			_, err = r.h.Read("last seen", func() (pawl.Snapshot[counter], error) {
				snap, _ := r.scope.LastSeen()
				return snap, nil
			})
			require.NoError(r, err)
		},
		"of the versions 2 to 3, 1 belong to no acknowledged write": func(r run) {
			_, err := r.other.IncState(r.Context(), "n", 1) // not recorded
			require.NoError(r, err)
			increment(r, r.scope)
		},
		"of the versions 2 to 2, 1 belong to no acknowledged write": func(r run) {
			_, err := r.other.IncState(r.Context(), "n", 1) // seen at the end only
			require.NoError(r, err)
		},
		`acknowledged, not done is missing in version 1, which it answered: the state is {"n":0}`: func(r run) {
			_, err := r.h.Write("acknowledged, not done", plus(1), func() (pawl.Snapshot[counter], error) { return r.scope.Snapshot(r.Context()) })
			require.NoError(r, err)
		},
		"answered version 0, below version 1 at the start": func(r run) {
			require.NoError(r, r.scope.Delete(r.Context()))
		},
	} {
		t.Run(message, func(t *testing.T) {
			store := pawltest.NewStore()
			scope := created(t, open(t, store))
			r := run{t, pawltest.NewHistory(t, scope), scope, counters.Scope(open(t, store), "a")}
			calls(r)
			fails(t, message, func(t testing.TB) { r.h.Check(t) })
		})
	}
}

// A write of unknown outcome may have made one version, and no more.
func TestHistoryWithUnknownOutcome(t *testing.T) {
	for _, landed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := pawltest.NewStore()
			scope := created(t, open(t, store))
			h := pawltest.NewHistory(t, scope)
			add := func() error {
				_, err := h.Write("add", plus(1), func() (pawl.Snapshot[counter], error) { return scope.IncState(t.Context(), "n", 1) })
				return err
			}
			store.Every(pawltest.LostRequest)
			if landed {
				store.Next(pawltest.LostAnswer)
				store.Every(pawltest.LostRequest) // the resends are lost, so Pawl cannot find out
			}
			require.True(t, pawl.OutcomeUnknown(add()))
			store.Every(nil)
			require.NoError(t, add())
			h.Check(t)
			for range 2 {
				_, err := scope.IncState(t.Context(), "n", 1) // not recorded
				require.NoError(t, err)
			}
			fails(t, "belong to no acknowledged write", func(t testing.TB) { h.Check(t) })
		})
	}
}
