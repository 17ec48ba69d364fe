package postgres

// logStatements are the SQL texts for logs.
type logStatements struct {
	// The fast way to commit, with entries. Without entries the statements without a log are used.
	replaceOne *prepared
	createOne  *prepared
	write      *prepared
	together   *prepared

	// The transaction.
	taken  string
	change string

	// Reading.
	forward  *prepared
	backward *prepared
	order    *prepared
	orderOf  *prepared
	last     *prepared

	// Giving positions.
	waiting *prepared
	lock    string
	number  *prepared

	// Restoring.
	remove  string
	restore string
	raise   string
}

// newLogStatements returns the texts for logs, given those of the fast way without entries.
func newLogStatements(n names, t *statements) logStatements {
	// The head is written first: the entries are selected from its answer. So an entry gets its seq
	// while the record is locked, and gets none if the record was not written.
	withEntries := func(head *prepared) *prepared {
		return prepareCommit("WITH head AS (" + head.text + n.expand(`), added AS (
				INSERT INTO {log} (kind, id, number, at, data)
				SELECT $1, $2, $16 + e.place - 1, head.updated, e.data
				FROM head, pg_catalog.unnest($17) WITH ORDINALITY AS e (data, place) ORDER BY e.place
			) SELECT updated FROM head`))
	}
	const entry = `l.kind, l.id, l.number, l.position, l.at, l.data FROM {log} l WHERE `
	const numbers = `SELECT ` + entry + `l.kind = $1 AND l.id = $2 AND l.number >= $3 AND l.number < $4 ORDER BY l.number`
	return logStatements{
		replaceOne: withEntries(t.replaceOne),
		createOne:  withEntries(t.createOne),
		write: prepareCommit("WITH outcome AS MATERIALIZED (" + t.write.text + n.expand(`), added AS (
				INSERT INTO {log} (kind, id, number, at, data)
				SELECT e.kind, e.id, e.number, o.at, e.data
				FROM ROWS FROM (pg_catalog.unnest($17), pg_catalog.unnest($18), pg_catalog.unnest($19), pg_catalog.unnest($20))
					WITH ORDINALITY AS e (kind, id, number, data, place)
				JOIN outcome o ON o.written AND o.kind = e.kind AND o.id = e.id ORDER BY e.place
			) SELECT * FROM outcome`)),
		together: prepareCommit("WITH outcome AS MATERIALIZED (" + t.together.text + n.expand(`), added AS (
				INSERT INTO {log} (kind, id, number, at, data)
				SELECT e.kind, e.id, e.number, o.at, e.data
				FROM outcome o, ROWS FROM (pg_catalog.unnest($23), pg_catalog.unnest($24), pg_catalog.unnest($25), pg_catalog.unnest($26))
					WITH ORDINALITY AS e (kind, id, number, data, place) ORDER BY e.place
			) SELECT * FROM outcome`)),

		taken:  n.expand(`SELECT * FROM {taken_numbers}($1, $2, $3, $4)`),
		change: n.expand(`SELECT {change_logs}($1, $2, $3, $4, $5, $6, $7, $8)`),

		forward:  prepare(n.expand(numbers + ` LIMIT $5`)),
		backward: prepare(n.expand(numbers + ` DESC LIMIT $5`)),
		order:    prepare(n.expand(`SELECT ` + entry + `l.position > $1 ORDER BY l.position LIMIT $2`)),
		// position + 0 is the expression of the index for one kind.
		orderOf: prepare(n.expand(`SELECT e.* FROM pg_catalog.unnest($3) AS k (kind) CROSS JOIN LATERAL (
				SELECT ` + entry + `l.kind = k.kind AND l.position + 0 > $1 AND l.position IS NOT NULL ORDER BY l.position + 0 LIMIT $2
			) AS e ORDER BY e.position LIMIT $2`)),
		last: prepare(n.expand(`SELECT value FROM {last_position}`)),

		waiting: prepare(n.expand(`SELECT FROM {log} WHERE position IS NULL ORDER BY seq LIMIT 1`)),
		lock:    `SELECT pg_catalog.pg_advisory_xact_lock($1)`,
		// It returns the number of entries. If there are none it writes nothing.
		number: prepare(n.expand(`WITH picked AS MATERIALIZED (
				SELECT ctid AS place, pg_catalog.row_number() OVER (ORDER BY seq) AS n FROM {log} WHERE position IS NULL ORDER BY seq LIMIT $1
			), counted AS MATERIALIZED (SELECT count(*) AS n FROM picked
			), last AS (
				UPDATE {last_position} l SET value = l.value + c.n FROM counted c WHERE c.n > 0 RETURNING l.value - c.n AS before
			), numbered AS (
				UPDATE {log} l SET position = last.before + p.n FROM picked p, last WHERE l.ctid = p.place
			) SELECT c.n FROM counted c, last`)),

		remove: n.expand(`DELETE FROM {log} l USING unnest($1, $2, $3) AS n (kind, id, number)
			WHERE l.kind = n.kind AND l.id = n.id AND l.number = n.number`),
		restore: n.expand(`INSERT INTO {log} (kind, id, number, position, at, data)
			SELECT n.kind, n.id, n.number, n.position, n.at, n.data
			FROM unnest($1, $2, $3, $4, $5, $6) AS n (kind, id, number, position, at, data) WHERE n.data IS NOT NULL`),
		raise: n.expand(`UPDATE {last_position} SET value = $1 WHERE value < $1`),
	}
}
