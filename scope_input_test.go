package pawl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
)

// What no call can make sense of is refused, on every path, and says which argument it was. Proves SCOPE-2, SCOPE-9.
func TestBadArguments(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		seed(t, s, fullBoard)
		ctx, inc := t.Context(), pawl.Inc{Field: "count", By: 1}
		var none context.Context
		for _, c := range []struct {
			argument string
			do       func() error
		}{
			{"ctx", func() error { _, err := s.Apply(none, inc); return err }},
			{"ctx", func() error { _, err := s.State(none); return err }},
			{"ctx", func() error { _, err := s.Snapshot(none); return err }},
			{"ctx", func() error { return s.Delete(none) }},
			{"ctx", func() error { return p.rt.Close(none) }},
			{"mutation", func() error { _, err := s.Apply(ctx, nil); return err }},
			{"mutation", func() error { _, err := s.Apply(ctx, pawl.All{inc, nil}); return err }},
			{"Atomic", func() error { _, err := s.AtomicState(ctx, nil); return err }},
			{"Atomic", func() error { _, err := s.Apply(ctx, pawl.All{inc, pawl.Atomic[board](nil)}); return err }},
			{"Atomic", func() error {
				_, err := s.Apply(ctx, pawl.Atomic(func(context.Context, *inner) error { return nil }))
				return err
			}},
			{"option", func() error { _, err := s.Apply(ctx, inc, pawl.IfExists(), nil); return err }},
			{"option", func() error { return s.Delete(ctx, nil) }},
			{"WithTTL", func() error { _, err := s.Apply(ctx, inc, pawl.WithTTL(-1)); return err }},
			{"WithRetry", func() error { _, err := s.Apply(ctx, inc, pawl.WithRetry(pawl.Retry{Attempts: -1})); return err }},
			{"WithTimeout", func() error { _, err := s.Apply(ctx, inc, pawl.WithTimeout(-time.Hour)); return err }},
			{"scope", func() error { _, err := (pawl.Scope[board]{}).Apply(ctx, inc); return err }},
			{"scope", func() error { _, err := (pawl.Scope[board]{}).State(ctx); return err }},
			{"scope", func() error { return (pawl.Scope[board]{}).Delete(ctx) }},
			{"owner", func() error { return increment(pawl.Session[board](nil, "a")) }},
			{"owner", func() error { return increment(pawl.Memory[board]((*pawl.Runtime)(nil), "a")) }},
			{"owner", func() error { return increment(pawl.Memory[board]((*pawl.Local)(nil), "a")) }},
			{"owner", func() error { return increment(pawl.Memory[board](pawl.NewLocal(nil), "a")) }},
		} {
			err := c.do()
			var e *pawl.ArgumentError
			require.ErrorAs(t, err, &e, c.argument)
			require.Equal(t, c.argument, e.Argument)
			require.NotEmpty(t, e.Reason)
			require.Equal(t, "ARGUMENT", pawl.Code(err))
		}
		_, ok := (pawl.Scope[board]{}).LastSeen()
		require.False(t, ok)
		require.False(t, (pawl.Scope[board]{}).Abandon())
		requireState(t, p, s, 1, fullBoard)
	})
}

// A context that has ended already keeps a verb from starting. Proves SCOPE-2.
func TestEndedContext(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		cause := errors.New("gone home")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		_, err := s.AtomicState(ctx, func(context.Context, *board) error { t.Error("it ran"); return nil })
		require.Equal(t, &pawl.CanceledError{Scope: s.Key(), Phase: pawl.PhaseQueued, Cause: cause}, err)
		require.ErrorIs(t, err, cause)
		require.False(t, pawl.OutcomeUnknown(err))
		requireAbsent(t, p, s)
		if p.store != nil {
			_, err = s.Snapshot(ctx)
			require.ErrorIs(t, err, cause)
		}
	})
}

// Without a store, what is persisted says so, and the rest works. Proves SCOPE-3.
func TestNoStore(t *testing.T) {
	rt := openRuntime(t, pawl.Config{})
	s := pawl.Session[board](rt, "a")
	require.ErrorIs(t, increment(s), pawl.ErrNoStore)
	require.ErrorIs(t, s.Delete(t.Context()), pawl.ErrNoStore)
	_, err := s.State(t.Context())
	require.ErrorIs(t, err, pawl.ErrNoStore)
	for _, err := range (pawl.Kind[board]{Name: pawl.KindSession}).List(t.Context(), rt, pawl.Query{}) {
		require.ErrorIs(t, err, pawl.ErrNoStore)
	}
	require.NoError(t, increment(pawl.Memory[board](rt, "a")))
	for _, err := range (pawl.Kind[board]{Name: pawl.KindMemory, InMemory: true}).List(t.Context(), rt, pawl.Query{}) {
		require.ErrorIs(t, err, pawl.ErrNotPersisted)
	}
}

