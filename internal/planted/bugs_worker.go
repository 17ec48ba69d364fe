package main

// workerBugs break the background loop.
var workerBugs = []Bug{
	{
		Name: "worker-wake-during-take", Mechanism: "a wake-up during a Take leads to another",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "		l.want = l.want || got == limit\n", New: "		l.want = got == limit\n",
		Pkg: "./internal/worker", Run: "^TestWakeDuringTakeIsNotLost$", Quick: true,
	},
	{
		Name: "worker-full-take", Mechanism: "a full Take is followed by another at once",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "		l.want = l.want || got == limit\n", New: "",
		Pkg: "./internal/worker", Run: "^(TestAFullTakeIsFollowedByAnother|TestASlotThatBecomesFreeIsUsedAtOnce)$", Quick: true,
	},
	{
		Name: "worker-short-take", Mechanism: "a Take that was not full is the last one until something wakes the loop",
		Proves: []string{"LOOP-1"}, File: "internal/worker/look.go",
		Old: "		p.running--\n		l.kick()\n", New: "		p.running--\n		l.want = true\n		l.kick()\n",
		Pkg: "./internal/worker", Run: "^TestAShortTakeWaits$",
	},
	{
		Name: "worker-free-slot", Mechanism: "a slot that becomes free is used at once",
		Proves: []string{"LOOP-1"}, File: "internal/worker/look.go",
		Old: "		p.running--\n		l.kick()\n", New: "		p.running--\n",
		Pkg: "./internal/worker", Run: "^(TestASlotThatBecomesFreeIsUsedAtOnce|TestAReasonWithoutASlotIsNotLost)$",
	},
	{
		Name: "worker-takes-beyond-its-slots", Mechanism: "no more is taken than can be run at once",
		Proves: []string{"LOOP-2"}, File: "internal/worker/look.go",
		Old: "	limit := l.free\n", New: "	limit := l.c.Concurrency\n",
		Pkg: "./internal/worker", Run: "^TestLimitIsTheNumberOfFreeSlots$",
	},
	{
		Name: "worker-wake-in-forgotten", Mechanism: "a look before its time does not make up for a WakeIn",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "	if !l.due.After(now) {\n", New: "	if true {\n",
		Pkg: "./internal/worker", Run: "^(TestWakeIn|TestWakeBeforeStart)$",
	},
	{
		Name: "worker-wake-in-latest", Mechanism: "of several times the earliest counts",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "if l.due.IsZero() || at.Before(l.due) {", New: "if l.due.IsZero() || at.After(l.due) {",
		Pkg: "./internal/worker", Run: "^TestWakeIn$",
	},
	{
		Name: "worker-poll-too-often", Mechanism: "an idle loop looks at most once per Poll",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "now.Add(l.c.Poll).Add(rand.N(l.c.Poll/4 + 1))", New: "now.Add(rand.N(l.c.Poll/4 + 1))",
		Pkg: "./internal/worker", Run: "^TestPollIsJitteredAndNeverShorter$",
	},
	{
		Name: "worker-backoff-does-not-grow", Mechanism: "pauses between failing Takes grow",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "		l.pause += min(l.pause, l.c.Poll-l.pause)\n", New: "		l.pause += 0\n",
		Pkg: "./internal/worker", Run: "^TestFailingTakeBacksOff$",
	},
	{
		Name: "worker-wake-ends-backoff", Mechanism: "waking does not drive a loop whose Take fails",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "	l.want = true\n	l.kick()\n", New: "	l.want, l.patient = true, time.Time{}\n	l.kick()\n",
		Pkg: "./internal/worker", Run: "^TestWakeDoesNotShortenBackoff$",
	},
	{
		Name: "worker-complains-each-time", Mechanism: "a lasting failure of Take is logged once",
		Proves: []string{"LOOP-3"}, File: "internal/worker/look.go",
		Old: "	if now == l.complaint {\n", New: "	if now == \"\" && l.complaint == \"\" {\n",
		Pkg: "./internal/worker", Run: "^TestErrorsOfTakeAreLoggedOncePerChange$",
	},
	{
		Name: "worker-slot-of-a-panic", Mechanism: "a job that panics or leaves gives its slot back",
		Proves: []string{"LOOP-3"}, File: "internal/worker/look.go",
		Old: "		l.free++\n", New: "		if returned {\n			l.free++\n		}\n",
		Pkg: "./internal/worker", Run: "^TestSlotsOfBrokenJobsAreFree$",
	},
	{
		Name: "worker-drops-jobs-with-an-error", Mechanism: "jobs that come with an error are run",
		Proves: []string{"LOOP-2"}, File: "internal/worker/look.go",
		Old: "		l.launch(p, jobs, limit)\n", New: "		if err != nil {\n			jobs = nil\n		}\n		l.launch(p, jobs, limit)\n",
		Pkg: "./internal/worker", Run: "^TestJobsThatComeWithAnErrorAreRun$",
	},
	{
		Name: "worker-drops-jobs-at-stop", Mechanism: "jobs that a Take returns after Stop are run",
		Proves: []string{"LOOP-2"}, File: "internal/worker/look.go",
		Old: "		l.launch(p, jobs, limit)\n", New: "		if p.takes.Err() != nil {\n			jobs = nil\n		}\n		l.launch(p, jobs, limit)\n",
		Pkg: "./internal/worker", Run: "^(TestJobsTakenWhileStoppingAreRun|TestTakeThatHangs)$",
	},
	{
		Name: "worker-stop-leaves-jobs", Mechanism: "Stop waits for the jobs that run",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "	for l.taking || l.running > 0 {\n", New: "	for l.taking {\n",
		Pkg: "./internal/worker", Run: "^TestStopWaitsForJobs$",
	},
	{
		Name: "worker-stop-leaves-a-take", Mechanism: "Stop waits for the Take that is under way",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "	for l.taking || l.running > 0 {\n", New: "	for l.running > 0 {\n",
		Pkg: "./internal/worker", Run: "^TestJobsTakenWhileStoppingAreRun$",
	},
	{
		Name: "worker-stop-is-endless", Mechanism: "Stop ends with its patience",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "	defer context.AfterFunc(ctx, l.ring)()\n	for l.taking", New: "	for l.taking",
		Pkg: "./internal/worker", Run: "^(TestStopLosesPatience|TestTakeThatHangs)$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "worker-stop-keeps-jobs-contexts", Mechanism: "the jobs' contexts end when the patience of Stop does",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "			l.endJobs()\n			return", New: "			return",
		Pkg: "./internal/worker", Run: "^TestStopLosesPatience$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "worker-stop-keeps-takes-context", Mechanism: "Take's context ends at Stop",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "		p.endTakes(ErrStopped)\n", New: "		_ = p\n",
		Pkg: "./internal/worker", Run: "^TestStopEndsTake$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "worker-takes-after-stop", Mechanism: "nothing is taken after Stop",
		Proves: []string{"LOOP-4"}, File: "internal/worker/worker.go",
		Old: "	l.stopped = true\n", New: "",
		Pkg: "./internal/worker", Run: "^(TestStopWaitsForJobs|TestStopBeforeStart|TestWakeAfterStop)$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "worker-once-ends-early", Mechanism: "Once does what its own jobs make due",
		Proves: []string{"LOOP-1"}, File: "internal/worker/worker.go",
		Old: "		if p.got == 0 && alone {\n", New: "		if _ = alone; p.got < limit {\n",
		Pkg: "./internal/worker", Run: "^TestOnceDoesWhatItsJobsMakeDue$",
	},
	{
		Name: "worker-once-beside-a-take", Mechanism: "only one Take is under way at a time",
		Proves: []string{"LOOP-2"}, File: "internal/worker/worker.go",
		Old: "(l.taking || l.free <= 0)", New: "(l.free <= 0)",
		Pkg: "./internal/worker", Run: "^TestOneTakeAtATime$", Flags: []string{"-timeout=20s"},
	},
}
