// Package bench compares adk.Service with the session services of ADK: what they lose when many
// writers change state at the same time, and how fast they are. It has tests only:
//
//	cd adk && go test ./bench -run TestLostUpdates -v -lost    # the table of docs/adk.md
//	cd adk && go test ./bench -run TestSpeed -v -speed         # ratios, side by side
//
// ADK's database service is set up as in ADK's own tests: SQLite of github.com/glebarez/sqlite, and
// GORM prepares its statements. In addition the file is in WAL mode and synced at each commit, as
// Pawl's is, and connections wait for locks and take the write lock at the start of a transaction.
// Without that, calls fail with SQLITE_BUSY. PostgreSQL has its defaults.
package bench
