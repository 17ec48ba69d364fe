package persist

import "fmt"

// Limits bound one commit. A limit of 0 is no limit.
type Limits struct {
	// MaxKeys is the largest number of keys that a commit writes or guards; see [Commit.Keys].
	MaxKeys int `json:"maxKeys,omitzero"`
	// MaxBytes is the largest [Commit.Size].
	MaxBytes int `json:"maxBytes,omitzero"`
	// MaxEntries is the largest number of log entries in a commit that writes no other record than
	// that of the log; see [LogWrite].
	MaxEntries int `json:"maxEntries,omitzero"`
}

// Limiter is a store whose commits are limited. Pawl asks once, when a runtime is opened, and refuses
// larger commits before it sends them. Without it, Pawl sends commits of any size.
type Limiter interface {
	// Limits returns the limits, which are the same as long as the store is open. Commit accepts any
	// commit of up to MaxKeys keys. It returns *LimitError beyond the limits, and also for a commit
	// within MaxBytes whose form in the store is too large, because labels, index entries and commit
	// ids take room too. Load, LoadAll, List, Take, Purge and Restore have no limits: they split
	// their work.
	Limits() Limits
}

// LimitError is the error of a commit that is larger than the store accepts. Nothing was written: it
// wraps ErrNotApplied.
type LimitError struct {
	// What is "keys", "bytes" or "entries".
	What string
	// Limit is the largest number that is accepted, and Got the number in the commit.
	Limit, Got int
}

// Error names the limit and the size of the commit.
func (e *LimitError) Error() string {
	return fmt.Sprintf("persist: commit too large: %s: limit %d, got %d", e.What, e.Limit, e.Got)
}

// Unwrap returns ErrNotApplied.
func (e *LimitError) Unwrap() error { return ErrNotApplied }

// Check returns *LimitError if c is beyond the limits.
func (l Limits) Check(c Commit) error {
	// The number of writes and guards is a bound for the number of keys, and quicker to count.
	if l.MaxKeys > 0 && len(c.Writes)+len(c.Guards) > l.MaxKeys {
		if keys := len(c.Keys()); keys > l.MaxKeys {
			return &LimitError{What: "keys", Limit: l.MaxKeys, Got: keys}
		}
	}
	if l.MaxEntries > 0 {
		entries := 0
		for i := range c.Writes {
			if log := c.Writes[i].Log; log != nil {
				entries += len(log.Entries)
			}
		}
		if entries > l.MaxEntries {
			return &LimitError{What: "entries", Limit: l.MaxEntries, Got: entries}
		}
	}
	if l.MaxBytes > 0 {
		if size := c.Size(); size > l.MaxBytes {
			return &LimitError{What: "bytes", Limit: l.MaxBytes, Got: size}
		}
	}
	return nil
}

// Size returns the number of bytes in the documents, log entries, keys and labels of c.
func (c Commit) Size() int {
	size := 0
	for i := range c.Writes {
		w := &c.Writes[i]
		size += len(w.Kind) + len(w.ID) + len(w.Label) + len(w.Doc)
		if w.Log == nil {
			continue
		}
		for _, entry := range w.Log.Entries {
			size += len(entry)
		}
	}
	for i := range c.Guards {
		size += len(c.Guards[i].Kind) + len(c.Guards[i].ID)
	}
	return size
}
