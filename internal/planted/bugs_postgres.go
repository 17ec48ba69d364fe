package main

// postgresBugs break the PostgreSQL store.
var postgresBugs = []Bug{
	{
		Name: "postgres-unique-wait", Mechanism: "an uncommitted row of another session does not delay a batch",
		Proves: []string{"CAS-11"}, File: "persist/postgres/migrations/0002_functions.sql",
		Old: "    PERFORM pg_catalog.set_config('lock_timeout', greatest(patience, 10)::text, true);\n    IF patience > 0 AND shared THEN", New: "    PERFORM pg_catalog.set_config('lock_timeout', patience::text, true);\n    IF patience > 0 AND shared THEN",
		Pkg: "./persist/postgres", Run: "^TestForeignCreatorHoldsUpNoBatch$",
	},
	{
		Name: "postgres-forgotten-names", Mechanism: "a session that has lost a prepared statement gets its text again",
		Proves: []string{"STORE-10"}, File: "persist/postgres/roundtrip.go",
		Old: "		forget(statements)\n", New: "",
		Pkg: "./persist/postgres", Run: "^TestForgetfulSessions$", Flags: []string{"-timeout=30s"},
	},
	{
		Name: "postgres-time-was-over", Mechanism: "a connection whose deadline passed during a statement is not reused",
		Proves: []string{"STORE-14"}, File: "persist/postgres/roundtrip.go",
		Old: "			hangUp(conn)\n", New: "			_ = hangUp\n",
		Pkg: "./persist/postgres", Run: "^TestStoppedWhileItWrites$",
	},
	{
		Name: "postgres-next-version", Mechanism: "the write itself tests the version, also on the fast path",
		Proves: []string{"STORE-2"}, File: "persist/postgres/statements.go",
		Old: "AND l.version = $3 FOR NO KEY UPDATE SKIP LOCKED)", New: "AND $3::bigint > 0 FOR NO KEY UPDATE SKIP LOCKED)",
		Pkg: "./persist/postgres", Run: "^TestConformance$/^Model$",
	},
	{
		Name: "postgres-next-locked", Mechanism: "the fast path does not wait for a locked record",
		Proves: []string{"CAS-11", "STORE-14"}, File: "persist/postgres/statements.go",
		Old: " FOR NO KEY UPDATE SKIP LOCKED)", New: " FOR NO KEY UPDATE)",
		Pkg: "./persist/postgres", Run: "^TestNextVersionIsNotWaitedFor$",
	},
	{
		Name: "postgres-next-remembers", Mechanism: "a record keeps four ids of each writer, also on the fast path",
		Proves: []string{"CAS-7"}, File: "persist/postgres/write.go",
		Old: "p.ring = persist.Remember(recent, r.commit.ID)\n", New: "p.ring = append(append([]string(nil), recent...), r.commit.ID)\n",
		Pkg: "./persist/postgres", Run: "^TestNextVersionsRemember",
	},
	{
		Name: "postgres-next-versions", Mechanism: "the write itself tests the version, also in batches",
		Proves: []string{"STORE-2"}, File: "persist/postgres/migrations/0002_functions.sql",
		Old: "l.id = n.id AND l.version = n.expected\n", New: "l.id = n.id\n",
		Pkg: "./persist/postgres", Run: "^TestBatchOfNextVersions$",
	},
	{
		Name: "postgres-waiting-writer-first", Mechanism: "readers let a waiting writer go first",
		Proves: []string{"CAS-11"}, File: "persist/postgres/transaction.go",
		Old: "				read[number] = true\n", New: "",
		Pkg: "./persist/postgres", Run: "^TestReadersDoNotStarveAWriter$",
	},
	{
		Name: "postgres-sibling-alone", Mechanism: "a transient error caused by one member of a batch fails only that member",
		Proves: []string{"CAS-11"}, File: "persist/postgres/transaction.go",
		Old: "sqlState(err) != \"\" && refused(err) {", New: "!errors.Is(err, persist.ErrUnavailable) {",
		Pkg: "./persist/postgres", Run: "^TestFailedSiblingFailsAlone$", Quick: true,
	},
	{
		Name: "postgres-digits", Mechanism: "numbers that cannot be read back are refused",
		Proves: []string{"CAS-11"}, File: "persist/postgres/numbers.go",
		Old: "exponent = min(10*exponent", New: "exponent = 0 * min(10*exponent",
		Pkg: "./persist/postgres", Run: "^TestNumbersThatCannotBeRead$", Quick: true,
	},
	{
		Name: "postgres-schema-lock", Mechanism: "stores with different prefixes can create one schema concurrently",
		Proves: []string{"STORE-9"}, File: "persist/postgres/names.go",
		Old: "names{schema: n.schema}.migrationLock() }", New: "n.migrationLock() }",
		Pkg: "./persist/postgres", Run: "^TestOneNewSchemaForManyStores$",
	},
	{
		Name: "postgres-clock-by-search-path", Mechanism: "the time comes from the server's clock, whatever the search path",
		Proves: []string{"STORE-8", "STORE-10"}, File: "persist/postgres/statements.go",
		Old: "(SELECT pg_catalog.clock_timestamp() AS now OFFSET 0) AS c\n\t\t\tWHERE m.name", New: "(SELECT clock_timestamp() AS now OFFSET 0) AS c\n\t\t\tWHERE m.name",
		Pkg: "./persist/postgres", Run: "^TestClockIsTheServers$",
	},
	{
		Name: "postgres-role-timeout", Mechanism: "a role's statement_timeout does not end a wait",
		Proves: []string{"STORE-10"}, File: "persist/postgres/statements.go",
		Old: "pg_catalog.set_config('statement_timeout', $1, true)", New: "pg_catalog.concat($1::text)",
		Pkg: "./persist/postgres", Run: "^TestStatementTimeoutOfTheRole$",
	},
	{
		Name: "postgres-connection-waited-for-once", Mechanism: "a commit that joins a queue does not wait for a connection a second time",
		Proves: []string{"STORE-14"}, File: "persist/postgres/commit.go",
		Old: "	left := max(s.config.AcquireTimeout-time.Since(arrived), min(", New: "	left := max(s.config.AcquireTimeout, min(",
		Pkg: "./persist/postgres", Run: "^TestConnectionIsWaitedForOnce$",
	},
	{
		Name: "postgres-turn", Mechanism: "the winner is locked for a batch that insists",
		Proves: []string{"CAS-1"}, File: "persist/postgres/turn.go",
		Old: "		s.keep(t, r.keys[0], lost.Winners[0].Version)\n", New: "		s.endTurn(t, nil)\n",
		Pkg: "./persist/postgres", Run: "^TestTurn$", Flags: []string{"-timeout=90s"},
	},
	{
		Name: "postgres-turn-ends", Mechanism: "a turn that is not taken ends",
		Proves: []string{"CAS-1", "CAS-11"}, File: "persist/postgres/turn.go",
		Old: "const longestTurn = 20 * time.Millisecond", New: "const longestTurn = time.Hour",
		Pkg: "./persist/postgres", Run: "^TestTurnEnds$", Flags: []string{"-timeout=90s"},
	},
	{
		Name: "postgres-too-late-waits", Mechanism: "a commit that has already lost does not wait for a lock",
		Proves: []string{"CAS-11"}, File: "persist/postgres/transaction.go",
		Old: "p.commit.Writes[0].Expected < r.Version {", New: "false {",
		Pkg: "./persist/postgres", Run: "^TestLostCommitDoesNotWait$",
	},
	{
		Name: "postgres-fast-token", Mechanism: "the statement of the fast way tests the lease token",
		Proves: []string{"STORE-13"}, File: "persist/postgres/statements.go",
		Old: "($12 = 0 OR r.token = $12 AND r.until > c.now)", New: "($12 = 0 OR r.token <> $12 OR r.token = $12 AND r.until > c.now)",
		Pkg: "./persist/postgres", Run: "^TestConformance$",
	},
	{
		Name: "postgres-batch-token", Mechanism: "a batch of the fast way tests the lease token of each commit",
		Proves: []string{"STORE-13"}, File: "persist/postgres/migrations/0002_functions.sql",
		Old: "        AND (k.token = 0 OR r.token = k.token AND r.until > now)\n", New: "",
		Pkg: "./persist/postgres", Run: "^TestBatchOfLeases$",
	},
	{
		Name: "postgres-fast-absence", Mechanism: "creating a record takes the advisory lock that stands for its absence",
		Proves: []string{"STORE-2"}, File: "persist/postgres/statements.go",
		Old: "pg_catalog.pg_try_advisory_xact_lock($1)::text", New: "($1::bigint IS NOT NULL)::text",
		Pkg: "./persist/postgres", Run: "^TestReadersShare$|^TestWriteSkew$",
	},
	{
		Name: "postgres-fast-deleted", Mechanism: "a delete does not go the fast way, which leaves no tombstone",
		Proves: []string{"STORE-1"}, File: "persist/postgres/write.go",
		Old: "w.Gone || w.Deleted || ", New: "w.Gone || ",
		Pkg: "./persist/postgres", Run: "^TestConformance$/^Model$",
	},
}
