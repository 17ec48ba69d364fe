package main

// eventBugs break event streams in browsers, and the parts of package stream that they use.
var eventBugs = []Bug{
	{
		Name: "sse-events-from-the-start", Mechanism: "a client that reconnects goes on after its last event",
		Proves: []string{"STREAM-1"}, File: "sse/events.go",
		Old: "events(ctx, rs.last)", New: "events(ctx, \"\")",
		Pkg: "./sse", Run: "^TestEventsAfterReconnect$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "stream-watch-after-repeats", Mechanism: "WatchAfter begins after the event that is known",
		Proves: []string{"STREAM-1"}, File: "stream/read.go",
		Old: "id[:dash], int64(version)+1)", New: "id[:dash], int64(version))",
		Pkg: "./sse", Run: "^TestEventsAfterReconnect$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "stream-watch-after-forgets-the-life", Mechanism: "the ID of an event of a deleted stream is not taken for one of the new stream",
		Proves: []string{"STREAM-1"}, File: "stream/read.go",
		Old: "id[:dash], int64(version)+1)", New: "\"\", int64(version)+1)",
		Pkg: "./sse", Run: "^TestEventsOfAnotherLife$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "sse-events-one-heartbeat", Mechanism: "heartbeats go on while there is no event",
		Proves: []string{"SCOPE-13"}, File: "sse/events.go",
		Old: "	default:\n		f.beat.Reset(f.heartbeat)\n", New: "",
		Pkg: "./sse", Run: "^TestIdleEvents$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "sse-events-outlive-the-client", Mechanism: "a heartbeat that fails ends the sequence",
		Proves: []string{"SCOPE-13"}, File: "sse/events.go",
		Old: "		f.leave()\n", New: "",
		Pkg: "./sse", Run: "^TestEventsEndAfterFailedHeartbeat$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "sse-events-line-in-id", Mechanism: "an ID cannot add fields to an event",
		Proves: []string{"SCOPE-13"}, File: "sse/events.go",
		Old: "strings.ContainsAny(e.ID, \"\\r\\n\\x00\") || ", New: "",
		Pkg: "./sse", Run: "^TestFailedEvents$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "stream-unreadable-entry-hides-the-rest", Mechanism: "an entry that is no event does not end a read",
		Proves: []string{"STREAM-1"}, File: "stream/read.go",
		Old: "				if of == \"\" { // no event", New: "				if of == \"\" && life == \"\" { // no event",
		Pkg: "./stream", Run: "^TestReactionUnreadableEntry$", Flags: []string{"-timeout=60s"},
	},
}
