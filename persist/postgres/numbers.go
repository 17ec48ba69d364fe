package postgres

import "encoding/json"

// numberAllowance is the number of digits that a document may have beyond twice its length.
const numberAllowance = 64 << 10

// tooManyDigits reports whether the numbers of doc, which is valid JSON, become far longer than
// doc. jsonb writes exponents out: a small document with large exponents could be stored but not
// read.
func tooManyDigits(doc json.RawMessage) bool {
	limit := 2*len(doc) + numberAllowance
	digits, exponent := 0, 0 // of the numbers so far, written out; of the number in progress
	inExponent := false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case c == '"':
			for i++; i < len(doc) && doc[i] != '"'; i++ {
				if doc[i] == '\\' {
					i++
				}
			}
		case c == 'e' || c == 'E': // or that of true and false, which no digit follows
			inExponent = true
		case c >= '0' && c <= '9' && inExponent:
			exponent = min(10*exponent+int(c-'0'), limit+1)
		case c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.':
			digits++
		default: // the number has ended
			digits, exponent, inExponent = digits+exponent, 0, false
		}
		if digits+exponent > limit {
			return true
		}
	}
	return false
}
