package state

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// parseNumber returns a JSON number in normal form: int64, uint64 above the range of int64,
// float64, or json.Number for a number that none of them holds as written. A float64 holds a number
// as written if it prints as that number again.
func parseNumber(s string) any {
	if !strings.ContainsAny(s, ".eE") {
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			return i
		}
		if u, err := strconv.ParseUint(s, 10, 64); err == nil {
			return u
		}
	}
	d, ok := parseDecimal(s)
	if !ok {
		return json.Number(s)
	}
	if d.digits == "" {
		return int64(0)
	}
	if d.exp >= 0 && len(d.digits)+d.exp <= 20 {
		text := d.digits + strings.Repeat("0", d.exp)
		if d.negative {
			text = "-" + text
		}
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			return i
		}
		if u, err := strconv.ParseUint(text, 10, 64); err == nil {
			return u
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return json.Number(s)
	}
	if printed, _ := parseDecimal(strconv.FormatFloat(f, 'e', -1, 64)); printed != d {
		return json.Number(s)
	}
	return f
}

// decimal is the number digits * 10^exp. The digits have no zeros at either end, so two decimals
// are equal exactly if their numbers are.
type decimal struct {
	negative bool
	digits   string
	exp      int
}

func parseDecimal(s string) (d decimal, ok bool) {
	s, d.negative = strings.CutPrefix(s, "-")
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		exp, err := strconv.ParseInt(s[i+1:], 10, 32)
		if err != nil {
			// The exponent is out of every range, which only matters if the number is not zero.
			if strings.Trim(s[:i], "0.") == "" {
				return decimal{}, true
			}
			return decimal{}, false
		}
		d.exp = int(exp)
		s = s[:i]
	}
	whole, fraction, _ := strings.Cut(s, ".")
	d.digits = strings.TrimLeft(whole+fraction, "0")
	d.exp -= len(fraction)
	trimmed := strings.TrimRight(d.digits, "0")
	d.exp += len(d.digits) - len(trimmed)
	d.digits = trimmed
	if d.digits == "" {
		return decimal{}, true
	}
	return d, true
}

// normalUint returns u in normal form.
func normalUint(u uint64) any {
	if u <= math.MaxInt64 {
		return int64(u)
	}
	return u
}

// normalFloat returns the number that encoding/json prints for f, in normal form. Beyond 2^53
// (float32: 2^24) that is the shortest decimal that still means f, not its exact value.
func normalFloat(f float64, bits int) (any, error) {
	if err := checkFloat(f); err != nil {
		return nil, err
	}
	if f == math.Trunc(f) {
		if math.Abs(f) < 1<<24 || bits == 64 && math.Abs(f) < 1<<53 {
			return int64(f), nil
		}
	} else if bits == 64 {
		return f, nil
	}
	return parseNumber(strconv.FormatFloat(f, 'g', -1, bits)), nil
}

// checkFloat refuses the numbers that JSON cannot write.
func checkFloat(f float64) error {
	if math.IsNaN(f) {
		return refuse("NaN has no JSON form")
	}
	if math.IsInf(f, 0) {
		return refuse("an infinity has no JSON form")
	}
	return nil
}

// MaxDigits is the number of digits that a number may have, written without an exponent. Every
// float64 has fewer. SQL databases limit the digits of a number, and write exponents out.
const MaxDigits = 4096

// checkNumber refuses a text that is not a JSON number, and numbers of more than MaxDigits digits.
func checkNumber(s string) error {
	if !validNumber(s) {
		return refuse("json.Number %q is not a number", s)
	}
	return checkDigits(s)
}

// checkDigits is checkNumber for a text that is a JSON number.
func checkDigits(s string) error {
	if n := digits(s); n > MaxDigits {
		return refuse("number has %d digits without its exponent, limit %d", n, MaxDigits)
	}
	return nil
}

// digits returns how many digits the JSON number s has when it is written without an exponent.
// Exponents beyond the range of int32 count as its ends.
func digits(s string) int {
	s = strings.TrimPrefix(s, "-")
	mantissa, exponent := s, 0
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		// On an error of its range, ParseInt returns the end of the range.
		exp, _ := strconv.ParseInt(s[i+1:], 10, 32)
		mantissa, exponent = s[:i], int(exp)
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	return max(len(whole)+exponent, 1) + max(len(fraction)-exponent, 0)
}

// sameNumber reports whether two JSON numbers are equal, as 1e2 and 100 are. The empty json.Number
// is 0.
func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	x, okX := parseDecimal(a)
	y, okY := parseDecimal(b)
	return okX && okY && x == y
}

// validNumber reports whether s is a number by the grammar of JSON.
func validNumber(s string) bool {
	s = strings.TrimPrefix(s, "-")
	digits := func() bool {
		n := 0
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		s = s[n:]
		return n > 0
	}
	if rest, ok := strings.CutPrefix(s, "0"); ok {
		s = rest
	} else if !digits() {
		return false
	}
	if rest, ok := strings.CutPrefix(s, "."); ok {
		s = rest
		if !digits() {
			return false
		}
	}
	if s != "" && (s[0] == 'e' || s[0] == 'E') {
		s = s[1:]
		if s != "" && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		if !digits() {
			return false
		}
	}
	return s == ""
}
