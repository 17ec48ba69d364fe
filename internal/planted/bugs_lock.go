package main

// lockBugs break the queue and the in-memory path.
var lockBugs = []Bug{
	{
		Name: "queue-order", Mechanism: "writers are served in order of submission",
		Proves: []string{"LOCK-1"}, File: "inbox.go",
		Old: "	last, n := head, 0\n	var first *waiter\n	for w := head; w != nil; n++ {\n		next := w.next\n		w.next, first, w = first, w, next\n	}\n",
		New: "	first, last, n := head, head, 1\n	for ; last.next != nil; n++ {\n		last = last.next\n	}\n",
		Pkg: ".", Run: "^TestMutationsRunInSubmissionOrder$", Quick: true,
	},
	{
		Name: "queue-exclusion", Mechanism: "a data verb waits while a function runs",
		Proves: []string{"LOCK-1", "LOCK-2"}, File: "lock.go",
		Old: "	return q.running == nil && q.first == nil\n", New: "	return q.first == nil\n",
		Pkg: ".", Run: "^(TestMutationsRunInSubmissionOrder|TestConcurrentIncrementsAllLand)$",
	},
	{
		Name: "budget-from-kind", Mechanism: "a kind's budget replaces the runtime's",
		Proves: []string{"LOCK-4"}, File: "kind.go",
		Old: "		b.defaults.timeout = info.timeout\n", New: "",
		Pkg: ".", Run: "^TestBudgetIsSetPerRuntimeKindLocalAndCall$",
	},
	{
		Name: "deadline-alarm", Mechanism: "a waiter wakes up at its deadline",
		Proves: []string{"LOCK-5"}, File: "apply.go",
		Old: "		w.arm(w.submitted)\n", New: "",
		Pkg: ".", Run: "^TestDeadlineOfARunningMutator$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "deadline-of-a-reused-waiter", Mechanism: "a pooled waiter's alarm is set again when it rings too early",
		Proves: []string{"LOCK-5"}, File: "lock.go",
		Old: "		w.arm(now) // a stray wake-up, or the alarm of an earlier use\n", New: "",
		Pkg: ".", Run: "^TestReusedWaiterKeepsItsDeadline$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "users-code-in-place", Mechanism: "a type's own code runs where it cannot hold the caller",
		Proves: []string{"LOCK-5"}, File: "mutation.go",
		Old: "if fns == nil && !typ.Foreign(ops) {", New: "if fns == nil {",
		Pkg: ".", Run: "^TestCodeOfATypeNeverHoldsTheCaller$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "late-result", Mechanism: "a function that outlives its caller still commits",
		Proves: []string{"LOCK-6"}, File: "turn.go",
		Old: "		if t.err == nil {\n			c.publishTurn", New: "		if t.err == nil && w.state()&isLeft == 0 {\n			c.publishTurn",
		Pkg: ".", Run: "^TestDeadlineOfARunningMutator$",
	},
	{
		Name: "withdrawal", Mechanism: "a mutation withdrawn from the queue never runs",
		Proves: []string{"LOCK-7"}, File: "inbox.go",
		Old: "	was, ok := w.become(isLeft, isClosing|isDone)\n	if !ok {\n		return 0, false\n	}\n	if was&isRunning != 0 {\n		return PhaseRunning, true\n	}\n	q.mu.Lock()\n	defer q.mu.Unlock()\n	w.answer, w.own = nil, change{verb: w.own.name()} // it may stay linked for a while, and must not hold what it was given\n",
		New: "	was, ok := w.become(0, isClosing|isDone)\n	if !ok {\n		return 0, false\n	}\n	if was&isRunning != 0 {\n		return PhaseRunning, true\n	}\n	q.mu.Lock()\n	defer q.mu.Unlock()\n",
		Pkg: ".", Run: "^(TestDeadlineOfAQueuedMutation|TestCancelWhileQueuedAndWhileRunning)$",
	},
	{
		Name: "phase-of-a-running-mutator", Mechanism: "a caller that leaves a running function learns that it may commit",
		Proves: []string{"LOCK-6", "LOCK-8"}, File: "inbox.go",
		Old: "		return PhaseRunning, true\n", New: "		return PhaseQueued, true\n",
		Pkg: ".", Run: "^(TestDeadlineOfARunningMutator|TestCancelWhileQueuedAndWhileRunning)$",
	},
	{
		Name: "re-entrancy", Mechanism: "a mutator cannot wait for itself",
		Proves: []string{"LOCK-9"}, File: "frame.go",
		Old: "if a.queue == q && !a.over.Load() {", New: "if a.queue == q && a.over.Load() {",
		Pkg: ".", Run: "^TestReentrantCallsFailAtOnce$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "deadlock-detection", Mechanism: "the call that closes a cycle is refused",
		Proves: []string{"LOCK-10"}, File: "frame.go",
		Old: "	for _, q := range h.waits() {", New: "	for _, q := range h.waits()[:0] {",
		Pkg: ".", Run: "^TestCycleOfWaitingMutatorsIsReported$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "stuck-report", Mechanism: "a function that outlives a budget is reported",
		Proves: []string{"LOCK-11"}, File: "lock.go",
		Old: "		q.reportStuck(now, w.call.env)\n", New: "",
		Pkg: ".", Run: "^TestStuckMutatorIsReportedAndAbandoned$",
	},
	{
		Name: "abandoned-result", Mechanism: "the late result of an abandoned function is discarded",
		Proves: []string{"LOCK-11"}, File: "turn.go",
		Old: "!t.stint.over.CompareAndSwap(false, true)\n", New: "!t.stint.over.CompareAndSwap(false, true) && c == nil\n",
		Pkg: ".", Run: "^TestStuckMutatorIsReportedAndAbandoned$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "queue-bound", Mechanism: "a full queue refuses",
		Proves: []string{"LOCK-14"}, File: "lock.go",
		Old: "waiting := q.depth(); waiting >= limit {", New: "waiting := q.depth(); waiting > limit {",
		Pkg: ".", Run: "^TestQueueIsBounded$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "reads-through-the-queue", Mechanism: "a read does not wait for a writer",
		Proves: []string{"LOCK-13"}, File: "scope.go",
		Old: "		if img := s.mem.image.Load(); img != nil {", New: "		if _, err := s.Apply(ctx, Patch{}); err != nil {\n			return Snapshot[T]{}, err\n		}\n		if img := s.mem.image.Load(); img != nil {",
		Pkg: ".", Run: "^TestOtherScopesAndReadsDoNotWait$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "worker-looks-back", Mechanism: "whoever stops driving a queue looks once more for those who came meanwhile",
		Proves: []string{"LOCK-2"}, File: "lock.go",
		Old: "if head := q.inbox.Load(); head != nil && head != &shut { // it came", New: "if head := q.inbox.Load(); head != nil && head == &shut { // it came",
		Pkg: ".", Run: "^TestComingAsTheWorkerGoes$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "taken-given-back", Mechanism: "those that were taken together with an abandoned function have their turns",
		Proves: []string{"LOCK-11"}, File: "inbox.go",
		Old: "	q.giveBack()\n", New: "",
		Pkg: ".", Run: "^TestAbandonedBeforeOthersThatWereTaken$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "taken-still-wait", Mechanism: "those that were taken count as waiting",
		Proves: []string{"LOCK-14"}, File: "inbox.go",
		Old: "		waiting += h.behind\n", New: "		waiting += 0\n",
		Pkg: ".", Run: "^TestTakenStillWait$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "shut-inbox", Mechanism: "nobody comes to a closed queue",
		Proves: []string{"SCOPE-18"}, File: "lock.go",
		Old: "q.linkCome(q.inbox.Swap(&shut))", New: "q.linkCome(q.inbox.Swap(nil))",
		Pkg: ".", Run: "^TestCloseFinishesWhatWasTaken$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "left-are-forgotten", Mechanism: "a queue does not keep what callers who left had asked for",
		Proves: []string{"LOCK-7"}, File: "inbox.go",
		Old: "	w.answer, w.own = nil, change{verb: w.own.name()} // it may", New: "	// it may",
		Pkg: ".", Run: "^TestCallersWhoLeftAreForgotten$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "abandon-gathers", Mechanism: "those who came while an abandoned function ran have their turns",
		Proves: []string{"LOCK-11"}, File: "inbox.go",
		Old: "	q.gather() // those who came while somebody drove the queue rely on that\n", New: "",
		Pkg: ".", Run: "^TestAbandonedBeforeOthersThatCame$", Flags: []string{"-timeout=60s"},
	},
}
