// Package pawl keeps scoped, versioned state that only moves forward, whoever writes at the same
// time and whatever crashes. It is a library, embedded in a server: many goroutines and many
// processes change the same state, and no acknowledged change is lost, doubled or torn.
//
// # Basics
//
// A [Kind] names a sort of state and its Go type; a [Scope] is a handle on one piece of it.
//
//	var Threads = pawl.Kind[Thread]{Name: pawl.KindSession, TTL: 30 * 24 * time.Hour}
//
//	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Threads}})
//	thread := Threads.Scope(rt, id)
//	snap, err := thread.PushState(ctx, "messages", Message{Role: "user", Text: "Hi"})
//
// One set of verbs works on every scope. In-memory scopes put their writers in a queue: they run
// one at a time, in the order of submission, and no caller waits beyond its budget. Persisted
// scopes have the same queue; whoever waits in it shares one commit, which the store accepts only
// if nobody else moved the version, and otherwise everything is computed again on what won. Either
// way a verb returns when its change is committed, with the state it left behind and its version.
//
// Data verbs (PatchState, PushState, IncState, ...) say what to change; the library does it.
// AtomicState takes a function, for decisions. Prefer data where it will do: it is faster, and can be
// logged, combined with [All], and applied again without running anybody's code.
//
// [Transact] commits several persisted scopes together, or none: the same verbs, on scopes opened on its [Tx].
//
// A [Lease] makes one holder of a scope, in one process, do what must not be done by two at once; what it commits is fenced. [Scope.Watch] follows a scope, whoever
// writes it. A [Sweeper] gives back the space of what has expired.
//
// # Errors
//
// Every error has a stable code and an HTTP status ([Code], [HTTPStatus]). [IsRetryable] tells whether
// nothing was applied and the same call may succeed later, [OutcomeUnknown] whether the change may
// have been applied in spite of the error. Nothing else needs a type switch.
//
// # Caveats
//
// A function given to AtomicState must have no effects of its own on a persisted scope, because it may run
// more than once; and it should use the context it is given for calls inside it, which is how a call on its own scope is
// refused instead of waiting for itself.
//
// What [Snapshot.ReadOnly] returns is shared with every reader. [Snapshot.State] returns a copy.
//
// State is what JSON sees of T: fields that encoding/json skips are not kept.
//
// A scope is one document, rewritten as a whole by every commit. Keep what grows without bound, such as
// the messages of a long thread, in scopes of its own.
package pawl
