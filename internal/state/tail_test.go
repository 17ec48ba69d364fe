package state

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type lists struct {
	A []int  `json:"a"`
	B []int  `json:"b"`
	N int8   `json:"n"`
	X any    `json:"x"`
	M []list `json:"m"`
}

type list struct{ V []int }

func step1(t testing.TB, cur *lists, tail *Tail, ops ...Op) (*lists, error) {
	t.Helper()
	p, err := typeOf[lists](t).Prepare(ops)
	require.NoError(t, err)
	dst := &lists{}
	_, err = applyTo(&p, cur, dst, tail)
	return dst, err
}

func TestPushGrowsInPlace(t *testing.T) {
	var tail Tail
	cur := &lists{}
	moves := 0
	for i := range 10_000 {
		next, err := step1(t, cur, &tail, push("a", i))
		require.NoError(t, err)
		if i > 0 && &next.A[0] != &cur.A[0] {
			moves++
		}
		require.Equal(t, len(next.A), cap(next.A), "a reader's append must not reach shared memory")
		cur = next
	}
	assert.Less(t, moves, 50)
}

func TestPushGrowsSeveralListsInPlace(t *testing.T) {
	var tail Tail
	cur := &lists{}
	moves := 0
	for i := range 1000 {
		next, err := step1(t, cur, &tail, push("a", i), push("x", i), push("b", i))
		require.NoError(t, err)
		if i > 0 && &next.A[0] != &cur.A[0] {
			moves++
		}
		cur = next
	}
	assert.Less(t, moves, 50)
	assert.Len(t, cur.X, 1000)
}

func TestPushOnBranchCopies(t *testing.T) {
	var tail Tail
	base, err := step1(t, nil, &tail, push("a", 1))
	require.NoError(t, err)
	first, err := step1(t, base, &tail, push("a", 2)) // may be committed or not
	require.NoError(t, err)
	second, err := step1(t, base, &tail, push("a", 3))
	require.NoError(t, err)
	third, err := step1(t, first, &tail, push("a", 4))
	require.NoError(t, err)
	assert.Equal(t, []int{1}, base.A)
	assert.Equal(t, []int{1, 2}, first.A)
	assert.Equal(t, []int{1, 3}, second.A)
	assert.Equal(t, []int{1, 2, 4}, third.A)
}

func TestFailedGroupTakesBackPushes(t *testing.T) {
	var tail Tail
	cur := &lists{}
	for i := range 20 {
		next, err := step1(t, cur, &tail, push("a", i))
		require.NoError(t, err)
		cur = next
		_, err = step1(t, cur, &tail, push("a", -1, -2), push("a", -3), inc("n", 127), inc("n", 127))
		require.Error(t, err)
	}
	for i, v := range cur.A {
		assert.Equal(t, i, v)
	}
}

// Every returned state keeps its content in any history, with branches, failures and other writers.
func TestPushKeepsEarlierStates(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var tail Tail
		ty := typeOf[lists](t)
		states := []*lists{{}}
		texts := []string{text(states[0])}
		for i := range rapid.IntRange(1, 40).Draw(rt, "steps") {
			cur := states[len(states)-1]
			if rapid.IntRange(0, 3).Draw(rt, "branch") == 0 {
				cur = rapid.SampledFrom(states).Draw(rt, "cur")
			}
			var ops []Op
			for j := range rapid.IntRange(1, 3).Draw(rt, "ops") {
				switch rapid.IntRange(0, 5).Draw(rt, "op") {
				case 0:
					ops = append(ops, inc("n", 100))
				case 1:
					ops = append(ops, patch("a", []int{i}))
				default:
					field := rapid.SampledFrom([]string{"a", "b", "x"}).Draw(rt, "field")
					ops = append(ops, push(field, i, j))
				}
			}
			p, err := ty.Prepare(ops)
			require.NoError(rt, err)
			dst := &lists{}
			if changed, err := applyTo(&p, cur, dst, &tail); err == nil && changed {
				states, texts = append(states, dst), append(texts, text(dst))
			}
			for k, s := range states {
				require.Equal(rt, texts[k], text(s))
			}
		}
	})
}

func text(s *lists) string { return fmt.Sprint(s.A, s.B, s.N, s.X) }
