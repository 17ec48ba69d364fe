package waitgraph_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/waitgraph"
	"github.com/pawl-go/pawl/persist"
)

func key(id string) persist.Key { return persist.Key{Kind: "k", ID: id} }

// in returns a running function that holds its lane.
func in(l *waitgraph.Lane, id string, parent *waitgraph.Node) *waitgraph.Node {
	n := &waitgraph.Node{Parent: parent, Lane: l, Name: key(id)}
	l.Hold(n)
	return n
}

// Two functions that wait for each other are a cycle. Proves LOCK-10.
func TestCycleOfTwo(t *testing.T) {
	var a, b waitgraph.Lane
	fa, fb := in(&a, "a", nil), in(&b, "b", nil)
	require.Nil(t, fa.Wait(&b))
	require.Equal(t, []persist.Key{key("b"), key("a"), key("b")}, fb.Wait(&a))
	fa.Waited(&b)
	require.Nil(t, fb.Wait(&a), "a no longer waits for b")
}

// A function that has returned holds no lane. Proves LOCK-10.
func TestReturnedFunction(t *testing.T) {
	var a, b waitgraph.Lane
	fa, fb := in(&a, "a", nil), in(&b, "b", nil)
	require.Nil(t, fa.Wait(&b))
	fa.End()
	require.Nil(t, fb.Wait(&a))
	require.False(t, fa.Inside(&a))
}

// A function on a persisted scope runs apart from its lane, but its caller still waits for it.
// Proves LOCK-10.
func TestCycleThroughFunctionApart(t *testing.T) {
	var memory, stored, other waitgraph.Lane
	outer, rival := in(&memory, "memory", nil), in(&other, "other", nil)
	require.Nil(t, outer.Wait(&stored))
	inner := &waitgraph.Node{Parent: outer, Lane: &stored, Name: key("stored"), Apart: true}
	inner.Begin()
	require.Nil(t, inner.Wait(&other))
	require.NotNil(t, rival.Wait(&memory), "memory waits for stored, and that for other")
	inner.End()
	require.Nil(t, rival.Wait(&memory))
}

// Inside finds a lane held by the function or one of its callers. Proves LOCK-9.
func TestInside(t *testing.T) {
	var a, b waitgraph.Lane
	outer := in(&a, "a", nil)
	inner := in(&b, "b", outer)
	require.True(t, inner.Inside(&a))
	require.True(t, inner.Inside(&b))
	require.False(t, outer.Inside(&b))
}

func Example() {
	var a, b waitgraph.Lane
	fa, fb := in(&a, "a", nil), in(&b, "b", nil)
	fmt.Println(fa.Wait(&b))
	fmt.Println(fb.Wait(&a))
	// Output:
	// []
	// [k/b k/a k/b]
}
