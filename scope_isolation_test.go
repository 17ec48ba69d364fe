package pawl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// deep has a field of each type whose content two copies could share.
type deep struct {
	List   []string           `json:"list"`
	Map    map[string]int     `json:"map"`
	Ptr    *inner             `json:"ptr"`
	Nested []map[string][]int `json:"nested"`
	Items  []*inner           `json:"items"`
	ByName map[string]*inner  `json:"byName"`
	Any    any                `json:"any"`
	Doc    pawl.Doc           `json:"doc"`
	Raw    json.RawMessage    `json:"raw"`
	Bytes  []byte             `json:"bytes"`
	Array  [2][]int           `json:"array"`
	When   *time.Time         `json:"when"`
}

type inner struct {
	N    int   `json:"n"`
	List []int `json:"list"`
}

func newDeep() deep {
	when := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	return deep{
		List: []string{"a", "b"}, Map: map[string]int{"k": 1}, Ptr: &inner{N: 1, List: []int{1}},
		Nested: []map[string][]int{{"x": {1, 2}}}, Items: []*inner{{N: 1, List: []int{1}}}, ByName: map[string]*inner{"i": {N: 1, List: []int{1}}},
		Any: map[string]any{"m": map[string]any{"l": []any{"v"}}}, Doc: pawl.Doc{"l": []any{map[string]any{"k": "v"}}},
		Raw: json.RawMessage(`{"r":1}`), Bytes: []byte("bytes"), Array: [2][]int{{1}, {2}}, When: &when,
	}
}

// spoil changes every part of d that could be shared.
func spoil(d *deep) {
	d.List[0] = "spoilt"
	_ = append(d.List[:1], "spoilt")
	d.Map["k"], d.Map["new"] = 99, 99
	d.Ptr.N, d.Ptr.List[0] = 99, 99
	d.Nested[0]["x"][0] = 99
	d.Nested[0]["new"] = nil
	d.Items[0].N, d.Items[0].List[0] = 99, 99
	d.ByName["i"].N, d.ByName["i"].List[0] = 99, 99
	object := d.Any.(map[string]any)["m"].(map[string]any)
	object["l"].([]any)[0] = "spoilt"
	object["new"] = true
	d.Doc["l"].([]any)[0].(map[string]any)["k"] = "spoilt"
	d.Doc["new"] = true
	d.Raw[2], d.Bytes[0] = 'x', 'x'
	d.Array[0][0] = 99
	*d.When = d.When.Add(time.Hour)
}

// A reader that changes its copy changes neither other copies nor the scope. Proves SCOPE-6.
func TestReadersGetCopies(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[deep](p, "a")
		seed(t, s, newDeep())
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		one, two := snap.State(), snap.State()
		spoil(&one)
		require.Equal(t, newDeep(), two, "another copy of the same snapshot")
		require.Equal(t, newDeep(), snap.State())
		state, err := s.State(t.Context())
		require.NoError(t, err)
		spoil(&state)
		seen, ok := s.LastSeen()
		require.True(t, ok)
		last := seen.State()
		spoil(&last)
		requireState(t, p, s, 1, newDeep())
		_, err = s.PatchState(t.Context(), pawl.Patch{"map": map[string]int{"k": 2}})
		require.NoError(t, err)
		require.Equal(t, newDeep(), snap.State(), "a snapshot does not change")
	})
}

