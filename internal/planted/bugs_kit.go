package main

// kitBugs break pawltest, the test kit for users, and internal/relay, which it is built on.
var kitBugs = []Bug{
	{
		Name: "kit-fault-of-all-commits", Mechanism: "a fault of Next is that of one commit",
		File: "pawltest/store.go",
		Old:  "	s.queue = s.queue[1:]\n", New: "",
		Pkg: "./pawltest", Run: "^(TestConflict|TestLostAnswers|TestRefused)$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "kit-nth-is-the-next", Mechanism: "Nth is the fault of the nth commit",
		File: "pawltest/store.go",
		Old:  "s.queue[n-1] = f", New: "s.queue[0] = f",
		Pkg: "./pawltest", Run: "^TestConflictOfNthCommit$", Quick: true,
	},
	{
		Name: "kit-renewals-meet-faults", Mechanism: "a commit of guards alone meets no fault",
		File: "pawltest/store.go",
		Old:  "call.Commit != nil && len(call.Commit.Writes) > 0", New: "call.Commit != nil",
		Pkg: "./pawltest", Run: "^TestRenewalsPass$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "kit-outage-spares-watches", Mechanism: "an outage ends watches",
		File: "pawltest/store.go",
		Old:  `case call.Method == "Watch":`, New: `case call.Method == "Watch" && down == nil:`,
		Pkg: "./pawltest", Run: "^(TestOutage|TestWatchAcrossOutage)$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "kit-outage-may-have-written", Mechanism: "a call during an outage is known to have written nothing",
		File: "pawltest/store.go",
		Old:  `"%w: %w: pawltest: outage", persist.ErrUnavailable, persist.ErrNotApplied)`, New: `"%w: pawltest: outage", persist.ErrUnavailable)`,
		Pkg: "./pawltest", Run: "^TestOutage$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "kit-end-lease-ends-nothing", Mechanism: "EndLease ends a lease behind the back of its holder",
		File: "pawltest/store.go",
		Old:  "Token: r.Lease.Token, Release: true}", New: "Token: r.Lease.Token}",
		Pkg: "./pawltest", Run: "^TestEndLease$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "kit-lost-answer-hides-a-conflict", Mechanism: "LostAnswer loses only the answer of a commit that landed",
		File: "pawltest/fault.go",
		Old:  "	if err := commit(); err != nil {\n		return err\n	}\n	return errLost\n", New: "	_ = commit()\n	return errLost\n",
		Pkg: "./pawltest", Run: "^TestLostAnswerOfConflict$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "kit-refused-is-in-doubt", Mechanism: "a refused commit is known not to have landed",
		File: "pawltest/fault.go",
		Old:  `"%w: %w: pawltest: refused", persist.ErrUnavailable, persist.ErrNotApplied)`, New: `"%w: pawltest: refused", persist.ErrUnavailable)`,
		Pkg: "./pawltest", Run: "^TestRefused$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "kit-conflict-without-a-rival", Mechanism: "Conflict moves the versions that a commit expects",
		File: "pawltest/fault.go",
		Old:  "	if err := s.rewrite(ctx, c); err != nil {\n		return err\n	}\n", New: "",
		Pkg: "./pawltest", Run: "^TestConflict$", Quick: true,
	},
	{
		Name: "kit-conflict-spares-reads", Mechanism: "Conflict moves the versions that a transaction has read",
		File: "pawltest/fault.go",
		Old:  "if g.Read && g.Version != 0", New: "if false && g.Version != 0",
		Pkg: "./pawltest", Run: "^TestConflictOfTransaction$",
	},
	{
		Name: "kit-gate-stands-open", Mechanism: "a gate holds commits up until it is opened",
		File: "pawltest/gate.go",
		Old:  "	g.arrive.Do(func() { close(g.arrived) })\n", New: "	g.arrive.Do(func() { close(g.arrived) })\n	g.Open()\n",
		Pkg: "./pawltest", Run: "^(TestGate|TestClosedGate)$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "kit-race-forgives-lost-updates", Mechanism: "Race finds updates that are lost",
		File: "pawltest/race.go",
		Old:  "	case after-before < acknowledged:", New: "	case after-before < 0:",
		Pkg: "./pawltest", Run: "^(TestRaceFindsLostUpdates|TestRaceFails)$",
	},
	{
		Name: "kit-race-forgives-doubled-updates", Mechanism: "Race finds updates that are doubled",
		File: "pawltest/race.go",
		Old:  "	case after-before > acknowledged:", New: "	case after-before > acknowledged && acknowledged == 0:",
		Pkg: "./pawltest", Run: "^TestRaceFails$",
	},
	{
		Name: "kit-history-without-time", Mechanism: "a history finds a read of the past",
		File: "pawltest/history.go",
		Old:  "		case c.end < r.began:", New: "		case c.end < 0:",
		Pkg: "./pawltest", Run: "^TestHistoryAgreesWithSearch$",
	},
	{
		Name: "kit-history-forgives-unknown-versions", Mechanism: "a history finds versions that belong to no write",
		File: "pawltest/history.go",
		Old:  "	if missing > uint64(r.left) {", New: "	if missing > uint64(r.left)+1 {",
		Pkg: "./pawltest", Run: "^(TestHistoryFindsFaults|TestHistoryAgreesWithSearch)$",
	},
	{
		Name: "kit-history-trusts-doubt", Mechanism: "a history compares a write of unknown outcome with its model",
		File: "pawltest/history.go",
		Old:  "if missing > maxSearched || missing", New: "if missing > 0 || missing",
		Pkg: "./pawltest", Run: "^TestHistoryFindsAnUpdateLostInDoubt$",
	},
	{
		Name: "kit-recorder-sleeps", Mechanism: "an event wakes the tests that wait for it",
		File: "pawltest/recorder.go",
		Old:  "		close(r.news)\n", New: "",
		Pkg: "./pawltest", Run: "^TestRecorder$", Flags: []string{"-timeout=10s"},
	},
	{
		Name: "relay-torn-read", Mechanism: "a relay reads several records as they are at one moment",
		File: "internal/relay/relay.go",
		Old:  "return a.Version == b.Version && a.Absent() == b.Absent()", New: "return true",
		Pkg: "./internal/relay", Run: "^TestConformanceOfBareStore$",
	},
	{
		Name: "relay-versions-of-absent-records", Mechanism: "the probed version of an absent record is 0",
		File: "internal/relay/relay.go",
		Old:  "				r.Version = 0\n", New: "				r.Version++\n",
		Pkg: "./internal/relay", Run: "^TestConformanceOfBareStore$",
	},
	{
		Name: "relay-commit-without-logs", Mechanism: "a relay keeps logs in a store without them",
		File: "internal/relay/relay.go",
		Old:  "at, err = s.logs.Commit(ctx, c)", New: "at, err = s.below.Commit(ctx, c)",
		Pkg: "./internal/relay", Run: "^TestConformanceOfBareStore$",
	},
	{
		Name: "relay-takes-past-the-hook", Mechanism: "every call of a store passes through the hook of its relay",
		File: "internal/relay/relay.go",
		Old:  "	err = s.pass(ctx, Call{Method: \"Take\"}, func(ctx context.Context) (err error) {\n		taken, err = leaser.Take(ctx, q, a, change)\n		return err\n	})\n	return taken, err\n",
		New:  "	return leaser.Take(ctx, q, a, change)\n",
		Pkg:  "./internal/relay", Run: "^TestHook$", Quick: true,
	},
}

