package main

// scopeLogBugs break the logs of scopes.
var scopeLogBugs = []Bug{
	{
		Name: "log-alone-is-no-change", Mechanism: "an entry is a change, also if the state stays",
		Proves: []string{"STREAM-7"}, File: "outcome.go",
		Old: "	if !changed && !dues && !logs && ch.takes == nil &&", New: "	if !changed && !dues && ch.takes == nil &&",
		Pkg: ".", Run: "^TestLogIsPartOfTheMutation$",
	},
	{
		Name: "log-of-a-batch-is-replaced", Mechanism: "mutations that share a commit keep all their entries",
		Proves: []string{"STREAM-1"}, File: "internal/document/draft.go",
		Old: "		l.Entries = append(l.Entries[:n:n], entries...)\n", New: "		l.First, l.Entries = first, entries\n",
		Pkg: ".", Run: "^TestLogsOfManyWriters$",
	},
	{
		Name: "log-outlives-a-deletion-in-a-batch", Mechanism: "a deletion ends the log, also if a later mutation of the commit makes the scope anew",
		Proves: []string{"STREAM-1"}, File: "internal/document/draft.go",
		Old: "	d.Log = Log{Clear: true}\n", New: "",
		Pkg: ".", Run: "^TestLogEndsWithItsScope$",
	},
	{
		Name: "log-outlives-its-scope", Mechanism: "a scope that ends or starts over has no entries of its earlier life",
		Proves: []string{"STREAM-1"}, File: "internal/document/draft.go",
		Old: "Clear: l.Clear || w.Deleted || w.Gone,", New: "Clear: l.Clear,",
		Pkg: ".", Run: "^(TestLogEndsWithItsScope|TestLogOfAnExpiredScope)$",
	},
	{
		Name: "log-outlives-the-sweep", Mechanism: "the sweep removes the log of an expired scope",
		Proves: []string{"STREAM-1"}, File: "sweep.go",
		Old: "Swept: true, Log: log})", New: "Swept: true})\n		_ = log",
		Pkg: ".", Run: "^TestLogOfAnExpiredScope$",
	},
	{
		Name: "log-outlives-delete-prefix", Mechanism: "DeletePrefix removes logs",
		Proves: []string{"STREAM-1"}, File: "delete_prefix.go",
		Old: "Deleted: true, Log: log})", New: "Deleted: true})\n			_ = log",
		Pkg: ".", Run: "^TestLogEndsWithItsScope$",
	},
	{
		Name: "log-after-its-function", Mechanism: "a function that has returned adds nothing",
		Proves: []string{"STREAM-7"}, File: "log.go",
		Old: "	l.over = true\n", New: "",
		Pkg: ".", Run: "^TestLogArguments$",
	},
	{
		Name: "log-of-another-scope", Mechanism: "a function adds to the log of its own scope only",
		Proves: []string{"STREAM-7"}, File: "log.go",
		Old: "	if l == nil || l.key != s.key {", New: "	if l == nil {",
		Pkg: ".", Run: "^TestLogArguments$",
	},
	{
		Name: "log-with-a-gap", Mechanism: "the entries of a mutation follow each other",
		Proves: []string{"STREAM-1"}, File: "log.go",
		Old: "	case len(l.entries) > 0 && first != l.first+uint64(len(l.entries)):", New: "	case false:",
		Pkg: ".", Run: "^TestLogArguments$",
	},
}
