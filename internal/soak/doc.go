// Package soak holds tests that use all parts of the library together, for as long as they are told.
//
// TestServers runs two server processes on one store. They change thousands of sessions by every
// verb, transfer between accounts, hold leases, watch, append events, start durable runs, and sweep.
// The test ends one process after another, by SIGTERM or SIGKILL, and starts a new one. A process
// reports each call before and after it, so that the test can compare the store with the answers. It
// also measures whether goroutines, memory, file descriptors and connections grow.
//
// TestOverload submits more mutations than the queue of a scope takes.
//
// PAWL_SOAK sets the length of TestServers in seconds; `make soak` runs it for half an hour.
package soak
