package state

import (
	"maps"
	"reflect"
	"unsafe"
)

// entries copies and settles the maps of one type by what their values are in
// memory, as a plan does with fields: one entry by reflection costs as much as
// all of a small map without. The maps are told by their addresses.
type entries interface {
	// part makes the map at p, which is a committed one, a copy of it.
	part(p unsafe.Pointer)
	// settle makes the map at p, which is a draft's, a committed one, and
	// reports whether that is the one at old.
	settle(old, p unsafe.Pointer) (same bool, err error)
	empty(p unsafe.Pointer) bool
}

// entriesOf returns nil for maps that are left to reflection: those whose keys
// are not strings, and those of more than a number or a string.
func entriesOf(n *node) entries {
	if n.kind != kMap || n.rt.Key().Kind() != reflect.String {
		return nil
	}
	switch n.elem.kind {
	case kBool, kInt, kUint:
		switch n.elem.rt.Size() {
		case 1:
			return entriesTo[uint8]{}
		case 2:
			return entriesTo[uint16]{}
		case 4:
			return entriesTo[uint32]{}
		}
		return entriesTo[uint64]{}
	case kFloat:
		if n.elem.rt.Size() == 4 {
			return entriesTo[float32]{func(f float32) string { return badFloat(float64(f)) }}
		}
		return entriesTo[float64]{badFloat}
	case kString:
		return entriesTo[string]{badString}
	}
	return nil
}

// entriesTo are maps from strings to V, or to what looks like one in memory.
// The Go runtime tells maps by nothing else: equal keys have equal hashes
// whatever the names of their types.
type entriesTo[V comparable] struct {
	bad func(V) string // why a state cannot hold it; nil: it can
}

func (entriesTo[V]) part(p unsafe.Pointer) {
	m := (*map[string]V)(p)
	*m = maps.Clone(*m)
}

func (entriesTo[V]) empty(p unsafe.Pointer) bool { return len(*(*map[string]V)(p)) == 0 }

func (e entriesTo[V]) settle(old, p unsafe.Pointer) (same bool, err error) {
	was, now := *(*map[string]V)(old), (*map[string]V)(p)
	draft := *now
	if draft == nil {
		return was == nil, nil
	}
	type entry struct {
		key   string
		value V
	}
	var few [8]entry
	differ := few[:0]
	for k, v := range draft {
		before, had := was[k]
		if had && before == v {
			continue
		}
		if e.bad != nil && before != v {
			if reason := e.bad(v); reason != "" {
				return false, under(refuse("%s", reason), k)
			}
		}
		if !had {
			if reason := badString(k); reason != "" {
				return false, refuse("key %q: %s", k, reason)
			}
		}
		differ = append(differ, entry{k, v})
	}
	if len(differ) == 0 && len(was) == len(draft) && was != nil {
		*now = was
		return true, nil
	}
	var out map[string]V
	if len(differ) == len(draft) {
		out = make(map[string]V, len(draft))
	} else {
		out = maps.Clone(was)
	}
	for _, d := range differ {
		out[d.key] = d.value
	}
	if len(out) > len(draft) {
		for k := range out {
			if _, kept := draft[k]; !kept {
				delete(out, k)
			}
		}
	}
	*now = out
	return false, nil
}
