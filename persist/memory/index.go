package memory

import (
	"iter"
	"slices"
	"sort"

	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// chunkSize bounds how many positions one insertion moves.
const chunkSize = 512

// index is a sorted list of positions, in chunks that are never empty. A page of a list starts at
// its position, without a look at the positions before it.
type index struct{ chunks [][]cursor.Position }

// seek returns where the first position at or after p is. Beyond the last position, chunk is the
// number of chunks.
func (x *index) seek(p cursor.Position) (chunk, at int) {
	chunk = sort.Search(len(x.chunks), func(i int) bool { return x.chunks[i][len(x.chunks[i])-1].Compare(p) >= 0 })
	if chunk < len(x.chunks) {
		at, _ = slices.BinarySearchFunc(x.chunks[chunk], p, cursor.Position.Compare)
	}
	return chunk, at
}

// add adds p, unless it is there.
func (x *index) add(p cursor.Position) {
	chunk, at := x.seek(p)
	switch {
	case len(x.chunks) == 0:
		x.chunks = [][]cursor.Position{nil}
	case chunk == len(x.chunks):
		chunk--
		at = len(x.chunks[chunk])
	case x.chunks[chunk][at] == p:
		return
	}
	c := slices.Insert(x.chunks[chunk], at, p)
	x.chunks[chunk] = c
	if half := len(c) / 2; len(c) > chunkSize {
		x.chunks[chunk] = c[:half:half]
		x.chunks = slices.Insert(x.chunks, chunk+1, slices.Clone(c[half:]))
	}
}

// remove removes p, if it is there.
func (x *index) remove(p cursor.Position) {
	chunk, at := x.seek(p)
	if chunk == len(x.chunks) || x.chunks[chunk][at] != p {
		return
	}
	if x.chunks[chunk] = slices.Delete(x.chunks[chunk], at, at+1); len(x.chunks[chunk]) == 0 {
		x.chunks = slices.Delete(x.chunks, chunk, chunk+1)
	}
}

// before yields the positions before p, from the last to the first.
func (x *index) before(p cursor.Position) iter.Seq[cursor.Position] {
	return func(yield func(cursor.Position) bool) {
		for chunk, at := x.seek(p); ; at = len(x.chunks[chunk]) {
			for ; at > 0; at-- {
				if !yield(x.chunks[chunk][at-1]) {
					return
				}
			}
			if chunk--; chunk < 0 {
				return
			}
		}
	}
}

// from yields the positions at or after p, in order.
func (x *index) from(p cursor.Position) iter.Seq[cursor.Position] {
	return func(yield func(cursor.Position) bool) {
		chunk, at := x.seek(p)
		for ; chunk < len(x.chunks); chunk, at = chunk+1, 0 {
			for _, found := range x.chunks[chunk][at:] {
				if !yield(found) {
					return
				}
			}
		}
	}
}
