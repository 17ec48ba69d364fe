// Package stream keeps append-only streams of events, and runs leased reactions to them.
//
// A stream is a scope with a log: its head document says which version comes next, and each event is
// an entry of the log. Appending costs the same however long the stream is. An append is a mutation
// of the head, so appends without an expected version share commits, and appends join pawl.Transact
// with documents, guards and leases.
//
//	Append ─► head (version test) + entries ─► one commit ─┬─► Read, Watch: by version
//	                                                       └─► the order of all streams
//	                                                             │ route: which reactions are behind
//	                                                             ▼
//	                       position of a reaction on a stream ─► claim ─► handle ─► ack, retry or block
//
// Words: the version of an event is its place in its stream, and its position is its place in the
// order of all streams. The position of a reaction on a stream is a document with the version of the
// next event to handle. The cursor is the place in the order up to which events were routed. A life
// is the time from the first append to a stream until it is deleted or expires.
//
// Two kinds of concurrency are kept apart. Writers are protected by the version that they expect: a
// writer that lost gets *ConcurrencyError. Reactions are protected by a lease on their position: one
// process at a time handles the events of a stream for a reaction. A lease never disturbs a writer.
package stream
