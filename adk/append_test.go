package adk_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/pawltest"
	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/session"
)

// The event and the handle after AppendEvent are those of ADK: temporary keys stay in the handle, and
// times have microseconds.
func TestAppendEventChangesTheHandle(t *testing.T) {
	each(t, adk.Config{}, func(t *testing.T, s *adk.Service) {
		h := create(t, s, "s", map[string]any{"app:a": "1", "user:u": "2", "own": "3", "temp:t": "4"})
		require.Equal(t, map[string]any{"app:a": "1", "user:u": "2", "own": "3"}, state(h))
		require.Zero(t, h.Events().Len())

		e := event("e1", map[string]any{"app:a": "5", "user:n": 6, "temp:t": "7", "nothing": nil, "list": []any{}})
		e.Timestamp = time.Date(2026, 2, 3, 4, 5, 6, 123456789, time.UTC)
		appendTo(t, s, h, e)
		require.Equal(t, time.Date(2026, 2, 3, 4, 5, 6, 123456000, time.UTC), e.Timestamp)
		require.Equal(t, map[string]any{"app:a": "5", "user:n": 6, "nothing": nil, "list": []any{}}, e.Actions.StateDelta)
		require.Equal(t, map[string]any{"app:a": "5", "user:u": "2", "user:n": 6, "own": "3", "temp:t": "7", "nothing": nil, "list": []any{}}, state(h))
		require.Same(t, e, h.Events().At(0))
		require.Nil(t, h.Events().At(1))
		require.Equal(t, e.Timestamp, h.LastUpdateTime())

		again := get(t, s, "s")
		require.Equal(t, map[string]any{"app:a": "5", "user:u": "2", "user:n": 6.0, "own": "3", "nothing": nil, "list": []any{}}, state(again))
		require.Equal(t, e.Timestamp, again.LastUpdateTime().UTC())
		require.Equal(t, []string{"e1"}, ids(again))

		list, err := s.List(t.Context(), &session.ListRequest{AppName: appName})
		require.NoError(t, err)
		require.Len(t, list.Sessions, 1)
		require.Equal(t, state(again), state(list.Sessions[0]))
		require.Zero(t, list.Sessions[0].Events().Len())
		appendTo(t, s, list.Sessions[0], event("e2", nil))
	})
}

// An append that fails leaves the handle and the event as they were, so that they can be used again.
func TestFailedAppendChangesNothing(t *testing.T) {
	each(t, adk.Config{}, func(t *testing.T, s *adk.Service) {
		h := create(t, s, "s", map[string]any{"k": "old"})
		other := get(t, s, "s")
		appendTo(t, s, other, event("first", nil))

		e := event("second", map[string]any{"k": "new", "temp:t": 1, "n": adk.Inc(1)})
		now := e.Timestamp
		for range 2 {
			require.ErrorIs(t, s.AppendEvent(t.Context(), h, e), adk.ErrStale)
			require.Equal(t, map[string]any{"k": "old"}, state(h))
			require.Empty(t, ids(h))
			require.Equal(t, now, e.Timestamp)
			require.Len(t, e.Actions.StateDelta, 3)
		}
		appendTo(t, s, get(t, s, "s"), e)
		require.Equal(t, map[string]any{"k": "new", "n": 1.0}, state(get(t, s, "s")))
		require.Equal(t, []string{"first", "second"}, ids(get(t, s, "s")))
	})
}

// WholeSession refuses a handle that has not seen every event, whatever the clocks say.
func TestWholeSession(t *testing.T) {
	each(t, adk.Config{}, func(t *testing.T, s *adk.Service) {
		create(t, s, "s", nil)
		a, b := get(t, s, "s"), getBy(t, s, &session.GetRequest{SessionID: "s", NumRecentEvents: 1})
		late := event("late", nil)
		late.Timestamp = at(0) // long before the session was made
		appendTo(t, s, a, late)

		future := event("future", nil)
		future.Timestamp = time.Now().Add(time.Hour)
		err := s.AppendEvent(t.Context(), b, future)
		require.ErrorIs(t, err, adk.ErrStale)
		require.ErrorIs(t, err, pawl.ErrConflict)
		require.ErrorContains(t, err, "stale session error")
		require.Equal(t, "STALE_SESSION", pawl.Code(err))
		require.Equal(t, 409, pawl.HTTPStatus(err))
		require.True(t, pawl.IsRetryable(err))
		require.False(t, pawl.OutcomeUnknown(err))

		appendTo(t, s, a, event("next", nil))
		require.Equal(t, []string{"late", "next"}, ids(get(t, s, "s")))
	})
}

