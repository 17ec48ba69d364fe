package persist

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxCommitID is the longest Commit.ID in bytes.
const maxCommitID = 128

// Validate returns an error that wraps [ErrNotApplied] if c is malformed. No store accepts a
// malformed commit, whatever its records are. Stores call Validate before they take a lock.
//
// Malformed are: an ID that is missing or longer than 128 bytes, a key that is written or guarded
// twice, a version that does not grow, a document that is missing, not JSON, or set on a delete, a
// guard without a test, Extend or Release without Token or of a lease that the commit ends, names
// that are not UTF-8 or contain U+0000, and the like.
func (c Commit) Validate() error {
	if err := c.validateForm(); err != nil {
		return err
	}
	for i := range c.Writes {
		if w := &c.Writes[i]; !w.Deleted && !json.Valid(w.Doc) {
			return malformed("document of %q is not JSON", w.Key)
		}
		if err := c.Writes[i].Log.validateEntries(&c.Writes[i]); err != nil {
			return err
		}
	}
	return nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: malformed: "+format, append([]any{ErrNotApplied}, args...)...)
}

// validateForm is Validate without the test of the documents.
func (c Commit) validateForm() error {
	switch {
	case len(c.Writes) > 0 && c.ID == "":
		return malformed("commit id missing")
	case len(c.Writes) == 0 && len(c.Guards) == 0:
		return malformed("commit has no writes and no guards")
	}
	if err := validateCommitID(c.ID); err != nil {
		return err
	}
	for i := range c.Writes {
		if err := c.Writes[i].validate(); err != nil {
			return err
		}
	}
	for i := range c.Guards {
		if err := c.Guards[i].validate(); err != nil {
			return err
		}
	}
	if err := c.validateLeases(); err != nil {
		return err
	}
	return c.validateOnce()
}

func validateCommitID(id string) error {
	switch {
	case len(id) > maxCommitID:
		return malformed("commit id has %d bytes, limit %d", len(id), maxCommitID)
	case !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl):
		return malformed("commit id %q is not UTF-8 without control characters", id)
	}
	return nil
}

// validateLeases tests that no guard extends or releases a lease that the write of its key ends.
// The guard would change the write's new lease, or leave a lease without a holder.
func (c Commit) validateLeases() error {
	for _, g := range c.Guards {
		if g.Extend == 0 && !g.Release {
			continue
		}
		for i := range c.Writes {
			if w := &c.Writes[i]; w.Key == g.Key && w.EndLease {
				return malformed("guard of %q changes the lease that the write ends", g.Key)
			}
		}
	}
	return nil
}

// validateOnce tests that no key has two writes or two guards.
func (c Commit) validateOnce() error {
	if len(c.Writes) > 1 {
		written := make(map[Key]bool, len(c.Writes))
		for i := range c.Writes {
			if key := c.Writes[i].Key; written[key] {
				return malformed("two writes of %q", key)
			}
			written[c.Writes[i].Key] = true
		}
	}
	if len(c.Guards) > 1 {
		guarded := make(map[Key]bool, len(c.Guards))
		for i := range c.Guards {
			if key := c.Guards[i].Key; guarded[key] {
				return malformed("two guards of %q", key)
			}
			guarded[c.Guards[i].Key] = true
		}
	}
	return nil
}

func (w *Write) validate() error {
	if err := w.Key.validate(); err != nil {
		return err
	}
	switch {
	case w.Version <= w.Expected:
		return malformed("version %d of %q is not above the expected version %d", w.Version, w.Key, w.Expected)
	case w.Deleted && w.Doc != nil:
		return malformed("delete of %q has a document", w.Key)
	case w.Deleted && w.Acquire != nil:
		return malformed("delete of %q acquires the lease", w.Key)
	case !w.Deleted && len(w.Doc) == 0:
		return malformed("write of %q has no document", w.Key)
	case !validName(w.Label):
		return malformed("label of %q is not UTF-8 without U+0000", w.Key)
	case w.Swept && !(w.Deleted && w.Gone):
		return malformed("write of %q has Swept without Deleted and Gone", w.Key)
	case w.DueIn < 0 || w.TTL < 0 && w.TTL != KeepTTL:
		return malformed("write of %q has a negative duration", w.Key)
	case w.DueIn != 0 && !w.Due.IsZero():
		return malformed("write of %q has both Due and DueIn", w.Key)
	case !storable(w.Due):
		return malformed("due time of %q is outside the years 1 to 9999", w.Key)
	}
	if err := w.Log.validate(w); err != nil {
		return err
	}
	if w.Acquire != nil {
		return w.Acquire.validate()
	}
	return nil
}

