package main

// proofs are the rows of docs/reliability.md, in order: crashes, power failures, faults of a disk and of
// a server, clocks and stopped processes, histories.
var proofs = []proof{
	{
		name: "crash-scopes", claim: "SIGKILL at random: an acknowledged mutation is there once, a refused one is not, one without an answer at most once",
		pkg: ".", tests: "^TestKilledWritersLoseAndRepeatNothing$", short: "PAWL_KILLS=100", long: "PAWL_KILLS=8000", bug: "killed-answer-before-commit",
	},
	{
		name: "crash-files", claim: "SIGKILL at random: transfers between plain files are there as a whole or not at all",
		pkg: "./persist/fs", tests: "^TestKilledWriters$", short: "PAWL_KILLS=200", long: "PAWL_KILLS=2000", bug: "fs-journal-dropped",
	},
	{
		name: "crash-calls", claim: "SIGKILL at every system call of a commit to files",
		pkg: "./persist/fs", tests: "^TestKilledAtEverySystemCall$", bug: "fs-finish-first",
	},
	{
		name: "crash-claims", claim: "SIGKILL at random in steps of a status machine: no claim stays for ever, no effect is doubled",
		pkg: "./flow/machine", tests: "^TestKilledAtRandomMoments$", short: "PAWL_KILLS=5", long: "PAWL_KILLS=220", bug: "machine-claim-of-the-dead-stays",
	},
	{
		name: "crash-flows", claim: "SIGKILL at every step of a flow's call: the next caller is admitted after the lease",
		pkg: "./flow", tests: "^(TestKilledAtEveryStep|TestKilledWithItsWaitingCalls)$", bug: "flow-dead-ticket-kept",
	},
	{
		name: "crash-keys", claim: "SIGKILL of servers with an Idempotency-Key: with Respond no request is executed twice",
		pkg: "./idempotency", tests: "^TestKilledServers$", short: "PAWL_KILLS=6", long: "PAWL_KILLS=300", bug: "idem-response-after-the-transaction",
	},
	{
		name: "crash-runs", claim: "SIGKILL at every boundary of every step of durable runs, and again and again: each step commits once, in order",
		pkg: "./flow/run", tests: "^(TestKilledAtEveryBoundary|TestKilledAgainAndAgain)$", short: "PAWL_KILLS=4", long: "PAWL_KILLS=20", bug: "run-of-a-dead-worker",
	},
	{
		name: "crash-jobs", claim: "SIGKILL inside a handler and before its commit: the job is handled again, and commits once",
		pkg: "./flow/job", tests: "^TestKilledWorker$", bug: "job-writes-before-the-end",
	},
	{
		name: "crash-batches", claim: "SIGKILL at every visit of every point of a batch: the same end and the same totals",
		pkg: "./flow/batch", tests: "^TestKilledAtEveryPoint$", short: "PAWL_SHORT=1", bug: "batch-charged-again",
	},
	{
		name: "crash-streams", claim: "SIGKILL of processes that append or close a stream: acknowledged appends are there as a whole, versions have no gaps, and a close is completed",
		pkg: "./stream", tests: "^(TestKilledWriters|TestKilledWhileClosing)$", short: "PAWL_KILLS=8", long: "PAWL_KILLS=700", bug: "stream-close-not-resumed",
	},
	{
		name: "crash-reactions", claim: "SIGKILL at every visit of every point of a reaction: each event's effects are there once",
		pkg: "./stream", tests: "^(TestReactionKilledAtEveryPoint|TestProcessesKilledConsumers)$", short: "PAWL_SHORT=1", long: "PAWL_COMMITS=1000", bug: "reaction-cursor-before-positions",
	},
	{
		name: "crash-adk", claim: "SIGKILL during AppendEvent and Delete of an ADK session: events and state fit each other, a deleted session leaves nothing",
		module: "adk", pkg: ".", tests: "^(TestKilledWhileAppending|TestKilledWhileDeleting)$", short: "PAWL_KILLS=10", long: "PAWL_KILLS=300", bug: "adk-user-state-in-a-commit-of-its-own",
	},
	{
		name: "crash-erase", claim: "SIGKILL in the middle of an erasure: the next one completes it",
		pkg: "./erase", tests: "^TestKilledErase$", bug: "erase-not-resumed",
	},
	{
		name: "power-files", claim: "a power failure at every moment of a commit to files, with every mixture of writes that reached the disk: an acknowledged commit is there, none is there in part",
		pkg: "./persist/fs", tests: "^(TestPowerFailure|TestPowerFailureAfterKill|TestPowerFailureInHistory)$", long: "PAWL_HISTORIES=40", bug: "fs-file-sync",
	},
	{
		name: "power-sqlite", claim: "a power failure at every moment of a commit to SQLite, of its checkpoints and of the Open after a power failure, with torn writes and mixtures of what reached the disk: an acknowledged commit is there, none is there in part, the database opens without help",
		pkg: "./persist/sqlite", tests: "^(TestPowerFailure|TestPowerFailureInHistory)$", long: "PAWL_HISTORIES=20", bug: "sqlite-power-normal",
	},
	{
		name: "calls-files", claim: "each system call of a commit fails (EIO, ENOSPC, EMFILE, EROFS and others): the error tells the outcome, and a power failure afterwards changes nothing",
		pkg: "./persist/fs", tests: "^TestFailedSystemCalls$", bug: "fs-failed-sync-not-repeated",
	},
	{
		name: "calls-sqlite", claim: "each call of SQLite that reads, writes or syncs during a commit fails (EIO, ENOSPC): the error tells the outcome, and the store works without being opened again",
		pkg: "./persist/sqlite", tests: "^TestFailedSystemCalls$", bug: "sqlite-failure-left-open",
	},
	{
		name: "disk-files", claim: "the disk is full, or becomes read-only: commits to files are refused as a whole, reads succeed, and commits do when there is room",
		pkg: "./persist/fs", tests: "^(TestFullDisk|TestReadOnlyFileSystem)$", bug: "fs-full-for-ever",
	},
	{
		name: "disk-sqlite", claim: "the disk is full: commits to SQLite are refused as a whole, reads succeed, and commits do when there is room",
		pkg: "./persist/sqlite", tests: "^TestFullDisk$", bug: "sqlite-full-in-doubt",
	},
	{
		name: "disk-postgres", claim: "the disk with PostgreSQL's tables is full: what needs room is refused, acknowledged changes are there once, and writers continue without help",
		pkg: ".", tests: "^TestFullDiskOfTheServer$", short: "PAWL_ROUNDS=2", long: "PAWL_ROUNDS=20", bug: "postgres-full-disk-for-ever",
	},
	{
		name: "cuts-postgres", claim: "connections are cut before, during and after COMMIT: nothing is lost or doubled, no outcome stays unknown",
		pkg: ".", tests: "^TestCutConnections$", short: "PAWL_CUTS=500", long: "PAWL_CUTS=10000", bug: "tx-grown-batch",
	},
	{
		name: "restarts-postgres", claim: "the server is killed and restarted under load: acknowledged changes are there once, writers continue without help",
		pkg: ".", tests: "^TestServerKilled$", short: "PAWL_KILLS=12", long: "PAWL_KILLS=200", bug: "postgres-lost-answer-refused",
	},
	{
		name: "late-postgres", claim: "PostgreSQL answers commits long after the budget of their callers: acknowledged changes are there once, those of unknown outcome at most once, and others are served meanwhile",
		pkg: ".", tests: "^TestLateAnswers$", long: "PAWL_SLOW=30", bug: "late-answer-is-a-refusal",
	},
	{
		name: "full-postgres", claim: "PostgreSQL has no connections left: changes are refused in time, acknowledged ones are there once, and writers continue without help",
		pkg: ".", tests: "^TestOutOfConnections$", short: "PAWL_ROUNDS=3", long: "PAWL_ROUNDS=20", bug: "postgres-full-for-ever",
	},
	{
		name: "stopped-holders", claim: "holders of leases are stopped (SIGSTOP) beyond their lease and go on: none of their writes is committed after that of a successor",
		pkg: ".", tests: "^TestStoppedAndKilledHolders$", short: "PAWL_KILLS=60", long: "PAWL_KILLS=1000", bug: "stopped-holder-not-fenced",
	},
	{
		name: "histories-memory", claim: "operations of many goroutines on in-memory state are linearizable, also when callers leave",
		pkg: ".", tests: "^TestMemoryHistoriesAreLinearizable$", short: "PAWL_HISTORIES=20", long: "PAWL_HISTORIES=400", bug: "history-exclusion",
	},
	{
		name: "histories-stores", claim: "operations of many goroutines and of two runtimes on stored state are linearizable, also when callers leave",
		pkg: ".", tests: "^TestStoredHistoriesAreLinearizable$", short: "PAWL_HISTORIES=6", long: "PAWL_HISTORIES=200", bug: "history-withdrawn-yet-committed",
	},
	{
		name: "histories-processes", claim: "operations of three processes are linearizable",
		pkg: ".", tests: "^TestHistoriesOfProcessesAreLinearizable$", short: "PAWL_HISTORIES=2", long: "PAWL_HISTORIES=100", bug: "history-stale-reads",
	},
	{
		name: "cycles", claim: "transactions of two runtimes are strictly serializable, also when callers leave and connections are cut",
		pkg: "./internal/cycles", tests: "^TestTransactions", short: "PAWL_ROUNDS=4", long: "PAWL_ROUNDS=200", bug: "tx-cycle-write-skew",
	},
	{
		name: "schedules", claim: "under random schedules of their goroutines, which a seed replays except where transactions share commits, the queue loses no waiter, and changes in memory and in a store are there as their callers were told",
		pkg: "./internal/schedule", tests: "^(TestQueueSchedules|TestMemorySchedules|TestStoredSchedules|TestGroupSchedules)$", long: "PAWL_SCHEDULES=100000", bug: "interleaved-alarm-of-an-arrival",
	},
	{
		name: "streams-processes", claim: "eight processes append to streams and consume them: versions without gaps, each event once, what is drained is what was committed",
		pkg: "./stream", tests: "^TestProcessesCommit", short: "PAWL_COMMITS=50", long: "PAWL_COMMITS=1000", bug: "stream-act-decides-on-old-events",
	},
	{
		name: "etcd-faults", claim: "etcd's leaders are killed, frozen and isolated, and a member is replaced, with clocks two hours apart: nothing is lost or doubled, histories are linearizable",
		module: "persist/etcd/etcdtest", pkg: ".", tests: "^TestFaults$", short: "PAWL_ETCD_ROUNDS=2", long: "PAWL_ETCD_ROUNDS=20", bug: "etcd-no-answer-is-success",
	},
	{
		name: "soak", claim: "two processes with all parts, ended by SIGTERM and SIGKILL and replaced: acknowledged changes are there once, events are handled once, runs are completed, no lease is left, and no process grows (in the short form: goroutines, files and connections)",
		pkg: "./internal/soak", tests: "^TestServers$", short: "PAWL_SOAK=20", long: "PAWL_SOAK=1800", bug: "soak-watch-leaves-a-goroutine",
	},
	{
		name: "overload", claim: "more callers than a queue takes: the rest is refused at once, acknowledged changes are there once, refused ones are not, and calls succeed as soon as the store answers",
		pkg: "./internal/soak", tests: "^TestOverload$", bug: "overload-leaver-keeps-its-place",
	},
}
