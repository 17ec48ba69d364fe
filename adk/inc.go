package adk

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/adk/v2/session"
)

// incKey starts the keys of the map that Inc returns. The rest is different for each call.
const incKey = "pawl.inc/"

// Inc returns a value for a state delta that adds n, which may be negative, to a number. The number
// is that in the store when the event is committed, 0 if there is none. So increments of many writers
// add up, and an increment is never refused because the number has changed:
//
//	ctx.State().Set("user:orders", adk.Inc(1))
//
// The stored event, and the event after AppendEvent, have the sum in place of the Inc. Use Inc where
// any order of changes is right. Where a decision depends on the number, read it and set the result:
// then AppendEvent refuses a number that has changed.
//
// An event has one value for each key. A second Set of the key by the same tool call replaces the
// first one, whether it is an Inc or not. Increments by parallel tool calls of one turn add up,
// because ADK merges maps, and the result of Inc is a map. Do not put other keys into it.
//
// AppendEvent returns *pawl.FieldError if the stored value is not a whole number, or the sum is above
// the largest int64. It returns an error for an Inc inside another value, and for one of a temporary
// key.
func Inc(n int64) map[string]any { return map[string]any{incKey + rand.Text(): n} }

// incOf returns the sum of the increments in v, the value of key. It reports false if v is no Inc.
func incOf(key string, v any) (sum int64, ok bool, err error) {
	m, isMap := v.(map[string]any)
	if !isMap || !isInc(m) {
		if containsInc(v) {
			err = errors.New("an Inc is inside another value")
		}
		return 0, false, err
	}
	if strings.HasPrefix(key, session.KeyPrefixTemp) {
		return 0, true, errors.New("an Inc of a temporary key")
	}
	for k, v := range m {
		n, whole := wholeNumber(v)
		if !strings.HasPrefix(k, incKey) || !whole {
			return 0, true, errors.New("an Inc was merged with another value")
		}
		if sum, ok = add(sum, n); !ok {
			return 0, true, errors.New("the sum is too large")
		}
	}
	return sum, true, nil
}

func isInc(m map[string]any) bool {
	for k := range m {
		if strings.HasPrefix(k, incKey) {
			return true
		}
	}
	return false
}

// containsInc reports whether v is or contains an Inc.
func containsInc(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		if isInc(v) {
			return true
		}
		for _, inner := range v {
			if containsInc(inner) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, containsInc)
	}
	return false
}

// noIncInside returns an error for a value that contains an Inc in a typed map, list or struct, which
// [containsInc] does not look into.
func noIncInside(value json.RawMessage) error {
	if !bytes.Contains(value, []byte(`"`+incKey)) {
		return nil
	}
	var decoded any
	if err := json.Unmarshal(value, &decoded); err != nil || !containsInc(decoded) {
		return err
	}
	return errors.New("an Inc is inside another value")
}

// wholeNumber returns a number of a state as an int64. It reports false if it is none.
func wholeNumber(v any) (int64, bool) {
	switch v := v.(type) {
	case nil:
		return 0, true
	case int:
		return int64(v), true
	case int64:
		return v, true
	case float64:
		n := int64(v)
		return n, v == math.Trunc(v) && math.Abs(v) < 1<<63 && float64(n) == v
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n, true
		}
		f, err := v.Float64()
		if err != nil || !strings.ContainsAny(v.String(), ".eE") {
			return 0, false // an integer that is too large
		}
		return wholeNumber(f)
	}
	return 0, false
}

// add returns a+b. It reports false if the sum overflows.
func add(a, b int64) (int64, bool) {
	sum := a + b
	return sum, (sum > a) == (b > 0)
}
