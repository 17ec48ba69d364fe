//go:build !unix

package main

import "time"

// cpuTime returns 0: processor time is not measured on this platform.
func cpuTime() time.Duration { return 0 }
