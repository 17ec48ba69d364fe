package postgres

// statements are the SQL texts of a store, with its names filled in.
type statements struct {
	records string // the table

	load     *prepared
	loadAll  string
	versions string

	// The fast way to commit: replace or create for one record, write for a batch, together for
	// several records, lease to renew or give back a lease.
	brief      *prepared
	replaceOne *prepared
	briefFree  *prepared
	createOne  *prepared
	write      *prepared
	together   *prepared
	leaseOne   *prepared

	// The transaction.
	bounds      string
	lockAbsent  string
	lockRecords *prepared
	now         *prepared
	create      string
	replace     string
	touch       string

	// Turns, Take, Purge and hints.
	idle      string
	durable   string
	lockFloor string
	notify    *prepared

	// Transactions of the caller.
	settings      string
	putBack       string
	confirmAbsent string

	logs logStatements
}

// ready is the condition of a session in which one statement can commit: other settings need a
// transaction that changes them first.
const ready = `pg_catalog.current_setting('transaction_isolation') = 'read committed' AND pg_catalog.current_setting('synchronous_commit') <> 'off'`

func newStatements(n names) statements {
	t := statements{
		records: n.of("records"),
		// One statement, so that the floor is not older than the absence.
		load: prepare(n.expand(`SELECT pg_catalog.clock_timestamp(), m.value, ` + content +
			` FROM {meta} m LEFT JOIN {records} r ON r.kind = $1 AND r.id = $2 WHERE m.name = 'floor'`)),
		loadAll: n.expand(`SELECT (SELECT pg_catalog.clock_timestamp()), m.value, ` + content + `
			FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY AS k (kind, id, place) JOIN {meta} m ON m.name = 'floor'
			LEFT JOIN {records} r ON r.kind = k.kind AND r.id = k.id ORDER BY k.place`),
		versions: n.expand(`SELECT r.version FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY AS k (kind, id, place)
			LEFT JOIN {records} r ON r.kind = k.kind AND r.id = k.id ORDER BY k.place`),

		// Even a statement that skips locked records may wait: for the lock of a table, or for an
		// uncommitted row in a unique index. This bounds such a wait.
		brief: prepare(`SELECT pg_catalog.set_config('lock_timeout', '10ms', true)`),
		// The record is skipped if it is locked. The clock is read after it was locked: PostgreSQL
		// does not merge a subquery with FOR UPDATE, or with OFFSET, into the query around it.
		replaceOne: prepareCommit(n.expand(`UPDATE {records} r SET
			version = $4, doc = $5::text::jsonb, schema = $6, label = $7, due = coalesce($8, c.now + $9), updated = c.now,
			expires = CASE WHEN $10::interval < '0' THEN r.expires ELSE c.now + $10 END, commits = $11,
			holder = CASE WHEN $15 THEN '' ELSE coalesce($13, r.holder) END,
			token = CASE WHEN $15 THEN 0 WHEN $13 IS NULL THEN r.token ELSE $4 END,
			until = CASE WHEN $15 THEN NULL ELSE coalesce(c.now + $14, r.until) END
			FROM (SELECT l.place, pg_catalog.clock_timestamp() AS now FROM (
				SELECT ctid AS place FROM {records} WHERE kind = $1 AND id = $2 AND version = $3 FOR NO KEY UPDATE SKIP LOCKED
			) AS l OFFSET 0) AS c
			WHERE r.ctid = c.place AND r.deleted IS NULL AND (r.expires IS NULL OR r.expires > c.now OR r.token <> 0 AND r.until > c.now)
			AND ($12 = 0 OR r.token = $12 AND r.until > c.now) AND ($13 IS NULL OR r.token = 0 OR r.until <= c.now)
			AND ` + ready + ` RETURNING r.updated`)),
		leaseOne: prepareCommit(n.expand(`UPDATE {records} r SET
			holder = CASE WHEN $5 THEN '' ELSE r.holder END, token = CASE WHEN $5 THEN 0 ELSE r.token END, until = CASE WHEN NOT $5 THEN c.now + $4 END
			FROM (SELECT l.place, pg_catalog.clock_timestamp() AS now FROM (
				SELECT ctid AS place FROM {records} WHERE kind = $1 AND id = $2 AND token = $3 FOR NO KEY UPDATE SKIP LOCKED
			) AS l OFFSET 0) AS c
			WHERE r.ctid = c.place AND r.until > c.now AND ` + ready + ` RETURNING c.now`)),
		// An absent row cannot be locked: the advisory lock of its key stands for it. It is taken
		// by a statement before createOne, so that createOne sees what the last holder has
		// committed.
		briefFree: prepare(`SELECT pg_catalog.set_config('lock_timeout', '10ms', true), pg_catalog.set_config('pawl.free', pg_catalog.pg_try_advisory_xact_lock($1)::text, true)`),
		// One statement sees a tombstone, or the floor that was raised when it was purged.
		createOne: prepareCommit(n.expand(`INSERT INTO {records} AS r (
				kind, id, version, born, doc, schema, label, due, expires, updated, commits, holder, token, until)
			SELECT $1, $2, $4, $4, $5::text::jsonb, $6, $7, coalesce($8, c.now + $9), CASE WHEN $10::interval >= '0' THEN c.now + $10 END, c.now, $11,
				coalesce($13, ''), CASE WHEN $13 IS NULL THEN 0 ELSE $4 END, c.now + $14
			FROM {meta} m, (SELECT pg_catalog.clock_timestamp() AS now OFFSET 0) AS c
			WHERE m.name = 'floor' AND m.value < $4 AND $3 = 0 AND $12 = 0 AND NOT $15 AND pg_catalog.current_setting('pawl.free') = 'true'
			AND NOT EXISTS (SELECT FROM {records} o WHERE o.kind = $1 AND o.id = $2)
			AND ` + ready + ` RETURNING r.updated`)),
		write:    prepareCommit(n.expand(`SELECT * FROM {write}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`)),
		together: prepareCommit(n.expand(`SELECT * FROM {write_together}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)`)),

		bounds:      `SELECT pg_catalog.set_config('statement_timeout', $1, true)`,
		lockAbsent:  n.expand(`SELECT unnest({lock_absent}($1, $2, $3, $4))`),
		lockRecords: prepare(n.expand(`SELECT * FROM {lock_records}($1, $2, $3, $4)`)),
		// The timeout ends the locks of a client that is frozen or gone while its connection stays
		// open.
		now: prepare(n.expand(`SELECT pg_catalog.clock_timestamp(), value, {durable}(), pg_catalog.set_config('idle_in_transaction_session_timeout', $1, true)
			FROM {meta} WHERE name = 'floor'`)),
		create:  n.expand(`SELECT {create_records}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`),
		replace: n.expand(`SELECT {replace_records}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`),
		touch:   n.expand(`SELECT {touch_records}($1, $2, $3, $4, $5, $6)`),

		idle:      `SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', $1, true)`,
		durable:   n.expand(`SELECT {durable}()`),
		lockFloor: n.expand(`SELECT value FROM {meta} WHERE name = 'floor' FOR UPDATE`),
		// Hints need not be durable. Never send this inside a commit, which must be.
		notify: prepare(`SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify($1, payload) FROM pg_catalog.unnest($2) AS payload`),

		settings: `SELECT pg_catalog.current_setting('lock_timeout'), pg_catalog.current_setting('statement_timeout'),
			pg_catalog.current_setting('idle_in_transaction_session_timeout')`,
		putBack: `SELECT pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', $2, true),
			pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true)`,
		confirmAbsent: n.expand(`SELECT {confirm_absent}($1, $2)`),
	}
	t.logs = newLogStatements(n, &t)
	return t
}
