package main

// sweepBugs break expiry and commits in the caller's own transactions.
var sweepBugs = []Bug{
	{
		Name: "sweep-tests-the-expiry", Mechanism: "a sweep clears only records that are still expired",
		Proves: []string{"SCOPE-14"}, File: "sweep.go",
		Old: "Expected: r.Version, Gone: true, Version: r.Version + 1, Deleted: true, Swept: true, Log: log}", New: "Expected: r.Version, Version: r.Version + 1, Deleted: true, Log: log}",
		Pkg: ".", Run: "^TestSweptScopesStartOver$",
	},
	{
		Name: "swept-is-not-deleted", Mechanism: "a swept scope counts as expired, not as deleted",
		Proves: []string{"SCOPE-14"}, File: "internal/document/document.go",
		Old: "	case r.Deleted && !r.Expires.IsZero(): // swept\n", New: "	case false:\n",
		Pkg: ".", Run: "^TestSweptScopesStartOver$",
	},
	{
		Name: "sweep-leaves-winners-out", Mechanism: "a renewed scope does not keep the rest of its batch from being swept",
		Proves: []string{"SCOPE-14"}, File: "sweep.go",
		Old: "		if !won[w.Key] {", New: "		if won[w.Key] {",
		Pkg: ".", Run: "^TestSweepSkipsARenewedScope$",
	},
	{
		Name: "tombstones-are-kept", Mechanism: "young tombstones are not purged",
		Proves: []string{"SCOPE-10"}, File: "sweep.go",
		Old: "Age: s.config.Tombstones}", New: "}",
		Pkg: ".", Run: "^TestPurgedTombstonesReuseNoVersion$",
	},
	{
		Name: "taking-keeps-the-expiry", Mechanism: "taking a lease keeps the expiry",
		Proves: []string{"SCOPE-14"}, File: "internal/document/draft.go",
		Old: "		d.Expiry.TTL = persist.KeepTTL\n", New: "",
		Pkg: ".", Run: "^TestAcquireKeepsTheExpiry$",
	},
	{
		Name: "via-is-not-believed", Mechanism: "a commit in the caller's own transaction is not used as a base",
		Proves: []string{"TX-6"}, File: "tx_deliver.go",
		Old: "	if t.joined() {\n		return // it may be undone\n	}\n", New: "",
		Pkg: ".", Run: "^TestCommitThrough$",
	},
	{
		Name: "via-has-no-callbacks", Mechanism: "after-commit callbacks do not run before the caller's own commit",
		Proves: []string{"TX-6"}, File: "tx_run.go",
		Old: "		if len(tx.after) > 0 && t.joined() {", New: "		if false {",
		Pkg: ".", Run: "^TestCommitThroughRefusals$",
	},
	{
		Name: "native-keeps-the-read-set", Mechanism: "SQL inside a commit is based on a current state",
		Proves: []string{"TX-6"}, File: "tx_part.go",
		Old: "	if len(b.Writes)+len(b.renewed)+len(tx.native) > 0 {\n		return\n	}\n	proved", New: "	if len(b.Writes)+len(b.renewed) > 0 {\n		return\n	}\n	proved",
		Pkg: ".", Run: "^TestWithNativeAlone$",
	},
	{
		Name: "native-is-undone", Mechanism: "SQL of an undone part of a transaction does not run",
		Proves: []string{"TX-6"}, File: "tx_part.go",
		Old: "		tx.after, tx.native = tx.after[:after:after], tx.native[:native:native]\n", New: "		tx.after = tx.after[:after:after]\n		_ = native\n",
		Pkg: ".", Run: "^TestWithNativeAlone$",
	},
	{
		Name: "native-fails-the-commit", Mechanism: "an error of the caller's SQL undoes the commit",
		Proves: []string{"TX-6"}, File: "tx_native.go",
		Old: "		if end.failed() {", New: "		if end.panic != nil {",
		Pkg: ".", Run: "^TestWithNative$",
	},
	{
		Name: "native-shuts-scopes-out", Mechanism: "scopes cannot be used inside a commit",
		Proves: []string{"TX-6"}, File: "tx_native.go",
		Old: "	f.tx = tx\n", New: "",
		Pkg: ".", Run: "^TestWithNative$",
	},
}
