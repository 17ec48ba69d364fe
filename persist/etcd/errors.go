package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pawl-go/pawl/persist"
)

// refusals are the errors of a transaction that etcd refused before it changed anything: by the
// member that received it, or when it was its turn to be applied. ErrNoSpace is none of them: the
// transaction that reaches the quota is applied, and has that error all the same.
var refusals = []error{
	rpctypes.ErrTooManyOps, rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyRequests,
	rpctypes.ErrDuplicateKey, rpctypes.ErrEmptyKey, rpctypes.ErrNoLeader, rpctypes.ErrCorrupt,
	rpctypes.ErrPermissionDenied, rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision,
	rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed,
}

// refused reports whether err proves that a transaction changed nothing.
func refused(err error) bool {
	for _, refusal := range refusals {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// passes reports whether the cause of err ends by itself, such as the election of a leader, or when
// an operator makes room.
func passes(err error) bool {
	if errors.Is(err, persist.ErrUnavailable) {
		return true
	}
	code := status.Code(err)
	if known, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = known.Code()
	}
	switch code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Canceled:
		return !errors.Is(err, rpctypes.ErrCorrupt)
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// ours reports whether err is one of this package or of persist, for the caller.
func ours(err error) bool {
	_, conflict := errors.AsType[*persist.Conflict](err)
	for _, known := range []error{persist.ErrUnavailable, persist.ErrNotApplied, persist.ErrClosed, persist.ErrMissingStore, persist.ErrNewerSchema, errRemoved, errEnded} {
		if errors.Is(err, known) {
			return true
		}
	}
	return conflict
}

// explain returns the error for the caller of a request that failed with err.
func explain(err error) error {
	switch {
	case ours(err):
		return err
	case passes(err):
		// The cause is not wrapped: the end of an attempt is not that of the caller's context.
		return fmt.Errorf("%w: etcd: %v", persist.ErrUnavailable, err)
	}
	return fmt.Errorf("etcd: %w", err)
}

// notApplied returns the error of a commit that wrote nothing because of err.
func notApplied(err error) error {
	if errors.Is(err, persist.ErrClosed) || errors.Is(err, persist.ErrNotApplied) {
		return err
	}
	return fmt.Errorf("%w: %w", persist.ErrNotApplied, explain(err))
}

// errEnded marks the error of a call whose ctx ended.
var errEnded = errors.New("etcd: the context ended")

// ended returns the error of a call whose ctx ended.
func ended(ctx context.Context) error { return fmt.Errorf("%w: %w", errEnded, context.Cause(ctx)) }

// unknown returns the error of a transaction that was sent and not answered. Ctx is that of the
// caller.
func unknown(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("etcd: the outcome is unknown: the context ended after the commit was sent: %w", context.Cause(ctx))
	}
	return fmt.Errorf("the outcome is unknown: %w", explain(err))
}