func (a *Acquire) validate() error {
	if a.For < time.Microsecond {
		return malformed("lease must last at least a microsecond, got %s", a.For)
	}
	if !validName(a.Holder) {
		return malformed("lease holder %q is not UTF-8 without U+0000", a.Holder)
	}
	return nil
}

func (g *Guard) validate() error {
	if err := g.Key.validate(); err != nil {
		return err
	}
	switch {
	case !g.Read && g.Token == 0:
		return malformed("guard of %q has neither Read nor Token", g.Key)
	case g.Extend < 0 || g.TTL < 0:
		return malformed("guard of %q has a negative duration", g.Key)
	case g.Token == 0 && (g.Extend > 0 || g.Release):
		return malformed("guard of %q has Extend or Release without Token", g.Key)
	case g.Extend > 0 && g.Release:
		return malformed("guard of %q has both Extend and Release", g.Key)
	case g.TTL > 0 && (!g.Read || g.Gone || g.Version == 0):
		return malformed("guard of %q has TTL without Read of a record that is alive", g.Key)
	}
	return nil
}

// ValidateRestore returns an error that wraps [ErrNotApplied] if a record cannot be written by
// [Restorer.Restore]. Malformed are: two records of one key, a record that is absent or has version
// 0, a document that is missing, not JSON, or set on a tombstone, a tombstone with a lease, a lease
// or Born of a later version, names that are not UTF-8 or contain U+0000, commit ids that
// [Commit.Validate] refuses, and times that are not whole microseconds or have years above 9999.
func ValidateRestore(records []Record) error {
	seen := make(map[Key]bool, len(records))
	for i := range records {
		r := &records[i]
		if err := r.validate(); err != nil {
			return err
		}
		if seen[r.Key] {
			return malformed("two records of %q", r.Key)
		}
		seen[r.Key] = true
	}
	return nil
}

func (r *Record) validate() error {
	if err := r.Key.validate(); err != nil {
		return err
	}
	switch {
	case r.Version == 0:
		return malformed("record of %q has version 0", r.Key)
	case r.Absent():
		return malformed("record of %q has no time of its last write", r.Key)
	case r.Born > r.Version:
		return malformed("record of %q has version %d and was born at %d", r.Key, r.Version, r.Born)
	case r.Lease.Token > r.Version:
		return malformed("record of %q has version %d and token %d", r.Key, r.Version, r.Lease.Token)
	case r.Deleted && len(r.Doc) > 0:
		return malformed("tombstone of %q has a document", r.Key)
	case r.Deleted && r.Lease != Lease{}:
		return malformed("tombstone of %q has a lease", r.Key)
	case !r.Deleted && !json.Valid(r.Doc):
		return malformed("document of %q is not JSON", r.Key)
	case !validName(r.Label):
		return malformed("label of %q is not UTF-8 without U+0000", r.Key)
	case !validName(r.Lease.Holder):
		return malformed("lease holder of %q is not UTF-8 without U+0000", r.Key)
	}
	for _, id := range r.Commits {
		if err := validateCommitID(id); err != nil {
			return err
		}
	}
	for _, t := range []time.Time{r.Due, r.Expires, r.Updated, r.Lease.Until} {
		if !storable(t) || !t.Equal(storedTime(t)) {
			return malformed("time %s of %q is not storable", t.Format(time.RFC3339Nano), r.Key)
		}
	}
	return nil
}

func (k Key) validate() error {
	if k.Kind == "" || k.ID == "" {
		return malformed("key %q has no kind or no id", k)
	}
	if !validName(k.Kind) || !validName(k.ID) {
		return malformed("key %q is not UTF-8 without U+0000", k)
	}
	return nil
}

// validName reports whether every store can keep s. JSON keeps UTF-8 only, and SQL databases end a
// text at U+0000.
func validName(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// storable reports whether JSON can keep t: its years have four digits.
func storable(t time.Time) bool {
	year := t.UTC().Year()
	return t.IsZero() || year >= 1 && year <= 9999
}
