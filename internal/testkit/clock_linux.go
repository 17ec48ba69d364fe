package testkit

import "golang.org/x/sys/unix"

// Now returns the nanoseconds of a clock that never goes back and that all processes of this host
// share.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}
