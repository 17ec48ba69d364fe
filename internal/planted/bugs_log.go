package main

// logBugs break the logs of records: the contract, the memory store, logs that are kept as
// documents, and the copying of logs.
var logBugs = []Bug{
	{
		Name: "log-entry-utf8", Mechanism: "a log entry that is not UTF-8 is refused",
		Proves: []string{"STORE-1"}, File: "persist/log.go",
		Old: "return json.Valid(data) && utf8.Valid(data)", New: "return json.Valid(data) && (utf8.Valid(data) || true)",
		Pkg: "./persist", Run: "^TestValidate(LogWrite|RestoreLog)$",
	},
	{
		Name: "log-below-drop", Mechanism: "a number that the same write drops is refused",
		Proves: []string{"STORE-1"}, File: "persist/log.go",
		Old: "	case len(l.Entries) > 0 && l.First < l.Drop:", New: "	case len(l.Entries) > 0 && l.First > l.First:",
		Pkg: "./persist", Run: "^TestValidateLogWrite$",
	},
	{
		Name: "log-memory-taken", Mechanism: "the memory store refuses a number that is taken",
		Proves: []string{"STORE-2"}, File: "persist/memory/log.go",
		Old: "		if w.Log == nil || !s.logs.taken(w.Key, w.Log) {", New: "		if w.Log == nil || s.logs.taken(w.Key, w.Log) || true {",
		Pkg: "./persist/memory", Run: "^TestConformance$/^Log",
	},
	{
		Name: "log-memory-all-or-nothing", Mechanism: "the memory store changes no log if the commit is refused",
		Proves: []string{"STORE-2"}, File: "persist/memory/commit.go",
		Old: "	at := now() // read with the lock held, so that leases are judged inside the write\n",
		New: "	at := now()\n	for i := range c.Writes {\n		if w := &c.Writes[i]; w.Log != nil && w.Log.Clear {\n			s.logs.write(w.Key, &persist.LogWrite{Clear: true}, at)\n		}\n	}\n",
		Pkg: "./persist/memory", Run: "^TestConformance$/^Logs$",
	},
	{
		Name: "log-memory-position-reused", Mechanism: "the memory store gives a position once",
		Proves: []string{"STORE-1"}, File: "persist/memory/log.go",
		Old: "		l.last++\n", New: "		for l.last = 1; l.byPosition[l.last] != nil; l.last++ {\n		}\n",
		Pkg: "./persist/memory", Run: "^TestConformance$/^Log",
	},
	{
		Name: "log-memory-removed", Mechanism: "the memory store removes a dropped entry from the order",
		Proves: []string{"STORE-1"}, File: "persist/memory/log.go",
		Old: "	l.order[e.Kind].remove(place(e.Position))\n", New: "",
		Pkg: "./persist/memory", Run: "^TestRemovedEntries$",
	},
	{
		Name: "log-memory-last", Mechanism: "the memory store keeps the last position of a copied store",
		Proves: []string{"STORE-15"}, File: "persist/memory/log.go",
		Old: "	s.logs.last = max(s.logs.last, last)\n", New: "",
		Pkg: "./persist/memory", Run: "^TestConformance$/^LogRestoring$",
	},
	{
		Name: "log-docs-counter", Mechanism: "commits that add entries write the same counter",
		Proves: []string{"STORE-2"}, File: "persist/logs.go",
		Old: "	p.commit.Writes = append(p.commit.Writes, replacing(counter, count, \"\"))\n	return taken, nil\n", New: "	return taken, nil\n",
		Pkg: "./persist", Run: "^TestLogs$",
	},
	{
		Name: "log-docs-stale-counter", Mechanism: "a counter that was read too early is noticed",
		Proves: []string{"STORE-2"}, File: "persist/logs.go",
		Old: "		if !order.Absent() {\n", New: "		if order.Deleted {\n",
		Pkg: "./persist", Run: "^Test(LogsReadBesideCommits|DamagedLogDocuments)$",
	},
	{
		Name: "log-docs-epoch", Mechanism: "a log that starts over has new documents",
		Proves: []string{"STORE-1"}, File: "persist/logs.go",
		Old: "Epoch: state.Version + 1, First: l.Drop}", New: "Epoch: 1, First: l.Drop}",
		Pkg: "./persist", Run: "^Test(Logs|RemovalInterrupted)$",
	},
	{
		Name: "log-docs-retry", Mechanism: "a conflict that names only documents of logs is tried again",
		Proves: []string{"STORE-2"}, File: "persist/logs.go",
		Old: "	case 0:\n		return nil\n", New: "	case 0:\n		return err\n",
		Pkg: "./persist", Run: "^TestLogConflicts$",
	},
	{
		Name: "log-docs-conflict", Mechanism: "a conflict names the records of the caller only",
		Proves: []string{"STORE-2"}, File: "persist/logs.go",
		Old: "	return &rest\n", New: "	return err\n",
		Pkg: "./persist", Run: "^TestLogConflicts$",
	},
	{
		Name: "log-docs-doubt", Mechanism: "a commit with an unknown outcome is not repeated under way",
		Proves: []string{"STORE-2"}, File: "persist/logs.go",
		Old: "	if !errors.As(err, &conflict) {\n		return err\n	}\n	rest :=", New: "	if !errors.As(err, &conflict) {\n		return nil\n	}\n	rest :=",
		Pkg: "./persist", Run: "^TestLogInDoubt$",
	},
	{
		Name: "log-docs-winner", Mechanism: "the winner of a taken number is the current record",
		Proves: []string{"STORE-5"}, File: "persist/logs.go",
		Old: "	current, _, err := d.test(ctx, c) // another commit may have added the entries after the first test\n	if err != nil {\n		return logPlan{}, err\n	}\n",
		New: "	current := make(map[Key]Record)\n	for _, w := range c.Writes {\n		current[w.Key] = Record{Key: w.Key, Version: w.Expected, Updated: counter.Now, Now: counter.Now}\n	}\n",
		Pkg: "./persist", Run: "^TestLogsReadBesideCommits$",
	},
	{
		Name: "log-docs-counting", Mechanism: "an entry whose documents are not removed yet is not read",
		Proves: []string{"STORE-1"}, File: "persist/doclog.go",
		Old: "return p.Epoch == s.Epoch && p.Number >= s.First", New: "return p.Number >= s.First || p.Epoch == s.Epoch",
		Pkg: "./persist", Run: "^TestRemovalInterrupted$",
	},
	{
		Name: "log-docs-read-twice", Mechanism: "a read that met a removal is repeated",
		Proves: []string{"STORE-1"}, File: "persist/logs_read.go",
		Old: "		if after == before {\n", New: "		if after == before || true {\n",
		Pkg: "./persist", Run: "^TestReadLogBesideRemoval$",
	},
	{
		Name: "log-docs-remove", Mechanism: "the documents of removed entries are removed",
		Proves: []string{"STORE-1"}, File: "persist/doclog.go",
		Old: "		removed += len(page.Records)\n", New: "		removed += limit\n",
		Pkg: "./persist", Run: "^TestRemovedLogDocuments$",
	},
	{
		Name: "log-docs-purge", Mechanism: "the tombstones of removed entries are removed",
		Proves: []string{"STORE-1"}, File: "persist/doclog.go",
		Old: "{Kind: logKind}, {Kind: orderKind}, ", New: "{Kind: logKind}, ",
		Pkg: "./persist", Run: "^TestRemovedLogDocuments$",
	},
	{
		Name: "log-docs-restored-position", Mechanism: "a restored entry leaves its old position",
		Proves: []string{"STORE-15"}, File: "persist/logs_restore.go",
		Old: "	if alive && (e.Data == nil || old.Position != e.Position) {", New: "	if alive && e.Data == nil {",
		Pkg: "./persist", Run: "^Test(Logs|RestoredLogDocuments)$",
	},
	{
		Name: "log-fs-refused", Mechanism: "the store of files refuses a log that it would lose",
		Proves: []string{"STORE-1"}, File: "persist/fs/commit.go",
		Old: "func(w persist.Write) bool { return w.Log != nil })", New: "func(w persist.Write) bool { return false })",
		Pkg: "./persist/fs", Run: "^TestLogsAreUnsupported$",
	},
	{
		Name: "log-copy-documents", Mechanism: "the documents of logs are not copied as records",
		Proves: []string{"STORE-15"}, File: "persist/copy.go",
		Old: "func(r Record) bool { return IsLogKind(r.Kind) })", New: "func(r Record) bool { return false })",
		Pkg: "./persist", Run: "^Test(LogDocumentsAreNotCopied|CopyLogs)$",
	},
	{
		Name: "log-copy-last", Mechanism: "a copy continues above the last position of its source",
		Proves: []string{"STORE-15"}, File: "persist/copylogs.go",
		Old: "restorer.RestoreLog(ctx, nil, last)", New: "restorer.RestoreLog(ctx, nil, 0)",
		Pkg: "./persist", Run: "^TestCopiedLogContinues$",
	},
	{
		Name: "log-copy-removed", Mechanism: "a second run removes entries that the source has removed",
		Proves: []string{"STORE-15"}, File: "persist/copylogs.go",
		Old: "			removed = append(removed, LogEntry{Key: e.Key, Number: e.Number})\n", New: "			_ = e\n",
		Pkg: "./persist", Run: "^TestCopyLogs$",
	},
	{
		Name: "log-copy-foreign", Mechanism: "an entry of a record that only the destination has stays",
		Proves: []string{"STORE-15"}, File: "persist/copylogs.go",
		Old: "		if !records[i].Absent() {\n", New: "		if !records[i].Absent() || i >= 0 {\n",
		Pkg: "./persist", Run: "^TestCopyLogsOfAWrittenDestination$",
	},
	{
		Name: "log-copy-written", Mechanism: "a position that was written in the destination ends the copy",
		Proves: []string{"STORE-15"}, File: "persist/copylogs.go",
		Old: "	case from.Key != to.Key || from.Number != to.Number:\n", New: "	case from.Position != to.Position:\n",
		Pkg: "./persist", Run: "^TestCopyLogs(OfAWrittenDestination|Verifies)$",
	},
	{
		Name: "log-copy-verify", Mechanism: "the data of entries is compared",
		Proves: []string{"STORE-15"}, File: "persist/copylogs.go",
		Old: "	case !bytes.Equal(from.Data, to.Data):", New: "	case len(from.Data) == 0 && !bytes.Equal(from.Data, to.Data):",
		Pkg: "./persist", Run: "^TestCopyLogsVerifies$",
	},
}
