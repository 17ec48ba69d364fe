package main

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
	"github.com/pawl-go/pawl"
)

// Transfers between two hot documents, the wallets, in one transaction, in both directions. The
// wallet that receives counts a unit. The sum of both balances is always 0.

var wallets = access{name: "transfers between two hot wallets", rows: "wallet-*", docs: newDocuments(walletIDs[:]...), ids: []string{"a to b", "b to a"}}

// walletIDs has the ids of the wallets, in the order in which a strategy locks them.
var walletIDs = [2]string{"wallet-a", "wallet-b"}

// amounts returns the change of each balance. The direction is one of wallets.ids.
func amounts(direction string) [2]int64 {
	if direction == wallets.ids[0] {
		return [2]int64{-1, 1}
	}
	return [2]int64{1, -1}
}

func (d *document) get(amount int64) {
	d.Balance += amount
	if amount > 0 {
		d.Count++
	}
}

// transact moves units by pawl.Transact.
var transact = pawlStrategy("Pawl, Transact", func(rt *pawl.Runtime) func(context.Context, string) error {
	return func(ctx context.Context, direction string) error {
		return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
			for i, amount := range amounts(direction) {
				_, err := documents.Scope(tx, walletIDs[i]).AtomicState(ctx, func(_ context.Context, d *document) error {
					d.get(amount)
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
})

// The peers read and write both documents in one SQL transaction.

// pair has both wallets, as a peer has read them.
type pair struct {
	docs     [2][]byte
	versions [2]int64
}

func (p *pair) transfer(direction string) (err error) {
	for i, amount := range amounts(direction) {
		var d document
		if err := json.Unmarshal(p.docs[i], &d); err != nil {
			return err
		}
		d.get(amount)
		if p.docs[i], err = json.Marshal(d); err != nil {
			return err
		}
	}
	return nil
}

type pairTable interface {
	readBoth(ctx context.Context) (pair, error)
	swapBoth(ctx context.Context, p pair) (swapped bool, err error)       // if both versions are unchanged
	updateBoth(ctx context.Context, change func(*pair) error) (err error) // with both documents locked
}

// swapBoth is the naive loop over both documents.
var swapBoth = onTable("naive CAS, 8 tries, of both", 0, func(string) string { return "naive CAS, 8 tries" }, func(t table, c *contender) func(context.Context, string) error {
	both := t.(pairTable)
	return func(ctx context.Context, direction string) error {
		return retrying(ctx, c, 8, jittered, func() (bool, error) {
			p, err := both.readBoth(ctx)
			if err != nil {
				return false, err
			}
			if err := p.transfer(direction); err != nil {
				return false, err
			}
			return both.swapBoth(ctx, p)
		})
	}
})

// lockBoth locks both documents, in the order of their keys, so that there is no deadlock.
var lockBoth = onTable("locking both", 0, locking.name, func(t table, c *contender) func(context.Context, string) error {
	c.locks = true
	return func(ctx context.Context, direction string) error {
		return t.(pairTable).updateBoth(ctx, func(p *pair) error { return p.transfer(direction) })
	}
})

func (t pgTable) readBoth(ctx context.Context) (pair, error) {
	rows, err := t.pool.Query(ctx, `SELECT doc, version FROM documents WHERE id = ANY ($1) ORDER BY id`, walletIDs[:])
	if err != nil {
		return pair{}, err
	}
	return pairOf(rows)
}

func pairOf(rows pgx.Rows) (p pair, err error) {
	defer rows.Close()
	for i := 0; rows.Next(); i++ {
		if err := rows.Scan(&p.docs[i], &p.versions[i]); err != nil {
			return p, err
		}
	}
	return p, rows.Err()
}

func (t pgTable) swapBoth(ctx context.Context, p pair) (swapped bool, err error) {
	tx, err := t.pool.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	for i, id := range walletIDs {
		tag, err := tx.Exec(ctx, `UPDATE documents SET doc = $1, version = version + 1 WHERE id = $2 AND version = $3`, p.docs[i], id, p.versions[i])
		if err != nil || tag.RowsAffected() == 0 {
			return false, err
		}
	}
	return true, tx.Commit(ctx)
}

func (t pgTable) updateBoth(ctx context.Context, change func(*pair) error) error {
	tx, err := t.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	rows, err := tx.Query(ctx, `SELECT doc, version FROM documents WHERE id = ANY ($1) ORDER BY id FOR UPDATE`, walletIDs[:])
	if err != nil {
		return err
	}
	p, err := pairOf(rows)
	if err != nil {
		return err
	}
	if err := change(&p); err != nil {
		return err
	}
	for i, id := range walletIDs {
		if _, err := tx.Exec(ctx, `UPDATE documents SET doc = $1, version = version + 1 WHERE id = $2`, p.docs[i], id); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

func (t *liteTable) readBoth(ctx context.Context) (p pair, err error) {
	for i, id := range walletIDs {
		if p.docs[i], p.versions[i], err = t.read(ctx, id); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (t *liteTable) swapBoth(ctx context.Context, p pair) (swapped bool, err error) {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	for i, id := range walletIDs {
		result, err := tx.StmtContext(ctx, t.swapping).ExecContext(ctx, string(p.docs[i]), id, p.versions[i])
		if err != nil {
			return false, err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return false, err
		}
	}
	return true, tx.Commit()
}

func (t *liteTable) updateBoth(ctx context.Context, change func(*pair) error) error {
	tx, err := t.db.BeginTx(ctx, nil) // IMMEDIATE, by _txlock
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var p pair
	for i, id := range walletIDs {
		if err := tx.StmtContext(ctx, t.reading).QueryRowContext(ctx, id).Scan(&p.docs[i], &p.versions[i]); err != nil {
			return err
		}
	}
	if err := change(&p); err != nil {
		return err
	}
	for i, id := range walletIDs {
		if _, err := tx.StmtContext(ctx, t.updating).ExecContext(ctx, string(p.docs[i]), id); err != nil {
			return err
		}
	}
	return tx.Commit()
}
