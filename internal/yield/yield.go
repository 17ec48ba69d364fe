// Package yield lets a goroutine give way to those in line on its own processor.
//
// runtime.Gosched is for all processors: whoever calls it goes to the end of the line that they share, under a lock that they share, and another
// thread is woken to look into that line. Where two goroutines on one processor wait for one another, that is most of what their hand-over costs. The Go
// runtime has Local too, and keeps it for those outside who use it (go.dev/issue/67401), but does not document it: it is used in releases that it was
// tried with, and elsewhere it is runtime.Gosched.
package yield
