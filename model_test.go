package pawl_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/big"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// modelState has a field for every verb, at several depths.
type modelState struct {
	N     int64            `json:"n"`
	Small int8             `json:"small"`
	U     uint64           `json:"u"`
	F     float64          `json:"f"`
	Name  string           `json:"name"`
	Flag  bool             `json:"flag"`
	List  []string         `json:"list"`
	Map   map[string]int64 `json:"map"`
	Nest  modelNest        `json:"nest"`
	Ptr   *modelPointee    `json:"ptr"`
	Any   any              `json:"any"`
}

type modelNest struct {
	Count int64               `json:"count"`
	Tags  map[string][]string `json:"tags"`
	Free  map[string]any      `json:"free"`
}

type modelPointee struct {
	X int64 `json:"x"`
}

var (
	typedShape = &shape{kind: shapeObject, fields: map[string]*shape{
		"n":     intShape,
		"small": {kind: shapeInt, bits: 8},
		"u":     {kind: shapeUint, bits: 64},
		"f":     {kind: shapeFloat},
		"name":  stringShape,
		"flag":  {kind: shapeBool},
		"list":  listOf(stringShape),
		"map":   mapOf(intShape),
		"nest": {kind: shapeObject, fields: map[string]*shape{
			"count": intShape, "tags": mapOf(listOf(stringShape)), "free": mapOf(anyShape),
		}},
		"ptr": {kind: shapePointer, elem: &shape{kind: shapeObject, fields: map[string]*shape{"x": intShape}}},
		"any": anyShape,
	}}
	docShape = mapOf(anyShape)

	typedFields = []string{"n", "small", "u", "f", "name", "flag", "list", "map", "map.k", `map.a\.b`, "nest", "nest.count", "nest.tags", "nest.tags.t",
		"nest.free", "nest.free.a", "nest.free.a.b", "ptr", "ptr.x", "any", "any.a", "any.a.b", "nope", "n.x", "list.0", "nest.nope", "ptr.y", "any..a", ""}
	docFields = []string{"n", "a", "a.b", "a.b.c", "list", "map", `x\.y`, "a..b", ""}
)

// modelScope is the model of one scope.
type modelScope struct {
	exists, deleted bool
	version         uint64
	state           any
}

// modelMachine applies verbs to scopes through several runtimes and compares them with the model.
type modelMachine struct {
	t        *rapid.T
	open     func() *pawl.Runtime
	runtimes []*pawl.Runtime
	durable  bool
	targets  []modelTarget
	scopes   []modelScope
	kept     []func() // each compares an earlier snapshot with its expected state
	counts   map[string]int
	words    map[*shape]vocabulary
}

// precondition is the model of the options of a call.
type precondition struct {
	pinned, absent, exists bool
	version                uint64 // if pinned
}

func (p precondition) options() (opts []pawl.CallOption) {
	if p.pinned {
		opts = append(opts, pawl.IfVersion(p.version))
	}
	if p.absent {
		opts = append(opts, pawl.IfAbsent())
	}
	if p.exists {
		opts = append(opts, pawl.IfExists())
	}
	return opts
}

// normalized returns p with IfVersion(0) replaced by IfAbsent, which means the same.
func (p precondition) normalized() precondition {
	if p.pinned && p.version == 0 {
		p.pinned, p.absent = false, true
	}
	return p
}

// admits reports whether p lets a call change s. If not, it requires that got is the matching
// error.
func (p precondition) admits(t *rapid.T, s modelScope, deletes bool, got error) bool {
	p = p.normalized()
	var stale *pawl.ConcurrencyError
	var gone *pawl.DeletedError
	switch {
	case s.exists && p.absent:
		require.ErrorIs(t, got, pawl.ErrExists)
	case s.exists && p.pinned && p.version != s.version:
		require.ErrorAs(t, got, &stale)
		require.EqualValues(t, p.version, stale.Expected)
		require.EqualValues(t, s.version, stale.Actual)
	case s.exists:
		return true
	case s.deleted && (p.pinned || p.exists || !p.absent && !deletes):
		require.ErrorAs(t, got, &gone)
		require.Equal(t, s.version, gone.Version)
	case s.deleted:
		return true
	case p.pinned:
		require.ErrorAs(t, got, &stale)
		require.Zero(t, stale.Actual)
	case p.exists:
		require.ErrorIs(t, got, pawl.ErrNotFound)
	default:
		return true
	}
	return false
}

