package pawl

import "errors"

// NonRetryable marks err as final: code that repeats failed work must not repeat this. The
// functions errors.Is, errors.As, Code and HTTPStatus see through the mark. NonRetryable(nil) is
// nil.
func NonRetryable(err error) error {
	if err == nil {
		return nil
	}
	return &nonRetryable{err}
}

// IsNonRetryable reports whether err, or an error that it wraps, was marked by NonRetryable.
func IsNonRetryable(err error) bool {
	_, ok := errors.AsType[*nonRetryable](err)
	return ok
}

type nonRetryable struct{ error }

func (e *nonRetryable) Unwrap() error { return e.error }
