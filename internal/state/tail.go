package state

import (
	"reflect"
	"slices"
)

// maxTails is how many lists of one state can grow in place at the same time.
const maxTails = 4

// Tail lets the lists of one linear history grow without being copied, so that
// a push costs the same on a long list as on a short one. Its zero value is
// ready.
//
// A committed list never has spare capacity, so a reader that appends to it
// gets memory of its own. The spare capacity is known to the Tail alone, and it
// writes there only if the list to push to is exactly the one it made last:
// same memory, same length. Anything beyond that length is visible to nobody.
// A history that branches (a push that was not committed, and is tried again)
// fails that test and starts from a copy.
type Tail struct {
	lists []*growing
	undo  []pushed // while several changes are applied as one
	multi bool
}

// growing is a list with its spare capacity.
type growing struct {
	list reflect.Value // addressable
}

// pushed is what to go back to if a change after a push fails.
type pushed struct {
	to     *growing
	memory uintptr // zero if the push moved the list
	length int
}

// push makes dst the list cur plus first and rest. cur and dst may be the same.
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
	if t.multi {
		t.undo = append(t.undo, pushed{g, memory, before})
	}
}

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

// adopt copies cur into a list that can grow; the one adopted longest ago is
// forgotten for it.
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

// begin opens a group of changes that rollback can take back.
func (t *Tail) begin() {
	if t == nil {
		return
	}
	t.multi = true
}

// keep closes the group: its pushes stand.
func (t *Tail) keep() {
	if t == nil {
		return
	}
	clear(t.undo)
	t.undo, t.multi = t.undo[:0], false
}

// rollback closes the group and takes back its pushes. What they wrote was visible only
// in a state that is now dropped.
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
