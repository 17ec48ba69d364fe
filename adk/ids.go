package adk

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
)

// maxPart is the length in bytes up to which a name is part of an id as it is. Three of them, two
// slashes and the suffix of a stream stay below pawl.MaxID.
const maxPart = 64

// part returns a name as part of an id, without slashes. A name that is long, or looks like a hash,
// is replaced by its hash: so ids of different names differ. Documents hold the names as they are.
func part(name string) string {
	escaped := url.PathEscape(name)
	if len(escaped) <= maxPart && !strings.HasPrefix(escaped, "~") {
		return escaped
	}
	sum := sha256.Sum256([]byte(name))
	return "~" + hex.EncodeToString(sum[:])[:maxPart-1]
}

func appID(app string) string               { return part(app) }
func userID(app, user string) string        { return part(app) + "/" + part(user) }
func sessionID(app, user, id string) string { return userID(app, user) + "/" + part(id) }

// newStream returns the name of a stream for the events of a new session.
func newStream(session string) string { return session + "/" + rand.Text() }

// newWrite returns a name for a write of cells; see cell.
func newWrite() string { return rand.Text()[:16] }

// checkNames returns *pawl.ArgumentError for a name that no store can keep.
func checkNames(app, user, id string) error {
	for _, n := range []struct{ what, name string }{{"app_name", app}, {"user_id", user}, {"session_id", id}} {
		if !utf8.ValidString(n.name) || strings.ContainsRune(n.name, 0) {
			return &pawl.ArgumentError{Argument: n.what, Reason: "must be UTF-8 and must not contain U+0000"}
		}
	}
	return nil
}
