// Package pawl keeps scoped, versioned state that many goroutines and many processes change at the
// same time. No acknowledged change is lost, applied twice or torn, also when a process crashes.
// Pawl is a library, embedded in a server.
//
// # Basics
//
// A [Kind] names a sort of state and its Go type; a [Scope] is a handle on one piece of it.
//
//	var Threads = pawl.Kind[Thread]{Name: pawl.KindSession, TTL: 30 * 24 * time.Hour}
//
//	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Threads}})
//	thread := Threads.Scope(rt, id)
//	snap, err := thread.PatchState(ctx, pawl.Patch{"title": "Trip to Rome"})
//
// One set of verbs works on every scope. The writers of an in-memory scope queue: they run one at a
// time, in the order of submission, and no caller waits beyond its budget. A persisted scope has
// the same queue, and its waiters share one commit. The store accepts the commit only if the
// version is unchanged; otherwise the mutations are computed again on the version that won. A verb
// returns when its change is committed, with the state that it committed and its version.
//
// Data verbs (PatchState, PushState, IncState, ...) say what to change; the library does it.
// AtomicState takes a function, for decisions. Prefer data verbs where they suffice: they are
// faster, and can be logged, combined with [All], and applied again without running user code.
//
// [Transact] commits several persisted scopes together, or none: the same verbs, on scopes opened
// on its [Tx].
//
// A [Lease] gives one holder at a time the right to act on a scope; commits under a lost lease are
// refused. [Scope.Watch] follows a scope. A [Sweeper] removes expired records.
//
// # Errors
//
// Every error has a stable code and an HTTP status ([Code], [HTTPStatus]). [IsRetryable] tells
// whether nothing was applied and the same call may succeed later, [OutcomeUnknown] whether the
// change may have been applied in spite of the error. Nothing else needs a type switch.
//
// # Caveats
//
// A function given to AtomicState must have no effects of its own on a persisted scope, because it
// may run more than once. It should use the context it is given for calls inside it: then a call on
// its own scope is refused instead of waiting for itself. That context ends with the function's
// budget.
//
// What [Snapshot.ReadOnly] returns is shared with every reader. [Snapshot.State] returns a copy.
//
// State is what JSON sees of T: fields that encoding/json skips are not kept.
//
// A scope is one document, rewritten as a whole by every commit. Keep data that grows without
// bound, such as the messages of a long thread, in a stream: see package stream.
//
// # Source
//
// This package is the API and the policy of two paths: lock.go is the in-memory path, cas.go the
// persisted one. Each starts with a drawing and the list of its races. The rooms behind them are
// internal packages with one job each: queue (waiters and their worker), waitgraph (deadlocks),
// state (verbs on Go values), document (versions and their JSON), commit (a commit and its lost
// answer), registry (containers by key) and hints (news of other processes).
package pawl
