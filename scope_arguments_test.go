package pawl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/require"
)

// Every path refuses an invalid argument with an error that names it. Proves SCOPE-2, SCOPE-9.
func TestBadArguments(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		seed(t, s, fullBoard)
		ctx, inc := t.Context(), pawl.Inc{Field: "count", By: 1}
		var none context.Context
		for _, c := range []struct {
			argument string
			do       func() error
		}{
			{"ctx", func() error { _, err := s.Apply(none, inc); return err }},
			{"ctx", func() error { _, err := s.State(none); return err }},
			{"ctx", func() error { _, err := s.Snapshot(none); return err }},
			{"ctx", func() error { return s.Delete(none) }},
			{"ctx", func() error { return p.rt.Close(none) }},
			{"mutation", func() error { _, err := s.Apply(ctx, nil); return err }},
			{"mutation", func() error { _, err := s.Apply(ctx, pawl.All{inc, nil}); return err }},
			{"mutation", func() error { _, err := s.Apply(ctx, (*pawl.Set)(nil)); return err }},
			{"mutation", func() error { _, err := s.Apply(ctx, &pawl.Patch{"count": 1}); return err }},
			{"mutation", func() error { _, err := s.Apply(ctx, pawl.All{inc, (*pawl.Inc)(nil)}); return err }},
			{"mutation", func() error { _, err := s.Apply(ctx, struct{ pawl.Mutation }{}); return err }},
			{"Atomic", func() error { _, err := s.AtomicState(ctx, nil); return err }},
			{"Atomic", func() error { _, err := s.Apply(ctx, pawl.All{inc, pawl.Atomic[board](nil)}); return err }},
			{"Atomic", func() error {
				_, err := s.Apply(ctx, pawl.Atomic(func(context.Context, *inner) error { return nil }))
				return err
			}},
			{"option", func() error { _, err := s.Apply(ctx, inc, pawl.IfExists(), nil); return err }},
			{"option", func() error { return s.Delete(ctx, nil) }},
			{"WithTTL", func() error { _, err := s.Apply(ctx, inc, pawl.WithTTL(-1)); return err }},
			{"WithRetry", func() error { _, err := s.Apply(ctx, inc, pawl.WithRetry(pawl.Retry{Attempts: -1})); return err }},
			{"WithTimeout", func() error { _, err := s.Apply(ctx, inc, pawl.WithTimeout(-time.Hour)); return err }},
			{"scope", func() error { _, err := (pawl.Scope[board]{}).Apply(ctx, inc); return err }},
			{"scope", func() error { _, err := (pawl.Scope[board]{}).State(ctx); return err }},
			{"scope", func() error { return (pawl.Scope[board]{}).Delete(ctx) }},
			{"owner", func() error { return increment(pawl.Session[board](nil, "a")) }},
			{"owner", func() error { return increment(pawl.Memory[board]((*pawl.Runtime)(nil), "a")) }},
			{"owner", func() error { return increment(pawl.Memory[board]((*pawl.Local)(nil), "a")) }},
			{"owner", func() error { return increment(pawl.Memory[board](pawl.NewLocal(nil), "a")) }},
		} {
			err := c.do()
			var e *pawl.ArgumentError
			require.ErrorAs(t, err, &e, c.argument)
			require.Equal(t, c.argument, e.Argument)
			require.NotEmpty(t, e.Reason)
			require.Equal(t, "ARGUMENT", pawl.Code(err))
		}
		_, ok := (pawl.Scope[board]{}).LastSeen()
		require.False(t, ok)
		require.False(t, (pawl.Scope[board]{}).Abandon())
		requireState(t, p, s, 1, fullBoard)
	})
}

// A verb whose context has already ended does not start. Proves SCOPE-2.
func TestEndedContext(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		cause := errors.New("gone home")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		_, err := s.AtomicState(ctx, func(context.Context, *board) error { t.Error("the function ran"); return nil })
		require.Equal(t, &pawl.CanceledError{Scope: s.Key(), Phase: pawl.PhaseQueued, Cause: cause}, err)
		require.ErrorIs(t, err, cause)
		require.False(t, pawl.OutcomeUnknown(err))
		requireAbsent(t, p, s)
		if p.store != nil {
			_, err = s.Snapshot(ctx)
			require.ErrorIs(t, err, cause)
		}
	})
}
