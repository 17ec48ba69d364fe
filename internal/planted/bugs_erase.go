package main

// eraseBugs break package erase: which records it finds, which it leaves, and how it ends.
var eraseBugs = []Bug{
	{
		Name: "erase-prefix-of-an-id", Mechanism: "an id selects that id only",
		Proves: []string{"ERASE-1"}, File: "erase/part.go",
		Old: `From: id, Before: id + "\x01"}`, New: `Prefix: id}`,
		Pkg: "./erase", Run: "^TestErase$/memory", Quick: true,
	},
	{
		Name: "erase-expired-stay", Mechanism: "expired records are deleted",
		Proves: []string{"ERASE-1"}, File: "erase/erase.go",
		Old: "		all = append(all, q, expired)", New: "		all = append(all, q)",
		Pkg: "./erase", Run: "^TestErase$/memory", Quick: true,
	},
	{
		Name: "erase-events-stay", Mechanism: "the log of a record goes with it",
		Proves: []string{"ERASE-1"}, File: "erase/erase.go",
		Old: "			Log: &persist.LogWrite{Clear: true}, Recent: r.Commits,", New: "			Recent: r.Commits,",
		Pkg: "./erase", Run: "^TestErase$/memory", Quick: true,
	},
	{
		Name: "erase-workspace-as-it-is", Mechanism: "the ids of runs have their workspace escaped",
		Proves: []string{"ERASE-1"}, File: "erase/part.go",
		Old: `url.QueryEscape(workspace)+"/")`, New: `workspace+"/")`,
		Pkg: "./erase", Run: "^TestErase$/memory", Quick: true,
	},
	{
		Name: "erase-no-hashed-ids", Mechanism: "positions and snapshots are found whose ids have a hash of the stream",
		Proves: []string{"ERASE-1"}, File: "erase/part.go",
		Old: `slices.Concat(s.Prefixes, s.IDs, []string{"#"})`, New: `slices.Concat(s.Prefixes, s.IDs)`,
		Pkg: "./erase", Run: "^TestErase$/memory", Quick: true,
	},
	{
		Name: "erase-positions-by-id", Mechanism: "positions and snapshots belong to the stream that they name",
		Proves: []string{"ERASE-1"}, File: "erase/part.go",
		Old: "r.Kind == head || s.has(streamOf(r))", New: "r.Kind == head || s.has(r.ID)",
		Pkg: "./erase", Run: "^TestErase$/memory", Quick: true,
	},
	{
		Name: "snapshot-without-its-stream", Mechanism: "a snapshot names its stream",
		Proves: []string{"ERASE-1"}, File: "stream/act.go",
		Old: "fold.Version, raw, stream}", New: `fold.Version, raw, ""}`,
		Pkg: "./erase", Run: "^TestErase$/memory", Quick: true,
	},
	{
		Name: "erase-torn-away", Mechanism: "a record that is held is left",
		Proves: []string{"ERASE-2"}, File: "erase/erase.go",
		Old: "	if r.Held(r.Now) {", New: "	if r.Held(r.Now) && false {",
		Pkg: "./erase", Run: "^TestEraseBesideHolder$/memory", Quick: true,
	},
	{
		Name: "erase-parts-of-a-unit", Mechanism: "records that belong to a held one are left",
		Proves: []string{"ERASE-2"}, File: "erase/erase.go",
		Old: "	if p.Unit == nil {", New: "	if p.Unit == nil || true {",
		Pkg: "./erase", Run: "^TestEraseHeld$/memory", Quick: true,
	},
	{
		Name: "erase-unit-after-a-conflict", Mechanism: "records that belong to one that was acquired meanwhile are left",
		Proves: []string{"ERASE-2"}, File: "erase/erase.go",
		Old: `left[p.unit(r)] = Found{p.Name, tested, "written meanwhile"}`, New: "left[p.unit(r)] = Found{p.Name, tested, \"written meanwhile\"}\n					defer delete(left, p.unit(r))",
		Pkg: "./erase", Run: "^TestEraseMeanwhile$/acquired/memory", Quick: true,
	},
	{
		Name: "erase-unguarded-positions", Mechanism: "a stream is left if a reaction claims it before its deletion",
		Proves: []string{"ERASE-2"}, File: "erase/erase.go",
		Old: "		if p.leased == nil || p.leased(r) {\n", New: "		if true {\n",
		Pkg: "./erase", Run: "^TestErasePositionClaimedMeanwhile$/memory", Quick: true,
	},
	{
		Name: "erase-unfinished-batch", Mechanism: "a batch job that is not over is left",
		Proves: []string{"ERASE-2"}, File: "erase/part.go",
		Old: "r.Kind == jobs && !status.Final()", New: "r.Kind == jobs && !status.Final() && false",
		Pkg: "./erase", Run: "^TestEraseUnfinishedBatch$/memory", Quick: true,
	},
	{
		Name: "erase-left-is-success", Mechanism: "an Erase that has left records returns an error",
		Proves: []string{"ERASE-2"}, File: "erase/erase.go",
		Old: "		case !e.progress && len(e.report.Left) == 0:", New: "		case !e.progress:",
		Pkg: "./erase", Run: "^TestEraseHeld$/memory", Quick: true,
	},
	{
		Name: "erase-one-pass", Mechanism: "Erase ends with a pass that found nothing",
		Proves: []string{"ERASE-3"}, File: "erase/erase.go",
		Old: "		case !e.progress && len(e.report.Left) == 0:", New: "		case len(e.report.Left) == 0:",
		Pkg: "./erase", Run: "^TestEraseMeanwhile$/created/memory", Quick: true,
	},
	{
		Name: "erase-conflict-is-the-end", Mechanism: "a record that was written meanwhile is listed again",
		Proves: []string{"ERASE-3"}, File: "erase/erase.go",
		Old: "		e.progress = true\n		known := len(left)", New: "		known := len(left)",
		Pkg: "./erase", Run: "^TestEraseBesideEndlessWriters$/same_record", Quick: true,
	},
	{
		Name: "erase-without-end", Mechanism: "the passes are bounded",
		Proves: []string{"ERASE-3"}, File: "erase/erase.go",
		Old: "const maxPasses = 20", New: "const maxPasses = 1 << 40",
		Pkg: "./erase", Run: "^TestEraseBesideEndlessWriters$", Flags: []string{"-timeout=10s"},
	},
	{
		Name: "erase-rest-of-logs", Mechanism: "the next Erase cleans the logs of tombstones",
		Proves: []string{"ERASE-4"}, File: "erase/erase.go",
		Old: "	if first {", New: "	if first && false {",
		Pkg: "./erase", Run: "^TestEraseRestOfLogs$", Quick: true,
	},
	{
		Name: "erase-long-logs", Mechanism: "all entries of a long log are removed",
		Proves: []string{"ERASE-4"}, File: "erase/erase.go",
		Old: "		return cleaner.CleanLog(ctx, key)", New: "		_ = cleaner",
		Pkg: "./erase", Run: "^TestEraseRestOfLogs$", Quick: true,
	},
	{
		Name: "clean-log-that-has-begun-again", Mechanism: "entries that count are not cleaned away",
		Proves: []string{"ERASE-4"}, File: "persist/doclog.go",
		Old: "	if !alive { // no entry", New: "	if !alive || true { // no entry",
		Pkg: "./erase", Run: "^TestEraseRestOfLogs$", Quick: true,
	},
	{
		Name: "erase-not-resumed", Mechanism: "an Erase deletes what a killed one has left beside its tombstones",
		Proves: []string{"ERASE-4"}, File: "erase/erase.go",
		Old: "	left := units{}\n	e.leased =", New: "	for _, q := range p.Queries {\n		q.Deleted = true\n		for r := range listed(ctx, e.logs, q) {\n			if p.matches(r) {\n				return nil\n			}\n		}\n	}\n	left := units{}\n	e.leased =",
		Pkg: "./erase", Run: "^TestKilledErase$/^sqlite$", Quick: true,
	},
	{
		Name: "purged-before-its-log", Mechanism: "a Sweeper removes the rest of a log before the tombstone of its record",
		Proves: []string{"ERASE-1", "ERASE-4"}, File: "sweep.go",
		Old: "err == nil && s.rt.cleared(kind) != nil", New: "err == nil && s.rt.cleared(kind) == nil",
		Pkg: "./erase", Run: "^TestSweptLogs$", Quick: true,
	},
	{
		Name: "cleared-logs-not-listed", Mechanism: "a log that was cleared can be found without its record",
		Proves: []string{"ERASE-4"}, File: "persist/logs.go",
		Old: "Cleared: true}, key.Kind", New: "Cleared: true}, \"\"",
		Pkg: "./persist", Run: "^TestCleanLogs$",
	},
	{
		Name: "log-state-deleted-early", Mechanism: "the state of a log that ended again stays until its documents are gone",
		Proves: []string{"ERASE-4"}, File: "persist/doclog.go",
		Old: "		if _, err := d.Store.Commit(ctx, Commit{ID: d.commitID(), Writes: []Write{deleting(state)}}",
		New: "		state, _ = d.Load(ctx, stateKey(key))\n		if _, err := d.Store.Commit(ctx, Commit{ID: d.commitID(), Writes: []Write{deleting(state)}}",
		Pkg: "./persist", Run: "^TestLogEndsBesideRemoval$",
	},
}
