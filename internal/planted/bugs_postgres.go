package main

// postgresBugs break the PostgreSQL store.
var postgresBugs = []Bug{
	{
		Name: "postgres-unique-wait", Mechanism: "an uncommitted row of another session does not delay a batch",
		Proves: []string{"CAS-11"}, File: "persist/postgres/migrations/0001_records.sql",
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
		Old: "AND r.version = $3 AND (r.xmax", New: "AND $3::bigint > 0 AND (r.xmax",
		Pkg: "./persist/postgres", Run: "^TestConformance$/^Model$",
	},
	{
		Name: "postgres-next-mortal-version", Mechanism: "the write itself tests the version, also on the fast path of a record with an expiry",
		Proves: []string{"STORE-2"}, File: "persist/postgres/statements.go",
		Old: "AND l.version = $3 FOR NO KEY UPDATE SKIP LOCKED)", New: "AND $3::bigint > 0 FOR NO KEY UPDATE SKIP LOCKED)",
		Pkg: "./persist/postgres", Run: "^TestNextVersionIsNotWaitedFor$",
	},
	{
		Name: "postgres-next-locked", Mechanism: "the fast path does not wait for a locked record",
		Proves: []string{"CAS-11", "STORE-14"}, File: "persist/postgres/statements.go",
		Old: "AND (r.xmax = 0 OR r.xmax = r.xmin) ", New: "",
		Pkg: "./persist/postgres", Run: "^TestNextVersionIsNotWaitedFor$",
	},
	{
		Name: "postgres-brief-sessions", Mechanism: "the lock_timeout of direct commits does not affect other statements",
		Proves: []string{"STORE-10", "STORE-14"}, File: "persist/postgres/session.go",
		Old: "	_, err := roundTrip(ctx, conn.Conn().PgConn(), query(\"RESET lock_timeout\"))\n", New: "	err := ctx.Err()\n",
		Pkg: "./persist/postgres", Run: "^TestBriefSession$",
	},
	{
		Name: "postgres-sessions-of-others", Mechanism: "a session that a proxy passes on keeps no lock_timeout",
		Proves: []string{"STORE-10"}, File: "persist/postgres/statements.go",
		Old: " WHERE pg_catalog.pg_backend_pid() = $1`", New: " WHERE $1::int <> 0`",
		Pkg: "./persist/postgres", Run: "^TestSessionOfAProxy$",
	},
	{
		Name: "postgres-next-remembers", Mechanism: "a record keeps four ids of each writer, also on the fast path",
		Proves: []string{"CAS-7"}, File: "persist/postgres/write.go",
		Old: "recent := persist.Remember(w.Recent, c.ID)\n", New: "recent := append(slices.Clone(w.Recent), c.ID)\n",
		Pkg: "./persist/postgres", Run: "^TestNextVersionsRemember",
	},
	{
		Name: "postgres-next-remembers-in-batches", Mechanism: "a record keeps four ids of each writer, also in batches",
		Proves: []string{"CAS-7"}, File: "persist/postgres/write.go",
		Old: "strings.Join(persist.Remember(writes[i].Recent, r.commit.ID), ", New: "strings.Join(append(slices.Clone(writes[i].Recent), r.commit.ID), ",
		Pkg: "./persist/postgres", Run: "^TestNextVersionsRemember",
	},
	{
		Name: "postgres-next-versions", Mechanism: "the write itself tests the version, also in batches",
		Proves: []string{"STORE-2"}, File: "persist/postgres/migrations/0001_records.sql",
		Old: "r.id = k.id AND r.version = k.version\n", New: "r.id = k.id\n",
		Pkg: "./persist/postgres", Run: "^TestBatchOfNextVersions$",
	},
	{
		Name: "postgres-next-versions-plainly", Mechanism: "the write itself tests the version, also in batches without expiry",
		Proves: []string{"STORE-2"}, File: "persist/postgres/migrations/0001_records.sql",
		Old: "r.id = k.id AND r.version = k.version AND (r.xmax", New: "r.id = k.id AND (r.xmax",
		Pkg: "./persist/postgres", Run: "^TestBatchOfNextVersions$",
	},
	{
		Name: "postgres-waiting-writer-first", Mechanism: "readers let a waiting writer go first",
		Proves: []string{"CAS-11"}, File: "persist/postgres/transaction.go",
		Old: "				read[number] = true\n", New: "",
		Pkg: "./persist/postgres", Run: "^TestReadersDoNotStarveAWriter$",
	},
	{
		Name: "postgres-winner-after-a-wait", Mechanism: "a record that was created again during a wait is read again",
		Proves: []string{"STORE-5"}, File: "persist/postgres/migrations/0001_records.sql",
		Old: "        IF present.version IS NULL THEN -- it is locked,", New: "        IF present.version IS NULL AND patience = 0 THEN -- it is locked,",
		Pkg: "./persist/postgres", Run: "^TestWinnerIsNotFromBeforeAWait$",
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
		Proves: []string{"STORE-8", "STORE-10"}, File: "persist/postgres/migrations/0001_records.sql",
		Old: "    at := pg_catalog.clock_timestamp();", New: "    at := clock_timestamp();",
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
		Old: "	left := max(s.config.AcquireTimeout-time.Since(then), min(", New: "	left := max(s.config.AcquireTimeout, min(",
		Pkg: "./persist/postgres", Run: "^TestConnectionIsWaitedForOnce$",
	},
	{
		Name: "postgres-turn", Mechanism: "the winner is locked for a batch that insists",
		Proves: []string{"CAS-1"}, File: "persist/postgres/turn.go",
		Old: "		s.keep(t, w.Key, lost.Winners[0].Version)\n", New: "		s.endTurn(t, nil)\n",
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
		Proves: []string{"CAS-11"}, File: "persist/postgres/migrations/0001_records.sql",
		Old: "            IF present.version = p_expected THEN\n", New: "            IF true THEN\n",
		Pkg: "./persist/postgres", Run: "^TestTooLateWaitsForNobody$",
	},
}
