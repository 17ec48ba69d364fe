package pawl

import "github.com/pawl-go/pawl/internal/document"

// How one mutation whose document cannot be written fails without the others in its commit. The
// document is too large, a field of it cannot be indexed, or the store rejects it. Or the calls
// together have more leases than the store accepts keys in one commit: then none of them fails.

// isolate finds the mutation because of which the commit of b failed with err, and prepares the
// others to be computed again. First each mutation checks its own document. If only the store can
// tell, the members are committed in halves, in their order, until the mutation is alone in its
// commit.
func (s *stored) isolate(b *batch, err error) progress {
	base := document.NewDraft(b.draft.Base)
	if !b.careful {
		b.careful = true
		return s.startOver(b, b.members, base)
	}
	if len(b.members) == 1 {
		s.fail(b.members[0], err)
		return settled
	}
	if s.startOver(b, b.members, base) == settled {
		return settled
	}
	half := (len(b.members) + 1) / 2
	b.rest = append(b.members[half:len(b.members):len(b.members)], b.rest...)
	b.joined = true // later arrivals come behind the rest
	return s.startOver(b, b.members[:half], base)
}

// takeRest makes the members that isolate has set aside the members of b, which was answered. It
// reports false if there are none.
func (s *stored) takeRest(b *batch) bool {
	if len(b.rest) == 0 {
		return false
	}
	rest := b.rest
	b.rest, b.fresh = nil, false
	return s.startOver(b, rest, document.Draft{}) == startsOver
}
