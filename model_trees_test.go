package pawl_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"
)

// treeOf returns a Go value as a tree, and false for a value that no store could keep.
func treeOf(value any) (any, bool) {
	switch v := value.(type) {
	case nil, bool:
		return v, true
	case string:
		return v, goodString(v)
	case int:
		return new(big.Rat).SetInt64(int64(v)), true
	case int64:
		return new(big.Rat).SetInt64(v), true
	case uint64:
		return new(big.Rat).SetInt(new(big.Int).SetUint64(v)), true
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, false
		}
		return new(big.Rat).SetFloat64(v), true
	case []string:
		return listTree(v)
	case []any:
		return listTree(v)
	case map[string]int64:
		return mapTree(v)
	case map[string]any:
		return mapTree(v)
	}
	panic(fmt.Sprintf("no tree of a %T", value))
}

func listTree[E any](list []E) (any, bool) {
	out, good := []any{}, true
	for _, v := range list {
		tree, ok := treeOf(v)
		out, good = append(out, tree), good && ok
	}
	return out, good
}

func mapTree[V any](m map[string]V) (any, bool) {
	out, good := map[string]any{}, true
	for k, v := range m {
		tree, ok := treeOf(v)
		out[k], good = tree, good && ok && goodString(k)
	}
	return out, good
}

func goodString(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// parseTree reads JSON.
func parseTree(doc []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var raw any
	if err := dec.Decode(&raw); err != nil {
		return nil, err
	}
	return ratTree(raw), nil
}

func ratTree(raw any) any {
	switch v := raw.(type) {
	case json.Number:
		n, ok := new(big.Rat).SetString(string(v))
		if !ok {
			panic("not a number: " + v)
		}
		return n
	case []any:
		for i := range v {
			v[i] = ratTree(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = ratTree(v[k])
		}
	}
	return raw
}

func equalTrees(a, b any) bool { return printTree(a) == printTree(b) }

// printTree formats a tree. Equal trees have equal texts.
func printTree(tree any) string {
	switch v := tree.(type) {
	case *big.Rat:
		return v.RatString()
	case []any:
		var items []string
		for _, x := range v {
			items = append(items, printTree(x))
		}
		return "[" + strings.Join(items, ",") + "]"
	case map[string]any:
		var items []string
		for k, x := range v {
			items = append(items, fmt.Sprintf("%q:%s", k, printTree(x)))
		}
		slices.Sort(items)
		return "{" + strings.Join(items, ",") + "}"
	case string:
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprint(tree)
}

func cloneTree(tree any) any {
	switch v := tree.(type) {
	case []any:
		out := []any{}
		for _, x := range v {
			out = append(out, cloneTree(x))
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			out[k] = cloneTree(x)
		}
		return out
	}
	return tree
}

// jsonOf writes a tree as JSON.
func jsonOf(tree any) string {
	switch v := tree.(type) {
	case *big.Rat:
		if v.IsInt() {
			return v.Num().String()
		}
		f, _ := v.Float64()
		return fmt.Sprint(f)
	case []any:
		var items []string
		for _, x := range v {
			items = append(items, jsonOf(x))
		}
		return "[" + strings.Join(items, ",") + "]"
	case map[string]any:
		var items []string
		for k, x := range v {
			name, _ := json.Marshal(k)
			items = append(items, string(name)+":"+jsonOf(x))
		}
		return "{" + strings.Join(items, ",") + "}"
	}
	out, _ := json.Marshal(tree)
	return string(out)
}
