package commit

import (
	"context"
	crand "crypto/rand"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Base describes the record that a write replaces, as far as evidence depends on it.
type Base struct {
	// Absent says that there was no record.
	Absent bool
	// Born is the Record.Born of the record. It tells whether a later record continues it.
	Born uint64
}

// evidence says what a record tells about a commit in doubt.
type evidence uint8

const (
	gone  evidence = iota // nothing: the evidence is gone
	yes                   // the commit landed
	never                 // it did not land, and will not
)

// judge says what became of c, a commit in doubt that is refused when it is sent again, from the
// records that refuse it. It returns when c landed. Floor returns the store's version floor, read
// no earlier than the records.
func judge(c persist.Commit, bases []Base, winners []persist.Record, floor func() uint64) (e evidence, at time.Time) {
	written := 0
	for _, won := range winners {
		i := slices.IndexFunc(c.Writes, func(w persist.Write) bool { return w.Key == won.Key })
		if i < 0 {
			continue
		}
		written++
		switch evidenceIn(won, c.ID, bases[i], c.Writes[i].Version, floor) {
		case yes:
			return yes, won.Updated
		case never:
			e = never
		}
	}
	// Where one of its writes is not refused, c has not landed. A sending still under way fails
	// for the same reason as this one, because no version comes back. (An absence can, by a purge;
	// see persist.Purger.)
	if len(winners) > 0 && written < len(c.Writes) {
		e = never
	}
	return e, time.Time{}
}

// evidenceIn says whether the commit id landed, from a record whose version is not the one that the
// commit expected. A record keeps the last few ids of its recent writers, so a missing id proves
// something only while it would still be there. It proves nothing either where the record may have
// been purged since, and made anew. Base describes the record that the commit replaces, version is
// the one that it makes.
func evidenceIn(won persist.Record, id string, base Base, version uint64, floor func() uint64) evidence {
	if won.Absent() {
		return gone // purged, and the ids with it
	}
	writer, number := splitID(id)
	// A writer numbers its commits once their bases are known, so one with a smaller number cannot
	// land on top of one with a larger number.
	later, writers, earlier := 0, map[string]bool{}, false
	for _, c := range won.Commits {
		if c == id {
			return yes
		}
		w, n := splitID(c)
		writers[w] = true
		switch {
		case w != writer:
		case n > number:
			later++
		default:
			earlier = true // the record has not dropped this writer since
		}
	}
	if later >= persist.KeptPerWriter || !earlier && len(writers) >= persist.KeptWriters {
		return gone
	}
	// Where there was no record, one born with a higher version may have followed on that of the
	// commit, but only after a purge. The purge would have raised the floor to its version.
	if base.Absent && won.Born > version && floor() >= version {
		return gone
	}
	if !base.Absent && won.Born != base.Born {
		return gone
	}
	return never
}

// floor returns the version floor of the store, by asking for a key that does not exist. It returns
// the highest version if the store does not tell.
func floor(ctx context.Context, store Store, kind string) uint64 {
	r, err := store.Load(ctx, persist.Key{Kind: kind, ID: crand.Text()})
	if !errors.Is(err, persist.ErrNotFound) {
		return math.MaxUint64
	}
	return r.Version
}

// splitID returns the parts of a commit id. See persist.Commit.
func splitID(id string) (writer string, number uint64) {
	i := strings.LastIndexByte(id, '.')
	if i < 0 {
		return id, 0
	}
	number, _ = strconv.ParseUint(id[i+1:], 10, 64)
	return id[:i], number
}
