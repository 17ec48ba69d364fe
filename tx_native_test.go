package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
	"github.com/stretchr/testify/require"
)

type till struct {
	Cents int64 `json:"cents"`
}

var tills = pawl.Kind[till]{Name: "till"}

// ledger is a table of the user in the same database as the state.
type ledger struct {
	rt    *pawl.Runtime
	store persist.Store
	// native adds a row inside the commit of tx, then calls then.
	native func(tx *pawl.Tx, cents int64, then func(ctx context.Context) error) error
	// begin starts a transaction of the user.
	begin func(ctx context.Context) (userTx, error)
	// sum returns the sum of all rows.
	sum func(t *testing.T) int64
}

// pay adds cents to the till and to the ledger in one commit.
func (l ledger) pay(ctx context.Context, till string, cents int64, then func(context.Context) error) error {
	return pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := tills.Scope(tx, till).IncState(ctx, "cents", cents); err != nil {
			return err
		}
		return l.native(tx, cents, then)
	})
}

func (l ledger) cents(t *testing.T, till string) int64 {
	t.Helper()
	s, err := tills.Scope(l.rt, till).State(t.Context())
	require.NoError(t, err)
	return s.Cents
}

// userTx is a database transaction of the user.
type userTx struct {
	joined persist.Store
	add    func(ctx context.Context, cents int64) error
	exec   func(ctx context.Context, text string) error
	commit func(ctx context.Context) error
	undo   func(ctx context.Context) error
}

// onLedgers runs test on SQLite and PostgreSQL. The user's pool has as many connections as given.
func onLedgers(t *testing.T, connections int, test func(t *testing.T, l ledger)) {
	for _, s := range stores.Shared {
		switch s.Name {
		case "sqlite":
			t.Run(s.Name, func(t *testing.T) { test(t, sqliteLedger(t, s.New(t), connections)) })
		case "postgres":
			t.Run(s.Name, func(t *testing.T) { test(t, postgresLedger(t, s.New(t), connections)) })
		}
	}
}

func sqliteLedger(t *testing.T, location string, connections int) ledger {
	store := stores.OpenFor(t, location).(*sqlite.Store)
	// The SQLite drivers name the same settings differently.
	const settings = "?_txlock=immediate&_synchronous=FULL&_pragma=synchronous(FULL)&_busy_timeout=10000&_pragma=busy_timeout(10000)"
	db, err := sql.Open(sqlite.Driver, "file:"+location[len("sqlite:"):]+settings)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(connections)
	_, err = db.Exec("CREATE TABLE ledger (cents INTEGER)")
	require.NoError(t, err)
	const insert = "INSERT INTO ledger VALUES (?)"
	return ledger{
		rt: openRuntime(t, pawl.Config{Store: store}), store: store,
		native: func(tx *pawl.Tx, cents int64, then func(context.Context) error) error {
			return pawl.WithNative(tx, func(ctx context.Context, db *sql.Tx) error {
				if _, err := db.ExecContext(ctx, insert, cents); err != nil {
					return err
				}
				return then(ctx)
			})
		},
		begin: func(ctx context.Context) (userTx, error) {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return userTx{}, err
			}
			return userTx{
				joined: store.Join(tx),
				add:    func(ctx context.Context, cents int64) error { _, err := tx.ExecContext(ctx, insert, cents); return err },
				exec:   func(ctx context.Context, text string) error { _, err := tx.ExecContext(ctx, text); return err },
				commit: func(context.Context) error { return tx.Commit() },
				undo:   func(context.Context) error { return tx.Rollback() },
			}, nil
		},
		sum: func(t *testing.T) (n int64) {
			require.NoError(t, db.QueryRow("SELECT coalesce(sum(cents), 0) FROM ledger").Scan(&n))
			return n
		},
	}
}

