package state

import (
	"reflect"
	"slices"
)

// maxTails limits the lists of one state that can grow in place at the same time.
const maxTails = 4

// Tail lets the lists of one history of states grow without a copy, so that a push onto a long list
// costs as much as a push onto a short one. The zero value is ready to use. One goroutine at a time
// may use a Tail.
//
// A committed list has no spare capacity, so a reader that appends to it gets memory of its own.
// Only the Tail has the list with its spare capacity. It writes there only if the list to push to
// is exactly the last one that it made: same memory, same length. No reader can see memory beyond
// that length. If the history branches (a push that was not committed is tried again), the lengths
// differ, and the Tail starts from a copy.
type Tail struct {
	lists   []*growing // oldest first, at most maxTails
	grouped bool       // several changes are applied as one
	undo    []pushed   // the pushes of the group
}

// growing is a list with its spare capacity.
type growing struct {
	list reflect.Value // addressable
}

// pushed describes a list before a push.
type pushed struct {
	to     *growing
	memory uintptr // zero if the push moved the list
	length int
}

// push sets dst to the list cur with first and rest appended. cur and dst may be the same.
func (t *Tail) push(cur, dst, first reflect.Value, rest []reflect.Value) {
	before := cur.Len()
	size := before + 1 + len(rest)
	if t == nil {
		out := reflect.MakeSlice(cur.Type(), size, size)
		reflect.Copy(out, cur)
		fill(out, before, first, rest)
		dst.Set(out)
		return
	}
	g := t.find(cur)
	memory := cur.Pointer()
	if g == nil {
		memory = 0
		g = t.adopt(cur, size)
	}
	if g.list.Cap() < size {
		memory = 0
		g.list.Grow(size - before)
	}
	g.list.SetLen(size)
	fill(g.list, before, first, rest)
	dst.Set(g.list)
	dst.SetCap(size)
	if t.grouped {
		t.undo = append(t.undo, pushed{g, memory, before})
	}
}

// fill stores first and rest in list, from index at on.
func fill(list reflect.Value, at int, first reflect.Value, rest []reflect.Value) {
	list.Index(at).Set(first)
	for i, v := range rest {
		list.Index(at + 1 + i).Set(v)
	}
}

// find returns the growing list whose visible part is exactly cur.
func (t *Tail) find(cur reflect.Value) *growing {
	for _, g := range t.lists {
		if g.list.Type() == cur.Type() && g.list.Len() == cur.Len() && g.list.Pointer() == cur.Pointer() && cur.Len() > 0 {
			return g
		}
	}
	return nil
}

// adopt copies cur into a new growing list. If there are too many, the oldest is dropped.
func (t *Tail) adopt(cur reflect.Value, size int) *growing {
	g := &growing{list: reflect.New(cur.Type()).Elem()}
	g.list.Set(reflect.MakeSlice(cur.Type(), cur.Len(), size+size/4+3))
	reflect.Copy(g.list, cur)
	if len(t.lists) == maxTails {
		t.lists = slices.Delete(t.lists, 0, 1)
	}
	t.lists = append(t.lists, g)
	return g
}

// begin opens a group of changes. A nil Tail has no groups.
func (t *Tail) begin() {
	if t != nil {
		t.grouped = true
	}
}

// keep closes the group and keeps its pushes.
func (t *Tail) keep() {
	if t != nil {
		clear(t.undo)
		t.undo, t.grouped = t.undo[:0], false
	}
}

// rollback closes the group and takes back its pushes. Only the state that is now dropped could see
// them.
func (t *Tail) rollback() {
	if t == nil {
		return
	}
	for _, u := range slices.Backward(t.undo) {
		if u.memory == 0 || u.to.list.Pointer() != u.memory {
			t.lists = slices.DeleteFunc(t.lists, func(g *growing) bool { return g == u.to })
			continue
		}
		u.to.list.Slice(u.length, u.to.list.Len()).Clear()
		u.to.list.SetLen(u.length)
	}
	t.keep()
}
