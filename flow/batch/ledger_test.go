package batch_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// add adds points to an account in a transaction of its own.
func add(t testing.TB, rt *pawl.Runtime, l batch.Ledger, account string, points int64) error {
	return pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error { return l.Add(ctx, tx, account, points) })
}

// A ledger in scopes refuses a charge that the balance does not cover, and an account that is not
// there. Proves CANCEL-4.
func TestScopeLedger(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, l := open(t, store), batch.ScopeLedger(wallets, "points")
		for _, points := range []int64{-1, 0, 1} {
			requireCode(t, add(t, rt, l, "ada", points), "NOT_FOUND", 404)
		}
		give(t, rt, "ada", 10)
		err := add(t, rt, l, "ada", -11)
		requireCode(t, err, "INSUFFICIENT_BALANCE", 402)
		short := (*batch.InsufficientError)(nil)
		require.ErrorAs(t, err, &short)
		require.Equal(t, batch.InsufficientError{Account: "ada", Have: 10, Need: 11}, *short)
		require.EqualValues(t, 10, balance(t, rt, "ada"))
		require.NoError(t, add(t, rt, l, "ada", -10))
		require.EqualValues(t, 0, balance(t, rt, "ada"))
		require.NoError(t, add(t, rt, l, "ada", 0))
		requireCode(t, add(t, rt, l, "ada", -1), "INSUFFICIENT_BALANCE", 402)
		require.NoError(t, add(t, rt, l, "ada", 3))
		require.EqualValues(t, 3, balance(t, rt, "ada"))
		require.NoError(t, wallets.Scope(rt, "ada").Delete(t.Context()))
		requireCode(t, add(t, rt, l, "ada", 1), "NOT_FOUND", 404)
	})
}

// The balance may be in a field of a struct.
func TestScopeLedgerWithAPath(t *testing.T) {
	type user struct {
		Wallet struct {
			Points int32 `json:"points"`
		} `json:"wallet"`
	}
	rt, users := open(t, memory.New()), pawl.Kind[user]{Name: "member"}
	state := user{}
	state.Wallet.Points = 10
	_, err := users.Scope(rt, "ada").SetState(t.Context(), state)
	require.NoError(t, err)
	l := batch.ScopeLedger(users, "wallet.points")
	require.NoError(t, add(t, rt, l, "ada", -4))
	requireCode(t, add(t, rt, l, "ada", -7), "INSUFFICIENT_BALANCE", 402)
	state, err = users.Scope(rt, "ada").State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 6, state.Wallet.Points)
}

// A balance that is no signed integer is refused by Submit, not by the worker.
func TestScopeLedgerWithAnotherType(t *testing.T) {
	type user struct {
		Name   string  `json:"name"`
		Rate   float64 `json:"rate"`
		Points uint64  `json:"points"`
		Good   int     `json:"good"`
	}
	rt, users := open(t, memory.New()), pawl.Kind[user]{Name: "member"}
	_, err := users.Scope(rt, "ada").SetState(t.Context(), user{Points: 10, Rate: 10, Good: 10})
	require.NoError(t, err)
	for _, field := range []pawl.Field{"name", "rate", "points", "missing"} {
		q := newQueue(t, rt, newStudio(), func(c *config) { c.Ledger = batch.ScopeLedger(users, field) })
		_, _, err := q.Submit(t.Context(), aJob{ID: "j", Account: "ada", Items: prompts(1, 5)})
		require.Error(t, err, field)
		_, err = q.Progress(t.Context(), "j")
		require.ErrorIs(t, err, pawl.ErrNotFound, field)
	}
	require.NoError(t, add(t, rt, batch.ScopeLedger(users, "good"), "ada", -10))
}

