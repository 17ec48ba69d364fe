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

// Lengths in bytes. PostgreSQL cuts a longer name off without an error, and two names may then be one.
const (
	maxName   = 63
	maxPrefix = maxName - len("replace_records") // the longest name that a prefix is put before
)

// names are those of a store's tables and functions.
type names struct{ schema, prefix string }

// checkName returns an error for a name that PostgreSQL cannot have, whatever the quotes around it.
func checkName(what, name string, longest int) error {
	switch {
	case len(name) > longest:
		return fmt.Errorf("postgres: the %s has %d bytes, more than %d", what, len(name), longest)
	case !isText(name):
		return fmt.Errorf("postgres: the %s is not UTF-8 without U+0000", what)
	}
	return nil
}

// isText reports whether s can be a text in PostgreSQL.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// of returns the qualified, quoted name of a table or function.
func (n names) of(name string) string { return quote(n.schema) + "." + quote(n.prefix+name) }

// quote makes an identifier of any name.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

var placeholders = regexp.MustCompile(`\{:?[a-z_]+\}`)

// expand fills in the placeholders of an SQL text: {name}, {:name} without the schema, and {body}
// for the quotes around a function's body, which no name can end.
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

// lockKey is the number of the advisory lock that stands for key while it is absent. Processes of
// every release must agree on it. Two keys that share a number only wait for each other.
func (n names) lockKey(key persist.Key) int64 {
	hash := fnv.New64a()
	for _, part := range []string{"pawl", n.schema, n.prefix, key.Kind, key.ID} {
		hash.Write([]byte(part))
		hash.Write([]byte{0}) // no part contains it
	}
	return int64(hash.Sum64())
}

// migrationLock is the number of the advisory lock of a store's migrations; no key is empty.
func (n names) migrationLock() int64 { return n.lockKey(persist.Key{}) }

// schemaLock is the number of the advisory lock of who creates the schema; no prefix is empty.
func (n names) schemaLock() int64 { return names{schema: n.schema}.migrationLock() }

// channel is the name of the channel of a store's notifications, which has to be short. Processes of
// every release must agree on it.
func (n names) channel() string {
	hash := fnv.New128a()
	hash.Write([]byte(n.schema + "\x00" + n.prefix)) // neither contains it
	return fmt.Sprintf("pawl_%x", hash.Sum(nil))
}

// named returns the names that a configuration asks for, given the first schema of the search path.
func (c Config) named(current string) (names, error) {
	n := names{schema: cmp.Or(c.Schema, current), prefix: c.TablePrefix}
	if n.schema == "" {
		return n, errors.New("postgres: no schema of the search path exists: name one in Config.Schema")
	}
	return n, nil
}
