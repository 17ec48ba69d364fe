package machine

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// The name of a claim's holder says which status the entity came from: "host:1 (claim: packed to
// shipping)". A janitor reverts to that status. Its own workflow may differ, because it belongs to
// another release, or to another program with the same store.
const (
	originBegin = " (claim: "
	originTo    = " to "
	originEnd   = ")"
)

// claimHolder returns the name of the holder of a claim, with the origin of the entity. A name that
// is too long is cut. A status that cannot be part of the name is left out, and a janitor then
// reverts as its own workflow says.
func claimHolder(holder, from, into string) string {
	origin := originBegin + from + originTo + into + originEnd
	room := pawl.MaxHolder - len(origin)
	if room < 0 || strings.Contains(from, originBegin) || !utf8.ValidString(origin) || strings.ContainsFunc(origin, unicode.IsControl) {
		return holder
	}
	if len(holder) > room {
		for room > 0 && !utf8.RuneStart(holder[room]) {
			room--
		}
		holder = holder[:room]
	}
	return holder + origin
}

// cutOrigin splits a name that claimHolder made for a claim into this state. The status from is
// empty if the name has none.
func cutOrigin(name, into string) (holder, from string) {
	rest, ok := strings.CutSuffix(name, originTo+into+originEnd)
	i := strings.LastIndex(rest, originBegin)
	if !ok || i < 0 {
		return name, ""
	}
	return rest[:i], rest[i+len(originBegin):]
}

// ClaimOf returns the process that has claimed an entity, and the status that the claim came from. It
// reads the lease of the record, so it is for tools that do not have the workflow. It reports false if
// the lease is not that of a claim into the record's status, or has a name too long to tell.
func ClaimOf(r persist.Record) (holder, from string, ok bool) {
	if r.Lease.Token == 0 || r.Gone(r.Now) {
		return "", "", false
	}
	holder, from = cutOrigin(r.Lease.Holder, r.Label)
	return holder, from, from != ""
}
