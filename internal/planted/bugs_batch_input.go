package main

// batchModelFlags are for the random sequences of flow/batch.
var batchModelFlags = []string{"-rapid.nofailfile", "-rapid.shrinktime=1s", "-rapid.checks=2000"}

// batchInputBugs break how costly jobs check their input, charge, and hear of a cancel or a stop.
var batchInputBugs = []Bug{
	{
		Name: "batch-overdraft", Mechanism: "a charge does not make the balance negative",
		Proves: []string{"CANCEL-4"}, File: "flow/batch/ledger.go",
		Old: "err == nil && points < 0 && balance < 0", New: "err == nil && points == 0 && balance < 0",
		Pkg: "./flow/batch", Run: "^(TestScopeLedger|TestInsufficientPoints)$/^memory$",
	},
	{
		Name: "batch-balance-of-another-type", Mechanism: "Submit refuses a balance that cannot be charged",
		Proves: []string{"CANCEL-4"}, File: "flow/batch/ledger.go",
		Old: "if err != nil || points > 0 {", New: "if err != nil || points >= 0 {",
		Pkg: "./flow/batch", Run: "^TestScopeLedgerWithAnotherType$",
	},
	{
		Name: "batch-price-unchecked", Mechanism: "a negative price is refused",
		Proves: []string{"CANCEL-4"}, File: "flow/batch/submit.go",
		Old: "err != nil || price < 0 || price > math.MaxInt64-sum", New: "err != nil || price > math.MaxInt64-max(sum, 0)",
		Pkg: "./flow/batch", Run: "^TestPrices$",
	},
	{
		Name: "batch-sum-unchecked", Mechanism: "a sum of prices that overflows is refused",
		Proves: []string{"CANCEL-4"}, File: "flow/batch/submit.go",
		Old: "price > math.MaxInt64-sum", New: "price-1 == math.MaxInt64",
		Pkg: "./flow/batch", Run: "^TestPrices$",
	},
	{
		Name: "batch-account-unchecked", Mechanism: "Submit refuses an account that does not exist",
		Proves: []string{"CANCEL-3"}, File: "flow/batch/submit.go",
		Old: "				if err := q.config.Ledger.Add(ctx, tx, j.Account, 0); err != nil {\n					return err\n				}\n", New: "",
		Pkg: "./flow/batch", Run: "^TestSubmitRefusesBadInput$",
	},
	{
		Name: "batch-hash-ignored", Mechanism: "other items under a used id are refused",
		Proves: []string{"CANCEL-1"}, File: "flow/batch/submit.go",
		Old: "case r.Hash != hash:", New: "case r.Hash == \"\":",
		Pkg: "./flow/batch", Run: "^TestSubmitAgain$/^memory$",
	},
	{
		Name: "batch-finalized-after-the-request", Mechanism: "Finalize is refused once a cancel is requested",
		Proves: []string{"CANCEL-10"}, File: "flow/batch/read.go",
		Old: "		if r.Requested {\n			return &StatusError{Job: id, Status: r.status(), Requested: true", New: "		if r.Requested && r.status().Final() {\n			return &StatusError{Job: id, Status: r.status(), Requested: true",
		Pkg: "./flow/batch", Run: "^TestFinalizeAndCancel$/^memory$",
	},
	{
		Name: "batch-accepted-item-refunded", Mechanism: "an accepted item is not refunded",
		Proves: []string{"CANCEL-10"}, File: "flow/batch/cancel.go",
		Old: "undecided := []string{string(Waiting), string(Charged), string(Made)}", New: "itemMoves[ItemCanceled] = []ItemState{Waiting, Charged, Made, Finalized}\n	undecided := []string{string(Waiting), string(Charged), string(Made), string(Finalized)}",
		Pkg: "./flow/batch", Run: "^TestModel$/^memory$", Flags: batchModelFlags,
	},
	{
		Name: "batch-failed-item-refunded-again", Mechanism: "an item that has failed is refunded once",
		Proves: []string{"CANCEL-3"}, File: "flow/batch/cancel.go",
		Old: "undecided := []string{string(Waiting), string(Charged), string(Made)}", New: "itemMoves[ItemCanceled] = []ItemState{Waiting, Charged, Made, ItemFailed}\n	undecided := []string{string(Waiting), string(Charged), string(Made), string(ItemFailed)}",
		Pkg: "./flow/batch", Run: "^TestModel$/^memory$", Flags: batchModelFlags,
	},
	{
		Name: "batch-charged-at-each-call", Mechanism: "a call that is made again is not charged again",
		Proves: []string{"CANCEL-11"}, File: "flow/batch/record.go",
		Old: "	Charged:      {Waiting},\n", New: "	Charged:      {Waiting, Charged},\n",
		Pkg: "./flow/batch", Run: "^TestStopInterruptsTheCall$/^memory$",
	},
	{
		Name: "batch-interrupted-call-failed", Mechanism: "a call that Stop interrupts has not failed",
		Proves: []string{"CANCEL-11"}, File: "flow/batch/work.go",
		Old: "case s.calls.Err() != nil:", New: "case s.calls.Err() != nil && it.Attempts < 0:",
		Pkg: "./flow/batch", Run: "^TestStopInterruptsTheCall$/^memory$", Flags: []string{"-timeout=1m"},
	},
	{
		Name: "batch-attempts-uncounted", Mechanism: "each call of an item is counted before it is made",
		Proves: []string{"CANCEL-5"}, File: "flow/batch/work.go",
		Old: "		i.Attempts++\n", New: "",
		Pkg: "./flow/batch", Run: "^TestCallSucceedsLater$", Flags: []string{"-timeout=20s"},
	},
	{
		Name: "batch-final-error-repeated", Mechanism: "a call that fails for good is not repeated",
		Proves: []string{"CANCEL-3"}, File: "flow/batch/work.go",
		Old: "failures >= s.config.Retry.Attempts || pawl.IsNonRetryable(err)", New: "failures >= s.config.Retry.Attempts",
		Pkg: "./flow/batch", Run: "^TestCallFails$/^for_good$",
	},
	{
		Name: "batch-unfit-artifact-repeated", Mechanism: "an artifact that no store holds fails its item",
		Proves: []string{"CANCEL-3"}, File: "flow/batch/work.go",
		Old: "errors.As(err, &limit) || errors.As(err, &field)", New: "errors.As(err, &limit) || field != nil",
		Pkg: "./flow/batch", Run: "^TestArtifactCannotBeStored$/^NUL$/^memory$",
	},
	{
		Name: "batch-removal-given-up", Mechanism: "a removal that fails for good is tried again",
		Proves: []string{"CANCEL-6"}, File: "flow/batch/work.go",
		Old: "		err = errors.New(err.Error())\n", New: "",
		Pkg: "./flow/batch", Run: "^TestRemovalFails$/^for_good$", Flags: []string{"-timeout=2m"},
	},
	{
		Name: "batch-items-unbounded", Mechanism: "Config.Items bounds the calls of a job",
		Proves: []string{"CANCEL-9"}, File: "flow/batch/work.go",
		Old: "group.SetLimit(s.config.Items)", New: "group.SetLimit(-1)",
		Pkg: "./flow/batch", Run: "^TestParallelItems$",
	},
	{
		Name: "batch-stop-ignored", Mechanism: "Stop ends the work on a job at the next item",
		Proves: []string{"CANCEL-1"}, File: "flow/batch/work.go",
		Old: "			end(errStopping)\n", New: "",
		Pkg: "./flow/batch", Run: "^TestStopHandsTheJobBack$/^memory$",
	},
	{
		Name: "batch-poll-left-out", Mechanism: "a cancel is heard when the watch has failed",
		Proves: []string{"CANCEL-9"}, File: "flow/batch/work.go",
		Old: "			now, _ = scope.Snapshot(ctx)\n", New: "",
		Pkg: "./flow/batch", Run: "^TestCancelInterruptsByPoll$",
	},
	{
		Name: "batch-watch-left-out", Mechanism: "a cancel is heard without waiting for the poll",
		Proves: []string{"CANCEL-9"}, File: "flow/batch/work.go",
		Old: "	changes := scope.Changes(ctx)\n", New: "	changes := scope.Changes(ctx)\n	changes = nil\n",
		Pkg: "./flow/batch", Run: "^TestCancelInterruptsByHint$/^memory$", Flags: []string{"-timeout=10s"},
	},
	{
		Name: "batch-interrupt-ignored", Mechanism: "with Interrupt a cancel ends the contexts of the calls",
		Proves: []string{"CANCEL-9"}, File: "flow/batch/work.go",
		Old: "cause == errCanceled && q.config.Interrupt", New: "cause == errStopping && q.config.Interrupt",
		Pkg: "./flow/batch", Run: "^TestCancelInterruptsByHint$/^memory$", Flags: []string{"-timeout=10s"},
	},
	{
		Name: "batch-interrupt-unasked", Mechanism: "without Interrupt calls in progress end by themselves",
		Proves: []string{"CANCEL-9"}, File: "flow/batch/work.go",
		Old: "cause == errCanceled && q.config.Interrupt", New: "cause == errCanceled",
		Pkg: "./flow/batch", Run: "^TestCancelLetsCallsEnd$",
	},
	{
		Name: "batch-delete-of-a-failed-job", Mechanism: "a job that may be retried is not deleted",
		Proves: []string{"CANCEL-9"}, File: "flow/batch/read.go",
		Old: "		if !r.status().Final() {\n", New: "		if !r.status().Finished() {\n",
		Pkg: "./flow/batch", Run: "^TestDeleteOfAnUnfinishedJob$",
	},
	{
		Name: "batch-canceled-job-continued", Mechanism: "Submit does not continue a job that was canceled",
		Proves: []string{"CANCEL-2"}, File: "flow/batch/submit.go",
		Old: "case r.status() == Pending:", New: "case r.status() == Pending || r.Stored < r.Items:",
		Pkg: "./flow/batch", Run: "^TestCancelOfAPendingJob$",
	},
}