func (m *modelMachine) pick() (int, *pawl.Runtime) {
	return rapid.IntRange(0, len(m.targets)-1).Draw(m.t, "scope"), m.runtimes[rapid.IntRange(0, len(m.runtimes)-1).Draw(m.t, "runtime")]
}

func (m *modelMachine) precondition(s modelScope) precondition {
	if s.deleted && rapid.Bool().Draw(m.t, "anew") {
		return precondition{absent: true}
	}
	switch rapid.IntRange(0, 19).Draw(m.t, "option") {
	case 0, 1:
		return precondition{pinned: true, version: s.version}
	case 2:
		return precondition{pinned: true, version: uint64(rapid.IntRange(0, int(s.version)+2).Draw(m.t, "version"))}
	case 3, 4:
		return precondition{absent: true}
	case 5:
		return precondition{exists: true}
	case 6:
		return precondition{rapid.Bool().Draw(m.t, "pinned"), rapid.Bool().Draw(m.t, "absent"), rapid.Bool().Draw(m.t, "exists"), s.version}
	}
	return precondition{}
}

// modelValues are arguments of verbs. Some fit most fields, some fit none.
var modelValues = []any{nil, true, "s", "", 0, 1, 7, int64(math.MaxInt64), uint64(math.MaxUint64), 1.5, 2.0, 300, -1,
	[]string{}, []string{"a"}, []any{"a", "b"}, []any{1, "x"}, map[string]int64{"k": 1}, map[string]any{}, map[string]any{"a": 1}, map[string]any{"x": 3},
	map[string]any{"a": map[string]any{"b": 2}}, map[string]any{"count": 2}, map[string]any{"list": []any{true}},
	"\xff", math.NaN(), "nul\x00", []any{math.Inf(1)}, map[string]any{"\xff": 1}}

// vocabulary has every verb with every argument, split by whether it fits a shape.
type vocabulary struct{ fitting, unfit []modelPart }

func newVocabulary(s *shape, fields []string) (v vocabulary) {
	add := func(p modelPart) {
		if p.fits(s) {
			v.fitting = append(v.fitting, p)
		} else {
			v.unfit = append(v.unfit, p)
		}
	}
	for _, field := range fields {
		for _, by := range []int64{0, 1, -1, 7, 100} {
			add(modelPart{verb: "Inc", field: field, by: by})
		}
		for _, value := range modelValues {
			add(modelPart{verb: "Patch", fields: map[string]any{field: value}})
			add(modelPart{verb: "Push", field: field, values: []any{value}})
			add(modelPart{verb: "Push", field: field, values: []any{value, "more"}})
			add(modelPart{verb: "SetRecord", field: field, key: "k", values: []any{value}})
			add(modelPart{verb: "SetRecord", field: field, key: "a.b", values: []any{value}})
		}
		add(modelPart{verb: "SetRecord", field: field, key: "\xff", values: []any{1}})
		add(modelPart{verb: "Push", field: field})
		for _, key := range []string{"k", "a", "a.b", "", "\xff"} {
			add(modelPart{verb: "DeleteRecord", field: field, key: key})
		}
	}
	for _, field := range []string{"n", "u", "small"} {
		add(modelPart{verb: "Inc", field: field, by: math.MaxInt64})
		add(modelPart{verb: "Inc", field: field, by: math.MinInt64})
	}
	for n := range int64(3) {
		tree, ok := s.zero().(map[string]any)
		if !ok {
			tree = map[string]any{}
		}
		if n > 0 {
			tree["n"] = new(big.Rat).SetInt64(n)
		}
		add(modelPart{verb: "Set", tree: tree})
	}
	add(modelPart{verb: "Set", bad: true})
	return v
}

// part draws a verb with its arguments; a patch may have several fields.
func (m *modelMachine) part(target modelTarget, alone bool) modelPart {
	words := m.words[target.shape()]
	if rapid.IntRange(0, 5).Draw(m.t, "function") == 0 {
		return modelPart{verb: "Atomic", fn: rapid.SampledFrom(modelFunctionNames).Draw(m.t, "named")}
	}
	from := words.fitting
	if rapid.IntRange(0, 9).Draw(m.t, "unfit") == 0 {
		from = words.unfit
	}
	p := rapid.SampledFrom(from).Draw(m.t, "verb")
	if p.verb != "Patch" {
		return p
	}
	if !alone { // the model knows overlapping fields only within one Patch
		return modelPart{verb: "Inc", field: "n", by: 1}
	}
	p.fields = maps.Clone(p.fields)
	for range rapid.IntRange(0, 2).Draw(m.t, "more fields") {
		if more := rapid.SampledFrom(words.fitting).Draw(m.t, "field"); more.verb == "Patch" {
			maps.Copy(p.fields, more.fields)
		}
	}
	return p
}

