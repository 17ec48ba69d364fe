package waitgraph_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/waitgraph"
)

// A function whose caller has stopped waiting for it closes no cycle through that caller.
// Proves LOCK-10.
func TestCallerThatGaveUp(t *testing.T) {
	var a, b, c waitgraph.Lane
	outer := in(&a, "a", nil)
	require.Nil(t, outer.Wait(&b))
	inner := in(&b, "b", outer)
	outer.Waited(&b)
	rival := in(&c, "c", nil)
	require.Nil(t, rival.Wait(&a))
	require.Nil(t, inner.Wait(&c), "c waits for a, and a for nothing")
}

// The same holds for a function that runs apart from its lane. Proves LOCK-10.
func TestCallerThatGaveUpOnFunctionApart(t *testing.T) {
	var memory, stored, other waitgraph.Lane
	outer, rival := in(&memory, "memory", nil), in(&other, "other", nil)
	require.Nil(t, outer.Wait(&stored))
	inner := &waitgraph.Node{Parent: outer, Lane: &stored, Name: key("stored"), Apart: true}
	inner.Begin()
	require.Nil(t, inner.Wait(&other))
	outer.Waited(&stored)
	require.Nil(t, rival.Wait(&memory), "memory waits for nothing")
}