// ByKey lets events interleave. A key that was read and has changed is not written.
func TestByKey(t *testing.T) {
	each(t, adk.Config{Policy: adk.ByKey}, func(t *testing.T, s *adk.Service) {
		for _, key := range []string{"k", "user:k", "app:k"} {
			id := "of " + key
			create(t, s, id, map[string]any{key: 1})
			a, b, blind := get(t, s, id), get(t, s, id), get(t, s, id)
			_, err := a.State().Get(key)
			require.NoError(t, err)
			_, err = b.State().Get(key)
			require.NoError(t, err)

			appendTo(t, s, a, event("a", map[string]any{key: 2}))
			appendTo(t, s, b, event("b", map[string]any{"else": true}))
			require.ErrorIs(t, s.AppendEvent(t.Context(), b, event("lost", map[string]any{key: 3, "more": 1})), adk.ErrStale)
			appendTo(t, s, blind, event("blind", map[string]any{key: 4}))
			require.ErrorIs(t, s.AppendEvent(t.Context(), a, event("lost", map[string]any{key: 5})), adk.ErrStale)
			_, err = blind.State().Get(key)
			require.NoError(t, err)
			appendTo(t, s, blind, event("own", map[string]any{key: 6}))

			require.Equal(t, []string{"a", "b", "blind", "own"}, ids(get(t, s, id)))
			got := state(get(t, s, id))
			require.Equal(t, 6.0, got[key])
			require.NotContains(t, got, "more")
		}
	})
}

// What counts as having read a key, in both policies: keys of the user and of the app are shared by
// sessions.
func TestReadKeys(t *testing.T) {
	reads := map[string]struct {
		read  func(s session.State)
		stale bool
	}{
		"nothing":     {func(session.State) {}, false},
		"another key": {func(s session.State) { _, _ = s.Get("user:other") }, false},
		"the key":     {func(s session.State) { _, _ = s.Get("user:k") }, true},
		"all keys":    {func(s session.State) { s.All() }, true},
		"own value":   {func(s session.State) { _ = s.Set("user:k", 7); _, _ = s.Get("user:k") }, false},
		"before set":  {func(s session.State) { _, _ = s.Get("user:k"); _ = s.Set("user:k", 7) }, true},
		"own sum":     {func(s session.State) { _ = s.Set("user:k", adk.Inc(1)); _, _ = s.Get("user:k") }, true},
	}
	for policy, config := range policies {
		for name, r := range reads {
			for _, absent := range []bool{false, true} {
				t.Run(policy+"/"+name, func(t *testing.T) {
					s := open(t, stores.Memory.New(t), config)
					h := create(t, s, "reader", nil)
					if !absent {
						h = create(t, s, "reader 2", map[string]any{"user:k": 1})
					}
					r.read(h.State())
					appendTo(t, s, create(t, s, "writer", nil), event("w", map[string]any{"user:k": 2}))
					err := s.AppendEvent(t.Context(), h, event("r", map[string]any{"user:k": 3}))
					require.Equal(t, r.stale, errors.Is(err, adk.ErrStale), err)
					if r.stale {
						require.ErrorContains(t, err, `"user:k"`)
					}
				})
			}
		}
	}
}

// An increment tells nothing of the number that was read before it: a write of what was computed from
// that number is refused, until the number is read again.
func TestIncIsNoRead(t *testing.T) {
	for policy, config := range policies {
		t.Run(policy, func(t *testing.T) {
			s := open(t, stores.Memory.New(t), config)
			create(t, s, "first", map[string]any{"user:n": 10})
			h := create(t, s, "s", nil)
			_, err := h.State().Get("user:n")
			require.NoError(t, err)
			appendTo(t, s, create(t, s, "other", nil), event("w", map[string]any{"user:n": 15}))
			appendTo(t, s, h, event("inc", map[string]any{"user:n": adk.Inc(1)}))
			require.ErrorIs(t, s.AppendEvent(t.Context(), h, event("set", map[string]any{"user:n": 7})), adk.ErrStale)
			n, err := h.State().Get("user:n")
			require.NoError(t, err)
			require.EqualValues(t, 16, n)
			appendTo(t, s, h, event("set again", map[string]any{"user:n": 17}))
			appendTo(t, s, h, event("and again", map[string]any{"user:n": 18}))
			require.Equal(t, 18.0, state(get(t, s, "s"))["user:n"])
		})
	}
}

// A holder may change a value in place, and write it.
func TestValueChangedInPlace(t *testing.T) {
	each(t, adk.Config{Policy: adk.ByKey}, func(t *testing.T, s *adk.Service) {
		create(t, s, "s", map[string]any{"cart": map[string]any{"apples": 1}})
		h := get(t, s, "s")
		for i := range 3 {
			cart, err := h.State().Get("cart")
			require.NoError(t, err)
			cart.(map[string]any)["apples"] = i
			appendTo(t, s, h, event("e", map[string]any{"cart": cart}))
		}
		require.Equal(t, map[string]any{"cart": map[string]any{"apples": 2.0}}, state(get(t, s, "s")))
	})
}

