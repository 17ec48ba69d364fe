package recipes

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// The samples of docs/transactions.md about tables of the application.

// packInPawl changes a row inside a commit of Pawl's.
func packInPawl(ctx context.Context, rt *pawl.Runtime) error {
	return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := Carts.Scope(tx, "7").PatchState(ctx, pawl.Patch{"status": "packed"}); err != nil {
			return err
		}
		return pawl.WithNative(tx, func(ctx context.Context, db *sql.Tx) error { // pgx.Tx on PostgreSQL
			_, err := db.ExecContext(ctx, `INSERT INTO audit VALUES ('packed 7')`)
			return err
		})
	})
}

// shipInSQL changes state inside a transaction of the application.
func shipInSQL(ctx context.Context, rt *pawl.Runtime, store *sqlite.Store, db *sql.DB) error {
	own, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer own.Rollback() // does nothing after Commit
	if _, err := own.ExecContext(ctx, `INSERT INTO audit VALUES ('shipped 7')`); err != nil {
		return err
	}
	err = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := Carts.Scope(tx, "7").PatchState(ctx, pawl.Patch{"status": "shipped"})
		return err
	}, pawl.CommitThrough(store.Join(own)))
	if err != nil {
		return err
	}
	return own.Commit() // both are durable now
}

func TestOwnTables(t *testing.T) {
	ctx := t.Context()
	file := filepath.Join(t.TempDir(), "state.db")
	store, err := sqlite.Open(ctx, file, sqlite.Config{})
	require.NoError(t, err)
	defer store.Close()
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{Carts}})
	require.NoError(t, err)
	defer rt.Close(ctx)
	db, err := sql.Open(sqlite.Driver, "file:"+file+"?_txlock=immediate&_synchronous=FULL&_pragma=synchronous(FULL)")
	require.NoError(t, err)
	defer db.Close()
	_, err = db.ExecContext(ctx, `CREATE TABLE audit (line TEXT)`)
	require.NoError(t, err)
	require.NoError(t, packInPawl(ctx, rt))
	require.NoError(t, shipInSQL(ctx, rt, store, db))
	var lines int
	require.NoError(t, db.QueryRowContext(ctx, `SELECT count(*) FROM audit`).Scan(&lines))
	require.Equal(t, 2, lines)
	cart, err := Carts.Scope(rt, "7").State(ctx)
	require.NoError(t, err)
	require.Equal(t, "shipped", cart.Status)
}
