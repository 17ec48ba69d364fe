package main

// watchBugs break watching and server-sent events.
var watchBugs = []Bug{
	{
		Name: "watch-without-announcement", Mechanism: "a commit in memory wakes the watchers",
		Proves: []string{"SCOPE-13"}, File: "lock.go",
		Old: "	c.image.Store(img)\n	c.group.Load().Notify()\n", New: "	c.image.Store(img)\n",
		Pkg: ".", Run: "^TestWatchDeleteAndRecreate$/in_memory", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "watch-stays-marked", Mechanism: "a change that arrives while watchers are being woken is passed on too",
		Proves: []string{"SCOPE-13"}, File: "internal/notify/notify.go",
		Old: "		g.marked.Store(false)\n", New: "",
		Pkg: "./internal/notify", Run: "^TestNotify$", Quick: true, Flags: []string{"-timeout=20s"},
	},
	{
		Name: "watch-looks-before-it-joins", Mechanism: "a watcher is registered with the hub, which reads the store for it",
		Proves: []string{"SCOPE-13"}, File: "watch.go",
		Old: "	w.leave = func() { group.Leave(w.signal); unwatch() }\n", New: "	unwatch()\n",
		Pkg: ".", Run: "^TestWatchHints$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "watch-goes-back", Mechanism: "a watch does not deliver the state of a version after its expiry",
		Proves: []string{"SCOPE-13"}, File: "watch.go",
		Old: "	return now.version >= known.version && known.life == alive && now.life != alive\n",
		New: "	return now.version >= known.version && now.life != known.life && now.life != absent\n",
		Pkg: ".", Run: "^TestWatchStaleRead$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "watch-miscounts", Mechanism: "skipped versions are counted",
		Proves: []string{"SCOPE-13"}, File: "watch.go",
		Old: "	w.news = news{snapshot: snap, missed: now.missed(w.got), err: err}\n", New: "	w.news = news{snapshot: snap, missed: min(now.missed(w.got), 0), err: err}\n",
		Pkg: ".", Run: "^TestWatchWithoutAReceiver$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "watch-counts-the-floor", Mechanism: "versions that never existed are not counted as missed",
		Proves: []string{"SCOPE-13"}, File: "watch.go",
		Old: "			w.got.version = s.memory.first - 1 ", New: "			_ = s.memory.first ",
		Pkg: ".", Run: "^TestWatchAboveTheFloor$",
	},
	{
		Name: "watch-survives-close", Mechanism: "closing the owner ends its watches",
		Proves: []string{"SCOPE-13"}, File: "internal/notify/notify.go",
		Old: "		close(g.over)\n", New: "",
		Pkg: "./internal/notify", Run: "^TestClosedGroup$", Quick: true, Flags: []string{"-timeout=20s"},
	},
	{
		Name: "watch-stays-after-a-panic", Mechanism: "a watch that failed to start leaves nothing behind",
		Proves: []string{"SCOPE-13"}, File: "watch.go",
		Old: "		if !stays {\n			w.leave()\n		}\n", New: "		_ = stays\n",
		Pkg: ".", Run: "^TestWatchErrors$/memory_store",
	},
	{
		Name: "watch-forgets-expiry", Mechanism: "the expiry of a state is a change",
		Proves: []string{"SCOPE-13", "SCOPE-14"}, File: "watch.go",
		Old: "		if left > 0 {\n", New: "		if left < 0 {\n",
		Pkg: ".", Run: "^TestWatchExpiry$/in_memory", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "watch-deaf-to-renewal", Mechanism: "a renewed expiry is noticed in its own process",
		Proves: []string{"SCOPE-13", "SCOPE-14"}, File: "cas_seen.go",
		Old: "	if s.seen.CompareAndSwap(base, d) {\n		s.group.Load().Notify()", New: "	if s.seen.CompareAndSwap(base, d) {\n		_ = s",
		Pkg: ".", Run: "^TestWatchExpiryMovedByThisProcess$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "hub-never-reads-the-whole", Mechanism: "a renewed expiry is noticed in other processes, although no version moves",
		Proves: []string{"SCOPE-13", "SCOPE-14"}, File: "internal/hints/check.go",
		Old: "			h.markAll(all)\n", New: "			h.markAll(all && false)\n",
		Pkg: "./internal/hints", Run: "^TestReread$", Quick: true, Flags: []string{"-timeout=20s"},
	},
	{
		Name: "hub-overlooks-a-purge", Mechanism: "a purged record is read",
		Proves: []string{"SCOPE-13"}, File: "internal/hints/check.go",
		Old: " || versions[i] == 0 && !absent {", New: " || false && absent {",
		Pkg: "./internal/hints", Run: "^TestPurgedRecord$", Quick: true, Flags: []string{"-timeout=20s"},
	},
	{
		Name: "hub-stops-at-a-damaged-scope", Mechanism: "one unreadable scope does not keep others from being read",
		Proves: []string{"SCOPE-13"}, File: "internal/hints/check.go",
		Old: "	if len(some) == 1 {\n		return some, err\n	}\n", New: "	if len(some) > 0 {\n		return some, err\n	}\n",
		Pkg: "./internal/hints", Run: "^TestDamagedRecord$", Quick: true, Flags: []string{"-timeout=20s"},
	},
	{
		Name: "hub-trusts-every-hint-to-come", Mechanism: "watched scopes are read at intervals even while hints arrive",
		Proves: []string{"SCOPE-13"}, File: "internal/hints/check.go",
		Old: "	checkEvery     = 5 * time.Second ", New: "	checkEvery     = 5 * time.Hour ",
		Pkg: "./internal/hints", Run: "^TestPurgedRecord$", Quick: true, Flags: []string{"-timeout=20s"},
	},
	{
		Name: "hub-believes-a-dead-watch", Mechanism: "watched scopes are read more often once hints have stopped",
		Proves: []string{"SCOPE-13"}, File: "internal/hints/hub.go",
		Old: "		hearing.Store(false)\n", New: "",
		Pkg: "./internal/hints", Run: "^TestWatch$", Quick: true, Flags: []string{"-timeout=20s"},
	},
	{
		Name: "hub-asks-one-by-one", Mechanism: "versions are requested for many scopes at once, and only changed scopes are read",
		Proves: []string{"SCOPE-13"}, File: "internal/hints/check.go",
		Old: "	checkBatch     = 500 ", New: "	checkBatch     = 1 ",
		Pkg: "./internal/hints", Run: "^TestManyScopes$", Quick: true, Flags: []string{"-timeout=20s"},
	},
	{
		Name: "sse-repeats-itself", Mechanism: "a client that reconnects does not get an event again",
		Proves: []string{"SCOPE-13"}, File: "sse/sse.go",
		Old: "	if e.id == st.last {\n		e.text = nil\n", New: "	if e.id == st.last && e.final {\n		e.text = nil\n",
		Pkg: "./sse", Run: "^TestReconnect$",
	},
	{
		Name: "sse-hides-an-expiry", Mechanism: "the event of an expired version has its own id",
		Proves: []string{"SCOPE-13"}, File: "sse/sse.go",
		Old: "		e.id += \"-gone\"\n", New: "",
		Pkg: "./sse", Run: "^(TestStream|TestReconnect)$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "sse-waits-for-ever", Mechanism: "the stream of a client that does not read is ended",
		Proves: []string{"SCOPE-13"}, File: "sse/sse.go",
		Old: "_ = rs.conn.SetWriteDeadline(time.Now().Add(rs.writeTimeout))", New: "_ = rs.conn.SetWriteDeadline(time.Now().Add(time.Hour + rs.writeTimeout))",
		Pkg: "./sse", Run: "^TestStuckClient$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "sse-ends-while-idle", Mechanism: "a write deadline does not end an idle stream",
		Proves: []string{"SCOPE-13"}, File: "sse/sse.go",
		Old: "	_ = rs.conn.SetWriteDeadline(time.Time{}) // in HTTP/2", New: "	// in HTTP/2",
		Pkg: "./sse", Run: "^TestIdle$",
	},
	{
		Name: "sse-shows-the-error", Mechanism: "an event named failed contains only the code",
		Proves: []string{"SCOPE-13"}, File: "sse/sse.go",
		Old: "\\n\\n\", pawl.Code(err))", New: "\\n\\n\", err.Error())",
		Pkg: "./sse", Run: "^TestFailure$",
	},
	{
		Name: "sse-leaves-its-watch", Mechanism: "a watch ends with its response",
		Proves: []string{"SCOPE-13"}, File: "sse/sse.go",
		Old: "		cancel()\n		for range changes {\n		}\n", New: "		_ = cancel\n",
		Pkg: "./sse", Run: "^TestMiddleware$",
	},
	{
		Name: "sse-missed-is-a-comment", Mechanism: "a script in the browser is told how many versions were skipped",
		Proves: []string{"SCOPE-13"}, File: "sse/sse.go",
		Old: "\"event: missed\\ndata: {\\\"count\\\":%d}\\n\\n\"", New: "\": missed %d\\n\"",
		Pkg: "./sse", Run: "^TestSlowClient$",
	},
}
