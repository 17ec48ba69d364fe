package main

// leaseBugs break leases: taking, keeping, fencing, waiting.
var leaseBugs = []Bug{
	{
		Name: "lease-counted-from-the-answer", Mechanism: "a lease ends locally before the store can give it to another holder",
		Proves: []string{"STORE-13"}, File: "lease.go",
		Old: "			l.extend(sent.Add(l.trusted()))\n", New: "			l.extend(time.Now().Add(l.length))\n",
		Pkg: ".", Run: "^TestLeaseContextEndsInTime$",
	},
	{
		Name: "lease-that-never-ends", Mechanism: "the context of a lease that is not renewed ends",
		Proves: []string{"STORE-13"}, File: "lease.go",
		Old: "		l.expiry.Reset(time.Until(until))\n", New: "",
		Pkg: ".", Run: "^TestLeaseContextEndsInTime$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "lease-one-renewal", Mechanism: "after a renewal without an answer there is time for another",
		Proves: []string{"STORE-13"}, File: "lease.go",
		Old: "one.Before(until) {", New: "one.Before(sent) {",
		Pkg: ".", Run: "^TestRenewalWithoutAnswer$",
	},
	{
		Name: "lease-refused-renewal", Mechanism: "a refused renewal ends the lease and names the new holder",
		Proves: []string{"STORE-13"}, File: "lease.go",
		Old: "			l.end(l.lostTo(f))\n			return\n", New: "			_ = f\n			return\n",
		Pkg: ".", Run: "^TestLeaseEvents$",
	},
	{
		Name: "lease-token-of-its-own-mutation", Mechanism: "the token is the version of the shared commit",
		Proves: []string{"STORE-13"}, File: "lease.go",
		Old: "asked, r.landed, sent)", New: "asked, r.version, sent)",
		Pkg: ".", Run: "^TestDeleteCreateAcquireInOneCommit$",
	},
	{
		Name: "lease-outer-not-tested", Mechanism: "a commit is tested against all leases it was made under",
		Proves: []string{"STORE-13"}, File: "lease_fence.go",
		Old: "	for ; l != nil; l = l.outer {\n		if g := guardOf", New: "	for ; l != nil; l = nil {\n		if g := guardOf",
		Pkg: ".", Run: "^TestNestedLeases$",
	},
	{
		Name: "lease-memory-not-fenced", Mechanism: "in-memory state is fenced by the leases that the process knows",
		Proves: []string{"STORE-13"}, File: "lease_fence.go",
		Old: "	for ; l != nil; l = l.outer {\n		if err := l.lost(); err != nil {", New: "	for ; false; l = l.outer {\n		if err := l.lost(); err != nil {",
		Pkg: ".", Run: "^TestCallsFencedByALease$",
	},
	{
		Name: "lease-passes-its-own-end", Mechanism: "in a shared commit a write after the deletion that ended its lease is refused",
		Proves: []string{"STORE-13"}, File: "lease_fence.go",
		Old: "	for ; d.Lease.Over && l != nil; l = l.outer {", New: "	for ; false; l = l.outer {",
		Pkg: ".", Run: "^TestDeleteCreateAcquireInOneCommit$",
	},
	{
		Name: "lease-close-does-not-wait", Mechanism: "Close waits for the functions of Hold",
		Proves: []string{"STORE-13"}, File: "lease.go",
		Old: "	l.rt.leases.runs.Continue(l)\n", New: "",
		Pkg: ".", Run: "^TestCloseEndsLeases$",
	},
	{
		Name: "lease-close-leaves-contexts", Mechanism: "Close ends the contexts of leases",
		Proves: []string{"STORE-13"}, File: "lease.go",
		Old: "	for _, l := range live {\n		l.end(", New: "	for _, l := range live[:0] {\n		l.end(",
		Pkg: ".", Run: "^TestCloseEndsLeases$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "lease-left-behind", Mechanism: "a lease granted after its caller left is released",
		Proves: []string{"STORE-13"}, File: "lease_line.go",
		Old: "		_ = lease.giveBack(context.Background()) // else it runs out\n", New: "",
		Pkg: ".", Run: "^TestCancelDuringCommitOfAcquire$",
	},
	{
		Name: "lease-late-one-falls", Mechanism: "the next waiter does not use a lease that has not started locally",
		Proves: []string{"STORE-13"}, File: "lease_line.go",
		Old: "l.last != nil && l.last.live() {", New: "l.last != nil && l.last.lost() == nil {",
		Pkg: ".", Run: "^TestLeaseExpiresBeforeItsAnswer$", Flags: []string{"-count=5"},
	},
	{
		Name: "lease-release-not-heard", Mechanism: "a waiter listens for the release before it asks for the lease",
		Proves: []string{"STORE-13"}, File: "lease_line.go",
		Old: "		if !l.listen() {", New: "		if l.listen(); true {",
		Pkg: ".", Run: "^TestReleaseWakesWaitersElsewhere$",
	},
	{
		Name: "lease-kept-in-one-process", Mechanism: "a process that passes a lease between its own waiters lets other processes go first at times",
		Proves: []string{"STORE-13"}, File: "lease_line.go",
		Old: "		if l.turns >= ownTurns {", New: "		if false {",
		Pkg: ".", Run: "^TestProcessesShareALease$", Flags: []string{"-timeout=30s"},
	},
	{
		Name: "lease-overtakes-the-line", Mechanism: "a caller that only tries does not get ahead of callers that wait",
		Proves: []string{"STORE-13"}, File: "lease_line.go",
		Old: "	if p.once && l.waiting > 0 {", New: "	if false {",
		Pkg: ".", Run: "^TestLeaseWaitersLeaveTheLine$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "lease-panic-wrapped", Mechanism: "a panic in WithMutation is raised like a panic in a verb",
		Proves: []string{"STORE-13"}, File: "lease_line.go",
		Old: "				panicked = own // of", New: "				_ = own // of",
		Pkg: ".", Run: "^TestPanicAndGoexitLeaveNoLease$",
	},
	{
		Name: "lease-not-in-the-write", Mechanism: "the shared commit of verbs is tested against their leases",
		Proves: []string{"STORE-13"}, File: "cas.go",
		Old: "	d.Lease.Guards, d.Contention.Insist = b.fences(), b.insists()\n", New: "	d.Contention.Insist = b.insists()\n",
		Pkg: ".", Run: "^TestNestedLeases$",
	},
	{
		Name: "lease-not-in-the-renewal", Mechanism: "a renewal of the expiry is tested against the lease",
		Proves: []string{"STORE-13"}, File: "cas.go",
		Old: "	d.Lease.Guards = b.fences()\n", New: "",
		Pkg: ".", Run: "^TestNestedLeases$",
	},
	{
		Name: "lease-not-in-the-transaction", Mechanism: "the commit of a transaction is tested against its leases",
		Proves: []string{"STORE-13"}, File: "tx_part.go",
		Old: "			l.fences(&b.Commit)\n", New: "			_ = l\n",
		Pkg: ".", Run: "^TestNestedLeases$",
	},
	{
		Name: "lease-survives-starting-over", Mechanism: "a delete and a create in one commit end the lease",
		Proves: []string{"STORE-13"}, File: "internal/document/draft.go",
		Old: "	d.Lease.Over, d.Lease.Acquire = true, nil\n", New: "	d.Lease.Acquire = nil\n",
		Pkg: ".", Run: "^TestRecreatingAScopeEndsItsLease$/^memory",
	},
	{
		Name: "lease-forgets-an-expiry", Mechanism: "taking a lease keeps an expiry renewed in the same commit",
		Proves: []string{"STORE-13"}, File: "internal/document/draft.go",
		Old: "d.Changed == 0 && !d.Expiry.Renew {", New: "d.Changed == 0 {",
		Pkg: ".", Run: "^TestAcquireKeepsARenewedExpiry$",
	},
	{
		Name: "lease-doubt-fenced", Mechanism: "a commit in doubt that its lease refuses may have committed before",
		Proves: []string{"STORE-13", "CAS-7"}, File: "internal/commit/commit.go",
		Old: "		s.fence = &lost.Current\n		if s.doubt == nil {", New: "		s.fence = &lost.Current\n		if true {",
		Pkg: ".", Run: "^TestFencedCommitInDoubt$",
	},
	{
		Name: "lease-doubt-held", Mechanism: "an Acquire in doubt that a lease refuses may still commit",
		Proves: []string{"STORE-13", "CAS-7"}, File: "internal/commit/commit.go",
		Old: "	winners = moved(s.commit, winners)\n", New: "",
		Pkg: ".", Run: "^TestAcquireInDoubtWhileHeld$",
	},
	{
		Name: "lease-detached", Mechanism: "Detach keeps the fencing",
		Proves: []string{"STORE-13"}, File: "context.go",
		Old: "return newFrame(outlast(ctx), nil, innermost(ctx).held())", New: "return newFrame(outlast(ctx), nil, nil)",
		Pkg: ".", Run: "^TestCallsFencedByALease$",
	},
}
