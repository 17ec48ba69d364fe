// Package flow runs actions over scopes: functions with typed input and output, called on behalf of
// a request, a session, a user and an organisation. A [Flow] decides which of its calls may run at
// the same time, in all processes together, and any process can cancel a call.
//
//	chat, err := flow.New(rt, flow.Config{Kind: "chat", Admit: flow.Queue, Per: flow.PerSession})
//	answer := flow.Define(chat, "answer", func(ctx context.Context, c *flow.Call, in Ask) (Reply, error) {
//		thread := Threads.Scope(c, c.Session)      // persisted
//		board := pawl.Sequencer[Board](c, "board") // in memory, ends with the request
//		...
//	})
//	reply, err := answer.Do(ctx, flow.IDs{Request: id, Session: session}, Ask{Text: "Hi"})
//
// A call in flight holds the lease of its own record. Every commit that its action makes with the
// action's context is fenced by that lease. A call whose process was cut off for longer than the
// lease commits nothing. An action called with the context of another action passes every gate at
// which the outer call is already admitted.
//
// A flow is neither durable nor idempotent. A call is lost when its process dies, and a request id
// can be used again once its call has ended. docs/flows.md lists the states of a call, the races
// and the costs.
package flow
