package main

// sqliteLogBugs break the logs of the SQLite store.
var sqliteLogBugs = []Bug{
	{
		Name: "sqlite-log-taken-fast", Mechanism: "the statement of the fast way tests the numbers",
		Proves: []string{"STREAM-3"}, File: "persist/sqlite/commit.go",
		Old: "		first, last = newNumbers(w)\n", New: "",
		Pkg: "./persist/sqlite", Run: "^TestTakenNumber$",
	},
	{
		Name: "sqlite-log-taken-general", Mechanism: "the general way tests the numbers",
		Proves: []string{"STREAM-3"}, File: "persist/sqlite/log.go",
		Old: "		if taken {\n", New: "		if taken && len(c.Writes) > 1 {\n",
		Pkg: "./persist/sqlite", Run: "^TestTakenNumber$",
	},
	{
		Name: "sqlite-log-taken-last", Mechanism: "the number of the last new entry is tested",
		Proves: []string{"STREAM-3"}, File: "persist/sqlite/log.go",
		Old: "int64(l.First) + int64(len(l.Entries)) - 1", New: "int64(l.First)",
		Pkg: "./persist/sqlite", Run: "^TestTakenNumber$",
	},
	{
		Name: "sqlite-log-clear-first", Mechanism: "a number that Clear removes is free",
		Proves: []string{"STREAM-3"}, File: "persist/sqlite/log.go",
		Old: "l == nil || l.Clear || len(l.Entries) == 0", New: "l == nil || len(l.Entries) == 0",
		Pkg: "./persist/sqlite", Run: "^TestTakenNumber$",
	},
	{
		Name: "sqlite-log-fast", Mechanism: "the fast way writes the log",
		Proves: []string{"STREAM-7"}, File: "persist/sqlite/commit.go",
		Old: "	case len(c.Writes) == 1:\n		return t.writeLog(&c.Writes[0])\n", New: "",
		Pkg: "./persist/sqlite", Run: "^TestLogOfEveryCommit$",
	},
	{
		Name: "sqlite-log-general", Mechanism: "the general way writes the log",
		Proves: []string{"STREAM-7"}, File: "persist/sqlite/commit.go",
		Old: "written[w.Key] {", New: "written[w.Key] && w.Expected == 0 {",
		Pkg: "./persist/sqlite", Run: "^TestLogOfEveryCommit$",
	},
	{
		Name: "sqlite-log-ignored", Mechanism: "the log stays as it is when a trigger ignores the write of its record",
		Proves: []string{"STREAM-7"}, File: "persist/sqlite/commit.go",
		Old: "	return n > 0, nil\n", New: "	return n >= 0, nil\n",
		Pkg: "./persist/sqlite", Run: "^TestTriggersKeepTheLog$",
	},
	{
		Name: "sqlite-log-clear", Mechanism: "Clear removes all entries, also those from Drop on",
		Proves: []string{"STREAM-7"}, File: "persist/sqlite/log.go",
		Old: "		if l.Clear {\n", New: "		if l.Clear && l.Drop == 0 {\n",
		Pkg: "./persist/sqlite", Run: "^TestLogOfEveryCommit$",
	},
	{
		Name: "sqlite-log-reused", Mechanism: "the position of the last entry is not used again after it was removed",
		Proves: []string{"STREAM-1"}, File: "persist/sqlite/log.go",
		Old: "\" (kind, id, number, at, data) VALUES (?, ?, ?, ?, ?)\"", New: "\" (position, kind, id, number, at, data) SELECT coalesce(max(position), 0) + 1, ?, ?, ?, ?, ? FROM \" + table",
		Pkg: "./persist/sqlite", Run: "^TestPositionsAreNotReused$",
	},
	{
		Name: "sqlite-log-raised", Mechanism: "positions that are restored as used are not given again",
		Proves: []string{"STREAM-1"}, File: "persist/sqlite/log.go",
		Old: "SET seq = max(seq, ?)", New: "SET seq = max(seq, 0 * ?)",
		Pkg: "./persist/sqlite", Run: "^TestPositionsAreNotReused$",
	},
	{
		Name: "sqlite-log-order-limit", Mechanism: "the limit of several kinds keeps the first entries, not those of the first kinds",
		Proves: []string{"STREAM-1"}, File: "persist/sqlite/log.go",
		Old: "\" ORDER BY next.value LIMIT ?2) ORDER BY position\"", New: "\" LIMIT ?2) ORDER BY position\"",
		Pkg: "./persist/sqlite", Run: "^TestOrderOfKinds$",
	},
	{
		Name: "sqlite-log-order-twice", Mechanism: "a kind that is given twice does not shorten a page",
		Proves: []string{"STREAM-1"}, File: "persist/sqlite/log.go",
		Old: "slices.Compact(slices.Sorted(slices.Values(q.Kinds)))", New: "slices.Sorted(slices.Values(q.Kinds))",
		Pkg: "./persist/sqlite", Run: "^TestOrderOfKinds$",
	},
	{
		Name: "sqlite-log-order-index", Mechanism: "ReadOrder of some kinds does not read the entries of others",
		Proves: []string{"STREAM-8"}, File: "persist/sqlite/migrations/0002_log.sql",
		Old: "CREATE INDEX \"{prefix}order\" ON \"{prefix}log\" (kind);\n", New: "",
		Pkg: "./persist/sqlite", Run: "^TestLogPlans$",
	},
	{
		Name: "sqlite-log-prepared", Mechanism: "the statement that appends is prepared",
		Proves: []string{"STREAM-8"}, File: "persist/sqlite/writer.go",
		Old: "w.sql.log.drop, w.sql.log.append)", New: "w.sql.log.drop)",
		Pkg: "./persist/sqlite", Run: "^TestStatementsOfAppend$",
	},
	{
		Name: "sqlite-log-joined", Mechanism: "a joined store reads the log inside its transaction",
		Proves: []string{"TX-6"}, File: "persist/sqlite/native.go",
		Old: "return j.tx, func() {}, nil", New: "return j.s.ready, func() {}, nil",
		Pkg: "./persist/sqlite", Run: "^TestJoinLog$",
	},
	{
		Name: "sqlite-log-hidden", Mechanism: "a temporary table does not hide the log",
		Proves: []string{"TX-6"}, File: "persist/sqlite/log.go",
		Old: "table := `main.\"` + prefix", New: "table := `\"` + prefix",
		Pkg: "./persist/sqlite", Run: "^TestJoinLog$",
	},
}