// Changes to a value that was passed to a verb, or returned by it, do not reach the scope.
// Proves SCOPE-6.
func TestVerbsTakeCopies(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		t.Run("SetState", func(t *testing.T) {
			s := scopeOf[deep](p, "set")
			mine := newDeep()
			snap, err := s.SetState(t.Context(), mine)
			require.NoError(t, err)
			spoil(&mine)
			returned := snap.State()
			spoil(&returned)
			requireState(t, p, s, 1, newDeep())
			pointed := scopeOf[deep](p, "set by pointer")
			mine = newDeep()
			_, err = pointed.Apply(t.Context(), pawl.Set{State: &mine})
			require.NoError(t, err)
			spoil(&mine)
			requireState(t, p, pointed, 1, newDeep())
		})
		t.Run("PatchState", func(t *testing.T) {
			s := scopeOf[deep](p, "patch")
			mine := newDeep()
			_, err := s.PatchState(t.Context(), pawl.Patch{
				"list": mine.List, "map": mine.Map, "ptr": mine.Ptr, "nested": mine.Nested, "items": mine.Items, "byName": mine.ByName,
				"any": mine.Any, "doc": mine.Doc, "raw": mine.Raw, "bytes": mine.Bytes, "array": mine.Array, "when": mine.When,
			})
			require.NoError(t, err)
			spoil(&mine)
			requireState(t, p, s, 1, newDeep())
		})
		t.Run("PushState", func(t *testing.T) {
			s := scopeOf[deep](p, "push")
			item, object := &inner{N: 1, List: []int{1}}, map[string][]int{"x": {1}}
			_, err := s.Apply(t.Context(), pawl.All{pawl.Push{Field: "items", Values: []any{item, item}}, pawl.Push{Field: "nested", Values: []any{object}}})
			require.NoError(t, err)
			item.N, item.List[0], object["x"][0] = 99, 99, 99
			want := deep{Items: []*inner{{N: 1, List: []int{1}}, {N: 1, List: []int{1}}}, Nested: []map[string][]int{{"x": {1}}}}
			requireState(t, p, s, 1, want)
			got, err := s.State(t.Context())
			require.NoError(t, err)
			require.NotSame(t, got.Items[0], got.Items[1], "JSON has no pointers")
		})
		t.Run("SetStateRecord", func(t *testing.T) {
			s := scopeOf[deep](p, "record")
			item, object := &inner{N: 1, List: []int{1}}, map[string]any{"l": []any{"v"}}
			_, err := s.Apply(t.Context(), pawl.All{pawl.SetRecord{Field: "byName", Key: "i", Value: item}, pawl.SetRecord{Field: "doc", Key: "d", Value: object}})
			require.NoError(t, err)
			item.N, item.List[0] = 99, 99
			object["l"].([]any)[0] = "spoilt"
			requireState(t, p, s, 1, deep{ByName: map[string]*inner{"i": {N: 1, List: []int{1}}}, Doc: pawl.Doc{"d": map[string]any{"l": []any{"v"}}}})
		})
	})
}

// A function that keeps its draft, or parts of it, cannot change the committed state.
// Proves SCOPE-6.
func TestFunctionsGetCopies(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[deep](p, "a")
		seed(t, s, newDeep())
		before, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		var kept *deep
		want := newDeep()
		want.List = append(want.List, "c")
		want.Doc["mine"] = []any{"v"}
		mine := []any{"v"}
		_, err = s.AtomicState(t.Context(), func(_ context.Context, d *deep) error {
			kept = d
			d.List = append(d.List, "c")
			d.Doc["mine"] = mine
			return nil
		})
		require.NoError(t, err)
		spoil(kept)
		mine[0] = "spoilt"
		requireState(t, p, s, 2, want)
		require.Equal(t, newDeep(), before.State(), "the earlier version is unchanged")
		_, err = s.AtomicState(t.Context(), func(_ context.Context, d *deep) error {
			kept = d
			spoil(d)
			return errMutator
		})
		require.ErrorIs(t, err, errMutator)
		requireState(t, p, s, 2, want)
		// A pointer that two fields of the draft share becomes two values of the state.
		_, err = s.AtomicState(t.Context(), func(_ context.Context, d *deep) error {
			d.Items = []*inner{d.Ptr, d.Ptr}
			return nil
		})
		require.NoError(t, err)
		_, err = s.AtomicState(t.Context(), func(_ context.Context, d *deep) error { d.Items[0].List[0] = 5; return nil })
		require.NoError(t, err)
		got, err := s.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int{5}, got.Items[0].List)
		require.Equal(t, []int{1}, got.Items[1].List)
		require.Equal(t, []int{1}, got.Ptr.List)
	})
}

