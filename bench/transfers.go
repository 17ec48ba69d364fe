package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/pawl-go/pawl"
)

// P7 moves units between two documents, the wallets, in one transaction, in both directions. The wallet
// that receives counts a unit. The sum of all balances is always 0.

var (
	hotWallets = transfers("transfers between two hot wallets", "wallet-*", []string{"wallet-a", "wallet-b"},
		[]string{transferID("wallet-a", "wallet-b"), transferID("wallet-b", "wallet-a")})
	manyWallets = func() access {
		var all, pairs []string
		for i := range 1000 {
			all = append(all, fmt.Sprintf("purse-%03d", i))
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 1 << 14 {
			n := r.Perm(len(all))[:2]
			pairs = append(pairs, transferID(all[n[0]], all[n[1]]))
		}
		return transfers("transfers between 1,000 wallets", "purse-*", all, pairs)
	}
)

// transfers returns the access of a workload whose ids are transfers.
func transfers(name, rows string, wallets, pairs []string) access {
	return access{name: name, rows: rows, docs: newDocuments(wallets...), ids: pairs}
}

// transferID is the id of a unit that moves one from a wallet to another.
func transferID(from, to string) string { return from + ">" + to }

// transfer is what a unit does to two wallets, in the order in which a strategy locks them.
type transfer struct {
	ids     [2]string
	amounts [2]int64
}

func transferOf(id string) transfer {
	from, to, _ := strings.Cut(id, ">")
	if from < to {
		return transfer{[2]string{from, to}, [2]int64{-1, 1}}
	}
	return transfer{[2]string{to, from}, [2]int64{1, -1}}
}

// p7 measures transfers between two hot wallets, between many, and by one writer alone.
func p7(b *bench) error {
	for _, store := range []string{inPostgres, inSQLite} {
		for _, w := range []struct {
			access  access
			writers int
			goal    float64
			times   int
		}{{hotWallets, 64, 1, b.pick(5, 1)}, {manyWallets(), 16, 1, b.pick(5, 1)}, {hotWallets, 1, 0.9, b.pick(9, 1)}} {
			d := comparison{
				work: w.access.name, store: store, load: load{writers: w.writers, lasts: b.lasting(1000, 120), cut: true},
				ours: w.access.on(transact, store), peer: w.access.on(lockBoth, store),
				goal: atLeast(w.goal), flawless: true, times: w.times,
			}
			if w.writers == 64 { // for the record
				d.also = []side{w.access.on(swapBoth, store)}
			}
			if err := b.runComparisons(d); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *document) get(amount int64) {
	d.Balance += amount
	if amount > 0 {
		d.Count++
	}
}

// transact moves units by pawl.Transact.
var transact = pawlStrategy("Pawl, Transact", func(rt *pawl.Runtime) func(context.Context, string) error {
	return func(ctx context.Context, id string) error {
		t := transferOf(id)
		return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
			for i, amount := range t.amounts {
				_, err := documents.Scope(tx, t.ids[i]).AtomicState(ctx, func(_ context.Context, d *document) error {
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

func (p *pair) transfer(t transfer) (err error) {
	for i, amount := range t.amounts {
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
	readBoth(ctx context.Context, t transfer) (pair, error)
	swapBoth(ctx context.Context, t transfer, p pair) (swapped bool, err error) // if both versions are unchanged
	updateBoth(ctx context.Context, t transfer) (err error)                     // with both documents locked
}

// swapBoth is the naive loop over both documents.
var swapBoth = onTable("naive CAS, 8 tries, of both", 0, func(string) string { return "naive CAS, 8 tries" }, func(t table, c *contender) func(context.Context, string) error {
	both := t.(pairTable)
	return func(ctx context.Context, id string) error {
		t := transferOf(id)
		return retrying(ctx, c, 8, jittered, func() (bool, error) {
			p, err := both.readBoth(ctx, t)
			if err != nil {
				return false, err
			}
			if err := p.transfer(t); err != nil {
				return false, err
			}
			return both.swapBoth(ctx, t, p)
		})
	}
})

// lockBoth locks both documents, in the order of their keys, so that there is no deadlock.
var lockBoth = onTable("locking both", 0, locking.name, func(t table, c *contender) func(context.Context, string) error {
	c.locks = true
	return func(ctx context.Context, id string) error { return t.(pairTable).updateBoth(ctx, transferOf(id)) }
})

func (t pgTable) readBoth(ctx context.Context, of transfer) (pair, error) {
	rows, err := t.pool.Query(ctx, `SELECT doc, version FROM documents WHERE id = ANY ($1) ORDER BY id`, of.ids[:])
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

func (t pgTable) swapBoth(ctx context.Context, of transfer, p pair) (swapped bool, err error) {
	tx, err := t.pool.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	for i, id := range of.ids {
		tag, err := tx.Exec(ctx, `UPDATE documents SET doc = $1, version = version + 1 WHERE id = $2 AND version = $3`, p.docs[i], id, p.versions[i])
		if err != nil || tag.RowsAffected() == 0 {
			return false, err
		}
	}
	return true, tx.Commit(ctx)
}

func (t pgTable) updateBoth(ctx context.Context, of transfer) error {
	tx, err := t.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	rows, err := tx.Query(ctx, `SELECT doc, version FROM documents WHERE id = ANY ($1) ORDER BY id FOR UPDATE`, of.ids[:])
	if err != nil {
		return err
	}
	p, err := pairOf(rows)
	if err != nil {
		return err
	}
	if err := p.transfer(of); err != nil {
		return err
	}
	for i, id := range of.ids {
		if _, err := tx.Exec(ctx, `UPDATE documents SET doc = $1, version = version + 1 WHERE id = $2`, p.docs[i], id); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

func (t *liteTable) readBoth(ctx context.Context, of transfer) (p pair, err error) {
	for i, id := range of.ids {
		if p.docs[i], p.versions[i], err = t.read(ctx, id); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (t *liteTable) swapBoth(ctx context.Context, of transfer, p pair) (swapped bool, err error) {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	for i, id := range of.ids {
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

func (t *liteTable) updateBoth(ctx context.Context, of transfer) error {
	tx, err := t.db.BeginTx(ctx, nil) // IMMEDIATE, by _txlock
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var p pair
	for i, id := range of.ids {
		if err := tx.StmtContext(ctx, t.reading).QueryRowContext(ctx, id).Scan(&p.docs[i], &p.versions[i]); err != nil {
			return err
		}
	}
	if err := p.transfer(of); err != nil {
		return err
	}
	for i, id := range of.ids {
		if _, err := tx.StmtContext(ctx, t.updating).ExecContext(ctx, string(p.docs[i]), id); err != nil {
			return err
		}
	}
	return tx.Commit()
}
