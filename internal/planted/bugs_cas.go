package main

// casBugs break the commit loop.
var casBugs = []Bug{
	{
		Name: "re-run-on-the-winner", Mechanism: "after a conflict the mutation runs on the state that won",
		Proves: []string{"CAS-1"}, File: "cas.go",
		Old: "	b.next, b.draft = 0, document.NewDraft(base)\n", New: "	b.draft.Base = base\n",
		Pkg: ".", Run: "^TestConflictRunsAgainOnTheWinningState$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "backoff", Mechanism: "a commit loop that lost waits before its next attempt, longer each time",
		Proves: []string{"CAS-1"}, File: "internal/commit/backoff.go",
		Old: "		d *= 2\n", New: "",
		Pkg: ".", Run: "^TestBackoffIsFullJitterAndGrows$",
	},
	{
		Name: "jitter", Mechanism: "the delay is random between zero and its bound",
		Proves: []string{"CAS-1"}, File: "cas.go",
		Old: "		time.Sleep(rand.N(delay))\n", New: "		time.Sleep(delay/2 + rand.N(delay/2))\n",
		Pkg: ".", Run: "^TestBackoffIsFullJitterAndGrows$",
	},
	{
		Name: "insistence", Mechanism: "a batch that keeps losing gets priority in the store",
		Proves: []string{"CAS-1"}, File: "cas.go",
		Old: "	d.Lease.Guards, d.Contention.Insist = b.fences(), b.insists()\n", New: "	d.Lease.Guards = b.fences()\n",
		Pkg: ".", Run: "^TestRivalThatIsAlwaysFaster$",
	},
	{
		Name: "round-for-ever", Mechanism: "a batch takes in later arrivals only once",
		Proves: []string{"CAS-4"}, File: "cas.go",
		Old: "	b.joined = true\n	before", New: "	before",
		Pkg: ".", Run: "^TestBatchEndsWhileWritersKeepComing$",
	},
	{
		Name: "retry-budget", Mechanism: "the number of attempts is limited",
		Proves: []string{"CAS-2", "CAS-3"}, File: "cas.go",
		Old: "if v.attempts >= v.call.retry.Attempts ||", New: "if v.attempts > v.call.retry.Attempts ||",
		Pkg: ".", Run: "^TestSpentRetryBudget$",
	},
	{
		Name: "shared-commits", Mechanism: "waiters share the next commit",
		Proves: []string{"CAS-4"}, File: "cas.go",
		Old: "	maxBatch = 1024\n", New: "	maxBatch = 1\n",
		Pkg: ".", Run: "^TestWritersShareACommit$",
	},
	{
		Name: "answer-before-the-commit", Mechanism: "a caller gets its answer only after the state under it is durable",
		Proves: []string{"CAS-4"}, File: "cas_compute.go",
		Old: "	if attached {\n		v.out, b.draft = out, out.draft\n", New: "	if attached {\n		v.out, b.draft = out, out.draft\n		if out.err != nil || out.panic != nil {\n			s.finish(w, out)\n		}\n",
		Pkg: ".", Run: "^TestEveryAnswerWaitsForTheCommit$",
	},
	{
		Name: "no-op-confirmation", Mechanism: "an answer that wrote nothing rests on the current state",
		Proves: []string{"CAS-4", "SCOPE-7"}, File: "cas.go",
		Old: "	case b.fresh:\n", New: "	case true:\n",
		Pkg: ".", Run: "^TestAnswersThatWroteNothingAreConfirmed$",
	},
	{
		Name: "version-per-mutation", Mechanism: "each mutation of a shared commit has its own version",
		Proves: []string{"CAS-5"}, File: "internal/document/draft.go",
		Old: "	d.Version++\n	d.Changed++\n", New: "	if d.Changed == 0 {\n		d.Version++\n	}\n	d.Changed++\n",
		Pkg: ".", Run: "^TestWritersShareACommit$",
	},
	{
		Name: "slow-mutator", Mechanism: "a slow function leaves the queue",
		Proves: []string{"CAS-8"}, File: "cas_slow.go",
		Old: "	slowAfter = 10 * time.Millisecond\n", New: "	slowAfter = 10 * time.Hour\n",
		Pkg: ".", Run: "^TestSlowFunctionLeavesTheQueue$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "slow-mutator-on-uncommitted-state", Mechanism: "the result of a function that left the queue counts only on a committed state",
		Proves: []string{"CAS-8"}, File: "cas_compute.go",
		Old: "	if from.Changed == 0 {", New: "	if from.Changed >= 0 {",
		Pkg: ".", Run: "^TestSlowFunctionOnUncommittedStateRunsAgain$",
	},
	{
		Name: "exclusive-run", Mechanism: "a function that keeps losing gets the queue to itself",
		Proves: []string{"CAS-8"}, File: "cas_slow.go",
		Old: "	if v.exclusive || v.attempts", New: "	if v.attempts >= 0 || v.attempts",
		Pkg: ".", Run: "^TestSlowFunctionThatKeepsLosingGetsTheQueue$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "leave-when-mutating-another", Mechanism: "a function that mutates another scope leaves the queue at once",
		Proves: []string{"CAS-8"}, File: "context.go",
		Old: "			r.container.detach(r.batch, r.waiter)\n", New: "",
		Pkg: ".", Run: "^TestMutatingAnotherScopeLeavesTheQueueAtOnce$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "run-without-a-caller", Mechanism: "a run that outlives its caller is discarded",
		Proves: []string{"CAS-8", "CAS-9"}, File: "cas_compute.go",
		Old: "	unwanted := w.Left() || v.abandoned\n", New: "	unwanted := v.abandoned\n",
		Pkg: ".", Run: "^TestRunThatOutlivesItsCallerIsDiscarded$",
	},
	{
		Name: "withdrawal-before-the-commit", Mechanism: "a mutation whose caller left is not computed again",
		Proves: []string{"CAS-9"}, File: "internal/queue/queue.go",
		Old: "	w.left, w.reached = true, w.State\n", New: "	w.left, w.reached = w.State != Committing, w.State\n",
		Pkg: ".", Run: "^TestCancelledMutationIsNotComputedAgain$",
	},
	{
		Name: "one-exclusive-run", Mechanism: "a function has the queue to itself for one run only",
		Proves: []string{"CAS-8"}, File: "cas.go",
		Old: "b.alone == nil && w.Value.exclusive {", New: "b.alone == nil && w.Value.exclusive && false {",
		Pkg: ".", Run: "^TestExclusiveQueueLastsOneRun$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "discarded-run-in-doubt", Mechanism: "a caller that leaves a run that cannot commit is not told that it may have committed",
		Proves: []string{"CAS-9"}, File: "cas_compute.go",
		Old: "	case !attached && from.Changed > 0:\n", New: "	case false:\n",
		Pkg: ".", Run: "^TestDiscardedDetachedRunIsNotInDoubt$",
	},
	{
		Name: "slow-function-insists", Mechanism: "the store holds no winner for a batch with a slow function",
		Proves: []string{"CAS-1", "CAS-11"}, File: "cas.go",
		Old: "b.alone == nil && !b.slow && !v.exclusive", New: "b.alone == nil && !v.exclusive",
		Pkg: ".", Run: "^TestCallsThatDoNotInsist$",
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
	{
		Name: "observer-panics", Mechanism: "a panic of the observer does not reach the mutation",
		Proves: []string{"CAS-12"}, File: "observe.go",
		Old: "	if p := caught(func() { e.observer.Observe(ctx, event) }); p != nil {", New: "	e.observer.Observe(ctx, event)\n	if p := caught(func() {}); p != nil {",
		Pkg: ".", Run: "^TestObserverThatPanics$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "panic-reported-twice", Mechanism: "a panic whose caller left is reported once",
		Proves: []string{"SCOPE-5"}, File: "apply.go",
		Old: "	if c.env.observer != nil {\n		return\n	}\n	attrs", New: "	attrs",
		Pkg: ".", Run: "^TestPanicAfterCallerLeft$",
	},
}
