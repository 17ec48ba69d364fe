// Package waitgraph finds calls that would wait for themselves.
//
// A function that mutates one scope may call a verb on another scope and wait for its answer. Each
// running function is a Node, each queue a Lane. A node waits for a lane, and a lane is held by the
// node of the function that has its turn. A call that would close a cycle of such edges is refused
// before it waits, so no deadlock comes into being.
//
// Some functions run without holding their lane: on a persisted scope the queue moves on as soon as
// a function calls another scope. Their caller still waits for them, so Begin notes them below the
// node of the caller, and the search for a cycle follows those edges too.
//
// The races, and what decides each:
//   - two calls that would close one cycle together: the graph's lock; the second sees the first's edge.
//   - a function that returns while the graph is searched: over. A node that is over holds nothing.
package waitgraph

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pawl-go/pawl/persist"
)

// graph protects the edges of all nodes. Only calls from inside a function take it.
var graph sync.Mutex

// Lane is a queue as the graph sees it. The zero value is held by no function.
type Lane struct {
	holder atomic.Pointer[Node]
}

// Hold makes n the function that keeps l from moving on.
func (l *Lane) Hold(n *Node) { l.holder.Store(n) }

// Release ends Hold.
func (l *Lane) Release() { l.holder.Store(nil) }

// Holder returns the function that keeps l from moving on, nil if there is none.
func (l *Lane) Holder() *Node {
	if n := l.holder.Load(); n != nil && !n.over.Load() {
		return n
	}
	return nil
}

// Node is a running function or transaction. The fields are set before it is used.
type Node struct {
	Parent *Node       // the function or transaction around it; nil: none
	Lane   *Lane       // the queue that the function has its turn in; nil for a transaction
	Name   persist.Key // of the scope, for the error
	Apart  bool        // the lane does not wait for this function, its caller alone does

	over atomic.Bool // the function has returned, or was abandoned
	kept *edges      // nil: none; protected by graph
}

// edges lead from a node. Few functions call another scope, so a node has none at first.
type edges struct {
	waits []*Lane
	below []*Node // functions that run apart, for calls of this node
}

// edges returns the edges of n. The caller holds the lock of the graph.
func (n *Node) edges() *edges {
	if n.kept == nil {
		n.kept = &edges{}
	}
	return n.kept
}

// Begin enters n into the graph. It is needed for nodes that run apart only.
func (n *Node) Begin() {
	if n.Parent == nil || !n.Apart {
		return
	}
	graph.Lock()
	defer graph.Unlock()
	e := n.Parent.edges()
	e.below = append(e.below, n)
}

// End marks n as over and takes it out of the graph. Calling it twice is safe.
func (n *Node) End() {
	n.over.Store(true)
	if n.Parent == nil || !n.Apart {
		return
	}
	graph.Lock()
	defer graph.Unlock()
	e := n.Parent.edges()
	e.below = slices.DeleteFunc(e.below, func(b *Node) bool { return b == n })
}

// Over reports whether the function has returned or was abandoned.
func (n *Node) Over() bool { return n.over.Load() }

// Inside reports whether n, or a node around it that is not over, has its turn in l.
func (n *Node) Inside(l *Lane) bool {
	for a := n; a != nil; a = a.Parent {
		if a.Lane == l && !a.over.Load() {
			return true
		}
	}
	return false
}

// Wait records that n waits for l. If l cannot move before n, or a node around it, has returned,
// it records nothing and returns the cycle, starting with n's own scope.
func (n *Node) Wait(l *Lane) (cycle []persist.Key) {
	graph.Lock()
	defer graph.Unlock()
	if path := n.behindLane(l, nil); path != nil {
		return append([]persist.Key{n.Name}, path...)
	}
	e := n.edges()
	e.waits = append(e.waits, l)
	return nil
}

// Waited removes the edge that Wait recorded.
func (n *Node) Waited(l *Lane) {
	graph.Lock()
	defer graph.Unlock()
	e := n.edges()
	if i := slices.Index(e.waits, l); i >= 0 {
		e.waits = slices.Delete(e.waits, i, i+1)
	}
}

// behindLane returns the scopes on the way from the holder of l to a node that n runs inside of, nil
// if there is no such way.
func (n *Node) behindLane(l *Lane, seen []*Lane) []persist.Key {
	h := l.Holder()
	if h == nil || slices.Contains(seen, l) {
		return nil
	}
	return n.behindNode(h, append(seen, l))
}

// behindNode does the same from h, following what h waits for.
func (n *Node) behindNode(h *Node, seen []*Lane) []persist.Key {
	for a := n; a != nil; a = a.Parent {
		if a == h {
			return []persist.Key{h.Name}
		}
		if a.Parent != nil && !slices.Contains(a.Parent.edges().waits, a.Lane) {
			break // the caller around a no longer waits for it
		}
	}
	for _, l := range h.edges().waits {
		if path := n.behindLane(l, seen); path != nil {
			return append([]persist.Key{h.Name}, path...)
		}
	}
	for _, b := range h.edges().below {
		if !slices.Contains(h.edges().waits, b.Lane) {
			continue // h no longer waits for b
		}
		if path := n.behindNode(b, seen); path != nil {
			return append([]persist.Key{h.Name}, path...)
		}
	}
	return nil
}
