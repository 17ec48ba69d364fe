package main

// soakBugs are leaks and losses that show only when many callers come and go.
var soakBugs = []Bug{
	{
		Name: "soak-notifier-stays", Mechanism: "the goroutine that wakes the watchers of a scope ends with the last of them",
		Proves: []string{"SCOPE-13"}, File: "internal/notify/notify.go",
		Old: "	if len(g.watchers) == 0 {\n		g.empty.Set()\n	}\n", New: "",
		Pkg: "./internal/soak", Run: "^TestServers$/^postgres$",
	},
	{
		Name: "soak-watch-leaves-a-goroutine", Mechanism: "a watch that has ended leaves no goroutine until the runtime closes",
		Proves: []string{"SCOPE-13"}, File: "watch.go",
		Old: "		defer w.leave()\n", New: "		defer func() { go func() { <-w.quit; w.leave() }() }()\n",
		Pkg: "./internal/soak", Run: "^TestServers$/^postgres$",
	},
	{
		Name: "overload-leaver-keeps-its-place", Mechanism: "a mutation that is withdrawn makes room in the queue",
		Proves: []string{"LOCK-14"}, File: "internal/queue/queue.go",
		Old: "	if !w.taken {\n		q.arrivals.waiting.Add(-1)\n	}\n", New: "",
		Pkg: "./internal/soak", Run: "^TestOverload$/^sqlite$", Flags: []string{"-timeout=120s"},
	},
}
