package postgres

import (
	"encoding/json"
	"math"
)

// numberAllowance is the number of digits that a document may have beyond twice its length.
const numberAllowance = 64 << 10

// tooManyDigits reports whether the numbers of doc, which is valid JSON, become far longer than
// doc. jsonb writes exponents out: a small document with large exponents could be stored but not
// read.
func tooManyDigits(doc json.RawMessage) bool {
	limit := 2*len(doc) + numberAllowance
	digits := 0
	for i := 0; i < len(doc); {
		switch c := doc[i]; {
		case c == '"':
			i = afterString(doc, i)
		case c == '-' || c >= '0' && c <= '9':
			var length int
			length, i = writtenOut(doc, i)
			if digits += length; digits > limit {
				return true
			}
		default:
			i++
		}
	}
	return false
}

// afterString returns the index behind the string that begins at i.
func afterString(doc []byte, i int) int {
	for i++; i < len(doc) && doc[i] != '"'; i++ {
		if doc[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// writtenOut returns how long the number that begins at i is without its exponent, and the index
// behind it.
func writtenOut(doc []byte, i int) (length, end int) {
	exponent, inExponent := 0, false
	for ; i < len(doc); i++ {
		switch c := doc[i]; {
		case c >= '0' && c <= '9' && inExponent:
			exponent = min(10*exponent+int(c-'0'), math.MaxInt32)
		case c == 'e' || c == 'E':
			inExponent = true
		case c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.':
			length++
		default:
			return length + exponent, i
		}
	}
	return length + exponent, i
}
