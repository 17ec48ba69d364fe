package pawl_test

import (
	"context"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every verb has the same effect with and without a store, and returns the state that it committed.
// Proves SCOPE-1, SCOPE-2.
func TestVerbs(t *testing.T) {
	start := board{Title: "t", Count: 1, Tags: []string{"a"}, Notes: map[string]string{"k": "v"}}
	cases := []struct {
		name string
		do   func(context.Context, pawl.Scope[board]) (pawl.Snapshot[board], error)
		want board
	}{
		{"PatchState", func(ctx context.Context, s pawl.Scope[board]) (pawl.Snapshot[board], error) {
			return s.PatchState(ctx, pawl.Patch{"title": "u", "count": 7})
		}, board{Title: "u", Count: 7, Tags: []string{"a"}, Notes: map[string]string{"k": "v"}}},
		{"SetState", func(ctx context.Context, s pawl.Scope[board]) (pawl.Snapshot[board], error) {
			return s.SetState(ctx, board{Title: "only"})
		}, board{Title: "only"}},
		{"PushState", func(ctx context.Context, s pawl.Scope[board]) (pawl.Snapshot[board], error) {
			return s.PushState(ctx, "tags", "b")
		}, board{Title: "t", Count: 1, Tags: []string{"a", "b"}, Notes: map[string]string{"k": "v"}}},
		{"IncState", func(ctx context.Context, s pawl.Scope[board]) (pawl.Snapshot[board], error) {
			return s.IncState(ctx, "count", -3)
		}, board{Title: "t", Count: -2, Tags: []string{"a"}, Notes: map[string]string{"k": "v"}}},
		{"SetStateRecord", func(ctx context.Context, s pawl.Scope[board]) (pawl.Snapshot[board], error) {
			return s.SetStateRecord(ctx, "notes", "a.b", "c")
		}, board{Title: "t", Count: 1, Tags: []string{"a"}, Notes: map[string]string{"k": "v", "a.b": "c"}}},
		{"DeleteStateRecord", func(ctx context.Context, s pawl.Scope[board]) (pawl.Snapshot[board], error) {
			return s.DeleteStateRecord(ctx, "notes", "k")
		}, board{Title: "t", Count: 1, Tags: []string{"a"}, Notes: map[string]string{}}},
		{"AtomicState", func(ctx context.Context, s pawl.Scope[board]) (pawl.Snapshot[board], error) {
			return s.AtomicState(ctx, func(_ context.Context, b *board) error {
				b.Count, b.Tags = b.Count*10, append(b.Tags, b.Title)
				return nil
			})
		}, board{Title: "t", Count: 10, Tags: []string{"a", "t"}, Notes: map[string]string{"k": "v"}}},
		{"All", func(ctx context.Context, s pawl.Scope[board]) (pawl.Snapshot[board], error) {
			return s.Apply(ctx, pawl.All{
				pawl.Patch{"title": "all"}, pawl.Inc{Field: "count", By: 1}, pawl.Push{Field: "tags", Values: []any{"x", "y"}},
				pawl.Atomic(func(_ context.Context, b *board) error { b.Count *= 2; return nil }),
				pawl.SetRecord{Field: "notes", Key: "n", Value: "w"}, pawl.DeleteRecord{Field: "notes", Key: "k"},
			})
		}, board{Title: "all", Count: 4, Tags: []string{"a", "x", "y"}, Notes: map[string]string{"n": "w"}}},
	}
	for _, p := range paths(t) {
		for _, c := range cases {
			t.Run(p.name+"/"+c.name, func(t *testing.T) {
				s := scopeOf[board](p, c.name)
				seed(t, s, start)
				got, err := c.do(t.Context(), s)
				require.NoError(t, err)
				require.EqualValues(t, 2, got.Version, "one mutation is one version")
				require.Equal(t, c.name, got.ID)
				require.Equal(t, c.want, got.State())
				requireState(t, p, s, 2, c.want)
				state, err := s.State(t.Context())
				require.NoError(t, err)
				require.Equal(t, c.want, state)
			})
		}
	}
}

// On an absent scope every verb starts from the zero value: 0, an empty list, an empty map.
// Proves SCOPE-9, SCOPE-1.
func TestVerbsOnAbsentScope(t *testing.T) {
	cases := map[string]struct {
		m    pawl.Mutation
		want board
	}{
		"Patch":     {pawl.Patch{"title": "u"}, board{Title: "u"}},
		"Set":       {pawl.Set{State: board{}}, board{}},
		"Push":      {pawl.Push{Field: "tags", Values: []any{"a"}}, board{Tags: []string{"a"}}},
		"Inc":       {pawl.Inc{Field: "count", By: 2}, board{Count: 2}},
		"SetRecord": {pawl.SetRecord{Field: "notes", Key: "k", Value: "v"}, board{Notes: map[string]string{"k": "v"}}},
		"Atomic":    {pawl.Atomic(func(_ context.Context, b *board) error { b.Count--; return nil }), board{Count: -1}},
	}
	for _, p := range paths(t) {
		for name, c := range cases {
			t.Run(p.name+"/"+name, func(t *testing.T) {
				s := scopeOf[board](p, name)
				got, err := s.Apply(t.Context(), c.m)
				require.NoError(t, err)
				require.EqualValues(t, 1, got.Version)
				requireState(t, p, s, 1, c.want)
			})
		}
		t.Run(p.name+"/DeleteRecord", func(t *testing.T) {
			s := scopeOf[board](p, "DeleteRecord")
			got, err := s.DeleteStateRecord(t.Context(), "notes", "k")
			require.NoError(t, err)
			require.False(t, got.Exists())
			requireAbsent(t, p, s)
		})
	}
}

// On an absent dynamic field every verb starts from 0, an empty list or an empty map.
// Proves SCOPE-9.
func TestVerbsOnAbsentDynamicField(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[pawl.Doc](p, "a")
		_, err := s.Apply(t.Context(), pawl.All{
			pawl.Inc{Field: "n.deep", By: 3}, pawl.Push{Field: "list", Values: []any{"x"}}, pawl.SetRecord{Field: "map", Key: "k", Value: true},
			pawl.DeleteRecord{Field: "other", Key: "k"},
		})
		require.NoError(t, err)
		requireState(t, p, s, 1, pawl.Doc{"n": map[string]any{"deep": int64(3)}, "list": []any{"x"}, "map": map[string]any{"k": true}})
	})
}

