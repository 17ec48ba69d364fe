package main

// adkBugs break the session service for ADK.
var adkBugs = []Bug{
	{
		Name: "adk-user-state-in-a-commit-of-its-own", Mechanism: "an event and the state of its user are one commit",
		File: "adk/append.go", Module: "adk",
		Old: "	if _, _, err := a.s.applyShared(ctx, tx, a.h.app, a.h.user, a.delta, a.write, a.sums); err != nil {\n",
		New: "	if err := pawl.Transact(context.Background(), a.s.rt, func(ctx context.Context, tx *pawl.Tx) error {\n		_, _, err := a.s.applyShared(ctx, tx, a.h.app, a.h.user, a.delta, a.write, a.sums)\n		return err\n	}); err != nil {\n",
		Pkg: ".", Run: "^TestKilledWhileAppending$/^(sqlite|fs)$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "adk-deletion-forgotten-before-its-events", Mechanism: "a deletion is remembered until its events are gone",
		File: "adk/delete.go", Module: "adk",
		Old: "	if err := s.log.DeleteStream(ctx, name); err != nil {\n		return err\n	}\n	return deletions.Scope(s.rt, name).Delete(ctx)\n",
		New: "	if err := deletions.Scope(s.rt, name).Delete(ctx); err != nil {\n		return err\n	}\n	return s.log.DeleteStream(ctx, name)\n",
		Pkg: ".", Run: "^TestKilledWhileDeleting$", Flags: []string{"-timeout=60s"},
	},
	{
		Name: "adk-deletion-of-another-session", Mechanism: "a deletion completes those that were interrupted before",
		File: "adk/delete.go", Module: "adk",
		Old: "	_ = s.finish(ctx, pawl.Query{Age: s.resume, Limit: resumeLimit}) // the next Delete tries again\n", New: "",
		Pkg: ".", Run: "^TestKilledWhileDeleting$", Flags: []string{"-timeout=60s"},
	},
}