// commandBugs break the command line.
var commandBugs = []Bug{
	{
		Name: "cli-removes-any-version", Mechanism: "rm --if-version deletes that version only",
		File: "cmd/pawl/rm.go", Module: "cmd/pawl",
		Old: "	case version != 0 && r.Version != version:", New: "	case version != 0 && r.Version == 0:",
		Pkg: ".", Run: "^TestRemove$", Quick: true,
	},
	{
		Name: "cli-exports-twice", Mechanism: "a record that expires while an export is written is in it once",
		File: "cmd/pawl/jsonl.go", Module: "cmd/pawl",
		Old: "					expiring[records[i].Key] = true\n", New: "",
		Pkg: ".", Run: "^TestExportBesideAnExpiry$",
	},
	{
		Name: "cli-copy-after-release", Mechanism: "a copy goes on after a lease was released in the source",
		File: "cmd/pawl/transfer.go", Module: "cmd/pawl",
		Old: "held.Token != 0 && (holds.Token != held.Token || holds.Until.After(held.Until))", New: "holds.Until.After(held.Until) || held.Token != 0 && holds.Token != held.Token",
		Pkg: ".", Run: "^TestCopyAfterARelease$",
	},
	{
		Name: "cli-removes-leased-records", Mechanism: "rm deletes a record with a live lease only with --force",
		File: "cmd/pawl/rm.go", Module: "cmd/pawl",
		Old: "	case r.Held(r.Now) && !force:", New: "	case r.Held(r.Now) && !force && version != 0:",
		Pkg: ".", Run: "^TestRemove$",
	},
	{
		Name: "cli-unknown-outcome-is-a-failure", Mechanism: "rm says if it does not know the outcome",
		File: "cmd/pawl/rm.go", Module: "cmd/pawl",
		Old: "return &codedError{exitUnknown, fmt", New: "return &codedError{exitUnavailable, fmt",
		Pkg: ".", Run: "^TestRemove", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "cli-obeys-hostile-names", Mechanism: "names from a store cannot give orders to a terminal",
		File: "cmd/pawl/output.go", Module: "cmd/pawl",
		Old: " || visibleText(name) != name {", New: " {",
		Pkg: ".", Run: "^TestHostileText$",
	},
	{
		Name: "cli-full-disk-is-success", Mechanism: "output that cannot be written is an error",
		File: "cmd/pawl/output.go", Module: "cmd/pawl",
		Old: "func (o *output) flush() error { return outputError(o.buf.Flush()) }", New: "func (o *output) flush() error { _ = o.buf.Flush(); return nil }",
		Pkg: ".", Run: "^TestFullDisk$",
	},
	{
		Name: "cli-creates-stores", Mechanism: "a command that only looks creates no store",
		File: "cmd/pawl/app.go", Module: "cmd/pawl",
		Old: "store, err := a.schemes.Open(ctx, location, open.Options{Existing: true})", New: "store, err := a.schemes.Open(ctx, location, open.Options{})",
		Pkg: ".", Run: "^(TestBadInput|TestOtherSchemas)$",
	},
}
