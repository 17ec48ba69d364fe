package main

// fsBugs break the store of plain files.
var fsBugs = []Bug{
	{
		Name: "fs-file-sync", Mechanism: "a new file is synced before it is renamed",
		Proves: []string{"STORE-6"}, File: "persist/fs/file.go",
		Old: "	if err := file.Sync(); err != nil {", New: "	if err := error(nil); err != nil {",
		Pkg: "./persist/fs", Run: "^(TestPowerFailure|TestSyncBeforeAck)$",
	},
	{
		Name: "fs-folder-sync", Mechanism: "the folder is synced before a commit of one record is acknowledged",
		Proves: []string{"STORE-6"}, File: "persist/fs/commit.go",
		Old: "	if err := syncFolder(filepath.Dir(ch.target)); err != nil {", New: "	if err := error(nil); err != nil {",
		Pkg: "./persist/fs", Run: "^(TestPowerFailure|TestSyncBeforeAck)$", Quick: true,
	},
	{
		Name: "fs-journal-sync", Mechanism: "the journal is durable before records are renamed",
		Proves: []string{"STORE-6", "TX-3"}, File: "persist/fs/commit.go",
		Old: "	if err := syncFolder(s.journals); err != nil {", New: "	if err := error(nil); err != nil {",
		Pkg: "./persist/fs", Run: "^(TestPowerFailure|TestSyncBeforeAck)$",
	},
	{
		Name: "fs-temps-sync", Mechanism: "the names of temporary files are durable before the journal",
		Proves: []string{"TX-3"}, File: "persist/fs/commit.go",
		Old: "	if err := syncFolder(s.temps); err != nil {", New: "	if err := error(nil); err != nil {",
		Pkg: "./persist/fs", Run: "^(TestPowerFailure|TestSyncBeforeAck)$",
	},
	{
		Name: "fs-new-folder-sync", Mechanism: "a new folder is durable before a record in it",
		Proves: []string{"STORE-6"}, File: "persist/fs/file.go",
		Old: "	return syncFolder(filepath.Dir(path))\n}\n\n// maxFolders", New: "	return nil\n}\n\n// maxFolders",
		Pkg: "./persist/fs", Run: "^TestPowerFailure$",
	},
	{
		Name: "fs-finish-first", Mechanism: "whoever takes a stripe finishes its journals first",
		Proves: []string{"TX-3"}, File: "persist/fs/journal.go",
		Old: "		found, err := s.pending(want.stripes())\n", New: "		found, err := s.pending(stripeSet{})\n",
		Pkg: "./persist/fs", Run: "^(TestWhoeverComesFinishes|TestKilledAtEverySystemCall)$", Quick: true,
	},
	{
		Name: "fs-replay-conditional", Mechanism: "replay leaves what a later commit has changed",
		Proves: []string{"TX-3"}, File: "persist/fs/journal.go",
		Old: "		return nil // a later commit has changed it\n", New: "",
		Pkg: "./persist/fs", Run: "^TestJournalThatComesBack$", Quick: true,
	},
	{
		Name: "fs-journal-again", Mechanism: "whoever finishes a journal makes it durable first",
		Proves: []string{"TX-3"}, File: "persist/fs/journal.go",
		Old: "	if err := s.replace(stripeOf(plan.Writes[0].Key), path, data); err != nil {", New: "	if err := error(nil); err != nil {",
		Pkg: "./persist/fs", Run: "^TestPowerFailureAfterKill$",
	},
	{
		Name: "fs-failed-sync-not-repeated", Mechanism: "what may not be durable is written again, not synced again",
		Proves: []string{"STORE-6", "TX-3"}, File: "persist/fs/journal.go",
		Old: "		return s.replace(stripeOf(w.Key), target, data)\n", New: "		_ = data\n		return nil\n",
		Pkg: "./persist/fs", Run: "^TestFailedSystemCalls$",
	},
	{
		Name: "fs-mark", Mechanism: "a commit of one record is marked until it is durable",
		Proves: []string{"STORE-6"}, File: "persist/fs/commit.go",
		Old: "	mark, err := s.writeMark(ch.record.Key)\n", New: "	mark, err := \"\", error(nil)\n",
		Pkg: "./persist/fs", Run: "^TestPowerFailureAfterKill$",
	},
	{
		Name: "fs-load-looks-for-journals", Mechanism: "Load looks for commits that are half done",
		Proves: []string{"TX-3"}, File: "persist/fs/read.go",
		Old: "	if len(found) == 0 {\n", New: "	if len(found) >= 0 {\n",
		Pkg: "./persist/fs", Run: "^(TestWhoeverComesFinishes|TestNoReaderSeesHalf)$",
	},
	{
		Name: "fs-list-lock", Mechanism: "no commit of several records happens while a list reads",
		Proves: []string{"TX-3"}, File: "persist/fs/commit.go",
		Old: "wanted{listLock: exclusive})", New: "wanted{listLock: shared})",
		Pkg: "./persist/fs", Run: "^TestNoReaderSeesHalf$",
	},
	{
		Name: "fs-list-finishes", Mechanism: "List finishes what is half done",
		Proves: []string{"TX-3"}, File: "persist/fs/read.go",
		Old: "return j.mark })", New: "return true })",
		Pkg: "./persist/fs", Run: "^TestWhoeverComesFinishes$",
	},
	{
		Name: "fs-checksum", Mechanism: "a changed file is found out",
		Proves: []string{"STORE-6"}, File: "persist/fs/file.go",
		Old: "	if e.Checksum != \"\" && e.Checksum != checksum {", New: "	if false {",
		Pkg: "./persist/fs", Run: "^(TestEveryByteCounts|TestDamagedRecord|TestDamagedJournal)$",
	},
	{
		Name: "fs-exclusive", Mechanism: "a writer has its stripe to itself",
		Proves: []string{"STORE-2", "STORE-3"}, File: "persist/fs/lock.go",
		Old: "		want.add(stripeOf(w.Key), exclusive)\n", New: "		want.add(stripeOf(w.Key), shared)\n",
		Pkg: "./persist/fs", Run: "^TestConformance$",
	},
	{
		Name: "fs-gate", Mechanism: "who waits for a lock comes before who had it last",
		Proves: []string{"STORE-3"}, File: "persist/fs/lock.go",
		Old: "	if err := patiently(ctx, gate.TryLock); err != nil {", New: "	if err := patiently(ctx, func() (bool, error) { return true, nil }); err != nil {",
		Pkg: "./persist/fs", Run: "^TestWhoWaitsIsNext$",
	},
	{
		Name: "fs-leftovers", Mechanism: "files that a journal names are not removed as leftovers",
		Proves: []string{"TX-3"}, File: "persist/fs/create.go",
		Old: "err != nil || len(found) > 0 {", New: "err != nil || len(found) > 9 {",
		Pkg: "./persist/fs", Run: "^TestLeftoversAreRemoved$",
	},
	{
		Name: "fs-purge-floor", Mechanism: "purging raises the floor first",
		Proves: []string{"STORE-2"}, File: "persist/fs/purge.go",
		Old: "s.raiseFloor(ctx, highest); err", New: "s.raiseFloor(ctx, highest-1); err",
		Pkg: "./persist/fs", Run: "^TestConformance$",
	},
	{
		Name: "fs-purge-journals", Mechanism: "no journal can bring back what was purged",
		Proves: []string{"TX-3"}, File: "persist/fs/purge.go",
		Old: "	if err := syncFolder(s.journals); err != nil {", New: "	if err := error(nil); err != nil {",
		Pkg: "./persist/fs", Run: "^TestPowerFailureAfterPurge$",
	},
	{
		Name: "fs-case-folding", Mechanism: "ids that differ in case have files that differ in more",
		Proves: []string{"SCOPE-11"}, File: "persist/fs/names.go",
		Old: "	return 'a' <= c && c <= 'z' || ", New: "	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || ",
		Pkg: "./persist/fs", Run: "^TestNamesAreKeptApart$",
	},
	{
		Name: "fs-private-files", Mechanism: "files are their owner's",
		Proves: []string{"STORE-12"}, File: "persist/fs/file.go",
		Old: "os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)", New: "os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)",
		Pkg: "./persist/fs", Run: "^TestFilesArePrivate$",
	},
	{
		Name: "fs-newer-format", Mechanism: "a directory of a newer release is refused",
		Proves: []string{"STORE-9"}, File: "persist/fs/create.go",
		Old: "	if content.Format > format {", New: "	if content.Format > format+1000 {",
		Pkg: "./persist/fs", Run: "^TestNewerFormatIsRefused$",
	},
	{
		Name: "fs-foreign-directory", Mechanism: "a directory that is something else is refused",
		Proves: []string{"STORE-9"}, File: "persist/fs/create.go",
		Old: "		if !isStore {\n			return fmt.Errorf(", New: "		if !isStore && false {\n			return fmt.Errorf(",
		Pkg: "./persist/fs", Run: "^TestOtherDirectoriesAreRefused$",
	},
}
