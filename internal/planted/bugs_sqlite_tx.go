package main

// sqliteTxBugs break shared transactions of the SQLite store, its hints, and its lists of expired
// records.
var sqliteTxBugs = []Bug{
	{
		Name: "sqlite-native-error", Mechanism: "an error of the function rolls everything back",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "	if failure != nil {\n		s.writer.undo(tx)", New: "	if failure != nil && ctx.Err() != nil {\n		s.writer.undo(tx)",
		Pkg: "./persist/sqlite", Run: "^TestCommitWith$",
	},
	{
		Name: "sqlite-native-refused", Mechanism: "the function does not run when the commit is refused",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "t.apply(c); err != nil {", New: "t.apply(c); err != nil && t.failure != nil {",
		Pkg: "./persist/sqlite", Run: "^TestCommitWith$", Quick: true,
	},
	{
		Name: "sqlite-native-lock", Mechanism: "the write lock is taken first, however the database begins its transactions",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "begun.ExecContext(background, w.sql.lock)", New: "begun.ExecContext(background, \"SELECT 1\")",
		Pkg: "./persist/sqlite", Run: "^TestCommitWithOwnDatabase$",
	},
	{
		Name: "sqlite-native-no-return", Mechanism: "a function that panics is rolled back",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "if !returned && !rolledBack {", New: "if false && !returned {",
		Pkg: "./persist/sqlite", Run: "^TestCommitWithNoReturn$", Flags: []string{"-timeout=10s"},
	},
	{
		Name: "sqlite-native-hangs", Mechanism: "a function that hangs after its context ended does not block other commits",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "		if done {\n			release()\n		}\n", New: "",
		Pkg: "./persist/sqlite", Run: "^TestCommitWithEndedContext$", Flags: []string{"-timeout=15s"},
	},
	{
		Name: "sqlite-native-committed", Mechanism: "if the function has committed, the error does not claim that nothing was written",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "fmt.Errorf(\"%w by a commit, and then failed: %v\", errEnded, failure)", New: "failure",
		Pkg: "./persist/sqlite", Run: "^TestCommitWithEnded$",
	},
	{
		Name: "sqlite-native-ended", Mechanism: "a transaction that the function ended is not used for the commit",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "tx.ExecContext(background, textRelease); err != nil {\n		s.writer.lose(tx)", New: "tx.ExecContext(background, textRelease); err != nil && resultCode(err) == 0 {\n		s.writer.lose(tx)",
		Pkg: "./persist/sqlite", Run: "^TestCommitWithEnded$", Flags: []string{"-timeout=30s"},
	},
	{
		Name: "sqlite-native-forgotten", Mechanism: "a commit whose id is no longer kept does not count as absent",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "return false, r.Version < w.Version", New: "return false, true",
		Pkg: "./persist/sqlite", Run: "^TestCommitWithEndedLongAgo$",
	},
	{
		Name: "sqlite-native-inside", Mechanism: "a write that would wait for itself is refused",
		Proves: []string{"TX-6"}, File: "persist/sqlite/queue.go",
		Old: "if ctx.Value(insideOf{s}) != nil {", New: "if false {",
		Pkg: "./persist/sqlite", Run: "^TestCommitWithInside$", Flags: []string{"-timeout=10s"},
	},
	{
		Name: "sqlite-native-constraint", Mechanism: "a deferred constraint that fails does not put the commit in doubt",
		Proves: []string{"TX-6", "STORE-7"}, File: "persist/sqlite/errors.go",
		Old: " || code == codeConstraint\n", New: "\n",
		Pkg: "./persist/sqlite", Run: "^(TestCommitWithConstraint|TestDeferredConstraint)$",
	},
	{
		Name: "sqlite-join-savepoint", Mechanism: "a joined commit that fails leaves nothing in the transaction",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "\"ROLLBACK TO pawl_commit; RELEASE pawl_commit\"", New: "\"RELEASE pawl_commit\"",
		Pkg: "./persist/sqlite", Run: "^TestJoinRefusal$",
	},
	{
		Name: "sqlite-join-over", Mechanism: "nothing is written outside a transaction that SQLite rolled back",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "if err == nil || resultCode(err) != codeError {", New: "if err != nil && resultCode(err) != codeError {",
		Pkg: "./persist/sqlite", Run: "^TestJoinRolledBackBySQLite$",
	},
	{
		Name: "sqlite-join-ended", Mechanism: "a transaction that the function began in place of the joined one is rolled back",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "		_ = j.tx.Rollback()\n		return j.s.settle(c, t.now, nil)", New: "		return j.s.settle(c, t.now, nil)",
		Pkg: "./persist/sqlite", Run: "^TestJoinEndedInSQL$",
	},
	{
		Name: "sqlite-join-elsewhere", Mechanism: "a transaction on another file is refused",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: " || !os.SameFile(ours.file.info, theirs.file.info) {", New: " || !os.SameFile(ours.file.info, ours.file.info) {",
		Pkg: "./persist/sqlite", Run: "^TestJoinElsewhere$",
	},
	{
		Name: "sqlite-join-durable", Mechanism: "a transaction that is not durable is refused",
		Proves: []string{"TX-6", "STORE-10"}, File: "persist/sqlite/native.go",
		Old: "durable(synchronous)", New: "durable(2)",
		Pkg: "./persist/sqlite", Run: "^TestJoinElsewhere$",
	},
	{
		Name: "sqlite-join-hidden", Mechanism: "a temporary table does not hide the records",
		Proves: []string{"TX-6"}, File: "persist/sqlite/statements.go",
		Old: "main.\"`+prefix+`records\"`", New: "\"`+prefix+`records\"`",
		Pkg: "./persist/sqlite", Run: "^TestJoinElsewhere$",
	},
	{
		Name: "sqlite-join-stale", Mechanism: "a transaction that read stale data gets an error to start over",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "if resultCode(err) == codeBusySnapshot {", New: "if false {",
		Pkg: "./persist/sqlite", Run: "^TestJoinBusy$",
	},
	{
		Name: "sqlite-hint-native", Mechanism: "a commit with a function is hinted",
		Proves: []string{"SCOPE-13"}, File: "persist/sqlite/native.go",
		Old: "	s.changes.Send(t.hints...)\n", New: "",
		Pkg: "./persist/sqlite", Run: "^TestWatchOwnCommits$",
	},
	{
		Name: "sqlite-hint-joined", Mechanism: "a joined commit inside the store's own transaction is hinted",
		Proves: []string{"SCOPE-13", "TX-6"}, File: "persist/sqlite/native.go",
		Old: "if s.joined.Swap(false) {", New: "if false {",
		Pkg: "./persist/sqlite", Run: "^TestWatchJoinInside$",
	},
	{
		Name: "sqlite-watch-function", Mechanism: "changes of other processes are hinted before a function keeps the connection",
		Proves: []string{"SCOPE-13"}, File: "persist/sqlite/native.go",
		Old: "w.noticeOthers(); err != nil {", New: "error(nil); err != nil {",
		Pkg: "./persist/sqlite", Run: "^TestWatchDuringFunction$",
	},
	{
		Name: "sqlite-watch-own", Mechanism: "the store's own commits are not taken for changes of other processes",
		Proves: []string{"SCOPE-13"}, File: "persist/sqlite/writer.go",
		Old: "w.conn.QueryRowContext(background, \"PRAGMA data_version\")", New: "w.db.QueryRowContext(background, \"PRAGMA data_version\")",
		Pkg: "./persist/sqlite", Run: "^TestWatchToldApart$",
	},
	{
		Name: "sqlite-watch-reconnected", Mechanism: "the zero hint is sent when a lost connection reads again",
		Proves: []string{"SCOPE-13"}, File: "persist/sqlite/writer.go",
		Old: "w.dataVersion = math.MinInt64", New: "_ = math.MinInt64",
		Pkg: "./persist/sqlite", Run: "^TestWatchToldApart$",
	},
	{
		Name: "sqlite-versions-tombstones", Mechanism: "Versions includes tombstones",
		Proves: []string{"SCOPE-13"}, File: "persist/sqlite/statements.go",
		Old: "\"SELECT kind, id, version FROM \" + records + \" WHERE \" + keysGiven", New: "\"SELECT kind, id, version FROM \" + records + \" WHERE NOT deleted AND \" + keysGiven",
		Pkg: "./persist/sqlite", Run: "^TestVersions$",
	},
	{
		Name: "sqlite-swept-listed", Mechanism: "a tombstone with an expiry is listed with the others",
		Proves: []string{"SCOPE-14"}, File: "persist/sqlite/list.go",
		Old: "	case q.Deleted: // tombstones of deleted records, and of records that expired and were swept\n", New: "",
		Pkg: "./persist/sqlite", Run: "^TestSweptTombstones$",
	},
	{
		Name: "sqlite-failure-left-open", Mechanism: "a transaction that failed is rolled back before the next one",
		Proves: []string{"STORE-7"}, File: "persist/sqlite/writer.go",
		Old: "		w.rollback()\n		return nothingWritten(t.failure)\n", New: "		return nothingWritten(t.failure)\n",
		Pkg: "./persist/sqlite", Run: "^TestFailedSystemCalls$",
	},
	{
		Name: "sqlite-full-in-doubt", Mechanism: "a commit without room on the disk is refused, and not in doubt",
		Proves: []string{"STORE-7"}, File: "persist/sqlite/errors.go",
		Old: " || code == codeFull ||", New: " ||",
		Pkg: "./persist/sqlite", Run: "^TestFullDisk$", Quick: true,
	},
}