// expect compares an answer with the model of the scope.
func (m *modelMachine) expect(i int, a modelAnswer) {
	s := m.scopes[i]
	require.NoError(m.t, a.err)
	require.Equal(m.t, m.targets[i].name(), a.id)
	require.Equal(m.t, s.exists, a.exists)
	if !s.exists {
		require.Zero(m.t, a.version)
		return
	}
	require.Equal(m.t, s.version, a.version)
	require.Equal(m.t, printTree(s.state), printTree(a.tree))
	want := printTree(s.state)
	m.kept = append(m.kept, func() {
		tree, err := a.keep()
		require.NoError(m.t, err)
		require.Equal(m.t, want, printTree(tree), "a snapshot has changed")
	})
}

// Mutate applies a random verb, or several as one mutation.
func (m *modelMachine) Mutate() {
	i, rt := m.pick()
	target, s := m.targets[i], m.scopes[i]
	parts := []modelPart{m.part(target, true)}
	all := rapid.IntRange(0, 4).Draw(m.t, "all") == 0
	if all {
		for range rapid.IntRange(0, 3).Draw(m.t, "more") {
			parts = append(parts, m.part(target, false))
		}
	}
	cond := m.precondition(s)
	a := target.apply(rt, parts, all, rapid.Bool().Draw(m.t, "short"), cond.options())

	functions, fits, sets := false, true, false
	for _, p := range parts {
		functions = functions || p.verb == "Atomic"
		sets = sets || p.verb == "Set"
		fits = fits && p.fits(target.shape())
	}
	if !fits && !functions {
		m.refused(a.err, modelField)
		return
	}
	if !cond.admits(m.t, s, false, a.err) {
		m.counts["not admitted"]++
		return
	}
	before := s.state
	if !s.exists {
		before = target.shape().zero()
		if before == nil {
			before = map[string]any{}
		}
	}
	after := cloneTree(before)
	for _, p := range parts {
		var err error = modelField
		if p.fits(target.shape()) {
			after, err = p.apply(target.shape(), after)
		}
		if err != nil {
			m.refused(a.err, err)
			return
		}
	}
	creates := !s.exists && (sets || cond.normalized().absent)
	switch changes := !equalTrees(before, after); {
	case creates && s.deleted:
		m.counts["created anew"]++
	case creates || changes && !s.exists:
		m.counts["created"]++
	case changes:
		m.counts["changed"]++
	default:
		m.counts["unchanged"]++
	}
	if creates || !equalTrees(before, after) {
		m.scopes[i] = modelScope{exists: true, version: s.version + 1, state: after}
	}
	m.expect(i, a)
}

// refused requires that got is the library's error for want.
func (m *modelMachine) refused(got, want error) {
	m.counts["refused: "+want.Error()]++
	var field *pawl.FieldError
	switch want {
	case modelField:
		require.ErrorAs(m.t, got, &field)
	case modelBoom:
		require.Equal(m.t, errModel, got, "the function's error was changed")
	default:
		require.Equal(m.t, want, got)
	}
}

// Delete leaves a tombstone.
func (m *modelMachine) Delete() {
	if rapid.Bool().Draw(m.t, "really") {
		m.t.Skip("not too often")
	}
	i, rt := m.pick()
	s := m.scopes[i]
	cond := m.precondition(s)
	a := m.targets[i].delete(rt, cond.options())
	if !cond.admits(m.t, s, true, a.err) {
		return
	}
	if s.exists {
		m.counts["deleted"]++
		m.scopes[i] = modelScope{deleted: true, version: s.version + 1}
	}
	require.NoError(m.t, a.err)
}

// Read compares a scope with its model.
func (m *modelMachine) Read() {
	i, rt := m.pick()
	m.expect(i, m.targets[i].read(rt))
}

// LookBack compares an earlier snapshot with its expected state again.
func (m *modelMachine) LookBack() {
	if len(m.kept) == 0 {
		m.t.Skip("no snapshot yet")
	}
	m.kept[rapid.IntRange(0, len(m.kept)-1).Draw(m.t, "snapshot")]()
}

