package main

// hintBugs break hints, versions, and the rules of expiry and leases that all stores share.
var hintBugs = []Bug{
	{
		Name: "hints-told-version", Mechanism: "a merged hint has a version only if all its hints have it",
		Proves: []string{"SCOPE-13"}, File: "persist/adapter/hints/hints.go",
		Old: "case known == 0 || hint.Version == 0:", New: "case false:",
		Pkg: "./persist/adapter/hints", Run: "^TestMerge$", Quick: true,
	},
	{
		Name: "hints-unbounded", Mechanism: "the number of hints kept for a slow watcher is limited",
		Proves: []string{"SCOPE-13"}, File: "persist/adapter/hints/hints.go",
		Old: "!pending && len(p.order) == Most", New: "false",
		Pkg: "./persist/adapter/hints", Run: "^TestSlowWatcher$", Quick: true,
	},
	{
		Name: "hints-after-the-end", Mechanism: "wake is not called once the watch has ended",
		Proves: []string{"SCOPE-13"}, File: "persist/adapter/hints/hints.go",
		Old: "if err := s.ended(ctx); err != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t\twake(hint)", New: "wake(hint)",
		Pkg: "./persist/adapter/hints", Run: "^TestEndWhileDelivering$",
	},
	{
		Name: "hints-listening-too-early", Mechanism: "a watch calls wake only when changes are heard",
		Proves: []string{"SCOPE-13"}, File: "persist/adapter/hints/listening.go",
		Old: "	case <-l.ready:\n", New: "	case <-l.ready:\n	default:\n",
		Pkg: "./persist/adapter/hints", Run: "^TestListening$", Quick: true, Flags: []string{"-timeout=60s"},
	},
	{
		Name: "hints-listening-fails-unnoticed", Mechanism: "the watches of a listener end when it fails",
		Proves: []string{"SCOPE-13"}, File: "persist/adapter/hints/listening.go",
		Old: "	defer context.AfterFunc(l.life, cancel)()\n", New: "",
		Pkg: "./persist/adapter/hints", Run: "^TestListening$", Quick: true, Flags: []string{"-timeout=60s"},
	},
	{
		Name: "hints-release", Mechanism: "the release of a lease is hinted",
		Proves: []string{"SCOPE-13"}, File: "persist/adapter/hints/hints.go",
		Old: "case before.Lease.Token != 0 && after.Lease.Token == 0:", New: "case false:",
		Pkg: "./persist/adapter/hints", Run: "^TestOf$",
	},
	{
		Name: "memory-take-unheard", Mechanism: "leases that Take acquires are hinted to watchers",
		Proves: []string{"SCOPE-13"}, File: "persist/memory/lease.go",
		Old: "s.put(r, taken)", New: "s.records[r.Key] = taken",
		Pkg: "./persist/memory", Run: "^TestConformance$/^Watching$/^every_change",
	},
	{
		Name: "fs-new-folder", Mechanism: "the zero hint covers files created in a folder before it was watched",
		Proves: []string{"SCOPE-13"}, File: "persist/fs/notify_linux.go",
		Old: "\t\t\tto.Send(persist.Hint{})\n\t\t}\n\tcase e.mask&renamed", New: "\t\t}\n\tcase e.mask&renamed",
		Pkg: "./persist/fs", Run: "^TestNotifiedOfNewFolders$",
	},
	{
		Name: "fs-folders-below", Mechanism: "folders in a new folder are watched too",
		Proves: []string{"SCOPE-13"}, File: "persist/fs/notify_linux.go",
		Old: "entry.IsDir() && holdsRecords(n.root, below) {", New: "entry.IsDir() && path == n.root && false {",
		Pkg: "./persist/fs", Run: "^TestNotifiedOfNewFolders$",
	},
	{
		Name: "fs-overflow", Mechanism: "dropped kernel events are made up for by the zero hint",
		Proves: []string{"SCOPE-13"}, File: "persist/fs/notify_linux.go",
		Old: "if err := n.watchAll(); err != nil {\n\t\t\treturn err\n\t\t}", New: "",
		Pkg: "./persist/fs", Run: "^TestNotifiedTooMuch$",
	},
	{
		Name: "fs-poll-tick", Mechanism: "two changes in one tick of the file system's clock are both noticed",
		Proves: []string{"SCOPE-13"}, File: "persist/fs/watch.go",
		Old: "seen, again = now, changed", New: "seen, again = now, false",
		Pkg: "./persist/fs", Run: "^TestPollTicks$",
	},
	{
		Name: "fs-records-gone", Mechanism: "a watcher polls when the kernel no longer sends events",
		Proves: []string{"SCOPE-13"}, File: "persist/fs/watch.go",
		Old: "if n.run(l.Life(), &s.hints) == nil {\n\t\t\treturn\n\t\t}", New: "_ = n.run(l.Life(), &s.hints)\n\t\tif err == nil {\n\t\t\treturn\n\t\t}",
		Pkg: "./persist/fs", Run: "^TestWatchWithoutRecords$",
	},
	{
		Name: "fs-versions-in-doubt", Mechanism: "Versions waits until a record is durable and its commit complete",
		Proves: []string{"SCOPE-13", "STORE-7"}, File: "persist/fs/read.go",
		Old: "		r, err := s.load(ctx, key)\n		if err != nil {\n			return nil", New: "		r, err := s.read(key)\n		if err != nil {\n			return nil",
		Pkg: "./persist/fs", Run: "^TestVersionsWait$",
	},
	{
		Name: "apply-sweep-forgets", Mechanism: "a swept tombstone keeps the time at which the record expired",
		Proves: []string{"SCOPE-14"}, File: "persist/apply.go",
		Old: "if w.Swept {", New: "if false {",
		Pkg: "./persist", Run: "^TestApplySweeps$",
	},
	{
		Name: "apply-tombstone-expires", Mechanism: "a tombstone never expires",
		Proves: []string{"SCOPE-14"}, File: "persist/persist.go",
		Old: "return !r.Deleted && !r.Expires.IsZero()", New: "return !r.Expires.IsZero()",
		Pkg: "./persist", Run: "^TestTombstonesNeverExpire$",
	},
	{
		Name: "apply-keeps-of-gone", Mechanism: "a document that is created again does not keep the old expiry",
		Proves: []string{"SCOPE-14"}, File: "persist/apply.go",
		Old: "w.TTL == KeepTTL && !w.Gone", New: "w.TTL == KeepTTL",
		Pkg: "./persist", Run: "^TestApplyKeepsExpiry$",
	},
	{
		Name: "apply-end-lease", Mechanism: "creating a document again ends the lease",
		Proves: []string{"STORE-13"}, File: "persist/apply.go",
		Old: "!w.Gone && !w.EndLease", New: "!w.Gone",
		Pkg: "./persist", Run: "^TestApplyEndsLease$",
	},
	{
		Name: "validate-end-and-extend", Mechanism: "a guard must not extend a lease that a write of the same commit ends",
		Proves: []string{"STORE-13"}, File: "persist/validate.go",
		Old: "w.Key == g.Key && w.EndLease", New: "false && w.EndLease",
		Pkg: "./persist", Run: "^TestValidateNewRules$",
	},
}