// Appending to a list of a ReadOnly state changes no scope and no other reader, while pushes
// continue. Proves SCOPE-6.
func TestReadOnlyHasNoSpareCapacity(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		typed, dynamic := scopeOf[deep](p, "typed"), scopeOf[pawl.Doc](p, "dynamic")
		var before []string // held by an earlier reader, which appends to it after the list has grown
		var beforeDynamic []any
		for i := range 40 {
			name := fmt.Sprint(i)
			one, err := typed.PushState(t.Context(), "list", name)
			require.NoError(t, err)
			require.Same(t, one.ReadOnly(), one.ReadOnly(), "no copy is made")
			two, err := dynamic.PushState(t.Context(), "list", name)
			require.NoError(t, err)
			_ = append(before, "stray")
			_ = append(beforeDynamic, "stray")
			before, beforeDynamic = one.ReadOnly().List, (*two.ReadOnly())["list"].([]any)
			_ = append(before, "stray")
			_ = append(beforeDynamic, "stray")
			read, err := typed.Snapshot(t.Context())
			require.NoError(t, err)
			_ = append(read.ReadOnly().List, "stray")
		}
		snap, err := typed.Snapshot(t.Context())
		require.NoError(t, err)
		state, err := dynamic.State(t.Context())
		require.NoError(t, err)
		for i := range 40 {
			require.Equal(t, fmt.Sprint(i), snap.ReadOnly().List[i])
			require.Equal(t, fmt.Sprint(i), state["list"].([]any)[i])
		}
	})
}

// NewSnapshot copies the state that it is given. Proves SCOPE-6.
func TestNewSnapshotCopies(t *testing.T) {
	mine := newDeep()
	at := time.Now()
	snap := pawl.NewSnapshot(mine, 7, at)
	spoil(&mine)
	require.Equal(t, newDeep(), snap.State())
	require.EqualValues(t, 7, snap.Version)
	require.Equal(t, at, snap.Time)
}

// NewSnapshot converts dynamic values to the types of a stored state, such as []any and int64.
// Proves SCOPE-6.
func TestNewSnapshotNormalizesValues(t *testing.T) {
	tags := []string{"a"}
	snap := pawl.NewSnapshot(pawl.Doc{"tags": tags, "n": 1}, 1, time.Now())
	tags[0] = "changed"
	require.Equal(t, pawl.Doc{"tags": []any{"a"}, "n": int64(1)}, snap.State())
}

// leaveThenChange applies a function together with a patch. It leaves while the function runs,
// changes the value of the patch, and lets the function return.
func leaveThenChange[T any](t *testing.T, s pawl.Scope[T]) {
	t.Helper()
	tags := []string{"given"}
	free := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Apply(ctx, pawl.All{pawl.Atomic(func(context.Context, *T) error { <-free; return nil }), pawl.Patch{"done": tags}})
		done <- err
	}()
	synctest.Wait()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	tags[0] = "changed after the verb returned"
	close(free)
	synctest.Wait()
}

// The values in an All with a function are copied before the verb returns. Proves SCOPE-6.
func TestValuesBesideAFunctionAreCopied(t *testing.T) {
	bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
		kept, discarded := pawl.Memory[counts](rt, "a"), pawl.Session[counts](rt, "a")
		leaveThenChange(t, kept)
		b, err := kept.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"given"}, b.Done)
		leaveThenChange(t, discarded)
		snap, err := discarded.Snapshot(t.Context())
		require.NoError(t, err)
		assert.False(t, snap.Exists(), "a run that outlives its caller is discarded")
	})
}

type custom struct {
	Tags []string
}

func (c custom) MarshalJSON() ([]byte, error) { return json.Marshal(map[string]any{"tags": c.Tags}) }
func (c *custom) UnmarshalJSON(b []byte) error {
	var x struct{ Tags []string }
	err := json.Unmarshal(b, &x)
	c.Tags = x.Tags
	return err
}

type withCustom struct {
	C    custom   `json:"c"`
	Done []string `json:"done"`
}

// The values of a data verb are copied before it returns, also for a type with its own MarshalJSON.
// Proves SCOPE-6.
func TestValuesForACustomTypeAreCopied(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		s := pawl.Memory[withCustom](rt, "a")
		leaveThenChange(t, s)
		b, err := s.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"given"}, b.Done)
	})
}
