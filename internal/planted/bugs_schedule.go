package main

// scheduleBugs break what decides the races of queues and commits. The tests of internal/schedule
// notice them in some of their schedules.
var scheduleBugs = []Bug{
	{
		Name: "interleaved-alarm-of-an-arrival", Mechanism: "a queue that is released keeps its alarm if a waiter has just arrived",
		Proves: []string{"LOCK-5"}, File: "internal/queue/queue.go",
		Old: "q.list.first == nil && a.list.first == nil && ", New: "q.list.first == nil && ",
		Pkg: "./internal/schedule", Run: "^TestQueueSchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-leaves-an-answer", Mechanism: "a caller whose context ends after its answer was decided takes the answer",
		Proves: []string{"LOCK-7"}, File: "internal/queue/queue.go",
		Old: "	if w.left || w.State == Answered {\n		return false\n	}\n	q.gather()", New: "	if w.left {\n		return false\n	}\n	q.gather()",
		Pkg: "./internal/schedule", Run: "^TestQueueSchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-answer-after-leaving", Mechanism: "a worker does not answer a caller that has left",
		Proves: []string{"LOCK-8"}, File: "internal/queue/queue.go",
		Old: "	if w.left || w.State == Answered {\n		return false\n	}\n	w.State", New: "	if w.State == Answered {\n		return false\n	}\n	w.State",
		Pkg: "./internal/schedule", Run: "^TestMemorySchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-pushed-twice", Mechanism: "a taken waiter that goes to the end of the queue leaves its old place",
		Proves: []string{"CAS-8"}, File: "internal/queue/queue.go",
		Old: "	if w.taken {\n		q.unlink(w)\n	}\n", New: "",
		Pkg: "./internal/schedule", Run: "^TestQueueSchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-stops-without-looking", Mechanism: "a worker looks at the arrivals before it stops",
		Proves: []string{"LOCK-2"}, File: "internal/queue/queue.go",
		Old: "	q.current = nil\n	if q.front == nil && !q.moreArrived() {\n", New: "	stops := q.current != nil && q.front == nil\n	if q.current = nil; stops {\n		q.arrivals.Lock()\n		q.arrivals.driven = false\n		q.arrivals.Unlock()\n	}\n	if stops || q.front == nil && !q.moreArrived() {\n",
		Pkg: "./internal/schedule", Run: "^TestQueueSchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-release-ends-close", Mechanism: "Close ends when the last driver releases the queue",
		Proves: []string{"SCOPE-18"}, File: "internal/queue/queue.go",
		Old: "	a.Unlock()\n	q.signalDrained()\n", New: "	a.Unlock()\n",
		Pkg: "./internal/schedule", Run: "^TestQueueSchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-abandoned-result", Mechanism: "a function that returns after it was abandoned publishes nothing",
		Proves: []string{"LOCK-11"}, File: "lock.go",
		Old: "	if c.queue.Current() == w {\n		ownership", New: "	if c.queue.Current() == w || p.abandoned && c.queue.Current() == nil {\n		ownership",
		Pkg: "./internal/schedule", Run: "^TestMemorySchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-in-place-beside-a-turn", Mechanism: "a data verb waits while a function runs",
		Proves: []string{"LOCK-1", "LOCK-2"}, File: "lock.go",
		Old: "	if !c.queue.Idle() {\n", New: "	if c.queue.Len() > 0 {\n",
		Pkg: "./internal/schedule", Run: "^TestMemorySchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-withdrawn-data", Mechanism: "a data verb whose caller left before it was computed is not committed",
		Proves: []string{"CAS-9"}, File: "cas_compute.go",
		Old: "		if !w.Left() && !w.Value.abandoned {\n", New: "		if !w.Value.abandoned {\n",
		Pkg: "./internal/schedule", Run: "^TestStoredSchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-refused-in-doubt", Mechanism: "a commit in doubt stays in doubt when the store refuses its next sending",
		Proves: []string{"CAS-7"}, File: "internal/commit/commit.go",
		Old: "	case s.doubt == nil && (NotApplied(err) ||", New: "	case (NotApplied(err) ||",
		Pkg: "./internal/schedule", Run: "^TestStoredSchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-evidence-below-another", Mechanism: "a commit in doubt finds its id below that of a later commit",
		Proves: []string{"CAS-7"}, File: "internal/commit/evidence.go",
		Old: "		if c == id {\n", New: "		if c == id && len(won.Commits) == 1 {\n",
		Pkg: "./internal/schedule", Run: "^TestStoredSchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-uncommitted-base", Mechanism: "a function that left its batch on a state that was not committed runs again",
		Proves: []string{"CAS-8"}, File: "cas_compute.go",
		Old: "	if from.Changed == 0 { // it ran", New: "	if true || from.Changed == 0 { // it ran",
		Pkg: "./internal/schedule", Run: "^TestStoredSchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-group-draft", Mechanism: "the commit of a group has the writes of all members",
		Proves: []string{"TX-1"}, File: "tx_group.go",
		Old: "			g.parts[i] = next\n", New: "			_ = next\n",
		Pkg: "./internal/schedule", Run: "^TestGroupSchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
	{
		Name: "interleaved-group-outcome", Mechanism: "the outcome of a shared commit that got no answer is unknown to each member",
		Proves: []string{"CAS-7"}, File: "tx_group.go",
		Old: "		return m.broken(g, err.Cause)\n", New: "		return &UnavailableError{Scope: m.t.firstKey(), Cause: err.Cause}\n",
		Pkg: "./internal/schedule", Run: "^TestGroupSchedules$", Flags: []string{"-timeout=60s"}, Quick: true,
	},
}
