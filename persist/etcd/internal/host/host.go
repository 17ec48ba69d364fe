// Package host replaces the clock of the host in tests, for a store that is opened with a context.
package host

import (
	"context"
	"time"
)

type offset struct{}

// With returns a context for opening a store on a host whose clock is off by a time.
func With(ctx context.Context, off time.Duration) context.Context {
	return context.WithValue(ctx, offset{}, off)
}

// Clock returns the clock of the host, as ctx says.
func Clock(ctx context.Context) func() time.Time {
	off, _ := ctx.Value(offset{}).(time.Duration)
	return func() time.Time { return time.Now().Add(off) }
}
