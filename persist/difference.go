package persist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// difference returns the reason why two records of one key, the source's and the destination's, are
// not the same. It returns "" if they are. It ignores Now.
func difference(from, to Record) string {
	switch {
	case from.Absent() && to.Absent():
		return ""
	case from.Absent():
		return fmt.Sprintf("version %d only in the destination", to.Version)
	case to.Absent():
		return fmt.Sprintf("version %d only in the source", from.Version)
	case from.Version != to.Version:
		return fmt.Sprintf("version %d in the source, version %d in the destination", from.Version, to.Version)
	}
	var fields []string
	compare := func(field string, same bool) {
		if !same {
			fields = append(fields, field)
		}
	}
	compare("born", from.Born == to.Born)
	compare("doc", sameJSON(from.Doc, to.Doc))
	compare("schema", from.Schema == to.Schema)
	compare("label", from.Label == to.Label)
	compare("due", from.Due.Equal(to.Due))
	compare("expires", from.Expires.Equal(to.Expires))
	compare("updated", from.Updated.Equal(to.Updated))
	compare("deleted", from.Deleted == to.Deleted)
	compare("lease", sameLease(from.Lease, to.Lease))
	compare("commits", slices.Equal(from.Commits, to.Commits))
	if len(fields) == 0 {
		return ""
	}
	return fmt.Sprintf("version %d has another %s in the destination", from.Version, strings.Join(fields, ", "))
}

func sameLease(a, b Lease) bool {
	return a.Holder == b.Holder && a.Token == b.Token && a.Until.Equal(b.Until)
}

// sameJSON reports whether two documents have the same value. A store may change the order of
// fields, white space, and the spelling of strings and numbers.
func sameJSON(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := decodeExact(a)
	y, errY := decodeExact(b)
	return errX == nil && errY == nil && sameValue(x, y)
}

// decodeExact decodes JSON and keeps every digit of numbers.
func decodeExact(text json.RawMessage) (value any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err = decoder.Decode(&value)
	return value, err
}

// sameValue compares two values of decodeExact.
func sameValue(a, b any) bool {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for name, value := range x {
			other, ok := y[name]
			if !ok || !sameValue(value, other) {
				return false
			}
		}
		return true
	case []any:
		y, ok := b.([]any)
		return ok && slices.EqualFunc(x, y, sameValue)
	case json.Number:
		y, ok := b.(json.Number)
		return ok && (x == y || canonical(x) == canonical(y))
	}
	return a == b
}

// canonical returns one spelling for all numbers of the same value: 1e2, 100 and 100.0 are 1e2. The
// exact value is kept, which a float64 would not do.
func canonical(n json.Number) string {
	text, negative := strings.CutPrefix(strings.ToLower(string(n)), "-")
	mantissa, exponent, _ := strings.Cut(text, "e")
	power := 0
	if exponent != "" {
		var err error
		if power, err = strconv.Atoi(exponent); err != nil {
			return string(n) // no store can keep such an exponent in another spelling
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	power -= len(fraction)
	significant := strings.TrimRight(digits, "0")
	power += len(digits) - len(significant)
	switch {
	case significant == "":
		return "0"
	case negative:
		return "-" + significant + "e" + strconv.Itoa(power)
	}
	return significant + "e" + strconv.Itoa(power)
}