// Reopen closes a runtime and opens another in its place. In-memory scopes end with it.
func (m *modelMachine) Reopen() {
	if rapid.IntRange(0, 4).Draw(m.t, "really") != 0 {
		m.t.Skip("not too often")
	}
	i := rapid.IntRange(0, len(m.runtimes)-1).Draw(m.t, "runtime")
	old := m.runtimes[i]
	require.NoError(m.t, old.Close(context.Background()))
	require.ErrorIs(m.t, m.targets[0].read(old).err, pawl.ErrClosed)
	require.ErrorIs(m.t, m.targets[0].delete(old, nil).err, pawl.ErrClosed)
	m.runtimes[i] = m.open()
	if !m.durable {
		clear(m.scopes)
	}
}

// check reads every scope through every runtime.
func (m *modelMachine) check() {
	for i, target := range m.targets {
		for _, rt := range m.runtimes {
			m.expect(i, target.read(rt))
			m.kept = m.kept[:max(0, len(m.kept)-1)]
		}
	}
}

var modelRuns atomic.Int64 // gives every run its own scopes in a shared store

// runModel applies random verbs through the given number of runtimes and compares each answer with
// the model.
func runModel(t *testing.T, runtimes int, store persist.Store) {
	counts := map[string]int{}
	words := map[*shape]vocabulary{typedShape: newVocabulary(typedShape, typedFields), docShape: newVocabulary(docShape, docFields)}
	rapid.Check(t, func(rt *rapid.T) {
		run := strconv.FormatInt(modelRuns.Add(1), 10)
		m := &modelMachine{t: rt, durable: store != nil, counts: counts, words: words}
		m.open = func() *pawl.Runtime {
			opened, err := pawl.Open(pawl.Config{Store: store})
			require.NoError(rt, err)
			return opened
		}
		for i := range 3 {
			id := fmt.Sprintf("%s-%d", run, i)
			if i == 2 {
				m.targets = append(m.targets, typedTarget[pawl.Doc]{pawl.Kind[pawl.Doc]{Name: "model-doc", InMemory: store == nil}, id, docShape, docFields, docFunction})
				continue
			}
			m.targets = append(m.targets, typedTarget[modelState]{pawl.Kind[modelState]{Name: "model", InMemory: store == nil}, id, typedShape, typedFields, typedFunction})
		}
		m.scopes = make([]modelScope, len(m.targets))
		for range runtimes {
			m.runtimes = append(m.runtimes, m.open())
		}
		defer func() {
			for _, opened := range m.runtimes {
				_ = opened.Close(context.Background())
			}
		}()
		step := func(f func()) func(*rapid.T) { return func(*rapid.T) { f() } }
		several := func() {
			for range rapid.IntRange(1, 6).Draw(rt, "times") {
				m.Mutate()
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"mutate": step(several), "mutate more": step(several), "delete": step(m.Delete), "read": step(m.Read), "look back": step(m.LookBack),
			"reopen": step(m.Reopen), "": step(m.check),
		})
		for _, look := range m.kept {
			look()
		}
	})
	t.Logf("%v", counts)
	for _, what := range []string{"changed", "unchanged", "created", "created anew", "deleted", "not admitted", "refused: field", "refused: boom", "refused: panic"} {
		require.Positive(t, counts[what], what)
	}
}

// Random verbs on in-memory scopes give the states, versions and errors of a simple model.
// Proves SCOPE-1, SCOPE-4, SCOPE-6, SCOPE-9.
func TestModelInMemory(t *testing.T) { runModel(t, 1, nil) }

// Random verbs on persisted scopes match the model, also when runtimes share the store and are
// reopened. Proves SCOPE-1, SCOPE-7, SCOPE-10, SCOPE-12.
func TestModelStored(t *testing.T) {
	t.Run("memory", func(t *testing.T) { runModel(t, 1, memory.New()) })
	t.Run("two runtimes", func(t *testing.T) { runModel(t, 2, memory.New()) })
	fewer := flag.Lookup("rapid.checks").Value
	defer func(was string) { require.NoError(t, fewer.Set(was)) }(fewer.String())
	require.NoError(t, fewer.Set("20")) // a check on disk takes a hundred times as long
	stores.EachShared(t, func(t *testing.T, location string) { runModel(t, 2, stores.OpenFor(t, location)) })
}
