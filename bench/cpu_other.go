//go:build !unix

package main

import "time"

// cpuTime returns 0: processor time is not measured here.
func cpuTime() time.Duration { return 0 }