func postgresLedger(t *testing.T, location string, connections int) ledger {
	config, err := pgxpool.ParseConfig(location)
	require.NoError(t, err)
	config.MaxConns = int32(connections)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store, err := postgres.New(t.Context(), pool, postgres.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	_, err = pool.Exec(t.Context(), "CREATE TABLE ledger (cents bigint)")
	require.NoError(t, err)
	const insert = "INSERT INTO ledger VALUES ($1)"
	return ledger{
		rt: openRuntime(t, pawl.Config{Store: store}), store: store,
		native: func(tx *pawl.Tx, cents int64, then func(context.Context) error) error {
			return pawl.WithNative(tx, func(ctx context.Context, db pgx.Tx) error {
				if _, err := db.Exec(ctx, insert, cents); err != nil {
					return err
				}
				return then(ctx)
			})
		},
		begin: func(ctx context.Context) (userTx, error) {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return userTx{}, err
			}
			return userTx{
				joined: store.Join(tx),
				add:    func(ctx context.Context, cents int64) error { _, err := tx.Exec(ctx, insert, cents); return err },
				exec:   func(ctx context.Context, text string) error { _, err := tx.Exec(ctx, text); return err },
				commit: tx.Commit, undo: tx.Rollback,
			}, nil
		},
		sum: func(t *testing.T) (n int64) {
			require.NoError(t, pool.QueryRow(context.Background(), "SELECT coalesce(sum(cents), 0) FROM ledger").Scan(&n))
			return n
		},
	}
}

func nothing(context.Context) error { return nil }

// The user's SQL and the state are one commit. A failure inside it undoes both, and Transact
// returns its error unchanged.
//
// Proves TX-6.
func TestWithNative(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		require.NoError(t, l.pay(ctx, "bar", 5, nothing))
		require.EqualValues(t, 5, l.cents(t, "bar"))
		require.EqualValues(t, 5, l.sum(t))

		broke := errors.New("the register is broken")
		require.Same(t, broke, l.pay(ctx, "bar", 7, func(context.Context) error { return broke }))
		var p *pawl.PanicError
		func() {
			defer func() { p, _ = recover().(*pawl.PanicError) }()
			_ = l.pay(ctx, "bar", 7, func(context.Context) error { panic("smash") })
		}()
		require.NotNil(t, p)
		require.Equal(t, "smash", p.Value)
		require.ErrorIs(t, l.pay(ctx, "bar", 7, func(ctx context.Context) error {
			_, err := tills.Scope(l.rt, "bar").IncState(ctx, "cents", 1)
			return err
		}), pawl.ErrOutsideTx, "a mutation inside the commit would wait for that commit")
		ended := func() error { return nil }
		func() {
			canceled, cancel := context.WithCancel(ctx)
			defer cancel()
			err := l.pay(canceled, "bar", 7, func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() })
			ended = func() error { return err }
		}()
		require.ErrorIs(t, ended(), context.Canceled)
		require.EqualValues(t, 5, l.cents(t, "bar"))
		require.EqualValues(t, 5, l.sum(t))
		snap, err := tills.Scope(l.rt, "bar").IncState(ctx, "cents", 1)
		require.NoError(t, err)
		require.EqualValues(t, 2, snap.Version, "a failed commit must not change the version")
		require.EqualValues(t, 6, snap.ReadOnly().Cents)
	})
}

// A commit may consist of SQL only. A joined transaction that is undone runs no SQL, and a changed
// read set makes the function run again.
//
// Proves TX-6.
func TestWithNativeAlone(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx := t.Context()
		require.NoError(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error { return l.native(tx, 3, nothing) }))
		require.EqualValues(t, 3, l.sum(t))
		undone := errors.New("undone")
		require.NoError(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
			err := pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) error { return errors.Join(l.native(tx, 1000, nothing), undone) })
			require.ErrorIs(t, err, undone)
			return l.native(tx, 4, nothing)
		}))
		require.EqualValues(t, 7, l.sum(t))
		other, err := pawl.Open(pawl.Config{Store: l.rt.Store()})
		require.NoError(t, err)
		defer other.Close(context.Background())
		runs := 0
		require.NoError(t, pawl.Transact(ctx, l.rt, func(ctx context.Context, tx *pawl.Tx) error {
			s, err := tills.Scope(tx, "bar").State(ctx)
			if err != nil {
				return err
			}
			if runs++; runs == 1 { // another process changes the state that was read
				_, err := tills.Scope(other, "bar").IncState(pawl.Detach(ctx), "cents", 10)
				require.NoError(t, err)
			}
			return l.native(tx, s.Cents, nothing)
		}))
		require.EqualValues(t, 17, l.sum(t), "the row must be computed from the current state")
	})
}

