package state

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// checkRaw validates JSON that user code wrote. encoding/json would replace invalid Unicode
// silently, and allows deeper nesting.
func checkRaw(doc []byte, depth int) error {
	if !utf8.Valid(doc) {
		return refuse("JSON must be valid UTF-8")
	}
	inString := false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			i++
			if i < len(doc) && doc[i] == 'u' {
				skip, reason := checkEscape(doc[i-1:])
				if reason != "" {
					return refuse("%s", reason)
				}
				i += skip - 2
			}
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > MaxDepth {
				return tooDeep()
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	tree, err := decodeTree(doc)
	if err != nil {
		return &Error{Reason: fmt.Sprintf("not JSON: %v", err), Err: err}
	}
	return checkNumbers(tree)
}

// checkNumbers is checkDigits for every number in a tree that decodeTree made.
func checkNumbers(tree any) error {
	switch x := tree.(type) {
	case json.Number:
		return checkDigits(string(x))
	case map[string]any:
		for k, v := range x {
			if err := checkNumbers(v); err != nil {
				return under(err, k)
			}
		}
	case []any:
		for i, v := range x {
			if err := checkNumbers(v); err != nil {
				return underIndex(err, i)
			}
		}
	}
	return nil
}

// checkEscape returns the length of the \u escape at the start of doc, and why it is refused, if it
// is.
func checkEscape(doc []byte) (length int, reason string) {
	unit := func(at int) uint64 {
		if len(doc) < at+6 || doc[at] != '\\' || doc[at+1] != 'u' {
			return 0xFFFFFFFF
		}
		u, err := strconv.ParseUint(string(doc[at+2:at+6]), 16, 32)
		if err != nil {
			return 0xFFFFFFFF
		}
		return u
	}
	switch u := unit(0); {
	case u == 0:
		return 6, "strings cannot contain U+0000"
	case u >= 0xD800 && u < 0xDC00:
		if low := unit(6); low >= 0xDC00 && low < 0xE000 {
			return 12, ""
		}
		return 6, "strings must be valid Unicode"
	case u >= 0xDC00 && u < 0xE000:
		return 6, "strings must be valid Unicode"
	}
	return 2, ""
}
