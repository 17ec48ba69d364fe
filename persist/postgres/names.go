package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/pawl-go/pawl/persist"
)

// Lengths in bytes. PostgreSQL truncates longer names without an error, and two could become one.
const (
	maxName   = 63
	maxPrefix = maxName - len("replace_records") // the longest name after a prefix
)

// names are those of a store's tables and functions.
type names struct{ schema, prefix string }

// checkName returns an error for a name that PostgreSQL does not accept, even in quotes.
func checkName(what, name string, longest int) error {
	switch {
	case len(name) > longest:
		return fmt.Errorf("postgres: the %s has %d bytes, more than %d", what, len(name), longest)
	case !isText(name):
		return fmt.Errorf("postgres: the %s is not UTF-8 without U+0000", what)
	}
	return nil
}

// isText reports whether PostgreSQL can store s as a text.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// of returns the qualified, quoted name of a table or function.
func (n names) of(name string) string { return quote(n.schema) + "." + quote(n.prefix+name) }

// quote returns name as an SQL identifier.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

var placeholders = regexp.MustCompile(`\{:?[a-z_]+\}`)

// expand fills in the placeholders of an SQL text: {name}, {:name} without the schema, and {body}
// for dollar quotes around a function's body that do not occur in a name.
func (n names) expand(text string) string {
	body := "$body$"
	for strings.Contains(n.schema+" "+n.prefix, body) {
		body = strings.Replace(body, "$body", "$body_", 1)
	}
	return placeholders.ReplaceAllStringFunc(text, func(found string) string {
		name := strings.Trim(found, "{}")
		switch {
		case name == "body":
			return body
		case strings.HasPrefix(name, ":"):
			return quote(n.prefix + name[1:])
		}
		return n.of(name)
	})
}

// lockKey returns the number of the advisory lock that stands for key while it is absent. All
// releases must use the same number. Two keys with the same number only wait for each other.
func (n names) lockKey(key persist.Key) int64 {
	hash := fnv.New64a()
	for _, part := range []string{"pawl", n.schema, n.prefix, key.Kind, key.ID} {
		hash.Write([]byte(part))
		hash.Write([]byte{0}) // occurs in no part
	}
	return int64(hash.Sum64())
}

// migrationLock is the number of the advisory lock of a store's migrations; no key is empty.
func (n names) migrationLock() int64 { return n.lockKey(persist.Key{}) }

// schemaLock is the number of the advisory lock for creating the schema; no prefix is empty.
func (n names) schemaLock() int64 { return names{schema: n.schema}.migrationLock() }

// channel returns the name of the channel for the store's notifications. Names of channels are
// short, so it is a hash. All releases must use the same name.
func (n names) channel() string {
	hash := fnv.New128a()
	hash.Write([]byte(n.schema + "\x00" + n.prefix)) // occurs in neither
	return fmt.Sprintf("pawl_%x", hash.Sum(nil))
}

// named returns the names for a configuration, given the first schema of the search path.
func (c Config) named(current string) (names, error) {
	n := names{schema: cmp.Or(c.Schema, current), prefix: c.TablePrefix}
	if n.schema == "" {
		return n, errors.New("postgres: no schema of the search path exists: name one in Config.Schema")
	}
	return n, nil
}
