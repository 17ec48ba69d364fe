package main

import "context"

// Pessimistic locking: lock the document, then read, change and write it. There are no conflicts, and
// every writer waits for the lock.

// locking is SELECT FOR UPDATE on PostgreSQL, and the nearest equivalent on the other stores.
var locking = onTable("locking", 0, func(store string) string {
	switch store {
	case inSQLite:
		return "BEGIN IMMEDIATE"
	case inFiles:
		return "flock"
	}
	return "SELECT FOR UPDATE"
}, func(t table, c *contender) func(context.Context, string) error {
	c.locks = true
	return func(ctx context.Context, id string) error { return t.update(ctx, id, counted) }
})

func (t pgTable) update(ctx context.Context, id string, change func(doc []byte) ([]byte, error)) error {
	tx, err := t.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	var doc []byte
	if err := tx.QueryRow(ctx, `SELECT doc FROM documents WHERE id = $1 FOR UPDATE`, id).Scan(&doc); err != nil {
		return err
	}
	if doc, err = change(doc); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `UPDATE documents SET doc = $1, version = version + 1 WHERE id = $2`, doc, id); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// update locks the whole file by an immediate transaction, because SQLite has no row locks.
func (t *liteTable) update(ctx context.Context, id string, change func(doc []byte) ([]byte, error)) error {
	tx, err := t.db.BeginTx(ctx, nil) // IMMEDIATE, by _txlock
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var doc []byte
	var version int64
	if err := tx.StmtContext(ctx, t.reading).QueryRowContext(ctx, id).Scan(&doc, &version); err != nil {
		return err
	}
	if doc, err = change(doc); err != nil {
		return err
	}
	if _, err := tx.StmtContext(ctx, t.updating).ExecContext(ctx, string(doc), id); err != nil {
		return err
	}
	return tx.Commit()
}

func (t fileTable) update(ctx context.Context, id string, change func(doc []byte) ([]byte, error)) error {
	return t.locked(id, func() error {
		doc, version, err := t.read(ctx, id)
		if err != nil {
			return err
		}
		if doc, err = change(doc); err != nil {
			return err
		}
		return t.write(id, doc, version+1)
	})
}
