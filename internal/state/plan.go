package state

import (
	"bytes"
	"reflect"
	"slices"
	"time"
	"unsafe"
)

// plan is how to copy and settle a struct type by the addresses of its fields.
// Functions change small structs most of all, and there reflection would cost
// more than all the rest. It knows numbers, strings, times, and lists and maps
// of them; what it does not know is left to clone and settle.
type plan struct {
	spots  []spot
	rest   []part // of the struct itself
	levels int    // how deeply its spots nest
	shares bool   // it has spots that a shallow copy shares
}

// spot is a field that a plan knows.
type spot struct {
	offset    uintptr
	shape     shape
	size      uintptr // of a number, or of the numbers in a list
	path      string  // for errors
	omitEmpty bool
	entries   entries // of a map
}

type shape uint8

const (
	shapeBits    shape = iota + 1 // a bool or an integer
	shapeFloat32                  // these three can be refused
	shapeFloat64
	shapeString
	shapeTime
	shapeBitsList
	shapeStrings
	shapeMap
)

// planOf returns nil for what is not a struct, embeds another, or has fields that a copy must not have.
func planOf(n *node) *plan {
	if !n.carriesAll() {
		return nil
	}
	p := &plan{}
	p.add(n, 0, "", 1)
	return p
}

// carriesAll reports whether n is a struct of which every field is carried under its own name.
func (n *node) carriesAll() bool {
	return n.kind == kStruct && len(n.parts) == n.rt.NumField() && !slices.ContainsFunc(n.parts, func(p part) bool { return p.node == nil })
}

// add takes the fields of n, which is the struct itself or one inside it that onlySpots.
func (p *plan) add(n *node, base uintptr, path string, level int) {
	p.levels = max(p.levels, level+1) // a list or map counts as one more
	for i := range n.parts {
		part := &n.parts[i]
		offset, at := base+n.rt.Field(part.index).Offset, join(path, Escape(part.name))
		if s, ok := spotOf(part.node); ok {
			s.offset, s.path, s.omitEmpty = offset, at, part.omitEmpty
			p.spots = append(p.spots, s)
			p.shares = p.shares || s.shape >= shapeBitsList
		} else if part.node.onlySpots(1) {
			p.add(part.node, offset, at, level+1)
		} else {
			p.rest = append(p.rest, *part)
		}
	}
}

// onlySpots reports whether n is a struct that a plan knows all of.
func (n *node) onlySpots(depth int) bool {
	return depth < MaxDepth && n.carriesAll() && !slices.ContainsFunc(n.parts, func(p part) bool {
		_, ok := spotOf(p.node)
		return !ok && !p.node.onlySpots(depth+1)
	})
}

func spotOf(n *node) (s spot, ok bool) {
	switch n.kind {
	case kBool, kInt, kUint:
		return spot{shape: shapeBits, size: n.rt.Size()}, true
	case kFloat:
		if n.rt.Size() == 4 {
			return spot{shape: shapeFloat32}, true
		}
		return spot{shape: shapeFloat64}, true
	case kString:
		return spot{shape: shapeString}, true
	case kTime:
		return spot{shape: shapeTime}, true
	case kBytes:
		return spot{shape: shapeBitsList, size: 1}, true
	case kSlice:
		switch n.elem.kind {
		case kBool, kInt, kUint:
			return spot{shape: shapeBitsList, size: n.elem.rt.Size()}, true
		case kString:
			return spot{shape: shapeStrings}, true
		}
	case kMap:
		return spot{shape: shapeMap, entries: n.entries}, n.entries != nil
	}
	return s, false
}

// at returns the field that s is of the struct at p. Types of one shape have
// one layout in memory, whatever their names.
func at[F any](p unsafe.Pointer, s *spot) *F { return (*F)(unsafe.Add(p, s.offset)) }

// part makes the struct at p, a shallow copy of a committed state, a deep one.
func (l *plan) part(p unsafe.Pointer) {
	if !l.shares {
		return
	}
	for i := range l.spots {
		switch s := &l.spots[i]; s.shape {
		case shapeBitsList:
			copyBits(p, s)
		case shapeStrings:
			list := at[[]string](p, s)
			*list = cloneList(*list)
		case shapeMap:
			s.entries.part(unsafe.Add(p, s.offset))
		}
	}
}

// cloneList returns a copy without spare capacity.
func cloneList[E any](list []E) []E {
	if list == nil {
		return nil
	}
	out := make([]E, len(list))
	copy(out, list)
	return out
}

// copyBits gives the list of numbers at s memory of its own.
func copyBits(p unsafe.Pointer, s *spot) {
	switch s.size {
	case 1:
		list := at[[]uint8](p, s)
		*list = cloneList(*list)
	case 2:
		list := at[[]uint16](p, s)
		*list = cloneList(*list)
	case 4:
		list := at[[]uint32](p, s)
		*list = cloneList(*list)
	default:
		list := at[[]uint64](p, s)
		*list = cloneList(*list)
	}
}

