package pawl

import (
	"errors"
	"fmt"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/persist"
)

// The errors that callers get for the results of internal/commit and internal/document.

// verdictError returns the error of a verdict: *fenced, foreign, *LimitError for a commit that is too
// large for the store, *FieldError for documents that it rejects, *UnknownOutcomeError, or an error of unavailable. It returns nil where the commit
// landed or was lost.
func verdictError(v commit.Verdict) error {
	switch v.Kind {
	case commit.Landed, commit.Lost:
		return nil
	case commit.Fenced:
		return &fenced{v.Records[0]}
	case commit.RolledBack:
		return v.Cause
	case commit.Rejected:
		if limit, ok := errors.AsType[*persist.LimitError](v.Cause); ok {
			return overLimit(orTransaction(v.Key), limit)
		}
		return &FieldError{Scope: orTransaction(v.Key), Reason: "store rejected the document: " + v.Cause.Error()}
	case commit.Unavailable:
		return unavailable(orTransaction(v.Key), v.Cause)
	}
	return &UnknownOutcomeError{Scope: orTransaction(v.Key), Commit: v.ID, Cause: v.Cause}
}

// overLimit returns the error of a commit that is too large for the store. Key is its first key.
func overLimit(key Key, e *persist.LimitError) error {
	what := map[string]string{"keys": "scopes", "bytes": "commit", "entries": "entries"}[e.What]
	return &LimitError{Scope: key, What: what, Limit: e.Limit, Got: e.Got, Reason: "the store accepts no more in one commit"}
}

// orTransaction returns key, or a key that stands for the transaction where a commit has none.
func orTransaction(key Key) Key {
	if key == (Key{}) {
		return Key{Kind: "transaction"}
	}
	return key
}

// fenced is the error of a commit under a lease that is not live any more. Nothing was applied.
type fenced struct{ current persist.Record }

func (e *fenced) Error() string { return "pawl: " + e.current.Key.String() + ": lease lost" }

func asFenced(err error) *fenced {
	f, _ := err.(*fenced)
	return f
}

// foreign is the failure of the caller's own code inside a commit, which was then rolled back.
type foreign struct{ ending }

func (e foreign) Error() string { return "pawl: commit rolled back by code inside it" }

// unavailable returns the error of a store that failed and applied nothing: ErrClosed, one that
// wraps persist.ErrUnsupported, or *UnavailableError.
func unavailable(key Key, err error) error {
	switch {
	case errors.Is(err, persist.ErrClosed):
		return fmt.Errorf("%w: %s: store closed", ErrClosed, key)
	case errors.Is(err, persist.ErrUnsupported):
		return fmt.Errorf("pawl: %s: %w", key, err) // no retry will change that
	}
	return &UnavailableError{Scope: key, Cause: err}
}

// unencodable returns the error of a state that cannot be encoded: *LimitError, *FieldError, or an
// error of the type's own code.
func unencodable(key Key, err error) error {
	var size *document.SizeError
	if errors.As(err, &size) {
		return &LimitError{Scope: key, What: "document", Limit: size.Limit, Got: size.Size}
	}
	return refused(key, "", err)
}

// heldError returns *HeldError where a mutation on top of d cannot take the lease, as far as it is
// known before the commit.
func heldError(key Key, d *document.Draft) error {
	h, held := d.HeldBy()
	if !held {
		return nil
	}
	return &HeldError{Scope: key, Holder: h.Holder, Token: h.Token, Left: h.Left}
}
