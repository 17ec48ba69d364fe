package main

// groupBugs are bugs of transactions that share a commit.
var groupBugs = []Bug{
	{
		Name: "group-runs-on-old-state", Mechanism: "a transaction in a group runs on what those before it wrote",
		Proves: []string{"TX-2"}, File: "tx_part.go",
		Old: "	if g != nil && g.find(key) >= 0 {\n", New: "	if g != nil && g.find(key) >= 0 && false {\n",
		Pkg: ".", Run: "^TestWaitingTransactionsShareACommit$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-drops-a-draft", Mechanism: "the commit of a group has the writes of all members",
		Proves: []string{"TX-1"}, File: "tx_group.go",
		Old: "			g.parts[i] = next\n", New: "			_ = next\n",
		Pkg: ".", Run: "^TestWaitingTransactionsShareACommit$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-keeps-writes-of-a-failure", Mechanism: "a function that fails in a group writes nothing",
		Proves: []string{"TX-1"}, File: "tx_group.go",
		Old: "			next.draft = p.start\n", New: "			_ = p.start\n",
		Pkg: ".", Run: "^TestFunctionThatFailsInAGroup$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-failure-unconfirmed", Mechanism: "an error that rests on drafts is returned once they are committed",
		Proves: []string{"TX-2"}, File: "tx_group.go",
		Old: "	m := g.add(t, tx, end)\n	g.goOn(held)\n	return", New: "	if end.failed() {\n		g.goOn(held)\n		return true, end.deliver()\n	}\n	m := g.add(t, tx, end)\n	g.goOn(held)\n	return",
		Pkg: ".", Run: "^TestFailureOnDraftsThatWereLost$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-waits-for-the-slow", Mechanism: "a group does not wait for a slow function",
		Proves: []string{"TX-7"}, File: "tx_group.go",
		Old: "time.AfterFunc(slowAfter, func() {", New: "time.AfterFunc(60*slowAfter*100, func() {",
		Pkg: ".", Run: "^TestSlowFunctionLeavesItsGroup$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-takes-any-transaction", Mechanism: "a group takes no transaction that wants other queues",
		Proves: []string{"TX-7"}, File: "tx_group.go",
		Old: "	return t != nil && t.wants != nil && !", New: "	return t != nil && t.wants != nil || t != nil && !",
		Pkg: ".", Run: "^TestGroupEndsWhereAnotherCallIsNext$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-shares-under-a-lease", Mechanism: "a commit under a lease is sent by itself, with its fence",
		Proves: []string{"TX-1"}, File: "tx_group.go",
		Old: "	return tx.readsLog || len(tx.leases)+len(tx.native)+len(tx.ended) > 0\n", New: "	return tx.readsLog\n",
		Pkg: ".", Run: "^TestTransactionsThatDoNotShare$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-forgets-callbacks", Mechanism: "callbacks of a member whose caller left are run",
		Proves: []string{"TX-5"}, File: "tx_group.go",
		Old: "				m.t.runAllAlone(m.tx.after)\n", New: "",
		Pkg: ".", Run: "^TestCallerLeavesItsGroup$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-outcome-known", Mechanism: "the outcome of a shared commit that got no answer is unknown to each member",
		Proves: []string{"CAS-7"}, File: "tx_group.go",
		Old: "		return m.broken(g, err.Cause)\n", New: "		return &UnavailableError{Scope: m.t.firstKey(), Cause: err.Cause}\n",
		Pkg: ".", Run: "^TestFailedCommitOfAGroup$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-runs-data-verbs-again", Mechanism: "data verbs are put on the drafts of a group without running the function again",
		Proves: []string{"TX-8"}, File: "tx_run.go",
		Old: "				if t.continueGroup(tx) {\n", New: "				if false {\n",
		Pkg: ".", Run: "^TestDataVerbsInAGroup$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-shares-log-readers", Mechanism: "a transaction that reads a log commits by itself",
		Proves: []string{"TX-2"}, File: "log.go",
		Old: "		s.tx.readsLog = true\n", New: "",
		Pkg: ".", Run: "^TestLogsAreReadAlone$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-holds-for-a-slow-store", Mechanism: "a group whose commit hangs releases its queues",
		Proves: []string{"TX-7"}, File: "tx_group.go",
		Old: "	limit := time.AfterFunc(exclusiveFor, release)\n", New: "	limit := time.AfterFunc(time.Hour, release)\n",
		Pkg: ".", Run: "^TestHangingCommitOfAGroup$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-callbacks-in-a-row", Mechanism: "a callback that ends its goroutine keeps no other from running",
		Proves: []string{"TX-5"}, File: "tx_group.go",
		Old: "		go func() { // apart", New: "		func() { // apart",
		Pkg: ".", Run: "^TestCallbacksOfCallersThatLeft$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-refused-together", Mechanism: "a document that the store refuses fails its own transaction only",
		Proves: []string{"CAS-11"}, File: "tx_group.go",
		Old: "		t.alone = true\n		return false, nil\n	}\n	_, err = t.lost", New: "		return true, g.err\n	}\n	_, err = t.lost",
		Pkg: ".", Run: "^TestRefusedDocumentInAGroup$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "group-drops-a-renewal", Mechanism: "a transaction that only puts off an expiry commits by itself",
		Proves: []string{"TX-1"}, File: "tx_group.go",
		Old: " || !p.writes() && p.draft.Expiry != p.start.Expiry\n", New: "\n",
		Pkg: ".", Run: "^TestRenewalBehindAChangeInAGroup$", Flags: []string{"-timeout=60s"},
	},
}