// Charges and refunds are increments: those of other writers at the same time are not lost. Proves
// CANCEL-4.
func TestOtherWritersOfTheBalance(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		const writers, times = 3, 10
		rt, s := open(t, store), newStudio()
		give(t, rt, "ada", 100)
		q := newQueue(t, rt, s, func(c *config) { c.Chunk = 1 })
		ids := []string{"j0", "j1", "j2"}
		for _, id := range ids {
			submit(t, q, id, prompts(4, 5))
		}
		start(t, q)
		var group sync.WaitGroup
		for range writers {
			group.Go(func() {
				for range times {
					_, err := wallets.Scope(rt, "ada").IncState(context.Background(), "points", 1)
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		for _, id := range ids {
			group.Go(func() {
				if _, err := q.Cancel(context.Background(), id); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		for _, id := range ids {
			finished(t, q, id)
		}
		checkBooks(t, rt, q, 100+writers*times, ids...)
	})
}

// table is a ledger in a table of the program's own, next to the store.
type table struct {
	store  persist.Store
	ledger batch.Ledger
	// before is called inside each commit that adds points, after the statement. nil: nothing.
	before func(points int64) error
	exec   func(statement string)
	points func() int64 // of "ada"; -1: there is no such row
}

var errBroken = errors.New("the commit is broken")

// added returns what Add returns for a statement that has changed some rows.
func (b *table) added(rows, points int64, have func() (int64, error)) error {
	if rows == 0 {
		n, err := have()
		switch {
		case errors.Is(err, sql.ErrNoRows) || errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("%w: no such row", pawl.ErrNotFound)
		case err != nil:
			return err
		}
		return &batch.InsufficientError{Account: "ada", Have: n, Need: -points}
	}
	if b.before != nil {
		return b.before(points)
	}
	return nil
}

// The statements, with the parameters of PostgreSQL.
const (
	addToRow  = "UPDATE purse SET points = points + $2 WHERE id = $1 AND points + $2 >= 0"
	getPoints = "SELECT points FROM purse WHERE id = $1"
)

func sqliteTable(t *testing.T, location string) *table {
	addToRow, getPoints := strings.ReplaceAll(addToRow, "$", "?"), strings.ReplaceAll(getPoints, "$", "?")
	db, err := sql.Open(sqlite.Driver, "file:"+location[len("sqlite:"):]+"?_busy_timeout=10000&_pragma=busy_timeout(10000)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	b := &table{store: stores.OpenFor(t, location)}
	b.exec = func(statement string) {
		_, err := db.Exec(statement)
		require.NoError(t, err)
	}
	b.ledger = batch.NativeLedger(func(ctx context.Context, tx *sql.Tx, account string, points int64) error {
		done, err := tx.ExecContext(ctx, addToRow, account, points)
		if err != nil {
			return err
		}
		rows, err := done.RowsAffected()
		return errors.Join(err, b.added(rows, points, func() (n int64, err error) {
			return n, tx.QueryRowContext(ctx, getPoints, account).Scan(&n)
		}))
	})
	b.points = func() (n int64) {
		if err := db.QueryRow(getPoints, "ada").Scan(&n); errors.Is(err, sql.ErrNoRows) {
			return -1
		} else {
			require.NoError(t, err)
		}
		return n
	}
	return b
}

func postgresTable(t *testing.T, location string) *table {
	conn := pgtest.Connect(t, location)
	b := &table{store: stores.OpenFor(t, location)}
	b.exec = func(statement string) {
		_, err := conn.Exec(context.Background(), statement)
		require.NoError(t, err)
	}
	b.ledger = batch.NativeLedger(func(ctx context.Context, tx pgx.Tx, account string, points int64) error {
		done, err := tx.Exec(ctx, addToRow, account, points)
		if err != nil {
			return err
		}
		return b.added(done.RowsAffected(), points, func() (n int64, err error) {
			return n, tx.QueryRow(ctx, getPoints, account).Scan(&n)
		})
	})
	b.points = func() (n int64) {
		if err := conn.QueryRow(context.Background(), getPoints, "ada").Scan(&n); errors.Is(err, pgx.ErrNoRows) {
			return -1
		} else {
			require.NoError(t, err)
		}
		return n
	}
	return b
}

// A ledger in a table of the program's own: each charge and each refund is one commit with its item. A
// commit that fails leaves both as they were. Proves CANCEL-3, CANCEL-4.
func TestNativeLedger(t *testing.T) {
	for _, s := range stores.Shared {
		tables := map[string]func(*testing.T, string) *table{"sqlite": sqliteTable, "postgres": postgresTable}
		if tables[s.Name] == nil {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			b, s := tables[s.Name](t, s.New(t)), newStudio()
			b.exec("CREATE TABLE purse (id TEXT PRIMARY KEY, points BIGINT NOT NULL)")
			rt := open(t, b.store)
			q := newQueue(t, rt, s, func(c *config) { c.Ledger = b.ledger })
			// check checks that each item that is not refunded is paid for.
			check := func(began int64, ids ...string) {
				t.Helper()
				spent := int64(0)
				for _, id := range ids {
					cost := int64(0)
					for it, err := range q.Items(t.Context(), id, batch.Charged, batch.Made, batch.Finalized) {
						require.NoError(t, err)
						cost += it.Price
					}
					require.Equal(t, cost, progress(t, q, id).Cost())
					spent += cost
				}
				require.Equal(t, began, b.points()+spent)
			}

			_, _, err := q.Submit(t.Context(), aJob{ID: "j", Account: "ada", Items: prompts(4, 5)})
			requireCode(t, err, "NOT_FOUND", 404)
			_, err = q.Progress(t.Context(), "j")
			require.ErrorIs(t, err, pawl.ErrNotFound)
			b.exec("INSERT INTO purse VALUES ('ada', 12)")
			submit(t, q, "j", prompts(4, 5))
			require.EqualValues(t, 12, b.points())

			// The commit of a charge fails after the statement: no call, no charge.
			b.before = func(int64) error { return errBroken }
			once(t, q)
			require.Equal(t, "waiting waiting waiting waiting", states(t, q, "j"))
			require.Contains(t, progress(t, q, "j").Reason, errBroken.Error())
			require.Zero(t, s.count())
			check(12, "j")

			// The third charge is refused.
			b.before = nil
			start(t, q)
			p := finished(t, q, "j")
			require.Equal(t, batch.Failed, p.Status)
			require.Contains(t, p.Reason, "has 2 points and needs 5")
			require.Equal(t, "made made waiting waiting", states(t, q, "j"))
			check(12, "j")

			// The commit of a refund fails after the statement: nothing is refunded.
			b.before = func(int64) error { return errBroken }
			_, err = q.Cancel(t.Context(), "j")
			require.ErrorIs(t, err, errBroken)
			p = progress(t, q, "j")
			require.Equal(t, batch.Canceling, p.Status)
			require.Contains(t, p.Reason, errBroken.Error())
			require.Equal(t, "made made waiting waiting", states(t, q, "j"))
			check(12, "j")

			// A row that is gone.
			b.before = nil
			b.exec("DELETE FROM purse")
			_, err = q.Cancel(t.Context(), "j")
			requireCode(t, err, "NOT_FOUND", 404)
			require.EqualValues(t, -1, b.points())
			require.Equal(t, "made made waiting waiting", states(t, q, "j"))

			b.exec("INSERT INTO purse VALUES ('ada', 2)")
			require.Equal(t, batch.NowCanceled, cancelJob(t, q, "j").Answer)
			require.EqualValues(t, 12, b.points())
			require.Empty(t, s.left())
			check(12, "j")

			// An item that fails is refunded with its mark.
			s.during = func(context.Context, string) error { return pawl.NonRetryable(errCall) }
			submit(t, q, "failing", prompts(2, 5))
			require.Equal(t, batch.Completed, finished(t, q, "failing").Status)
			require.Equal(t, "failed failed", states(t, q, "failing"))
			check(12, "j", "failing")
		})
	}
}
