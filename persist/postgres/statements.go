package postgres

// statements are the SQL texts of a store, with its names in them.
type statements struct {
	records     string // the table
	load        *prepared
	loadAll     string
	brief       *prepared
	staysBrief  string
	replaceOne  *prepared
	replaceWith *prepared
	replaceSome *prepared
	replaceMany *prepared
	write       *prepared
	bounds      string
	idle        string
	durable     string
	lockAbsent  string
	lockRecords *prepared
	now         *prepared
	whole       string
	create      string
	replace     *prepared
	touch       string
	lockFloor   string
	versions    string
	notify      *prepared

	// Of transactions that somebody else has begun.
	settings      string
	putBack       string
	confirmAbsent string
}

// short is what a session must be like for a commit to be one UPDATE.
const short = `pg_catalog.current_setting('transaction_isolation') = 'read committed' AND pg_catalog.current_setting('synchronous_commit') <> 'off'`

func newStatements(n names) statements {
	texts := statements{
		records: n.of("records"),
		// One statement, so that the floor is not older than the absence it goes with.
		load: prepare(n.expand(`SELECT pg_catalog.clock_timestamp(), m.value, ` + content +
			` FROM {meta} m LEFT JOIN {records} r ON r.kind = $1 AND r.id = $2 WHERE m.name = 'floor'`)),
		loadAll: n.expand(`SELECT (SELECT pg_catalog.clock_timestamp()), m.value, ` + columns + `
			FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY AS k (kind, id, place) JOIN {meta} m ON m.name = 'floor'
			LEFT JOIN {records} r ON r.kind = k.kind AND r.id = k.id ORDER BY k.place`),
		// Who waits for nobody still does so for 10 ms where PostgreSQL gives no choice: for the lock of a table, and for a row in a unique index.
		brief: prepare(`SELECT pg_catalog.set_config('lock_timeout', '10ms', true)`),
		// For a session as a whole, if that is the one whose number the connection was given: see session.
		staysBrief: `SELECT pg_catalog.set_config('lock_timeout', '10ms', false) WHERE pg_catalog.pg_backend_pid() = $1`,
		// A statement by itself, for a function takes as long again, of a record that has no expiry and gets none: no clock has a say. Whom nobody has
		// locked is seen by xmax; or it is of whoever wrote this version, and so is over, as all versions are that were locked before they were
		// written. Who locks the record after that look is waited for briefly. Whatever was locked by others meanwhile is left to write.
		replaceOne: prepare(n.expand(`UPDATE {records} r SET
			version = $4, doc = $5, schema = $6, label = $7, due = $8, updated = pg_catalog.clock_timestamp(), commits = $9
			WHERE r.kind = $1 AND r.id = $2 AND r.version = $3 AND (r.xmax = 0 OR r.xmax = r.xmin) AND r.deleted IS NULL AND r.expires IS NULL
			AND ` + short + ` RETURNING r.updated`)),
		// The same with an expiry. Nobody is waited for, so the clock can be read first.
		replaceWith: prepare(n.expand(`UPDATE {records} r SET
			version = $4, doc = $5, schema = $6, label = $7, due = $8, updated = c.now, commits = $9, expires = c.now + $10
			FROM (SELECT pg_catalog.clock_timestamp() AS now OFFSET 0) AS c
			WHERE r.ctid = ( -- what is locked stays in its place
				SELECT l.ctid FROM {records} l WHERE l.kind = $1 AND l.id = $2 AND l.version = $3 FOR NO KEY UPDATE SKIP LOCKED)
			AND r.deleted IS NULL AND (r.expires IS NULL OR r.expires > c.now OR r.token <> 0 AND r.until > c.now)
			AND ` + short + ` RETURNING r.updated`)),
		replaceMany: prepare(n.expand(`SELECT number, at FROM {write}($1, $2, $3, $4, $5, $6, $7, $8, $9)`)),
		replaceSome: prepare(n.expand(`SELECT number, at FROM {write}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`)),
		write:       prepare(n.expand(`SELECT * FROM {write}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`)),
		bounds:      `SELECT pg_catalog.set_config('statement_timeout', $1, true)`,
		idle:        `SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', $1, true)`,
		durable:     n.expand(`SELECT {durable}()`),
		lockAbsent:  n.expand(`SELECT unnest({lock_absent}($1, $2, $3, $4))`),
		lockRecords: prepare(n.expand(`SELECT * FROM {lock_records}($1, $2, $3, $4)`)),
		// Locks do not outlive a client that is frozen or gone, however long its connection does.
		now: prepare(n.expand(`SELECT pg_catalog.clock_timestamp(), value, {durable}(), pg_catalog.set_config('idle_in_transaction_session_timeout', $1, true)
			FROM {meta} WHERE name = 'floor'`)),
		whole:     n.expand(`SELECT ` + columns + ` FROM unnest($1, $2) AS k (kind, id) JOIN {records} r ON r.kind = k.kind AND r.id = k.id`),
		create:    n.expand(`SELECT {create_records}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`),
		replace:   prepare(n.expand(`SELECT {replace_records}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`)),
		touch:     n.expand(`SELECT {touch_records}($1, $2, $3, $4, $5, $6)`),
		lockFloor: n.expand(`SELECT value FROM {meta} WHERE name = 'floor' FOR UPDATE`),
		settings: `SELECT pg_catalog.current_setting('lock_timeout'), pg_catalog.current_setting('statement_timeout'),
			pg_catalog.current_setting('idle_in_transaction_session_timeout')`,
		putBack: `SELECT pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', $2, true),
			pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true)`,
		confirmAbsent: n.expand(`SELECT {confirm_absent}($1, $2)`),
		versions: n.expand(`SELECT r.version FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY AS k (kind, id, place)
			LEFT JOIN {records} r ON r.kind = k.kind AND r.id = k.id ORDER BY k.place`),
		// Never inside a commit, which would not be durable.
		notify: prepare(`SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify($1, payload) FROM pg_catalog.unnest($2) AS payload`),
	}
	texts.replaceOne.locks, texts.replaceWith.locks = true, true
	return texts
}
