package main

// hintBugs are about hints, versions and the rules of expiry and leases that every store has in common.
var hintBugs = []Bug{
	{
		Name: "hints-told-version", Mechanism: "a merged hint tells no version that one of its hints did not",
		Proves: []string{"SCOPE-13"}, File: "persist/internal/hints/hints.go",
		Old: "case known == 0 || hint.Version == 0:", New: "case false:",
		Pkg: "./persist/internal/hints", Run: "^TestMerge$", Quick: true,
	},
	{
		Name: "hints-unbounded", Mechanism: "what is kept for a slow watcher is bounded",
		Proves: []string{"SCOPE-13"}, File: "persist/internal/hints/hints.go",
		Old: "!pending && len(s.order) == most", New: "false",
		Pkg: "./persist/internal/hints", Run: "^TestSlowWatcher$", Quick: true,
	},
	{
		Name: "hints-after-the-end", Mechanism: "wake is not called once the watch has ended",
		Proves: []string{"SCOPE-13"}, File: "persist/internal/hints/hints.go",
		Old: "if err := s.ended(ctx); err != nil {\n\t\t\t\treturn err\n\t\t\t}\n\t\t\twake(hint)", New: "wake(hint)",
		Pkg: "./persist/internal/hints", Run: "^TestEndWhileDelivering$",
	},
	{
		Name: "hints-release", Mechanism: "a released lease is hinted",
		Proves: []string{"SCOPE-13"}, File: "persist/internal/hints/hints.go",
		Old: "case before.Lease.Token != 0 && after.Lease.Token == 0:", New: "case false:",
		Pkg: "./persist/internal/hints", Run: "^TestOf$",
	},
	{
		Name: "memory-take-unheard", Mechanism: "watchers are told of what Take took",
		Proves: []string{"SCOPE-13"}, File: "persist/memory/memory.go",
		Old: "s.hint(r, taken)", New: "_ = r",
		Pkg: "./persist/memory", Run: "^TestConformance$/^Watching$/^every_change",
	},
	{
		Name: "fs-new-folder", Mechanism: "what came into a folder before it was watched is covered by the zero hint",
		Proves: []string{"SCOPE-13"}, File: "persist/fs/notify_linux.go",
		Old: "\t\t\tto.Send(persist.Hint{})\n\t\t}\n\tcase e.mask&renamed", New: "\t\t}\n\tcase e.mask&renamed",
		Pkg: "./persist/fs", Run: "^TestNotifiedOfNewFolders$",
	},
	{
		Name: "fs-folders-below", Mechanism: "folders in a new folder are watched as well",
		Proves: []string{"SCOPE-13"}, File: "persist/fs/notify_linux.go",
		Old: "ok && entry.IsDir()", New: "ok && entry.IsDir() && folder.path == n.root && !folder.place.whole && !below.place.whole",
		Pkg: "./persist/fs", Run: "^TestNotifiedOfNewFolders$",
	},
	{
		Name: "fs-overflow", Mechanism: "events that the kernel has dropped are made up for",
		Proves: []string{"SCOPE-13"}, File: "persist/fs/notify_linux.go",
		Old: "if err := n.watchAll(); err != nil {\n\t\t\treturn err\n\t\t}", New: "",
		Pkg: "./persist/fs", Run: "^TestNotifiedTooMuch$",
	},
	{
		Name: "fs-poll-tick", Mechanism: "two changes in one tick of the file system's clock are not taken for one",
		Proves: []string{"SCOPE-13"}, File: "persist/fs/watch.go",
		Old: "seen, again = now, changed", New: "seen, again = now, false",
		Pkg: "./persist/fs", Run: "^TestPollTicks$",
	},
	{
		Name: "fs-records-gone", Mechanism: "a watcher polls when the kernel tells nothing any more",
		Proves: []string{"SCOPE-13"}, File: "persist/fs/watch.go",
		Old: "if n.run(ctx, to) == nil {\n\t\t\t\treturn\n\t\t\t}", New: "_ = n.run(ctx, to)\n\t\t\tif err == nil {\n\t\t\t\treturn\n\t\t\t}",
		Pkg: "./persist/fs", Run: "^TestWatchWithoutRecords$",
	},
	{
		Name: "fs-versions-in-doubt", Mechanism: "a version is told when its commit is finished",
		Proves: []string{"SCOPE-13", "STORE-7"}, File: "persist/fs/watch.go",
		Old: "busy[i] |= j.stripes[i]", New: "busy[i] |= 0 & j.stripes[i]",
		Pkg: "./persist/fs", Run: "^TestVersionsWait$",
	},
	{
		Name: "fs-versions-tentative", Mechanism: "a version is told when its file is durable",
		Proves: []string{"SCOPE-13", "STORE-7"}, File: "persist/fs/watch.go",
		Old: "if records[i].tentative || busy", New: "if busy",
		Pkg: "./persist/fs", Run: "^TestVersionsWait$",
	},
	{
		Name: "apply-sweep-forgets", Mechanism: "a swept tombstone tells when the record has expired",
		Proves: []string{"SCOPE-14"}, File: "persist/apply.go",
		Old: "if w.Swept {", New: "if false {",
		Pkg: "./persist", Run: "^TestApplySweeps$",
	},
	{
		Name: "apply-tombstone-expires", Mechanism: "a tombstone is never expired",
		Proves: []string{"SCOPE-14"}, File: "persist/persist.go",
		Old: "return !r.Deleted && !r.Expires.IsZero()", New: "return !r.Expires.IsZero()",
		Pkg: "./persist", Run: "^TestTombstonesNeverExpire$",
	},
	{
		Name: "apply-keeps-of-gone", Mechanism: "a document that starts over does not expire with the old one",
		Proves: []string{"SCOPE-14"}, File: "persist/apply.go",
		Old: "w.TTL == KeepTTL && !w.Gone", New: "w.TTL == KeepTTL",
		Pkg: "./persist", Run: "^TestApplyKeepsExpiry$",
	},
	{
		Name: "apply-end-lease", Mechanism: "a document that starts over ends the lease",
		Proves: []string{"STORE-13"}, File: "persist/apply.go",
		Old: "!w.Gone && !w.EndLease", New: "!w.Gone",
		Pkg: "./persist", Run: "^TestApplyEndsLease$",
	},
	{
		Name: "validate-end-and-extend", Mechanism: "no guard changes the lease that a write ends",
		Proves: []string{"STORE-13"}, File: "persist/validate.go",
		Old: "w.Key == g.Key && w.EndLease", New: "false && w.EndLease",
		Pkg: "./persist", Run: "^TestValidateNewRules$",
	},
}