// All commits every part or none: a part that fails undoes the parts before it.
// Proves SCOPE-1, SCOPE-9.
func TestAllOrNone(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[pawl.Doc](p, "a")
		seed(t, s, pawl.Doc{"n": int64(1), "s": "text"})
		for _, m := range []pawl.Mutation{
			pawl.All{pawl.Inc{Field: "n", By: 1}, pawl.Inc{Field: "s", By: 1}},
			pawl.All{pawl.Atomic(func(_ context.Context, d *pawl.Doc) error { (*d)["n"] = 5; return nil }), pawl.Inc{Field: "s", By: 1}},
		} {
			_, err := s.Apply(t.Context(), m)
			var field *pawl.FieldError
			require.ErrorAs(t, err, &field)
			require.EqualValues(t, "s", field.Field)
			requireState(t, p, s, 1, pawl.Doc{"n": int64(1), "s": "text"})
		}
	})
}

// A Set inside a nested All creates the scope. Proves SCOPE-1.
func TestNestedAllCreates(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		snap, err := scopeOf[counts](p, "flat").Apply(t.Context(), pawl.All{pawl.Set{State: counts{}}})
		require.NoError(t, err)
		require.True(t, snap.Exists())
		snap, err = scopeOf[counts](p, "nested").Apply(t.Context(), pawl.All{pawl.All{pawl.Set{State: counts{}}}})
		require.NoError(t, err)
		assert.True(t, snap.Exists())
	})
}

// The patches of an All apply in order. One Patch with overlapping fields is refused.
// Proves SCOPE-1.
func TestPatchesInAllApplyInOrder(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[pawl.Doc](p, "a")
		snap, err := s.Apply(t.Context(), pawl.All{pawl.Patch{"a": pawl.Doc{"b": 1, "c": 1}}, pawl.Patch{"a.b": 2}})
		require.NoError(t, err)
		require.Equal(t, pawl.Doc{"a": map[string]any{"b": int64(2), "c": int64(1)}}, snap.State())
		var field *pawl.FieldError
		_, err = s.PatchState(t.Context(), pawl.Patch{"a": pawl.Doc{}, "a.b": 2})
		require.ErrorAs(t, err, &field, "the fields of one Patch have no order")
	})
}
