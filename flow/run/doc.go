// Package run executes durable runs: named steps over a typed state that survive crashes, wait, retry,
// and are started once per key.
//
//	orders := run.Register(engine, run.Definition[Order]{Name: "order", Steps: []run.Step[Order]{
//		{Name: "charge", Do: charge},
//		{Name: "ship", Do: ship},
//	}})
//	r, created, err := orders.Start(ctx, order, run.WithKey("order-789"))
//
// A step is a function. It changes the state of its attempt and says what comes next: the next step,
// another one, a pause, a signal to wait for, or the end. The new state, the output of the step and
// the writes of OnCommit are one commit. A worker that is killed before that commit has done nothing
// to the run, and another worker runs the step again. A step that is completed runs again only after
// a Goto back to it.
//
// So a step may run more than once, and its writes are committed once. Calls to other systems pass
// Attempt.Key, which is the same in every attempt.
package run
