package main

// postgresLogBugs break the logs of the PostgreSQL store.
var postgresLogBugs = []Bug{
	{
		Name: "postgres-log-late-commit", Mechanism: "a commit that becomes visible late gets a late position",
		Proves: []string{"STORE-1"}, File: "persist/postgres/log_statements.go",
		Old: "WHERE position IS NULL ORDER BY seq LIMIT $1\n", New: "WHERE position IS NULL AND seq > (SELECT coalesce(max(seq), 0) FROM {log} WHERE position IS NOT NULL) ORDER BY seq LIMIT $1\n",
		Pkg: "./persist/postgres", Run: "^TestLateCommitGetsALatePosition$",
	},
	{
		Name: "postgres-log-order-of-seq", Mechanism: "an acknowledged commit has a lower position than one that began later",
		Proves: []string{"STORE-1"}, File: "persist/postgres/log_statements.go",
		Old: "pg_catalog.row_number() OVER (ORDER BY seq) AS n", New: "pg_catalog.row_number() OVER (ORDER BY seq DESC) AS n",
		Pkg: "./persist/postgres", Run: "^TestLateCommitGetsALatePosition$",
	},
	{
		Name: "postgres-log-order-lock", Mechanism: "one transaction at a time gives positions",
		Proves: []string{"STORE-1", "STORE-14"}, File: "persist/postgres/log_statements.go",
		Old: "`SELECT pg_catalog.pg_advisory_xact_lock($1)`", New: "`SELECT $1::bigint`",
		Pkg: "./persist/postgres", Run: "^(TestOrderNeedsNoLock|TestOneOrderForAllReaders)$",
	},
	{
		Name: "postgres-log-order-looks-first", Mechanism: "a page that is not full has all acknowledged entries",
		Proves: []string{"STORE-1"}, File: "persist/postgres/log.go",
		Old: "if rows := answers[2]; len(answers[1]) == 0 ||", New: "if rows := answers[2]; len(rows) > 0 ||",
		Pkg: "./persist/postgres", Run: "^TestConformance$/^LogOrder$/^positions_grow",
	},
	{
		Name: "postgres-log-order-in-steps", Mechanism: "positions are given until no entry is without one",
		Proves: []string{"STORE-1"}, File: "persist/postgres/log.go",
		Old: "if err != nil || numbered < numberStep ||", New: "if err != nil || numbered <= numberStep ||",
		Pkg: "./persist/postgres", Run: "^TestPositionsAreGivenInSteps$",
	},
	{
		Name: "postgres-log-full-page", Mechanism: "a full page is read without giving positions",
		Proves: []string{"STORE-14"}, File: "persist/postgres/log.go",
		Old: "len(answers[1]) == 0 || len(rows) >= limit {", New: "len(answers[1]) == 0 {",
		Pkg: "./persist/postgres", Run: "^TestOrderNeedsNoLock$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "postgres-log-one-reader-waits", Mechanism: "readers that wait for positions leave connections to others",
		Proves: []string{"STORE-14"}, File: "persist/postgres/open.go",
		Old: "numbering: make(chan struct{}, 1)}", New: "numbering: make(chan struct{}, 100)}",
		Pkg: "./persist/postgres", Run: "^TestOrderNeedsNoLock$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "postgres-log-durable-position", Mechanism: "a position is durable before it is returned",
		Proves: []string{"STORE-10"}, File: "persist/postgres/log.go",
		Old: "query(s.sql.durable), inOrder,\n", New: "query(`SELECT`), inOrder,\n",
		Pkg: "./persist/postgres", Run: "^TestDurableWhateverTheDefault$",
	},
	{
		Name: "postgres-log-order-deadlock", Mechanism: "a reader that the server ended because of a deadlock goes on",
		Proves: []string{"STORE-4"}, File: "persist/postgres/log.go",
		Old: "if !worthRetrying(err) || !pause(", New: "if worthRetrying(err) || !pause(",
		Pkg: "./persist/postgres", Run: "^TestOrderSurvivesADeadlock$",
	},
	{
		Name: "postgres-log-without-head", Mechanism: "entries are written only if their record is, also in a batch",
		Proves: []string{"STORE-2"}, File: "persist/postgres/log_statements.go",
		Old: "JOIN outcome o ON o.written AND o.kind", New: "JOIN outcome o ON o.kind",
		Pkg: "./persist/postgres", Run: "^TestAppendGoesTheFastWay$",
	},
	{
		Name: "postgres-log-order-of-numbers", Mechanism: "positions follow the numbers within a commit",
		Proves: []string{"STORE-1"}, File: "persist/postgres/log_statements.go",
		Old: "AS e (data, place) ORDER BY e.place\n", New: "AS e (data, place) ORDER BY e.place DESC\n",
		Pkg: "./persist/postgres", Run: "^TestOneOrderForAllReaders$",
	},
	{
		Name: "postgres-log-order-of-numbers-in-batch", Mechanism: "positions follow the numbers within a commit of a batch",
		Proves: []string{"STORE-1"}, File: "persist/postgres/log_statements.go",
		Old: "AND o.id = e.id ORDER BY e.place\n", New: "AND o.id = e.id ORDER BY e.place DESC\n",
		Pkg: "./persist/postgres", Run: "^TestOneOrderForAllReaders$",
	},
	{
		Name: "postgres-log-order-of-numbers-in-transaction", Mechanism: "positions follow the numbers within a commit of several records",
		Proves: []string{"STORE-1"}, File: "persist/postgres/migrations/0004_log.sql",
		Old: "ORDER BY e.place;", New: "ORDER BY e.place DESC;",
		Pkg: "./persist/postgres", Run: "^TestOneOrderForAllReaders$",
	},
	{
		Name: "postgres-log-taken", Mechanism: "a taken number is a conflict",
		Proves: []string{"STORE-2"}, File: "persist/postgres/transaction.go",
		Old: "t.taken[persist.Key{Kind: row.string(), ID: row.string()}] = true\n", New: "t.taken[persist.Key{Kind: row.string(), ID: row.string()}] = false\n",
		Pkg: "./persist/postgres", Run: "^TestTakenNumber$/^several_records$",
	},
	{
		Name: "postgres-log-taken-on-the-fast-way", Mechanism: "a commit whose number is taken continues as a transaction",
		Proves: []string{"STORE-2"}, File: "persist/postgres/errors.go",
		Old: " || strings.HasSuffix(answered.ConstraintName, \"log_numbers\")", New: "",
		Pkg: "./persist/postgres", Run: "^TestTakenNumber$/^fast$",
	},
	{
		Name: "postgres-log-own-constraint", Mechanism: "a unique index of the user is not taken for that of the log",
		Proves: []string{"STORE-4"}, File: "persist/postgres/errors.go",
		Old: "strings.HasSuffix(answered.ConstraintName, \"log_numbers\")", New: "strings.Contains(answered.ConstraintName, \"log_\")",
		Pkg: "./persist/postgres", Run: "^TestForeignUniqueIndex$",
	},
	{
		Name: "postgres-log-brief", Mechanism: "an uncommitted entry of another program does not delay a batch",
		Proves: []string{"CAS-11"}, File: "persist/postgres/write.go",
		Old: "return []*statement{s.sql.brief.query(), call}", New: "return []*statement{query(`SELECT`), call}",
		Pkg: "./persist/postgres", Run: "^TestForeignEntryIsWaitedFor$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "postgres-log-fast", Mechanism: "an append is one round trip",
		Proves: []string{"STORE-2"}, File: "persist/postgres/write.go",
		Old: "if _, cuts := cutsLog(w); cuts {", New: "if w.Log != nil {",
		Pkg: "./persist/postgres", Run: "^(TestAppendGoesTheFastWay|TestRoundTripsOfLogs)$",
	},
	{
		Name: "postgres-log-restored-positions", Mechanism: "positions are above the restored ones",
		Proves: []string{"STORE-15"}, File: "persist/postgres/log_write.go",
		Old: "			last = max(last, e.Position)\n", New: "",
		Pkg: "./persist/postgres", Run: "^TestRestoredPositions$",
	},
	{
		Name: "postgres-log-read-in-order", Mechanism: "the cost of a read does not depend on the length of the log",
		Proves: []string{"SCOPE-20"}, File: "persist/postgres/log.go",
		Old: "(answer, error) { return s.readAfter(ctx, inOrder, read) }", New: "(answer, error) { return s.readAfter(ctx, read) }",
		Pkg: "./persist/postgres", Run: "^TestCostOfALongLog$",
	},
	{
		Name: "postgres-log-waiting-in-order", Mechanism: "the cost of finding entries without positions does not depend on the length of the log",
		Proves: []string{"SCOPE-20"}, File: "persist/postgres/log.go",
		Old: "s.readTogether(ctx, inOrder, s.sql.logs.waiting.query(), read)", New: "s.readTogether(ctx, query(`SELECT`), s.sql.logs.waiting.query(), read)",
		Pkg: "./persist/postgres", Run: "^TestCostOfALongLog$",
	},
	{
		Name: "postgres-log-order-of-a-kind", Mechanism: "the entries of a kind are read without those of other kinds",
		Proves: []string{"SCOPE-20"}, File: "persist/postgres/log_statements.go",
		Old: "l.position + 0 > $1 AND l.position IS NOT NULL ORDER BY l.position + 0 LIMIT $2", New: "l.position > $1 AND l.position IS NOT NULL ORDER BY l.position LIMIT $2",
		Pkg: "./persist/postgres", Run: "^(TestLogPlans|TestCostOfALongLog)$",
	},
	{
		Name: "postgres-log-drop-by-index", Mechanism: "the cost of a drop does not depend on the length of the log",
		Proves: []string{"SCOPE-20"}, File: "persist/postgres/migrations/0004_log.sql",
		Old: ") RETURNS void\nLANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS {body}", New: ") RETURNS void\nLANGUAGE plpgsql AS {body}",
		Pkg: "./persist/postgres", Run: "^TestCostOfALongLog$",
	},
}
