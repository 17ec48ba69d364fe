package main

// jobBugs break the worker for due documents and its schedules.
var jobBugs = []Bug{
	{
		Name: "job-attempt-not-counted", Mechanism: "an attempt is counted when the job is taken",
		Proves: []string{"JOB-1", "JOB-2"}, File: "flow/job/worker.go",
		Old: `pawl.Inc{Field: "attempts", By: 1}`, New: `pawl.Inc{Field: "attempts", By: 0}`,
		Pkg: "./flow/job", Run: "^TestKilledWorker$",
	},
	{
		Name: "job-writes-before-the-end", Mechanism: "writes of OnCommit and the end of the job are one commit",
		Proves: []string{"JOB-1"}, File: "flow/job/worker.go",
		Old: "	return w.end(ctx, l, j, func(ctx context.Context, tx *pawl.Tx, scope pawl.Scope[T], changed bool) error {\n		for _, fn", New: "	for _, fn := range j.onCommit {\n		if err := pawl.Transact(ctx, w.rt, fn); err != nil {\n			return err\n		}\n	}\n	j.onCommit = nil\n	return w.end(ctx, l, j, func(ctx context.Context, tx *pawl.Tx, scope pawl.Scope[T], changed bool) error {\n		for _, fn",
		Pkg: "./flow/job", Run: "^TestKilledWorker$",
	},
	{
		Name: "job-handler-again", Mechanism: "on a conflict the commit is repeated, not the handler",
		Proves: []string{"JOB-1"}, File: "flow/job/worker.go",
		Old: "		for _, fn := range j.onCommit {\n", New: "		_ = w.config.Handle(ctx, j)\n		for _, fn := range j.onCommit {\n",
		Pkg: "./flow/job", Run: "^TestConflictDoesNotRepeatTheHandler$",
	},
	{
		Name: "job-commits-when-withdrawn", Mechanism: "a job that got another label commits nothing",
		Proves: []string{"JOB-1"}, File: "flow/job/worker.go",
		Old: "!w.takes(&doc) { // also", New: "w.state(&doc).Label == \"\" { // also",
		Pkg: "./flow/job", Run: "^TestWithdrawnJob$", Flags: []string{"-timeout=1m"},
	},
	{
		Name: "job-not-told-of-withdrawal", Mechanism: "the context of a withdrawn job ends",
		Proves: []string{"JOB-1"}, File: "flow/job/worker.go",
		Old: "			cancel(ErrWithdrawn)\n", New: "			_ = cancel\n",
		Pkg: "./flow/job", Run: "^TestWithdrawnJob$", Flags: []string{"-timeout=1m"},
	},
	{
		Name: "job-stop-fails-the-attempt", Mechanism: "a job that Stop interrupts is handed back",
		Proves: []string{"JOB-1"}, File: "flow/job/worker.go",
		Old: "			if err = w.handBack(fenced, l, j); err == nil {\n", New: "			if err = w.fail(fenced, l, j, err); err == nil {\n",
		Pkg: "./flow/job", Run: "^TestStopHandsBack$",
	},
	{
		Name: "job-stop-counts-the-attempt", Mechanism: "an attempt that Stop interrupts is not counted",
		Proves: []string{"JOB-1"}, File: "flow/job/worker.go",
		Old: "			w.state(doc).Attempts--\n", New: "",
		Pkg: "./flow/job", Run: "^TestStopHandsBack$",
	},
	{
		Name: "job-never-parked", Mechanism: "the last attempt parks the job",
		Proves: []string{"JOB-2"}, File: "flow/job/worker.go",
		Old: "final := j.Attempt >= retry.Attempts || pawl.IsNonRetryable(cause)", New: "final := pawl.IsNonRetryable(cause)",
		Pkg: "./flow/job", Run: "^TestFailingJobIsRetriedAndParked$",
	},
	{
		Name: "job-final-error-repeated", Mechanism: "an error that is marked NonRetryable parks the job at once",
		Proves: []string{"JOB-2"}, File: "flow/job/worker.go",
		Old: "final := j.Attempt >= retry.Attempts || pawl.IsNonRetryable(cause)", New: "final := j.Attempt >= retry.Attempts",
		Pkg: "./flow/job", Run: "^TestFinalErrorParksAtOnce$",
	},
	{
		Name: "job-deadly-again", Mechanism: "a job whose attempts were spent by dead processes does not run again",
		Proves: []string{"JOB-2"}, File: "flow/job/worker.go",
		Old: "	if j.Attempt > max(w.retry(&j.State).Attempts, leastCrashes) {\n", New: "	if false {\n",
		Pkg: "./flow/job", Run: "^TestFinalErrorParksAtOnce$",
	},
	{
		Name: "job-retry-at-once", Mechanism: "a failed job is due later",
		Proves: []string{"JOB-2"}, File: "flow/job/worker.go",
		Old: "s.Due = j.Now().Add(delay)\n", New: "s.Due = j.Now().Add(100 * delay)\n",
		Pkg: "./flow/job", Run: "^TestFailingJobIsRetriedAndParked$",
	},
	{
		Name: "job-retry-with-old-attempts", Mechanism: "Retry gives a parked job all its attempts again",
		Proves: []string{"JOB-2"}, File: "flow/job/worker.go",
		Old: "*s = State{Label: w.config.Protocol.Labels[0], Due: time.Now()}", New: "*s = State{Label: w.config.Protocol.Labels[0], Due: time.Now(), Attempts: s.Attempts}",
		Pkg: "./flow/job", Run: "^TestFailingJobIsRetriedAndParked$",
	},
	{
		Name: "job-waits-for-the-poll", Mechanism: "a job is done when it falls due, not at the next poll",
		Proves: []string{"JOB-3"}, File: "flow/job/worker.go",
		Old: "		w.loop.WakeIn(in)\n", New: "		_ = in\n",
		Pkg: "./flow/job", Run: "^TestJobIsDoneWhenItFallsDue$",
	},
	{
		Name: "job-overlooked-between-looks", Mechanism: "a job that falls due while the worker looks is not overlooked",
		Proves: []string{"JOB-3"}, File: "flow/job/worker.go",
		Old: "		if err := w.wakeForNext(ctx); err != nil {\n			return nil, err\n		}\n", New: "		defer func() { _ = w.wakeForNext(ctx) }()\n",
		Pkg: "./flow/job", Run: "^TestJobFallsDueBetweenLooks$",
	},
	{
		Name: "job-looks-ahead-one-poll", Mechanism: "the worker looks ahead further than its next poll",
		Proves: []string{"JOB-3"}, File: "flow/job/worker.go",
		Old: "pawl.Query{Labels: w.config.Protocol.Labels}, 2*w.config.Poll)", New: "pawl.Query{Labels: w.config.Protocol.Labels}, w.config.Poll)",
		Pkg: "./flow/job", Run: "^TestJobFallsDueBetweenLooks$",
	},
	{
		Name: "job-hint-ignored", Mechanism: "a hint of the store wakes the worker",
		Proves: []string{"JOB-3"}, File: "flow/job/worker.go",
		Old: "			w.loop.Wake()\n", New: "",
		Pkg: "./flow/job", Run: "^TestJobIsDoneWhenItFallsDue$",
	},
	{
		Name: "schedule-tick-is-the-retry", Mechanism: "a tick that failed is repeated as the same tick",
		Proves: []string{"JOB-1"}, File: "flow/job/schedule.go",
		Old: "one.tick(j.State.Tick, j.Now())", New: "one.tick(j.State.Due, j.Now())",
		Pkg: "./flow/job", Run: "^TestFailedTickStaysTheSame$",
	},
	{
		Name: "schedule-ticks-twice", Mechanism: "a time that exists twice ticks once",
		Proves: []string{"JOB-1"}, File: "flow/job/schedule.go",
		Old: "	for repeated(next) {\n", New: "	for false {\n",
		Pkg: "./flow/job", Run: "^TestZone$",
	},
	{
		Name: "schedule-without-a-zone", Mechanism: "ticks follow the clocks of the zone",
		Proves: []string{"JOB-1"}, File: "flow/job/schedule.go",
		Old: "parsed.Next(t.In(zone))", New: "parsed.Next(t.UTC())",
		Pkg: "./flow/job", Run: "^TestZone$",
	},
	{
		Name: "schedule-catches-up-once", Mechanism: "CatchUpAll does every tick",
		Proves: []string{"JOB-1"}, File: "flow/job/schedule.go",
		Old: "next.After(now) || s.CatchUp == CatchUpAll {", New: "next.After(now) {",
		Pkg: "./flow/job", Run: "^TestScheduleCatchesUp$",
	},
	{
		Name: "schedule-always-catches-up", Mechanism: "CatchUpNone leaves late ticks out",
		Proves: []string{"JOB-1"}, File: "flow/job/schedule.go",
		Old: "tick, do = next, s.CatchUp == CatchUpOnce", New: "tick, do = next, true",
		Pkg: "./flow/job", Run: "^TestScheduleCatchesUp$",
	},
	{
		Name: "schedule-tick-again", Mechanism: "the commit of a tick sets the next one",
		Proves: []string{"JOB-1"}, File: "flow/job/schedule.go",
		Old: "		r.Due, r.Tick, r.Times = next, next, one.times()\n", New: "		r.Due = j.Now().Add(time.Minute)\n		_ = next\n",
		Pkg: "./flow/job", Run: "^TestScheduleTicksOnce$",
	},
	{
		Name: "job-asks-no-more", Mechanism: "after a busy time the worker asks for the next due time",
		Proves: []string{"JOB-3"}, File: "flow/job/worker.go",
		Old: "		w.loop.Wake()\n	}\n	for _, t", New: "	}\n	for _, t",
		Pkg: "./flow/job", Run: "^TestJobFallsDueAfterABusyTime$",
	},
}
