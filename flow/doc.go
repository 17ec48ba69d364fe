// Package flow runs actions over scopes: functions with typed input and output, called on behalf of a request, a session, a user and an
// organisation. A [Flow] decides which of its calls may run at the same time, in all processes together, and any process can cancel one.
//
//	chat, err := flow.New(rt, flow.Config{Kind: "chat", Admit: flow.Queue, Per: flow.PerSession})
//	answer := flow.Define(chat, "answer", func(ctx context.Context, c *flow.Call, in Ask) (Reply, error) {
//		thread := Threads.Scope(c, c.Session)      // persisted
//		board := pawl.Sequencer[Board](c, "board") // in memory, ends with the request
//		...
//	})
//	reply, err := answer.Do(ctx, flow.IDs{Request: id, Session: session}, Ask{Text: "Hi"})
//
// While a call is in flight it holds the lease of a record of its own. What its action commits with its context is fenced by that lease: a call whose
// process was cut off for longer than the lease commits nothing, whatever it believes. An action inside an action, called with its context, passes
// where the outer one is admitted already.
//
// A flow is neither durable nor idempotent: a call whose process dies is gone, and one that has ended can be called again under its id. docs/flows.md tells
// of the states of a call, the races, and the costs.
package flow
