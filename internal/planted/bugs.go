package main

import "slices"

// bugs returns every planted bug, in the order of the areas. Each area has a list in a file of its
// own: bugs_lock.go holds lockBugs.
func bugs() []Bug {
	return slices.Concat(scopeBugs, lockBugs, casBugs, scheduleBugs, txBugs, storeBugs, fsBugs, postgresBugs, historyBugs, workerBugs, hintBugs, sweepBugs, leaseBugs, watchBugs, postgresTxBugs, sqliteTxBugs, sqliteLogBugs, flowBugs, machineBugs, jobBugs, runBugs, batchBugs, batchInputBugs, idempotencyBugs, readBugs, streamBugs, scopeLogBugs, logBugs, postgresLogBugs, postgresTogetherBugs, eventBugs, reactionBugs, observeBugs, kitBugs, otelBugs, commandBugs, eraseBugs, inspectBugs, soakBugs, groupBugs, adkBugs, etcdBugs)
}
