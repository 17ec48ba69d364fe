// Package pawltest helps to test code that uses Pawl.
//
// [NewStore] returns a store in memory that fails on demand: it loses commits to another writer,
// loses answers, answers late, ends leases, or is down. [Wrap] puts the same faults in front of any
// other store.
//
//	store := pawltest.NewStore()
//	rt, err := pawl.Open(pawl.Config{Store: store})
//	...
//	store.Next(pawltest.LostAnswer) // the next commit lands, and its answer is lost
//	store.Down()                    // an outage, until store.Up()
//
// [RequireState], [RequireVersion] and [RequireAbsent] look at a scope. A [Recorder] keeps the
// events of a runtime and waits for one. [Race] lets writers start together and counts what they
// left. A [History] checks that calls on one scope took effect one after the other, each of them
// once.
//
// # Time
//
// Expiry, leases and budgets depend on the clock. Run such a test in a bubble of testing/synctest,
// where the clock moves as soon as all goroutines wait: a test of 14 days takes no time. Make the
// store, the runtime, gates and recorders inside the bubble, and close the runtime before it ends.
// A store that does real I/O does not work in a bubble: waiting for a file or a socket does not
// count as waiting there. The example (FakeTime) shows such a test.
package pawltest
