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

// Validate returns an error that wraps [ErrNotApplied] if c is malformed, which no store would
// accept whatever it holds: an ID that is missing or longer than 128 bytes, a key that is written
// or guarded twice, a version that does not grow, a document that is missing, not JSON, or set
// on a delete, a guard that tests nothing, Extend or Release without Token or of a lease that the
// commit ends, names that are not UTF-8 or contain U+0000, and the like. Stores call it before they take a lock.
func (c Commit) Validate() error {
	if err := c.validateForm(); err != nil {
		return err
	}
	for i := range c.Writes {
		if w := &c.Writes[i]; !w.Deleted && !json.Valid(w.Doc) {
			return malformed("the document of %q is not JSON", w.Key)
		}
	}
	return nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: malformed: "+format, append([]any{ErrNotApplied}, args...)...)
}

// validateForm is Validate without reading the documents.
func (c Commit) validateForm() error {
	switch {
	case len(c.Writes) > 0 && c.ID == "":
		return malformed("a commit that writes needs an id")
	case len(c.ID) > maxCommitID:
		return malformed("the commit id has %d bytes, more than %d", len(c.ID), maxCommitID)
	case !utf8.ValidString(c.ID) || strings.ContainsFunc(c.ID, unicode.IsControl):
		return malformed("the commit id is not UTF-8 without control characters")
	case len(c.Writes) == 0 && len(c.Guards) == 0:
		return malformed("the commit is empty")
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

// validateLeases tests that no guard changes a lease which the write of its key ends: what is left
// then would be half a lease, or the new one of the write.
func (c Commit) validateLeases() error {
	for _, g := range c.Guards {
		if g.Extend == 0 && !g.Release {
			continue
		}
		for i := range c.Writes {
			if w := &c.Writes[i]; w.Key == g.Key && w.EndLease {
				return malformed("the guard of %q changes the lease that its write ends", g.Key)
			}
		}
	}
	return nil
}

// validateOnce tests that no key is written twice, or guarded twice.
func (c Commit) validateOnce() error {
	if len(c.Writes) > 1 {
		written := make(map[Key]bool, len(c.Writes))
		for i := range c.Writes {
			if key := c.Writes[i].Key; written[key] {
				return malformed("%q is written twice", key)
			}
			written[c.Writes[i].Key] = true
		}
	}
	if len(c.Guards) > 1 {
		guarded := make(map[Key]bool, len(c.Guards))
		for i := range c.Guards {
			if key := c.Guards[i].Key; guarded[key] {
				return malformed("%q is guarded twice", key)
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
		return malformed("version %d of %q does not follow %d", w.Version, w.Key, w.Expected)
	case w.Deleted && w.Doc != nil:
		return malformed("the delete of %q has a document", w.Key)
	case w.Deleted && w.Acquire != nil:
		return malformed("the delete of %q acquires its lease", w.Key)
	case !w.Deleted && len(w.Doc) == 0:
		return malformed("the write of %q has no document", w.Key)
	case !validName(w.Label):
		return malformed("the label of %q is not UTF-8 without U+0000", w.Key)
	case w.Swept && !(w.Deleted && w.Gone):
		return malformed("%q is swept without being deleted and gone", w.Key)
	case w.DueIn < 0 || w.TTL < 0 && w.TTL != KeepTTL:
		return malformed("the write of %q has a negative duration", w.Key)
	case w.DueIn != 0 && !w.Due.IsZero():
		return malformed("the write of %q has both Due and DueIn", w.Key)
	case !storable(w.Due):
		return malformed("the due time of %q is outside the years 1 to 9999", w.Key)
	}
	if w.Acquire != nil {
		return w.Acquire.validate()
	}
	return nil
}

func (a *Acquire) validate() error {
	if a.For < time.Microsecond {
		return malformed("a lease must last at least a microsecond")
	}
	if !validName(a.Holder) {
		return malformed("the holder of a lease is not UTF-8 without U+0000")
	}
	return nil
}

func (g *Guard) validate() error {
	if err := g.Key.validate(); err != nil {
		return err
	}
	switch {
	case !g.Read && g.Token == 0:
		return malformed("the guard of %q tests nothing", g.Key)
	case g.Extend < 0 || g.TTL < 0:
		return malformed("the guard of %q has a negative duration", g.Key)
	case g.Token == 0 && (g.Extend > 0 || g.Release):
		return malformed("the guard of %q changes a lease without its token", g.Key)
	case g.Extend > 0 && g.Release:
		return malformed("the guard of %q both extends and releases", g.Key)
	case g.TTL > 0 && (!g.Read || g.Gone || g.Version == 0):
		return malformed("the guard of %q sets a TTL without reading a live record", g.Key)
	}
	return nil
}

func (k Key) validate() error {
	if k.Kind == "" || k.ID == "" {
		return malformed("the key %q lacks its kind or its id", k)
	}
	if !validName(k.Kind) || !validName(k.ID) {
		return malformed("the key %q is not UTF-8 without U+0000", k)
	}
	return nil
}

// validName reports whether every store can keep s as it is: JSON cannot keep other than UTF-8,
// and SQL databases end a text at U+0000.
func validName(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// storable reports whether t survives JSON, which has years of four digits.
func storable(t time.Time) bool {
	year := t.UTC().Year()
	return t.IsZero() || year >= 1 && year <= 9999
}