// Increments add up whatever the handle has seen of the number, and are numbers in the event.
func TestInc(t *testing.T) {
	each(t, adk.Config{Policy: adk.ByKey}, func(t *testing.T, s *adk.Service) {
		for _, key := range []string{"n", "user:n", "app:n"} {
			id := "of " + key
			create(t, s, id, map[string]any{key: adk.Inc(5)})
			a, b := get(t, s, id), get(t, s, id)
			_, err := b.State().Get(key)
			require.NoError(t, err)
			appendTo(t, s, a, event("a", map[string]any{key: adk.Inc(-2)}))
			e := event("b", map[string]any{key: adk.Inc(10), "temp:" + key: 1})
			appendTo(t, s, b, e)
			require.Equal(t, map[string]any{key: 13.0}, e.Actions.StateDelta)
			require.Equal(t, 13.0, state(b)[key])
			again := get(t, s, id)
			require.Equal(t, 13.0, state(again)[key])
			require.Equal(t, map[string]any{key: 13.0}, again.Events().At(1).Actions.StateDelta)
		}
	})
}

// Refused increments write nothing.
func TestIncRefuses(t *testing.T) {
	each(t, adk.Config{Policy: adk.ByKey}, func(t *testing.T, s *adk.Service) {
		before := map[string]any{"text": "five", "half": 0.5, "map": map[string]any{"a": 1.0}, "large": 9e15, "nothing": nil}
		create(t, s, "s", before)
		h := get(t, s, "s")
		appendTo(t, s, h, event("max", map[string]any{"max": adk.Inc(1<<63 - 1)}))
		for _, key := range []string{"text", "half", "map", "max"} {
			err := s.AppendEvent(t.Context(), h, event("bad", map[string]any{key: adk.Inc(1), "else": 1}))
			field, ok := errors.AsType[*pawl.FieldError](err)
			require.True(t, ok, err)
			require.Equal(t, pawl.Field(key), field.Field)
		}
		merged := adk.Inc(1)
		merged["a"] = 2
		require.ErrorContains(t, s.AppendEvent(t.Context(), h, event("bad", map[string]any{"merged": merged})), "merged")
		require.ErrorContains(t, h.State().Set("merged", merged), "merged")
		for key, nested := range map[string]any{"m": map[string]any{"n": adk.Inc(1)}, "l": []any{1, adk.Inc(1)}, "temp:t": adk.Inc(1)} {
			require.ErrorContains(t, s.AppendEvent(t.Context(), h, event("bad", map[string]any{key: nested})), "an Inc")
			require.ErrorContains(t, h.State().Set(key, nested), "an Inc")
		}
		for key, typed := range map[string]any{"m": map[string]map[string]any{"n": adk.Inc(1)}, "l": []map[string]any{adk.Inc(1)}, "s": struct{ N any }{adk.Inc(1)}} {
			require.ErrorContains(t, s.AppendEvent(t.Context(), h, event("bad", map[string]any{key: typed})), "an Inc")
		}
		appendTo(t, s, h, event("good", map[string]any{"large": adk.Inc(1), "nothing": adk.Inc(1), "new": adk.Inc(1)}))
		got := state(get(t, s, "s"))
		require.Equal(t, []any{9e15 + 1, 1.0, 1.0, nil}, []any{got["large"], got["nothing"], got["new"], got["else"]})
		require.Equal(t, []string{"max", "good"}, ids(get(t, s, "s")))
	})
}

// An append waits for another one through the same handle no longer than its context lives.
func TestAppendWaitsItsTurn(t *testing.T) {
	store := pawltest.NewStore()
	s := openOn(t, store, adk.Config{}, pawl.Config{})
	h := create(t, s, "s", nil)
	gate := pawltest.NewGate()
	store.Next(gate.Before)
	first := make(chan error, 1)
	go func() { first <- s.AppendEvent(t.Context(), h, event("first", nil)) }()
	gate.Wait(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.AppendEvent(gone, h, event("canceled", nil)), context.Canceled)
	second := make(chan error, 1)
	go func() { second <- s.AppendEvent(t.Context(), h, event("second", nil)) }()
	gate.Open()
	require.NoError(t, testkit.Receive(t, first))
	require.NoError(t, testkit.Receive(t, second))
	require.Equal(t, []string{"first", "second"}, ids(get(t, s, "s")))
}

// The sessions of one user share the keys of the user: writers of different keys both get through, and
// so do writers of one key that did not read it.
func TestTwoSessionsOfAUser(t *testing.T) {
	for name, config := range policies {
		t.Run(name, func(t *testing.T) {
			each(t, config, func(t *testing.T, s *adk.Service) {
				a, b := create(t, s, "a", nil), create(t, s, "b", nil)
				appendTo(t, s, a, event("1", map[string]any{"user:a": 1, "user:both": "a", "user:n": adk.Inc(1)}))
				appendTo(t, s, b, event("2", map[string]any{"user:b": 2, "user:both": "b", "user:n": 10}))
				appendTo(t, s, a, event("3", map[string]any{"user:n": adk.Inc(5)}))
				want := map[string]any{"user:a": 1.0, "user:b": 2.0, "user:both": "b", "user:n": 15.0}
				require.Equal(t, want, state(get(t, s, "a")))
				require.Equal(t, want, state(get(t, s, "b")))
				require.Empty(t, state(createFor(t, s, "bob", "c", nil)))
			})
		})
	}
}
