//go:build !linux

package testkit

import "time"

// Now returns the nanoseconds of a clock that all processes of this host share. It goes back only
// if the clock of the host is set.
func Now() int64 { return time.Now().UnixNano() }
