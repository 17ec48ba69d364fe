//go:build !gc || go1.27

package yield

import "runtime"

// Local lets others run.
func Local() { runtime.Gosched() }
