package main

// observeBugs break what observers and tools are told: calls of the store, Stats and WatchRecord.
var observeBugs = []Bug{
	{
		Name: "observe-absent-record-is-a-failure", Mechanism: "the load of an absent record is no failed call of the store",
		File: "store_calls.go",
		Old:  "	if errors.Is(event.Err, persist.ErrNotFound) {\n		event.Err = nil\n	}\n", New: "",
		Pkg: ".", Run: "^TestStoreCallsAreObserved$/memory", Quick: true,
	},
	{
		Name: "observe-commits-without-a-size", Mechanism: "the event of a commit tells how many records it writes",
		File: "store_calls.go",
		Old:  `Batch: len(c.Writes), Took`, New: `Took`,
		Pkg: ".", Run: "^TestStoreCallsAreObserved$/memory",
	},
	{
		Name: "observe-release-without-a-key", Mechanism: "the event of a commit of guards has their key",
		File: "store_calls.go",
		Old:  "		event.Key = c.Guards[0].Key\n", New: "",
		Pkg: ".", Run: "^TestStoreCallsAreObserved$/memory",
	},
	{
		Name: "observe-no-commits", Mechanism: "commits are calls of the store that the observer is told of",
		File: "store_calls.go",
		Old:  "	r.Store = observedStore{r.Store, e}\n", New: "",
		Pkg: ".", Run: "^(TestStoreCallsAreObserved|TestCommitInDoubtIsObserved)$",
	},
	{
		Name: "observe-read-of-several-is-one", Mechanism: "a read of several records is a LoadAll",
		File: "store_calls.go",
		Old:  `observeCall(ctx, e, "LoadAll", keys[0]`, New: `observeCall(ctx, e, "Load", keys[0]`,
		Pkg: ".", Run: "^TestStoreCallsAreObserved$/memory",
	},
	{
		Name: "observers-call-nil", Mechanism: "Observers skips observers that are nil",
		File: "observe.go",
		Old:  "func(o Observer) bool { return o == nil }", New: "func(Observer) bool { return false }",
		Pkg: ".", Run: "^TestObservers$",
	},
	{
		Name: "observers-tell-the-first", Mechanism: "Observers passes an event to every observer",
		File: "observe.go",
		Old:  "			o.Observe(ctx, e)\n", New: "			o.Observe(ctx, e)\n			return\n",
		Pkg: ".", Run: "^TestObservers$",
	},
	{
		Name: "stats-miss-stuck-functions", Mechanism: "Stats tells which functions have outlived their budget",
		File: "stats.go",
		Old:  "now.Sub(v.started) > v.call.retry.Within}", New: "false}",
		Pkg: ".", Run: "^TestStatsOfStuckFunction$",
	},
	{
		Name: "stats-miss-watchers", Mechanism: "Stats counts watches",
		File: "stats.go",
		Old:  "		s.Watchers += watchers\n", New: "		_ = watchers\n",
		Pkg: ".", Run: "^TestStatsOfRuntime$",
	},
	{
		Name: "stats-miss-locals", Mechanism: "Stats counts the scopes of Locals",
		File: "stats.go",
		Old:  "		s.InMemory += s.add(r)\n", New: "		if r == rt.memory {\n			s.InMemory += s.add(r)\n		}\n",
		Pkg: ".", Run: "^TestStatsOf(Queues|Runtime)$",
	},
}

// otelBugs break the observer for OpenTelemetry, and the server that shows it.
var otelBugs = []Bug{
	{
		Name: "otel-leases-only-grow", Mechanism: "the number of leases falls when one ends",
		File: "otel/observer.go", Module: "otel",
		Old: "o.leases.Add(ctx, -1,", New: "o.leases.Add(ctx, 1,",
		Pkg: ".", Run: "^TestMetrics$", Quick: true,
	},
	{
		Name: "otel-release-in-doubt", Mechanism: "a commit that writes nothing is never in doubt",
		File: "otel/observer.go", Module: "otel",
		Old: "case e.Batch == 0, errors.Is", New: "case errors.Is",
		Pkg: ".", Run: "^TestStoreOutcomes$",
	},
	{
		Name: "otel-unbounded-series", Mechanism: "an observer keeps a bounded number of series",
		File: "otel/series.go", Module: "otel",
		Old: "!ok && len(known) >= MaxSeries {", New: "!ok && len(known) >= 2*MaxSeries {",
		Pkg: ".", Run: "^TestSeriesAreBounded$",
	},
	{
		Name: "otel-spans-without-a-caller", Mechanism: "a context without a span gets none",
		File: "otel/spans.go", Module: "otel",
		Old: "!trace.SpanContextFromContext(ctx).IsValid()", New: "ctx == nil",
		Pkg: ".", Run: "^TestSpans$",
	},
	{
		Name: "otel-spans-without-length", Mechanism: "a span has the times of its mutation",
		File: "otel/spans.go", Module: "otel",
		Old: "end.Add(-e.Took)", New: "end",
		Pkg: ".", Run: "^TestSpans$",
	},
	{
		Name: "otel-chat-without-observer", Mechanism: "the chat server reports to the observer that it is given",
		File: "examples/chat/server/command.go", Module: "otel",
		Old: "Observer: c.Observer, ", New: "",
		Pkg: "./chat", Run: "^TestMetrics$", Flags: []string{"-timeout=20s"},
	},
}
