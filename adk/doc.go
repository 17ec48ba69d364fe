// Package adk keeps the sessions of Google's Agent Development Kit (google.golang.org/adk/v2) in
// Pawl. A Service is a session.Service: agents, tools and the runner stay as they are.
//
//	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: adk.Kinds()})
//	sessions, err := adk.New(rt, adk.Config{})
//	r, err := runner.New(runner.Config{AppName: "shop", Agent: agent, SessionService: sessions})
//
// A session is a document with its state, and a stream with its events. The state of a user and the
// state of an app are one document each. AppendEvent commits all of them together, or none:
//
//	AppendEvent ─► test the session and the keys that were read ─┬─► session: state, counts ─┐
//	                                                             ├─► user: and app: state    ├─► one commit
//	                                                             └─► stream: the event       ─┘
//
// A handle on a session is what Create, Get and List return. It knows how many events the session
// had, and which write each key of the state came from. AppendEvent compares that with the store, and
// never compares times. So no writer is refused because of a clock, and no writer overwrites a value
// that it has read and that has changed since. Config.Policy says what a handle must have seen; Inc adds to a number without
// having seen it.
//
// Races, and what decides them:
//   - two appends to one session: both write its document, so one of them runs again on the result of
//     the other, and its handle is tested again.
//   - an append and a Delete: the append tests that the session exists, in its commit.
//   - a Delete and a Create under the same id: each session has a stream of its own. So a handle on
//     the old session is refused, and the new one has no events of the old one.
//   - a Get while the session is deleted: events are missing, so Get looks at the session again.
//   - a crash in the middle of a Delete: the commit that deletes the session leaves a document that
//     names its stream. The next Delete of that id removes the events, and so does, after a minute,
//     every other Delete.
package adk
