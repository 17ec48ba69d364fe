package main

// readBugs break what layers above read and take.
var readBugs = []Bug{
	{
		Name: "due-in-lost-by-a-lease", Mechanism: "acquiring a lease without a mutation keeps the due time",
		Proves: []string{"STORE-8"}, File: "internal/document/draft.go",
		Old: "		d.Due = Due{Keep: true}\n", New: "		d.Due = Due{}\n",
		Pkg: ".", Run: "^TestDueIn$",
	},
	{
		Name: "due-in-of-unchanged", Mechanism: "a due time is a change of its own",
		Proves: []string{"STORE-8"}, File: "outcome.go",
		Old: "	dues := call.dueIn > 0 && d.Life == alive", New: "	dues := false && call.dueIn > 0 && d.Life == alive",
		Pkg: ".", Run: "^TestDueIn$",
	},
}