// Open finds every fault of its configuration and returns them together. Proves SCOPE-3, SCOPE-11.
func TestOpenReturnsEveryFault(t *testing.T) {
	type unfit struct {
		F func() `json:"f"`
	}
	rt, err := pawl.Open(pawl.Config{
		Timeout: -5, MaxDoc: -1, MaxQueue: -1, Retry: pawl.Retry{Attempts: -1},
		Kinds: []pawl.AnyKind{
			nil,
			pawl.Kind[board]{Name: "stored"},
			pawl.Kind[board]{Name: "bad\x00", InMemory: true},
			pawl.Kind[board]{Name: "indexed", InMemory: true, Label: "title", TTL: -1, Timeout: -5, Retry: pawl.Retry{Max: -1}},
			pawl.Kind[board]{Name: "fields", Label: "none", Due: "nor this", Upgrades: []pawl.Upgrade{nil}},
			pawl.Kind[board]{Name: "types", Label: "count", Due: "title"},
			pawl.Kind[board]{Name: pawl.KindSession, InMemory: true},
			pawl.Kind[unfit]{Name: "unfit", InMemory: true},
			pawl.Kind[board]{Name: "twice", InMemory: true}, pawl.Kind[board]{Name: "twice", InMemory: true, TTL: time.Hour},
		},
	})
	require.Nil(t, rt)
	require.ErrorIs(t, err, pawl.ErrNoStore)
	for _, want := range []string{
		"Config.Timeout", "Config.MaxDoc", "Config.MaxQueue", "Config.Retry", "Config.Kinds[0]", `persisted scope without a store: kind "stored"`, "control character U+0000",
		`kind "indexed": Label, Due and Upgrades`, `kind "indexed": negative TTL`, `kind "indexed": negative Timeout`, `kind "indexed": negative field in Retry`,
		`kind "fields": Label`, `kind "fields": Due`, `kind "types": Label`, `kind "fields": upgrade 0 is nil`, `kind "session": a built-in kind`, `kind "unfit"`, `kind "twice": defined twice`,
	} {
		require.ErrorContains(t, err, want)
	}
	var kind *pawl.KindError
	require.ErrorAs(t, err, &kind)
	var argument *pawl.ArgumentError
	require.ErrorAs(t, err, &argument)
	var limit *pawl.LimitError
	require.ErrorAs(t, err, &limit)
}

// A kind that is not listed is checked at its first use, and one that contradicts what is known is refused by every verb. Proves SCOPE-3.
func TestContradictoryKinds(t *testing.T) {
	kind := pawl.Kind[board]{Name: "invoice", TTL: time.Hour, Label: "title"}
	rt := openRuntime(t, pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{kind, kind}})
	require.NoError(t, increment(kind.Scope(rt, "a")))
	require.NoError(t, increment(pawl.Kind[board]{Name: "invoice"}.Scope(rt, "a")), "a name alone takes what is known")
	var e *pawl.KindError
	for _, other := range []pawl.Kind[board]{
		{Name: "invoice", InMemory: true}, {Name: "invoice", TTL: time.Minute, Label: "title"}, {Name: "invoice", TTL: time.Hour},
		{Name: pawl.KindUser, InMemory: true}, {Name: "new", Label: "none"},
	} {
		s := other.Scope(rt, "a")
		require.ErrorAs(t, increment(s), &e)
		require.Equal(t, other.Name, e.Kind)
		_, err := s.State(t.Context())
		require.ErrorAs(t, err, &e)
		for _, err := range other.List(t.Context(), rt, pawl.Query{}) {
			require.ErrorAs(t, err, &e)
		}
	}
	snap, err := kind.Scope(rt, "a").Snapshot(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, snap.Version)
}

// MustField panics for a field that is not there, and Field.At quotes what it is given. Proves SCOPE-9.
func TestMustField(t *testing.T) {
	kind := pawl.Kind[misfit]{Name: "misfit"}
	require.Equal(t, pawl.Field("inner.n"), kind.MustField("inner.n"))
	require.PanicsWithValue(t, `pawl: kind "misfit": MustField: state: "inner.none": pawl_test.inner has no field "none"`, func() { kind.MustField("inner.none") })
	require.Panics(t, func() { kind.MustField("") })
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[misfit](p, "a")
		_, err := s.Apply(t.Context(), pawl.All{pawl.Inc{Field: pawl.Field("nums").At("a.b"), By: 1}, pawl.Inc{Field: pawl.Field("doc").At(`c\d.e`).At("f"), By: 2}})
		require.NoError(t, err)
		requireState(t, p, s, 1, misfit{Nums: map[string]int8{"a.b": 1}, Doc: map[string]any{`c\d.e`: map[string]any{"f": int64(2)}}})
	})
}
