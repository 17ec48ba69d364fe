package main

// readBugs break what layers above read and take.
var readBugs = []Bug{
	{
		Name: "due-in-lost-by-a-lease", Mechanism: "acquiring a lease without a mutation keeps the due time",
		Proves: []string{"STORE-8"}, File: "internal/document/draft.go",
		Old: "		d.Due = Due{Keep: true}\n", New: "		d.Due = Due{}\n",
		Pkg: ".", Run: "^TestDueIn$",
	},
	{
		Name: "due-in-of-unchanged", Mechanism: "a due time is a change of its own",
		Proves: []string{"STORE-8"}, File: "outcome.go",
		Old: "	dues := call.dueIn > 0 && d.Life == alive", New: "	dues := false && call.dueIn > 0 && d.Life == alive",
		Pkg: ".", Run: "^TestDueIn$",
	},
	{
		Name: "delete-prefix-unfenced", Mechanism: "DeletePrefix is tested against the lease of its context",
		Proves: []string{"SCOPE-10"}, File: "delete_prefix.go",
		Old: "		lease.fences(&c)\n", New: "",
		Pkg: ".", Run: "^TestDeletePrefix$",
	},
	{
		Name: "delete-prefix-leaves-expired", Mechanism: "DeletePrefix deletes expired documents too",
		Proves: []string{"SCOPE-10"}, File: "delete_prefix.go",
		Old: "if len(page.Records) == 0 && q.Expired && !renewed {", New: "if len(page.Records) == 0 {",
		Pkg: ".", Run: "^TestDeletePrefix$",
	},
	{
		Name: "kind-max-doc-in-tx", Mechanism: "the limit of a kind holds for every document of it",
		Proves: []string{"SCOPE-11"}, File: "kind.go",
		Old: "		b.defaults.maxDoc = min(info.MaxDoc, rt.env.maxDoc)\n", New: "",
		Pkg: ".", Run: "^TestMaxDocOfAKind$",
	},
	{
		Name: "postgres-list-sorts", Mechanism: "a page of a list reads an index in order, without statistics too",
		Proves: []string{"SCOPE-20"}, File: "persist/postgres/read.go",
		Old: "	if ordered(q) {\n", New: "	if false {\n",
		Pkg: "./persist/postgres", Run: "^TestListReadsEachRecordOnce$",
	},
	{
		Name: "postgres-take-sorts", Mechanism: "taking due records reads an index in order, without statistics too",
		Proves: []string{"SCOPE-20"}, File: "persist/postgres/lease.go",
		Old: "	if q.Due || ordered(q) {\n", New: "	if false {\n",
		Pkg: "./persist/postgres", Run: "^TestTakeReadsWhatItTakes$",
	},
	{
		Name: "fs-list-reads-again", Mechanism: "a listing of several pages reads the folder once",
		Proves: []string{"SCOPE-20"}, File: "persist/fs/list.go",
		Old: "			s.listings.put(q, rest[last+1:])\n", New: "			_ = last\n",
		Pkg: "./persist/fs", Run: "^TestListReadsTheFolderOnce$",
	},
	{
		Name: "fs-due-skips", Mechanism: "a page by due time ends where the order of the list says",
		Proves: []string{"STORE-1"}, File: "persist/fs/list.go",
		Old: "nextOf(rest[last])", New: "nextOf(cursor.Of(q, page.Records[size-1]))",
		Pkg: "./persist/fs", Run: "^TestDueListSkipsNothing$",
	},
	{
		Name: "fs-listings-mixed", Mechanism: "a listing goes on with its own reading of the folder",
		Proves: []string{"SCOPE-17"}, File: "persist/fs/list.go",
		Old: "strconv.FormatUint(rand.Uint64(), 36)", New: "strconv.FormatUint(0*rand.Uint64(), 36)",
		Pkg: "./persist/fs", Run: "^TestListingsAreNotMixed$",
	},
	{
		Name: "list-reverse-start", Mechanism: "a reverse list starts at the end of its range",
		Proves: []string{"STORE-1"}, File: "persist/memory/list.go",
		Old: "		positions = x.before(high)\n", New: "		positions = x.before(low)\n",
		Pkg: "./persist/memory", Run: "^TestConformance$/^Lists$",
	},
	{
		Name: "take-keeps-the-label", Mechanism: "Take with a mutation commits the new label with the lease",
		Proves: []string{"STORE-13"}, File: "take.go",
		Old: "	r.Doc, r.Schema, r.Label, r.Due = w.Doc", New: "	w.Label = r.Label\n	r.Doc, r.Schema, r.Label, r.Due = w.Doc",
		Pkg: ".", Run: "^TestTakeWithMutation$",
	},
	{
		Name: "take-upgrades-in-the-store", Mechanism: "code of the caller's does not run inside the store's Take",
		Proves: []string{"STORE-13"}, File: "take.go",
		Old: "	if r.Schema != t.bound.schema() {\n", New: "	if false {\n",
		Pkg: ".", Run: "^TestTakeRunsNoUserCodeInTheStore$",
	},
	{
		Name: "take-panics", Mechanism: "Take leaves a document alone on which the type's own code panics",
		Proves: []string{"STORE-13"}, File: "backend.go",
		Old: "	if p := caught(func() { v, err = b.view(d, key) }); p != nil {\n		return nil, &SchemaError{Scope: key, Stored: d.Schema, Known: b.schema(), Cause: p}\n	}\n	return v, err\n",
		New: "	return b.view(d, key)\n",
		Pkg: ".", Run: "^TestTakeLeavesPanickingDocumentsAlone$",
	},
	{
		Name: "take-panic-keeps-leases", Mechanism: "Take keeps no lease if a function panics",
		Proves: []string{"SCOPE-5"}, File: "take.go",
		Old: "	returned := false\n", New: "	returned := true\n",
		Pkg: ".", Run: "^TestTakeWithPanickingMutation$",
	},
	{
		Name: "take-closed", Mechanism: "Take gives back what it took while the runtime was closed",
		Proves: []string{"STORE-13"}, File: "take.go",
		Old: "			spare = append(spare, rt.newLease(ctx, &stored{}, r.Key, asked, r.Lease.Token, sent))\n", New: "",
		Pkg: ".", Run: "^TestTakeBesideClose$",
	},
	{
		Name: "take-declined", Mechanism: "a record that a change declines stays as it is",
		Proves: []string{"STORE-1"}, File: "persist/optional.go",
		Old: "		if !ok || r.validate() != nil {\n", New: "		if !ok && false {\n",
		Pkg: "./persist/memory", Run: "^TestConformance$/^Leases$",
	},
}
