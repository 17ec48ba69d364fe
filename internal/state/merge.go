package state

import (
	"encoding/json"
	"strings"
)

// Merge returns newKnown with the fields of stored that T does not know.
//
// stored is the document in the store, oldKnown the JSON of the state that was decoded from it, and
// newKnown the JSON of the state to write. A key that is in stored but not in oldKnown is unknown
// to T and kept. A key that is in oldKnown but not in newKnown was removed, with everything below
// it. This holds at every depth. A key that differs from a known key only by case is known, because
// encoding/json decodes it as that key.
//
// In a list, unknown fields follow their item. Merge recognises items by their known content, and
// changed items by their place next to those. The unknown fields of a removed item are removed.
// Numbers stay as written. The result is compact, with sorted keys.
func Merge(stored, oldKnown, newKnown []byte) ([]byte, error) {
	var trees [3]any
	for i, doc := range [][]byte{stored, oldKnown, newKnown} {
		if len(doc) == 0 && i < 2 {
			continue // nothing was stored yet
		}
		tree, err := decodeTree(doc)
		if err != nil {
			return nil, err
		}
		trees[i] = tree
	}
	doc, err := marshal(merge(trees[0], trees[1], trees[2]))
	if err != nil {
		return nil, failed(err)
	}
	return doc, nil
}

func merge(stored, was, now any) any {
	switch now := now.(type) {
	case map[string]any:
		if stored, ok := stored.(map[string]any); ok {
			// A struct that omitzero left out counts as an empty object.
			was, isObject := was.(map[string]any)
			if isObject || was == nil {
				return mergeObjects(stored, was, now)
			}
		}
	case []any:
		stored, okStored := stored.([]any)
		was, okWas := was.([]any)
		if okStored && okWas && len(stored) == len(was) {
			return mergeLists(stored, was, now)
		}
	}
	return now
}

func mergeObjects(stored, was, now map[string]any) any {
	out := make(map[string]any, len(stored)+len(now))
	for k, v := range now {
		out[k] = v
	}
	for k, v := range stored {
		known, ok := knownAs(k, was, now)
		if !ok {
			out[k] = v
			continue
		}
		if _, exact := stored[known]; exact && known != k {
			continue // differs by case from a key that is there as well, which counts
		}
		if next, ok := now[known]; ok {
			out[known] = merge(v, was[known], next)
		}
	}
	return out
}

// knownAs returns the name that T has for key, if T knows it.
func knownAs(key string, was, now map[string]any) (string, bool) {
	for _, known := range []map[string]any{was, now} {
		if _, ok := known[key]; ok {
			return key, true
		}
	}
	for _, known := range []map[string]any{was, now} {
		for k := range known {
			if strings.EqualFold(k, key) {
				return k, true
			}
		}
	}
	return "", false
}

// mergeLists merges each item of now with the stored form of the item of was that it came from.
func mergeLists(stored, was, now []any) any {
	from := matchLists(was, now)
	out := make([]any, len(now))
	for j, v := range now {
		out[j] = v
		if i := from[j]; i >= 0 {
			out[j] = merge(stored[i], was[i], v)
		}
	}
	return out
}

// matchLists returns for each item of now the index of its origin in was, or -1. It first matches
// equal content: at the start and at the end, where the order is kept, then anywhere. It matches
// the remaining items by their neighbours.
func matchLists(was, now []any) []int {
	from := make([]int, len(now))
	for j := range from {
		from[j] = -1
	}
	taken := make([]bool, len(was))
	take := func(i, j int) {
		from[j], taken[i] = i, true
	}
	wasKeys, nowKeys := contents(was), contents(now)
	start, endWas, endNow := 0, len(was), len(now)
	for start < endWas && start < endNow && wasKeys[start] == nowKeys[start] {
		take(start, start)
		start++
	}
	for endWas > start && endNow > start && wasKeys[endWas-1] == nowKeys[endNow-1] {
		endWas--
		endNow--
		take(endWas, endNow)
	}
	byContent := map[string][]int{}
	for i := start; i < endWas; i++ {
		byContent[wasKeys[i]] = append(byContent[wasKeys[i]], i)
	}
	for j := start; j < endNow; j++ {
		if same := byContent[nowKeys[j]]; len(same) > 0 {
			take(same[0], j)
			byContent[nowKeys[j]] = same[1:]
		}
	}
	for j := start; j < endNow; j++ {
		if from[j] >= 0 {
			continue
		}
		if i := neighbour(from, j, -1); i >= 0 && i < len(was) && !taken[i] {
			take(i, j)
		} else if i := neighbour(from, j, +1); i >= 0 && i < len(was) && !taken[i] {
			take(i, j)
		}
	}
	return from
}

// neighbour returns the index that item j came from, if it is still next to the item before it
// (side -1) or after it (side +1). Otherwise it returns -1 or an index out of range.
func neighbour(from []int, j, side int) int {
	next := j + side
	switch {
	case next < 0:
		return 0
	case next >= len(from) || from[next] < 0:
		return -1
	}
	return from[next] - side
}

// contents returns the JSON of each item. It is the same for equal items, because encoding/json
// sorts keys.
func contents(list []any) []string {
	out := make([]string, len(list))
	for i, v := range list {
		doc, _ := json.Marshal(v)
		out[i] = string(doc)
	}
	return out
}
