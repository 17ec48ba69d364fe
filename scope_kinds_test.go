package pawl_test

import (
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The built-in kinds are persisted or in memory as documented, and other kinds can be either.
// Proves SCOPE-3.
func TestKinds(t *testing.T) {
	p := paths(t)[1]
	ctx := t.Context()
	check := func(t *testing.T, s pawl.Scope[board], kind string, stored bool) {
		t.Helper()
		require.Equal(t, pawl.Key{Kind: kind, ID: "x"}, s.Key())
		snap, err := s.IncState(ctx, "count", 1)
		require.NoError(t, err)
		require.EqualValues(t, 1, snap.Version)
		require.Equal(t, !stored, p.record(t, s.Key()).Absent())
		require.Equal(t, stored, !snap.Time.IsZero(), "the time of the store, for a persisted scope")
	}
	check(t, pawl.Request[board](p.rt, "x"), pawl.KindRequest, true)
	check(t, pawl.Session[board](p.rt, "x"), pawl.KindSession, true)
	check(t, pawl.User[board](p.rt, "x"), pawl.KindUser, true)
	check(t, pawl.Org[board](p.rt, "x"), pawl.KindOrg, true)
	check(t, pawl.Sequencer[board](p.rt, "x"), pawl.KindSequencer, false)
	check(t, pawl.Target[board](p.rt, "x"), pawl.KindTarget, false)
	check(t, pawl.Memory[board](p.rt, "x"), pawl.KindMemory, false)
	check(t, pawl.Kind[board]{Name: "invoice"}.Scope(p.rt, "x"), "invoice", true)
	check(t, pawl.Kind[board]{Name: "cursor", InMemory: true}.Scope(p.rt, "x"), "cursor", false)
}

// Scopes that differ in kind or id have separate states. Proves SCOPE-3.
func TestScopesAreSeparate(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		kind := pawl.Kind[board]{Name: "other", InMemory: p.store == nil}
		one, two, three := scopeOf[board](p, "a"), scopeOf[board](p, "b"), kind.Scope(p.rt, "a")
		for i, s := range []pawl.Scope[board]{one, two, three} {
			_, err := s.IncState(t.Context(), "count", int64(i+1))
			require.NoError(t, err)
		}
		requireState(t, p, one, 1, board{Count: 1})
		requireState(t, p, two, 1, board{Count: 2})
		requireState(t, p, three, 1, board{Count: 3})
	})
}

// Without a store, persisted scopes give ErrNoStore, and in-memory scopes work. Proves SCOPE-3.
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

// Without a store, every persisted kind gives ErrNoStore, and Open refuses such a kind in its list.
// Proves CAS-10.
func TestPersistedScopeWithoutAStore(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		for _, s := range []pawl.Scope[counts]{pawl.Request[counts](rt, "a"), pawl.Session[counts](rt, "a"), pawl.User[counts](rt, "a"), pawl.Org[counts](rt, "a"),
			pawl.Kind[counts]{Name: "job"}.Scope(rt, "a")} {
			_, err := s.IncState(t.Context(), "n", 1)
			assert.ErrorIs(t, err, pawl.ErrNoStore)
			_, err = s.State(t.Context())
			assert.ErrorIs(t, err, pawl.ErrNoStore)
		}
		_, err := pawl.Open(pawl.Config{Kinds: []pawl.AnyKind{pawl.Kind[counts]{Name: "job"}}})
		assert.ErrorIs(t, err, pawl.ErrNoStore, "Open refuses a listed kind")
	})
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
		"Config.Timeout", "Config.MaxDoc", "must not be negative, got -1", "Config.MaxQueue", "Config.Retry", "Config.Kinds[0]", `persisted scope without a store: kind "stored"`, "control character U+0000",
		`kind "indexed": Label, Due, MaxDoc, Log and Upgrades`, `kind "indexed": negative TTL`, `kind "indexed": negative Timeout`, `kind "indexed": negative field in Retry`,
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

// A kind that is not listed is checked at its first use. One that contradicts a known kind is
// refused everywhere. Proves SCOPE-3.
func TestContradictoryKinds(t *testing.T) {
	kind := pawl.Kind[board]{Name: "invoice", TTL: time.Hour, Label: "title"}
	rt := openRuntime(t, pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{kind, kind}})
	require.NoError(t, increment(kind.Scope(rt, "a")))
	require.NoError(t, increment(pawl.Kind[board]{Name: "invoice"}.Scope(rt, "a")), "a kind with only a name uses the known definition")
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
