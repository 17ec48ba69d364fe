package main

// storeBugs break the stores.
var storeBugs = []Bug{
	{
		Name: "version-test-in-the-write", Mechanism: "a write onto another version than the current one is refused",
		Proves: []string{"STORE-1", "STORE-2"}, File: "persist/apply.go",
		Old: "	return r.Version == version && r.Gone(now) == gone\n", New: "	return r.Version >= version && r.Gone(now) == gone\n",
		Pkg: "./persist/memory", Run: "^TestConformance$", Quick: true,
	},
	{
		Name: "version-floor", Mechanism: "a new record starts above the floor",
		Proves: []string{"STORE-2", "SCOPE-10"}, File: "persist/apply.go",
		Old: "|| w.Version > s.before.Version\n", New: "|| w.Version >= s.before.Version\n",
		Pkg: "./persist", Run: "^TestFloor$", Quick: true,
	},
	{
		Name: "gone-test-in-the-write", Mechanism: "a write onto an expired record is refused unless it creates the document again",
		Proves: []string{"STORE-2", "STORE-8"}, File: "persist/apply.go",
		Old: "	return r.Version == version && r.Gone(now) == gone\n", New: "	return r.Version == version\n",
		Pkg: "./persist/memory", Run: "^TestConformance$", Quick: true,
	},
	{
		Name: "lease-token-in-the-write", Mechanism: "a commit under a lost lease is refused",
		Proves: []string{"STORE-2"}, File: "persist/apply.go",
		Old: "	return !s.before.Held(now) || s.before.Lease.Token != s.guard.Token\n", New: "	return s.before.Lease.Token != s.guard.Token\n",
		Pkg: "./persist/memory", Run: "^TestConformance$", Quick: true,
	},
	{
		Name: "commit-ring", Mechanism: "a record remembers its recent commits",
		Proves: []string{"STORE-1"}, File: "persist/apply.go",
		Old: "		Commits: Remember(r.Commits, commitID),\n", New: "		Commits: []string{commitID},\n",
		Pkg: "./persist/memory", Run: "^TestConformance$", Quick: true,
	},
	{
		Name: "sqlite-next-version", Mechanism: "the write itself tests the version, also on the fast path",
		Proves: []string{"STORE-2"}, File: "persist/sqlite/statements.go",
		Old: "AND version = ?8 AND deleted = 0 AND schema = ?9", New: "AND ?8 > 0 AND deleted = 0 AND schema = ?9",
		Pkg: "./persist/sqlite", Run: "^TestConformance$/^Versions$|^TestConformance$/^Model$",
	},
	{
		Name: "sqlite-row-of-another", Mechanism: "a row is written by its row id only if it still holds the same record",
		Proves: []string{"STORE-2"}, File: "persist/sqlite/statements.go",
		Old: "WHERE kind = ?6 AND id = ?7)) AND kind = ?6 AND id = ?7\"", New: "WHERE kind = ?6 AND id = ?7))\"",
		Pkg: "./persist/sqlite", Run: "^TestRowsThatHaveMoved$",
	},
	{
		Name: "sqlite-next-remembers", Mechanism: "a record keeps four ids of each writer, also on the fast path",
		Proves: []string{"CAS-7"}, File: "persist/sqlite/batch.go",
		Old: "strings.Join(persist.Remember(w.Recent, c.ID), ", New: "strings.Join(append(w.Recent[:len(w.Recent):len(w.Recent)], c.ID), ",
		Pkg: "./persist/sqlite", Run: "^TestConformance$",
	},
	{
		Name: "sqlite-immediate", Mechanism: "a transaction holds the write lock before it reads",
		Proves: []string{"STORE-2", "STORE-3", "STORE-7"}, File: "persist/sqlite/writer.go",
		Old: "= \"BEGIN IMMEDIATE\"", New: "= \"BEGIN DEFERRED\"",
		Pkg: "./persist/sqlite", Run: "^(TestConformance|TestLockHeldPastBudget)$",
	},
	{
		Name: "sqlite-durable", Mechanism: "SQLite syncs before it acknowledges",
		Proves: []string{"STORE-7"}, File: "persist/sqlite/sqlite.go",
		Old: "_busy_timeout=0&_synchronous=FULL", New: "_busy_timeout=0&_synchronous=NORMAL",
		Pkg: "./persist/sqlite", Run: "^(TestDurableByDefault|TestSyncBeforeAck)$", Quick: true,
	},
	{
		Name: "sqlite-private-files", Mechanism: "only the owner can read the database file",
		Proves: []string{"STORE-12"}, File: "persist/sqlite/file.go",
		Old: "os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)", New: "os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)",
		Pkg: "./persist/sqlite", Run: "^TestFilesArePrivate$",
	},
	{
		Name: "sqlite-newer-schema", Mechanism: "a database from a newer release is refused",
		Proves: []string{"STORE-9"}, File: "persist/sqlite/migrate.go",
		Old: "	if version > len(names) {", New: "	if version > len(names)+1000 {",
		Pkg: "./persist/sqlite", Run: "^TestNewerSchemaIsRefused$",
	},
	{
		Name: "sqlite-busy-budget", Mechanism: "a lock held past the budget is reported as such",
		Proves: []string{"STORE-7"}, File: "persist/sqlite/errors.go",
		Old: "	return primary == codeBusy || primary == codeLocked\n", New: "	return primary == codeLocked\n",
		Pkg: "./persist/sqlite", Run: "^TestLockHeldPastBudget$", Quick: true,
	},
	{
		Name: "sqlite-batch-isolation", Mechanism: "a commit that cannot be written fails alone",
		Proves: []string{"STORE-7"}, File: "persist/sqlite/writer.go",
		Old: "	if !errors.Is(err, errNothingWritten) {", New: "	if errors.Is(err, errNothingWritten) {",
		Pkg: "./persist/sqlite", Run: "^TestRejectedRowFailsAlone$", Quick: true,
	},
	{
		Name: "sqlite-purge-floor", Mechanism: "purging raises the floor first",
		Proves: []string{"STORE-1"}, File: "persist/sqlite/purge.go",
		Old: "b.sql.raiseFloor, int64(highest)); err", New: "b.sql.raiseFloor, int64(highest)-1); err",
		Pkg: "./persist/sqlite", Run: "^TestConformance$",
	},
	{
		Name: "sqlite-touch", Mechanism: "a whole row is written when more than its document changes",
		Proves: []string{"STORE-1"}, File: "persist/sqlite/row.go",
		Old: " && before.Lease == after.Lease", New: "",
		Pkg: "./persist/sqlite", Run: "^TestConformance$",
	},
}