// WithNative returns ErrNoNative on a store without a matching transaction type.
//
// Proves TX-6.
func TestWithNativeUnsupported(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		require.ErrorIs(t, pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			return pawl.WithNative(tx, func(context.Context, *testing.T) error { return nil })
		}), pawl.ErrNoNative)
	})
}

// lossy loses answers of commits with user SQL, both of executed commits and of commits that it
// drops.
type lossy struct {
	persist.Store
	lost *atomic.Int32
}

func (s lossy) CommitWith(ctx context.Context, c persist.Commit, fn func(context.Context, any) error) (time.Time, error) {
	if rand.IntN(4) == 0 {
		s.lost.Add(1)
		return time.Time{}, errAnswerLost
	}
	at, err := s.Store.(persist.Native).CommitWith(ctx, c, fn)
	if rand.IntN(4) == 0 && err == nil {
		s.lost.Add(1)
		return time.Time{}, errAnswerLost
	}
	return at, err
}

func (s lossy) NativeType() reflect.Type { return s.Store.(persist.Native).NativeType() }

// If the answer of a commit is lost, the user's SQL takes effect exactly once, like the state.
//
// Proves TX-6.
func TestNativeAnswersLost(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		var lost atomic.Int32
		l.rt = openRuntime(t, pawl.Config{Store: lossy{l.store, &lost}})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 20 {
					if err := l.pay(t.Context(), "bar", 1, nothing); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.NotZero(t, lost.Load())
		require.EqualValues(t, 80, l.cents(t, "bar"))
		require.EqualValues(t, 80, l.sum(t))
	})
}

// A caller that leaves while its SQL runs gets CanceledError, or LeaseLostError if it lost its
// lease. Nothing is written.
//
// Proves TX-6.
func TestNativeCallerLeaves(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := l.pay(ctx, "bar", 7, func(context.Context) error { cancel(); return nil })
		var canceled *pawl.CanceledError
		require.ErrorAs(t, err, &canceled)
		require.Equal(t, pawl.PhaseQueued, canceled.Phase)
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, pawl.IsRetryable(err))

		lease, err := tills.Scope(l.rt, "kitchen").Acquire(t.Context())
		require.NoError(t, err)
		err = l.pay(lease.Context(), "bar", 7, func(context.Context) error {
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, lease.Release(gone))
			return nil
		})
		var lost *pawl.LeaseLostError
		require.ErrorAs(t, err, &lost)
		require.Zero(t, l.sum(t))
		require.Zero(t, l.cents(t, "bar"))
	})
}

// A mutation that user code makes during a commit is checked against the lease of its context.
//
// Proves TX-6.
func TestNativeUnderALease(t *testing.T) {
	onLedgers(t, 4, func(t *testing.T, l ledger) {
		lease, err := tills.Scope(l.rt, "kitchen").Acquire(t.Context())
		require.NoError(t, err)
		beside := pawl.Memory[till](l.rt, "beside")
		_ = l.pay(lease.Context(), "bar", 7, func(ctx context.Context) error {
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, lease.Release(gone))
			_, err := beside.IncState(context.WithoutCancel(pawl.Detach(ctx)), "cents", 1)
			var lost *pawl.LeaseLostError
			require.ErrorAs(t, err, &lost)
			return errors.New("enough")
		})
	})
}
