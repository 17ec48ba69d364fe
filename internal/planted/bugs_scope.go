package main

// scopeBugs break what the verbs promise of the state itself.
var scopeBugs = []Bug{
	{
		Name: "one-door", Mechanism: "a Persist in the options means compare-and-swap",
		Proves: []string{"SCOPE-1", "SCOPE-2"}, File: "apply.go",
		Old: "		d.backend = custom[T]{o.Persist}\n", New: "",
		Pkg: ".", Run: "^TestApplyMutation",
	},
	{
		Name: "error-discards-the-draft", Mechanism: "a mutator that fails changes nothing",
		Proves: []string{"SCOPE-4"}, File: "mutation.go",
		Old: "		return false, userError{err}\n	}\n	*out = *own\n", New: "		if *out = *own; true {\n			return true, nil\n		}\n		return false, userError{err}\n	}\n	*out = *own\n",
		Pkg: ".", Run: "^TestMutatorError$",
	},
	{
		Name: "panic-reaches-its-caller", Mechanism: "a panic is raised again in the caller",
		Proves: []string{"SCOPE-5"}, File: "waiter.go",
		Old: "		panic(w.panic)\n", New: "		return\n",
		Pkg: ".", Run: "^TestPanicInMutator$",
	},
	{
		Name: "goexit-frees-the-queue", Mechanism: "runtime.Goexit in a mutator leaves the queue driven",
		Proves: []string{"SCOPE-5"}, File: "turn.go",
		Old: "			go c.goOn() // this goroutine is on its way out\n", New: "			_ = c\n",
		Pkg: ".", Run: "^TestGoexitInMutator$", Flags: []string{"-timeout=30s"},
	},
	{
		Name: "isolation-copy-in", Mechanism: "a mutator gets a copy, not the committed state",
		Proves: []string{"SCOPE-6"}, File: "mutation.go",
		Old: "	if err := typ.Deepen(cur, own); err != nil {", New: "	if err := error(nil); err != nil {",
		Pkg: ".", Run: "^TestMutatorsGetCopies$",
	},
	{
		Name: "isolation-copy-out", Mechanism: "what is committed is not what the mutator holds",
		Proves: []string{"SCOPE-6"}, File: "mutation.go",
		Old: "	return typ.SettleCopy(cur, own, out)", New: "	changed, err := typ.SettleCopy(cur, own, out)\n	*out = *own\n	return changed, err",
		Pkg: ".", Run: "^TestMutatorsGetCopies$",
	},
	{
		Name: "isolation-clipped-lists", Mechanism: "committed lists have no spare capacity",
		Proves: []string{"SCOPE-6"}, File: "internal/state/tail.go",
		Old: "	dst.SetCap(size)\n", New: "",
		Pkg: ".", Run: "^TestReadOnlyHasNoSpareCapacity$",
	},
	{
		Name: "no-op-suppression", Mechanism: "a mutation that changes nothing moves no version",
		Proves: []string{"SCOPE-7"}, File: "outcome.go",
		Old: "	if !changed && ch.takes == nil && (d.Life == alive", New: "	if !changed && ch.takes == nil && (d.Life == absent",
		Pkg: ".", Run: "^TestUnchanged$",
	},
	{
		Name: "no-op-renews", Mechanism: "a mutation that changes nothing renews the expiry",
		Proves: []string{"SCOPE-7"}, File: "outcome.go",
		Old: "			out.draft.Renew(call.ttl)\n", New: "",
		Pkg: ".", Run: "^TestUnchangedRenewsExpiry$",
	},
	{
		Name: "unknown-fields", Mechanism: "fields that the type does not know are written back",
		Proves: []string{"SCOPE-8"}, File: "internal/document/view.go",
		Old: "	if err == nil && v.source.lossy {", New: "	if err == nil && v.source.lossy && v.Type == nil {",
		Pkg: ".", Run: "^TestUnknownFieldsSurvive$",
	},
	{
		Name: "overflow", Mechanism: "an increment that does not fit is refused",
		Proves: []string{"SCOPE-9"}, File: "internal/state/apply.go",
		Old: "		if (sum > old) != (c.by > 0) || v.OverflowInt(sum) {", New: "		if (sum > old) != (c.by > 0) {",
		Pkg: ".", Run: "^TestFieldErrors$",
	},
	{
		Name: "tombstone-check", Mechanism: "a deleted scope refuses every verb",
		Proves: []string{"SCOPE-10"}, File: "options.go",
		Old: "		return &DeletedError{Scope: c.key, Version: version}\n", New: "		return nil\n",
		Pkg: ".", Run: "^TestDelete$",
	},
	{
		Name: "floor-in-memory", Mechanism: "forgetting a tombstone raises the version floor",
		Proves: []string{"SCOPE-10"}, File: "registry.go",
		Old: "floor >= version || h.registry.floor", New: "floor <= version || h.registry.floor",
		Pkg: ".", Run: "^TestTombstonesInMemoryAreBounded$",
	},
	{
		Name: "document-limit", Mechanism: "a document over the limit is refused",
		Proves: []string{"SCOPE-11"}, File: "internal/document/draft.go",
		Old: "	if len(raw) > limit && ", New: "	if len(raw) > 2*limit && ",
		Pkg: ".", Run: "^TestDocumentLimit$",
	},
	{
		Name: "limit-hits-the-offender", Mechanism: "in a shared commit only the mutation that is too large is refused",
		Proves: []string{"SCOPE-11", "CAS-4"}, File: "cas.go",
		Old: "		if unwritable(err) && !r.careful {", New: "		if unwritable(err) && r.careful {",
		Pkg: ".", Run: "^TestDocumentLimitInSharedCommit$",
	},
	{
		Name: "pinned-version", Mechanism: "IfVersion is refused when the version moved",
		Proves: []string{"SCOPE-12"}, File: "options.go",
		Old: "		if c.pinned && c.version != version {", New: "		if c.pinned && c.version > version {",
		Pkg: ".", Run: "^TestConditions$",
	},
	{
		Name: "schema-upgrade", Mechanism: "an older document is upgraded when read",
		Proves: []string{"SCOPE-15"}, File: "kind.go",
		Old: "	for i := from; i < len(k.upgrades); i++ {", New: "	for i := from + 1; i < len(k.upgrades); i++ {",
		Pkg: ".", Run: "^TestUpgrade$",
	},
	{
		Name: "newer-schema", Mechanism: "a newer document is refused",
		Proves: []string{"SCOPE-15"}, File: "backend.go",
		Old: "	if d.Schema > known {", New: "	if d.Schema > known+1000 {",
		Pkg: ".", Run: "^TestNewerSchema$",
	},
	{
		Name: "exact-integers", Mechanism: "dynamic integers are decoded exactly",
		Proves: []string{"SCOPE-16"}, File: "internal/state/json.go",
		Old: "	if t.root.dynamic {\n		dec.UseNumber()\n	}\n", New: "",
		Pkg: ".", Run: "^TestIntegersAreExact$",
	},
	{
		Name: "read-asks-the-store", Mechanism: "a read of a persisted scope sees what others wrote",
		Proves: []string{"SCOPE-17"}, File: "scope.go",
		Old: "	r, err := s.bound.rt.store.Load(ctx, s.key)\n", New: "	if d := s.cell.seen.Load(); d != nil {\n		return s.seen(d)\n	}\n	r, err := s.bound.rt.store.Load(ctx, s.key)\n",
		Pkg: ".", Run: "^TestReadYourWrites$",
	},
	{
		Name: "close-waits", Mechanism: "Close finishes what was accepted",
		Proves: []string{"SCOPE-18"}, File: "runtime.go",
		Old: "append(rt.finish(rt.stored), &rt.transactions", New: "append(rt.finish(rt.stored)[:0], &rt.transactions",
		Pkg: ".", Run: "^TestCloseFinishesWhatIsInFlight$",
	},
	{
		Name: "memory-is-kept", Mechanism: "in-memory state outlives its handles",
		Proves: []string{"SCOPE-19"}, File: "apply.go",
		Old: "		c.home.pin(c)\n", New: "",
		Pkg: ".", Run: "^TestMemoryOutlivesItsHandles$",
	},
	{
		Name: "idle-containers-are-let-go", Mechanism: "persisted containers that nobody holds are collected",
		Proves: []string{"SCOPE-19"}, File: "registry.go",
		Old: "	e := &entry{id: r.ids.Add(1), weak: weakRef[C, P]{weak.Make((*C)(c))}}\n", New: "	e := &entry{id: r.ids.Add(1), weak: weakRef[C, P]{weak.Make((*C)(c))}, strong: c}\n",
		Pkg: ".", Run: "^TestIdleSessionsAreLetGo$",
	},
}
