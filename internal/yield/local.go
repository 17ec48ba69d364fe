//go:build gc && !go1.27

package yield

import _ "unsafe" // for go:linkname

// Local lets the goroutines run that are in line on this processor.
//
//go:linkname Local runtime.goyield
func Local()
