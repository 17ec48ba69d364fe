package main

// etcdBugs break persist/etcd.
var etcdBugs = []Bug{
	{
		Name: "etcd-no-answer-is-success", Mechanism: "a commit that etcd did not answer is not acknowledged",
		Proves: []string{"CAS-6"},
		File:   "persist/etcd/commit.go", Module: "persist/etcd/etcdtest",
		Old: "		return view{}, unknown(ctx, err)\n	case answer.Succeeded:\n",
		New: "		a.won = true\n		return view{}, nil\n	case answer.Succeeded:\n",
		Pkg: ".", Run: "^TestFaults$", Flags: []string{"-timeout=200s"},
	},
	{
		Name: "etcd-one-member-confirms", Mechanism: "a read of many keys is confirmed with the cluster",
		Proves: []string{"SCOPE-17"},
		File:   "persist/etcd/commit.go", Module: "persist/etcd/etcdtest",
		Old: "	if len(ops) == 0 && len(otherwise) == 0 {", New: "	if false {",
		Pkg: ".", Run: "^TestConfirmationOfManyKeys$", Flags: []string{"-timeout=200s"},
	},
	{
		Name: "etcd-short-window", Mechanism: "a commit judged by records that were read in the call may take longer than two ticks of the clock",
		Proves: []string{"STORE-13"},
		File:   "persist/etcd/commit.go", Module: "persist/etcd/etcdtest",
		Old: "		return 2 * s.config.AttemptTimeout\n",
		New: "		return clockLag * s.config.Tick\n",
		Pkg: ".", Run: "^TestSlowRequests$", Flags: []string{"-timeout=200s"},
	},
	{
		Name: "etcd-outage-is-silence", Mechanism: "an outage of the cluster does not count as time in which no process moved the clock",
		Proves: []string{"STORE-17"},
		File:   "persist/etcd/clock.go", Module: "persist/etcd/etcdtest",
		Old: "			if err != nil {\n				since = time.Now()\n			}\n",
		New: "",
		Pkg: ".", Run: "^TestOutageIsNoSilence$", Flags: []string{"-timeout=200s"},
	},
	{
		Name: "etcd-sleeping-clock", Mechanism: "durations of a commit after an outage count from a clock that was moved after it",
		Proves: []string{"STORE-8"},
		File:   "persist/etcd/clock.go", Module: "persist/etcd/etcdtest",
		Old: "next.Sub(s.clock.now()) <= clockLag*s.config.Tick {\n",
		New: "next.Sub(s.clock.now()) <= clockLag*time.Hour {\n",
		Pkg: ".", Run: "^TestLeaseAfterOutage$", Flags: []string{"-timeout=200s"},
	},
	{
		Name: "etcd-take-forgets", Mechanism: "Take returns the records that it has acquired with the error that ended it",
		Proves: []string{"STORE-13"},
		File:   "persist/etcd/lease.go", Module: "persist/etcd/etcdtest",
		Old: "			return t.taken, unknown(ctx, err)\n",
		New: "			return nil, unknown(ctx, err)\n",
		Pkg: ".", Run: "^TestTakeInterrupted$", Flags: []string{"-timeout=200s"},
	},
}