// settle makes the struct at p, a shallow copy of a draft, a committed one that
// shares with old what is equal, and reports whether all of it is. It looks
// only at what is its own already: the draft's function could still run.
func (l *plan) settle(old, p unsafe.Pointer) (same bool, err error) {
	same = true
	for i := range l.spots {
		s := &l.spots[i]
		equal := false
		reason := ""
		switch s.shape {
		case shapeBits:
			equal = sameBits(old, p, s)
		case shapeString:
			was, now := at[string](old, s), at[string](p, s)
			if unsafe.StringData(*was) == unsafe.StringData(*now) && len(*was) == len(*now) {
				equal = true
			} else if equal = *was == *now; equal {
				*now = *was
			} else {
				reason = badString(*now)
			}
		case shapeFloat64:
			if equal = *at[float64](old, s) == *at[float64](p, s); !equal {
				reason = badFloat(*at[float64](p, s))
			}
		case shapeFloat32:
			if equal = *at[float32](old, s) == *at[float32](p, s); !equal {
				reason = badFloat(float64(*at[float32](p, s)))
			}
		case shapeTime:
			now := at[time.Time](p, s)
			*now, equal, reason = settledTime(*at[time.Time](old, s), *now)
		case shapeBitsList:
			equal = settleBits(old, p, s)
		case shapeStrings:
			if equal, err = settleStrings(at[[]string](old, s), at[[]string](p, s)); err != nil {
				return false, l.refused(s, err)
			}
		case shapeMap:
			if equal, err = s.entries.settle(unsafe.Add(old, s.offset), unsafe.Add(p, s.offset)); err != nil {
				return false, l.refused(s, err)
			}
		}
		if reason != "" {
			return false, l.refused(s, refuse("%s", reason))
		}
		if !equal && (!s.omitEmpty || !s.bothEmpty(old, p)) {
			same = false
		}
	}
	return same, nil
}

func (l *plan) refused(s *spot, err error) error {
	e := failed(err)
	e.Path = join(s.path, e.Path)
	return e
}

func (s *spot) bothEmpty(old, p unsafe.Pointer) bool {
	if s.shape == shapeMap {
		return s.entries.empty(unsafe.Add(old, s.offset)) && s.entries.empty(unsafe.Add(p, s.offset))
	}
	// The length of a list is where it is whatever the list is of.
	return s.shape >= shapeBitsList && len(*at[[]struct{}](old, s)) == 0 && len(*at[[]struct{}](p, s)) == 0
}

func sameBits(old, p unsafe.Pointer, s *spot) bool {
	switch s.size {
	case 8:
		return *at[uint64](old, s) == *at[uint64](p, s)
	case 4:
		return *at[uint32](old, s) == *at[uint32](p, s)
	case 2:
		return *at[uint16](old, s) == *at[uint16](p, s)
	}
	return *at[uint8](old, s) == *at[uint8](p, s)
}

func settleBits(old, p unsafe.Pointer, s *spot) (same bool) {
	was, now := at[[]uint8](old, s), at[[]uint8](p, s) // their lengths count numbers, not bytes
	if *was == nil || *now == nil || len(*was) != len(*now) {
		copyBits(p, s)
		return *was == nil && *now == nil
	}
	size := len(*now) * int(s.size)
	if !bytes.Equal(unsafe.Slice(unsafe.SliceData(*was), size), unsafe.Slice(unsafe.SliceData(*now), size)) {
		copyBits(p, s)
		return false
	}
	*now = *was
	return true
}

func settleStrings(was, now *[]string) (same bool, err error) {
	if *was != nil && *now != nil && slices.Equal(*was, *now) {
		*now = *was
		return true, nil
	}
	*now = cloneList(*now)
	for i, item := range *now {
		if i < len(*was) && (*was)[i] == item {
			(*now)[i] = (*was)[i]
		} else if reason := badString(item); reason != "" {
			return false, underIndex(refuse("%s", reason), i)
		}
	}
	return *was == nil && *now == nil, nil
}

// Deepen is Clone for a *dst that is a plain copy of *src already, or zero if
// src is nil, as an assignment makes it where T is known.
func (t *Type) Deepen(src, dst any) error {
	if t.plan == nil {
		return t.Clone(src, dst)
	}
	t.plan.part(pointer(dst))
	if len(t.plan.rest) == 0 {
		return nil
	}
	if from, ok := t.value(src); ok {
		return cloneParts(t.plan.rest, from, reflect.ValueOf(dst).Elem())
	}
	return nil
}

// pointer returns the pointer that s is, nil for nil.
func pointer(s any) unsafe.Pointer {
	type boxed struct{ typ, data unsafe.Pointer }
	return (*boxed)(unsafe.Pointer(&s)).data
}

// SettleCopy is Settle for a *dst that is a plain copy of *draft already.
func (t *Type) SettleCopy(old, draft, dst any) (changed bool, err error) {
	if t.plan == nil {
		return t.Settle(old, draft, dst)
	}
	from := pointer(old)
	if from == nil {
		from = t.zero.UnsafePointer()
	}
	same, err := t.plan.settle(from, pointer(dst))
	if err != nil || len(t.plan.rest) == 0 {
		return !same, err
	}
	was, to := reflect.NewAt(t.root.rt, from), reflect.ValueOf(dst)
	for i := range t.plan.rest {
		to.Elem().Field(t.plan.rest[i].index).SetZero()
	}
	also, err := settleParts(t.plan.rest, was.Elem(), t.valueOrZero(draft), to.Elem(), false, 1)
	return !same || !also, err
}
