package main

// workerBugs break the background loop.
var workerBugs = []Bug{
	{
		Name: "worker-wake-during-take", Mechanism: "a wake-up during a Take leads to another Take",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "		l.takeNow = l.takeNow || got == limit\n", New: "		l.takeNow = got == limit\n",
		Pkg: "./internal/worker", Run: "^TestWakeDuringTakeIsNotLost$", Quick: true,
	},
	{
		Name: "worker-full-take", Mechanism: "a full Take is followed by another at once",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "		l.takeNow = l.takeNow || got == limit\n", New: "",
		Pkg: "./internal/worker", Run: "^(TestFullTakeIsFollowedByAnother|TestFreedSlotIsUsedAtOnce)$", Quick: true,
	},
	{
		Name: "worker-short-take", Mechanism: "a Take that returns fewer jobs than its limit is the last until something wakes the loop",
		Proves: []string{"LOOP-1"}, File: "internal/worker/take.go",
		Old: "		c.running--\n		l.takeIfDue()\n", New: "		c.running--\n		l.takeNow = true\n		l.takeIfDue()\n",
		Pkg: "./internal/worker", Run: "^TestShortTakeWaits$",
	},
	{
		Name: "worker-free-slot", Mechanism: "a slot that becomes free is used at once",
		Proves: []string{"LOOP-1"}, File: "internal/worker/take.go",
		Old: "		c.running--\n		l.takeIfDue()\n", New: "		c.running--\n",
		Pkg: "./internal/worker", Run: "^(TestFreedSlotIsUsedAtOnce|TestWakeWithoutFreeSlotIsNotLost)$",
	},
	{
		Name: "worker-takes-beyond-its-slots", Mechanism: "Take is asked for no more jobs than there are free slots",
		Proves: []string{"LOOP-2"}, File: "internal/worker/take.go",
		Old: "	limit := l.free\n", New: "	limit := l.c.Concurrency\n",
		Pkg: "./internal/worker", Run: "^TestLimitIsTheNumberOfFreeSlots$",
	},
	{
		Name: "worker-wake-in-forgotten", Mechanism: "an earlier Take does not replace a WakeIn",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "	if !l.wakeAt.After(now) {\n", New: "	if true {\n",
		Pkg: "./internal/worker", Run: "^(TestWakeIn|TestWakeBeforeStart)$",
	},
	{
		Name: "worker-wake-in-latest", Mechanism: "only the earliest of several WakeIn counts",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "if l.wakeAt.IsZero() || at.Before(l.wakeAt) {", New: "if l.wakeAt.IsZero() || at.After(l.wakeAt) {",
		Pkg: "./internal/worker", Run: "^TestWakeIn$",
	},
	{
		Name: "worker-poll-too-often", Mechanism: "an idle loop takes at most once per Poll",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "now.Add(l.c.Poll).Add(rand.N(l.c.Poll/4 + 1))", New: "now.Add(rand.N(l.c.Poll/4 + 1))",
		Pkg: "./internal/worker", Run: "^TestPollIsJitteredAndNeverShorter$",
	},
	{
		Name: "worker-backoff-does-not-grow", Mechanism: "pauses between failed Takes grow",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "		l.backoff += min(l.backoff, l.c.Poll-l.backoff)\n", New: "		l.backoff += 0\n",
		Pkg: "./internal/worker", Run: "^TestFailingTakeBacksOff$",
	},
	{
		Name: "worker-wake-ends-backoff", Mechanism: "Wake does not shorten the pause after a failed Take",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "	l.takeNow = true\n	l.takeIfDue()\n", New: "	l.takeNow, l.notBefore = true, time.Time{}\n	l.takeIfDue()\n",
		Pkg: "./internal/worker", Run: "^TestWakeDoesNotShortenBackoff$",
	},
	{
		Name: "worker-logs-each-failure", Mechanism: "a lasting failure of Take is logged once",
		Proves: []string{"LOOP-3"}, File: "internal/worker/take.go",
		Old: "	if now == l.lastLogged {\n", New: "	if now == \"\" && l.lastLogged == \"\" {\n",
		Pkg: "./internal/worker", Run: "^TestTakeErrorIsLoggedOncePerChange$",
	},
	{
		Name: "worker-slot-of-a-panic", Mechanism: "a job that panics or calls Goexit frees its slot",
		Proves: []string{"LOOP-3"}, File: "internal/worker/take.go",
		Old: "		l.free++\n", New: "		if returned {\n			l.free++\n		}\n",
		Pkg: "./internal/worker", Run: "^TestPanickingJobsFreeTheirSlots$",
	},
	{
		Name: "worker-drops-jobs-with-an-error", Mechanism: "jobs returned with an error are run",
		Proves: []string{"LOOP-2"}, File: "internal/worker/take.go",
		Old: "		l.startJobs(c, jobs, limit)\n", New: "		if err != nil {\n			jobs = nil\n		}\n		l.startJobs(c, jobs, limit)\n",
		Pkg: "./internal/worker", Run: "^TestJobsReturnedWithErrorAreRun$",
	},
	{
		Name: "worker-drops-jobs-at-stop", Mechanism: "jobs that a Take returns after Stop are run",
		Proves: []string{"LOOP-2"}, File: "internal/worker/take.go",
		Old: "		l.startJobs(c, jobs, limit)\n", New: "		if c.takes.Err() != nil {\n			jobs = nil\n		}\n		l.startJobs(c, jobs, limit)\n",
		Pkg: "./internal/worker", Run: "^(TestJobsTakenWhileStoppingAreRun|TestTakeThatHangs)$",
	},
	{
		Name: "worker-stop-leaves-jobs", Mechanism: "Stop waits for the running jobs",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "	for l.taking || l.running > 0 {\n", New: "	for l.taking {\n",
		Pkg: "./internal/worker", Run: "^TestStopWaitsForJobs$",
	},
	{
		Name: "worker-stop-leaves-a-take", Mechanism: "Stop waits for the running Take",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "	for l.taking || l.running > 0 {\n", New: "	for l.running > 0 {\n",
		Pkg: "./internal/worker", Run: "^TestJobsTakenWhileStoppingAreRun$",
	},
	{
		Name: "worker-stop-is-endless", Mechanism: "Stop returns when its context ends",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "	defer context.AfterFunc(ctx, l.broadcast)()\n	for l.taking", New: "	for l.taking",
		Pkg: "./internal/worker", Run: "^(TestStopTimeout|TestTakeThatHangs)$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "worker-stop-keeps-jobs-contexts", Mechanism: "the contexts of the jobs end with the context of Stop",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "			l.endJobs()\n			return", New: "			return",
		Pkg: "./internal/worker", Run: "^TestStopTimeout$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "worker-stop-keeps-takes-context", Mechanism: "Take's context ends at Stop",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "		c.endTakes(ErrStopped)\n", New: "		_ = c\n",
		Pkg: "./internal/worker", Run: "^TestStopEndsTake$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "worker-takes-after-stop", Mechanism: "nothing is taken after Stop",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "	l.stopped = true\n", New: "",
		Pkg: "./internal/worker", Run: "^(TestStopWaitsForJobs|TestStopBeforeStart|TestWakeAfterStop)$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "worker-once-ends-early", Mechanism: "Once runs the jobs that its own jobs make due",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "		if c.got == 0 && alone {\n", New: "		if _ = alone; c.got < limit {\n",
		Pkg: "./internal/worker", Run: "^TestOnceRunsJobsMadeDueByJobs$",
	},
	{
		Name: "worker-once-beside-a-take", Mechanism: "only one Take runs at a time",
		Proves: []string{"LOOP-2"}, File: "internal/worker/worker.go",
		Old: "(l.taking || l.free <= 0)", New: "(l.free <= 0)",
		Pkg: "./internal/worker", Run: "^TestOneTakeAtATime$", Flags: []string{"-timeout=20s"},
	},
}
