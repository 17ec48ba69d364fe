package main

// casBugs break the commit loop.
var casBugs = []Bug{
	{
		Name: "re-run-on-the-winner", Mechanism: "after a conflict the mutation runs on the state that won",
		Proves: []string{"CAS-1"}, File: "cas.go",
		Old: "	r.next, r.draft = 0, document.NewDraft(base)\n", New: "	r.draft.Base = base\n",
		Pkg: ".", Run: "^TestConflictRunsAgainOnTheWinner$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "backoff", Mechanism: "a loser waits, longer each time",
		Proves: []string{"CAS-1"}, File: "internal/commit/backoff.go",
		Old: "		d *= 2\n", New: "",
		Pkg: ".", Run: "^TestBackoffIsFullJitterAndGrows$",
	},
	{
		Name: "jitter", Mechanism: "the delay is anywhere between zero and its bound",
		Proves: []string{"CAS-1"}, File: "cas.go",
		Old: "		time.Sleep(rand.N(delay))\n", New: "		time.Sleep(delay/2 + rand.N(delay/2))\n",
		Pkg: ".", Run: "^TestBackoffIsFullJitterAndGrows$",
	},
	{
		Name: "insistence", Mechanism: "who loses again and again is let in first",
		Proves: []string{"CAS-1"}, File: "cas.go",
		Old: "		d.Contention.Insist = r.insists()\n", New: "",
		Pkg: ".", Run: "^TestRivalThatIsAlwaysFaster$",
	},
	{
		Name: "round-for-ever", Mechanism: "a round that is not young any more takes in nobody",
		Proves: []string{"CAS-4"}, File: "cas.go",
		Old: "(c.waiting == 0 || now().Sub(r.began) > longestGather)", New: "c.waiting == 0",
		Pkg: ".", Run: "^TestRoundIsNotForEver$",
	},
	{
		Name: "retry-budget", Mechanism: "attempts are counted",
		Proves: []string{"CAS-2", "CAS-3"}, File: "cas.go",
		Old: "if w.cas.attempts >= w.call.retry.Attempts ||", New: "if w.cas.attempts > w.call.retry.Attempts ||",
		Pkg: ".", Run: "^TestSpentRetryBudget$",
	},
	{
		Name: "shared-commits", Mechanism: "whoever waits shares the next commit",
		Proves: []string{"CAS-4"}, File: "cas.go",
		Old: "	maxRound = 1024\n", New: "	maxRound = 1\n",
		Pkg: ".", Run: "^TestWritersShareACommit$",
	},
	{
		Name: "answer-before-the-commit", Mechanism: "an answer waits until what it was computed on is durable",
		Proves: []string{"CAS-4"}, File: "compute.go",
		Old: "	case attached:\n		w.cas.out, r.draft = *out, out.draft\n", New: "	case attached:\n		w.cas.out, r.draft = *out, out.draft\n		if out.err != nil || out.panic != nil {\n			c.finish(w, *out, 0, r.started)\n		}\n",
		Pkg: ".", Run: "^TestEveryAnswerWaitsForTheCommit$",
	},
	{
		Name: "no-op-confirmation", Mechanism: "an answer that wrote nothing is about the current state",
		Proves: []string{"CAS-4", "SCOPE-7"}, File: "cas.go",
		Old: "	case r.fresh:\n", New: "	case true:\n",
		Pkg: ".", Run: "^TestAnswersThatWroteNothingAreConfirmed$",
	},
	{
		Name: "version-per-mutation", Mechanism: "each mutation of a shared commit has a version of its own",
		Proves: []string{"CAS-5"}, File: "internal/document/draft.go",
		Old: "	d.Version++\n	d.Changed++\n", New: "	if d.Changed == 0 {\n		d.Version++\n	}\n	d.Changed++\n",
		Pkg: ".", Run: "^TestWritersShareACommit$",
	},
	{
		Name: "slow-mutator", Mechanism: "a slow function leaves the queue",
		Proves: []string{"CAS-8"}, File: "cas.go",
		Old: "	slowAfter = 10 * time.Millisecond\n", New: "	slowAfter = 10 * time.Hour\n",
		Pkg: ".", Run: "^TestSlowMutatorLeavesTheQueue$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "slow-mutator-on-uncommitted-state", Mechanism: "a function that left the queue counts only on a committed state",
		Proves: []string{"CAS-8"}, File: "compute.go",
		Old: "	if from.Changed == 0 { // it ran", New: "	if from.Changed >= 0 { // it ran",
		Pkg: ".", Run: "^TestSlowMutatorOnAnUncommittedStateRunsAgain$",
	},
	{
		Name: "exclusive-run", Mechanism: "a function that keeps losing gets the queue to itself",
		Proves: []string{"CAS-8"}, File: "slow.go",
		Old: "	if w.cas.exclusive || w.cas.attempts", New: "	if w.cas.attempts >= 0 || w.cas.attempts",
		Pkg: ".", Run: "^TestSlowMutatorThatKeepsLosingGetsTheQueue$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "leave-when-mutating-another", Mechanism: "a function that mutates another scope leaves the queue at once",
		Proves: []string{"CAS-8"}, File: "frame.go",
		Old: "			s.cell.detach(s.round, s.waiter)\n", New: "",
		Pkg: ".", Run: "^TestMutatingAnotherScopeLeavesTheQueueAtOnce$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "run-without-a-caller", Mechanism: "a run that outlives its caller is discarded",
		Proves: []string{"CAS-8", "CAS-9"}, File: "compute.go",
		Old: "	unwanted := w.left || w.abandoned", New: "	unwanted := w.abandoned",
		Pkg: ".", Run: "^TestRunThatOutlivesItsCallerIsDiscarded$",
	},
	{
		Name: "withdrawal-before-the-commit", Mechanism: "a mutation whose caller left is not computed",
		Proves: []string{"CAS-9"}, File: "cas.go",
		Old: "		if w.left || w.abandoned {\n			dropped = append(dropped, w)\n			return true\n		}\n", New: "		w.left = false\n",
		Pkg: ".", Run: "^TestCancelledMutationIsNotComputedAgain$",
	},
	{
		Name: "silent-memory", Mechanism: "a persisted scope without a store is an error",
		Proves: []string{"CAS-10"}, File: "scope.go",
		Old: "			s.err = wrapKey(ErrNoStore, s.key)\n			return s\n", New: "			k.InMemory = true\n			return open(o, Kind[T]{Name: \"memory\", InMemory: true}, id)\n",
		Pkg: ".", Run: "^TestPersistedScopeWithoutAStore$",
	},
	{
		Name: "commit-evidence", Mechanism: "a commit whose answer was lost is found by its id",
		Proves: []string{"CAS-7"}, File: "internal/commit/evidence.go",
		Old: "			return yes\n		}\n		w, n", New: "			return never\n		}\n		w, n",
		Pkg: ".", Run: "^TestLostAnswersAreSettledByTheCommitID$",
	},
}
