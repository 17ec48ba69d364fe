package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
)

// joinedFixture is a store on a pool of the caller's.
type joinedFixture struct {
	*testing.T
	url  string
	pool *pgxpool.Pool
	s    *Store
	conn *pgx.Conn // sees what is committed
}

func newJoined(t *testing.T, size int32) *joinedFixture {
	url := pgtest.URL(t)
	pool := pooled(t, url, func(c *pgxpool.Config) { c.MaxConns = size })
	s, err := New(t.Context(), pool, Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	execute(t, url, ledger)
	return &joinedFixture{t, url, pool, s, pgtest.Connect(t, url)}
}

// begin begins a transaction, which is rolled back with the test if it is still there.
func (f *joinedFixture) begin(options pgx.TxOptions) (pgx.Tx, persist.Store) {
	f.Helper()
	tx, err := f.pool.BeginTx(f.Context(), options)
	require.NoError(f, err)
	f.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx, f.s.Join(tx)
}

// rows returns how many rows the ledger has.
func (f *joinedFixture) rows() int64 { return value[int64](f, f.conn, "SELECT count(*) FROM ledger") }

// version returns the version of an id that others see, 0 if there is none.
func (f *joinedFixture) version(id string) uint64 {
	f.Helper()
	r, err := openAt(f, f.url, Config{}).Load(f.Context(), thing(id))
	if errors.Is(err, persist.ErrNotFound) {
		return 0
	}
	require.NoError(f, err)
	return r.Version
}

// TestJoinAgrees has many commit to few documents, and to rows of their own, in their own
// transactions, half of which they roll back. Rows and documents agree exactly.
//
// Proves TX-6.
func TestJoinAgrees(t *testing.T) {
	f := newJoined(t, 8)
	var applied atomic.Int64
	var group sync.WaitGroup
	for worker := range 20 {
		group.Go(func() {
			for n := range 10 {
				err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
					s, id := f.s.Join(tx), fmt.Sprint(n/5*3+rand.IntN(3))
					c, err := next(t.Context(), s, id, fmt.Sprint("w", worker), n)
					if err != nil {
						return err
					}
					if _, err := s.Commit(t.Context(), c); err != nil {
						return err
					}
					if err := enter(t.Context(), tx, id, c.Writes[0].Version); err != nil {
						return err
					}
					if worker%2 == 0 {
						return errRegret
					}
					return nil
				})
				switch {
				case err == nil:
					applied.Add(1)
				case !isConflict(err) && !errors.Is(err, errRegret):
					t.Errorf("%v", err)
				}
			}
		})
	}
	group.Wait()
	sameAsLedger(t, f.conn)
	require.Equal(t, applied.Load(), f.rows())
	require.Positive(t, applied.Load())
}

var errRegret = errors.New("regret")

// TestJoinOneConnection: the transaction that occupies the only connection does everything.
//
// Proves TX-6.
func TestJoinOneConnection(t *testing.T) {
	f := newJoined(t, 1)
	tx, s := f.begin(pgx.TxOptions{})
	reader, native := s.(persist.Reader), s.(persist.Native)
	ctx := t.Context()
	at, err := s.Commit(ctx, put("a", 0))
	require.NoError(t, err)
	_, err = s.Commit(ctx, together(put("a", 1), put("b", 0)))
	require.NoError(t, err)
	r, err := s.Load(ctx, thing("a"))
	require.NoError(t, err)
	require.EqualValues(t, 2, r.Version)
	require.False(t, r.Updated.Before(at))
	_, err = s.Load(ctx, thing("none"))
	require.ErrorIs(t, err, persist.ErrNotFound)
	all, err := reader.LoadAll(ctx, []persist.Key{thing("b"), thing("none"), thing("a")})
	require.NoError(t, err)
	require.EqualValues(t, 1, all[0].Version)
	require.True(t, all[1].Absent())
	page, err := s.List(ctx, persist.Query{Kind: "thing", Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "a", page.Records[0].ID)
	require.NotEmpty(t, page.Next)
	_, err = s.List(ctx, persist.Query{After: "nonsense"})
	require.Error(t, err)
	_, err = native.CommitWith(ctx, put("c", 0), func(ctx context.Context, tx any) error { return enter(ctx, tx, "c", 1) })
	require.NoError(t, err)
	require.Equal(t, f.s.NativeType(), native.NativeType())

	require.Zero(t, f.version("a"), "it is not visible before COMMIT")
	require.NoError(t, s.Close())
	_, err = s.Load(ctx, thing("a"))
	require.ErrorIs(t, err, persist.ErrClosed)
	require.NoError(t, tx.Commit(ctx))
	require.EqualValues(t, 2, f.version("a"))
	require.EqualValues(t, 1, f.version("c"))
	require.EqualValues(t, 1, f.rows())
}

// settings are those that a commit needs otherwise for itself.
const settings = `SELECT concat_ws(' ', current_setting('lock_timeout'), current_setting('statement_timeout'),
	current_setting('idle_in_transaction_session_timeout'))`

// TestJoinRefusals: a commit that is refused leaves nothing behind, and the transaction, with its
// settings, as it was.
//
// Proves TX-6.
func TestJoinRefusals(t *testing.T) {
	f := newJoined(t, 2)
	must(t, f.s, put("a", 0), put("b", 0))
	tx, s := f.begin(pgx.TxOptions{})
	ctx := t.Context()
	_, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '7s'; SET LOCAL statement_timeout = '8s'; SET LOCAL idle_in_transaction_session_timeout = '9s'")
	require.NoError(t, err)
	require.NoError(t, enter(ctx, tx, "mine", 1))

	_, err = s.Commit(ctx, together(put("new", 0), put("a", 0)))
	require.EqualValues(t, 1, winner(t, err).Version)
	require.JSONEq(t, `{"title": "hello", "n": 12345}`, string(winner(t, err).Doc))
	fenced := put("b", 1)
	fenced.Guards = []persist.Guard{{Key: thing("a"), Token: 5}}
	_, err = s.Commit(ctx, fenced)
	require.ErrorAs(t, err, new(*persist.Fenced))
	rejected := together(put("new", 0), put("b", 1))
	rejected.Writes[1].Doc = []byte(`"\u0000"`)
	_, err = s.Commit(ctx, rejected)
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.NotErrorIs(t, err, persist.ErrUnavailable)
	_, err = s.Commit(ctx, persist.Commit{})
	require.ErrorIs(t, err, persist.ErrNotApplied)
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err = s.Commit(over, put("new", 0))
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, context.Canceled)
	_, err = s.Load(over, thing("a"))
	require.ErrorIs(t, err, context.Canceled)

	must(t, f.s, put("a", 1)) // nothing of it is locked any more
	_, err = s.Commit(ctx, put("b", 1))
	require.NoError(t, err)
	var got string
	require.NoError(t, tx.QueryRow(ctx, settings).Scan(&got))
	require.Equal(t, "7s 8s 9s", got)
	require.NoError(t, tx.Commit(ctx))
	require.EqualValues(t, 2, f.version("b"))
	require.Zero(t, f.version("new"))
	require.EqualValues(t, 1, f.rows())
}

// TestJoinFunctions: a function that fails takes its commit with it, and not the transaction.
//
// Proves TX-6.
func TestJoinFunctions(t *testing.T) {
	f := newJoined(t, 1)
	tx, s := f.begin(pgx.TxOptions{})
	ctx := t.Context()
	call := func(fn func(tx pgx.Tx) error) error {
		_, err := s.(persist.Native).CommitWith(ctx, put("a", 0), func(ctx context.Context, tx any) error {
			if err := enter(ctx, tx, "a", 1); err != nil {
				return err
			}
			return fn(tx.(pgx.Tx))
		})
		_, missing := s.Load(ctx, thing("a"))
		if err != nil {
			require.ErrorIs(t, missing, persist.ErrNotFound)
		}
		return err
	}
	require.True(t, call(func(pgx.Tx) error { return errRegret }) == errRegret)
	require.PanicsWithValue(t, "oh", func() { _ = call(func(pgx.Tx) error { panic("oh") }) })
	err := call(func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT 1/0")
		require.Error(t, err)
		return nil
	})
	require.ErrorIs(t, err, persist.ErrNotApplied)
	err = call(func(tx pgx.Tx) error { // a commit in a commit, which fails, and all that is around it does not
		_, err := f.s.Join(tx).Commit(ctx, put("a", 0))
		require.EqualValues(t, 1, winner(t, err).Version)
		_, err = f.s.Join(tx).Commit(ctx, put("b", 0))
		return errors.Join(err, errRegret)
	})
	require.ErrorIs(t, err, errRegret)
	_, err = s.(persist.Native).CommitWith(ctx, put("a", 1), func(context.Context, any) error { t.Error("it ran"); return nil })
	require.True(t, winner(t, err).Absent())
	_, err = s.(persist.Native).CommitWith(ctx, persist.Commit{}, func(ctx context.Context, tx any) error { return enter(ctx, tx, "empty", 1) })
	require.NoError(t, err)
	require.NoError(t, call(func(tx pgx.Tx) error {
		require.Error(t, tx.Rollback(ctx))
		require.Error(t, tx.Commit(ctx))
		return nil
	}))
	require.NoError(t, tx.Commit(ctx))
	require.EqualValues(t, 1, f.version("a"))
	require.Zero(t, f.version("b"))
	require.EqualValues(t, 2, f.rows())
}

// TestJoinWaits: a commit to a locked record waits, and loses to the version that the holder of the
// lock wrote.
//
// Proves TX-6, STORE-5.
func TestJoinWaits(t *testing.T) {
	f := newJoined(t, 2)
	must(t, f.s, put("a", 0))
	one, first := f.begin(pgx.TxOptions{})
	_, err := first.Commit(t.Context(), put("a", 1))
	require.NoError(t, err)
	two, second := f.begin(pgx.TxOptions{})
	answer := make(chan result, 1)
	go func() {
		_, err := second.Commit(t.Context(), put("a", 1))
		answer <- result{err: err}
	}()
	eventually(t, f.conn, someoneWaits)
	require.Empty(t, answer)
	require.NoError(t, one.Commit(t.Context()))
	require.EqualValues(t, 2, winner(t, answered(t, answer).err).Version)
	_, err = second.Commit(t.Context(), put("a", 2))
	require.NoError(t, err)
	require.NoError(t, two.Commit(t.Context()))
	require.EqualValues(t, 3, f.version("a"))
}

// TestJoinForeignCreator: the unique index detects a row that was created without its advisory
// lock.
//
// Proves TX-6, STORE-5.
func TestJoinForeignCreator(t *testing.T) {
	f := newJoined(t, 2)
	one, _ := f.begin(pgx.TxOptions{})
	_, err := one.Exec(t.Context(), foreignCreation, "a")
	require.NoError(t, err)
	two, second := f.begin(pgx.TxOptions{})
	answer := make(chan result, 1)
	go func() {
		_, err := second.Commit(t.Context(), put("a", 0))
		answer <- result{err: err}
	}()
	eventually(t, f.conn, someoneWaits)
	require.NoError(t, one.Commit(t.Context()))
	require.EqualValues(t, 7, winner(t, answered(t, answer).err).Version)
	require.NoError(t, two.Commit(t.Context()))
}

// TestJoinWaitsInVain: a record that stays locked ends the wait in time, by CommitTimeout or the
// context's deadline, and the transaction goes on.
//
// Proves TX-6, STORE-14.
func TestJoinWaitsInVain(t *testing.T) {
	f := newJoined(t, 2)
	must(t, f.s, put("a", 0))
	release := locked(t, f.url, "a")
	tx, s := f.begin(pgx.TxOptions{})
	require.NoError(t, enter(t.Context(), tx, "mine", 1))
	f.s.config.CommitTimeout = 2 * time.Second
	_, err := s.Commit(t.Context(), together(put("a", 1), put("b", 0)))
	unavailable(t, err)
	f.s.config.CommitTimeout = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = s.Commit(ctx, put("a", 1))
	unavailable(t, err)
	f.s.config.CommitTimeout = defaultCommitTimeout
	release()
	_, err = s.Commit(t.Context(), put("a", 1))
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	require.EqualValues(t, 2, f.version("a"))
	require.Zero(t, f.version("b"))
}

// TestJoinDeadlock: of two transactions that commit to two records in opposite order, the server
// ends the wait of one, which has not applied anything and can go on or give up, and the other
// succeeds.
//
// Proves TX-6, STORE-14.
func TestJoinDeadlock(t *testing.T) {
	f := newJoined(t, 3)
	for round, expected := range []uint64{0, 1} { // absent, or there
		ids := []string{fmt.Sprint("a", round), fmt.Sprint("b", round)}
		if expected > 0 {
			must(t, f.s, put(ids[0], 0), put(ids[1], 0))
		}
		answers, first, ended := make(chan result, 2), sync.WaitGroup{}, sync.WaitGroup{}
		first.Add(2)
		for i := range 2 {
			tx, s := f.begin(pgx.TxOptions{})
			ended.Go(func() {
				_, err := s.Commit(t.Context(), put(ids[i], expected))
				first.Done()
				first.Wait()
				if err == nil {
					_, err = s.Commit(t.Context(), put(ids[1-i], expected))
				}
				if err == nil {
					err = tx.Commit(t.Context())
				} else if err := tx.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
				answers <- result{err: err}
			})
		}
		ended.Wait()
		one, two := answered(t, answers).err, answered(t, answers).err
		if one == nil {
			one, two = two, one
		}
		unavailable(t, one)
		if two == nil {
			expected++
		} else {
			unavailable(t, two) // on a machine that is so slow that the wait of both was too long
		}
		require.Equal(t, expected, f.version(ids[0]))
		require.Equal(t, expected, f.version(ids[1]))
	}
}

// TestJoinSnapshots: a transaction that goes on seeing an old snapshot commits only to what has not
// changed since, be that a record, its absence or the floor.
//
// Proves TX-6, STORE-2.
func TestJoinSnapshots(t *testing.T) {
	f := newJoined(t, 4)
	ctx := t.Context()
	guarded := func(id string, version uint64) persist.Commit {
		return persist.Commit{ID: "g.1", Writes: put("other", 0).Writes, Guards: []persist.Guard{{Key: thing(id), Read: true, Version: version}}}
	}
	deletion := persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: thing("fleeting"), Expected: 40, Version: 41, Deleted: true}}}
	fleeting := put("fleeting", 0)
	fleeting.Writes[0].Version = 40
	low := put("fleeting", 0)
	low.Writes[0].Version = 9
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			f := &joinedFixture{t, f.url, f.pool, f.s, f.conn}
			execute(t, f.url, "DELETE FROM pawl_records", "UPDATE pawl_meta SET value = 0 WHERE name = 'floor'")
			must(t, f.s, put("still", 0), put("changed", 0))
			begin := func() (pgx.Tx, persist.Store) {
				tx, s := f.begin(pgx.TxOptions{IsoLevel: level})
				_, err := s.Load(ctx, thing("still")) // the snapshot is taken
				require.NoError(t, err)
				return tx, s
			}
			stale := func(s persist.Store, c persist.Commit) {
				t.Helper()
				_, err := s.Commit(ctx, c)
				require.ErrorIs(t, err, persist.ErrNotApplied)
				require.NotErrorIs(t, err, persist.ErrUnavailable)
				var answered *pgconn.PgError
				require.ErrorAs(t, err, &answered)
				require.Equal(t, codeSerializationFailure, answered.Code)
			}
			tx, s := begin()
			must(t, f.s, put("changed", 1), put("created", 0))
			stale(s, put("changed", 1))
			stale(s, guarded("changed", 1))
			stale(s, put("created", 0))
			stale(s, guarded("created", 0))
			stale(s, put("created", 1)) // no conflict with a record that it cannot see
			_, err := s.Commit(ctx, put("still", 5))
			require.EqualValues(t, 1, winner(t, err).Version)
			_, err = s.Commit(ctx, put("still", 1))
			require.NoError(t, err)
			_, err = s.Commit(ctx, guarded("none", 0))
			require.NoError(t, err)
			require.NoError(t, tx.Commit(ctx))
			require.EqualValues(t, 2, f.version("still"))
			require.EqualValues(t, 1, f.version("other"))
			require.EqualValues(t, 2, f.version("changed"))
			require.Zero(t, f.version("none"))

			tx, s = begin()
			must(t, f.s, fleeting, deletion)
			removed, err := f.s.Purge(ctx, persist.Query{})
			require.NoError(t, err)
			require.Equal(t, 1, removed)
			stale(s, low) // a version that was used
			require.NoError(t, tx.Rollback(ctx))
			tx, s = begin()
			_, err = s.Commit(ctx, low)
			require.True(t, winner(t, err).Absent())
			require.EqualValues(t, 41, winner(t, err).Version)
			removed, err = f.s.Purge(ctx, persist.Query{}) // the floor is not locked
			require.NoError(t, err)
			require.Zero(t, removed)
			require.NoError(t, tx.Rollback(ctx))
		})
	}
}

// TestJoinDurable: a transaction of a session that does not wait for the disk does so once there is
// a commit in it.
//
// Proves TX-6, STORE-10.
func TestJoinDurable(t *testing.T) {
	f := newJoined(t, 2)
	pool := pooled(t, with(t, f.url, "synchronous_commit", "off"), nil)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	setting := func() (v string) {
		require.NoError(t, tx.QueryRow(t.Context(), "SELECT current_setting('synchronous_commit')").Scan(&v))
		return v
	}
	s := f.s.Join(tx)
	_, err = s.Commit(t.Context(), put("a", 1))
	require.True(t, winner(t, err).Absent())
	require.Equal(t, "off", setting())
	_, err = s.Commit(t.Context(), put("a", 0))
	require.NoError(t, err)
	require.Equal(t, "on", setting())
	require.NoError(t, tx.Commit(t.Context()))
}

// TestJoinEnds: in a transaction that is over, failed or lost, and of a store that is closed, calls
// fail and change nothing.
//
// Proves TX-6, STORE-14.
func TestJoinEnds(t *testing.T) {
	f := newJoined(t, 1)
	ctx := t.Context()
	refused := func(s persist.Store, cause error) {
		t.Helper()
		_, err := s.Commit(ctx, put("a", 0))
		require.ErrorIs(t, err, cause)
		require.ErrorIs(t, err, persist.ErrNotApplied)
		_, err = s.Load(ctx, thing("a"))
		require.Error(t, err)
		require.NotErrorIs(t, err, persist.ErrNotFound)
	}
	tx, s := f.begin(pgx.TxOptions{})
	require.NoError(t, tx.Commit(ctx))
	refused(s, pgx.ErrTxClosed)
	other, _ := f.begin(pgx.TxOptions{}) // on the same connection
	refused(s, pgx.ErrTxClosed)
	require.NoError(t, other.Commit(ctx))

	tx, s = f.begin(pgx.TxOptions{})
	_, err := tx.Exec(ctx, "SELECT 1/0")
	require.Error(t, err)
	refused(s, persist.ErrNotApplied)
	require.NoError(t, tx.Rollback(ctx))

	tx, s = f.begin(pgx.TxOptions{})
	_, err = s.Commit(ctx, put("lost", 0))
	require.NoError(t, err)
	require.True(t, value[bool](t, f.conn, "SELECT pg_terminate_backend($1)", int32(tx.Conn().PgConn().PID())))
	refused(s, persist.ErrUnavailable)
	require.Error(t, tx.Commit(ctx))
	require.Zero(t, f.version("lost"))

	tx, s = f.begin(pgx.TxOptions{})
	rows, err := tx.Query(ctx, "SELECT 1")
	require.NoError(t, err)
	refused(s, persist.ErrNotApplied) // the connection is busy, and not spoiled
	rows.Close()
	_, err = s.Commit(ctx, put("b", 0))
	require.NoError(t, err)
	require.NoError(t, f.s.Close())
	_, err = s.Commit(ctx, put("b", 1))
	require.ErrorIs(t, err, persist.ErrClosed)
	_, err = s.Load(ctx, thing("b"))
	require.ErrorIs(t, err, persist.ErrClosed)
	require.NoError(t, tx.Commit(ctx))
	require.EqualValues(t, 1, f.version("b"))
}

// TestJoinCancelled: a context that ends during a wait costs the connection, and nothing is
// applied.
//
// Proves TX-6, STORE-14.
func TestJoinCancelled(t *testing.T) {
	f := newJoined(t, 2)
	must(t, f.s, put("a", 0))
	defer locked(t, f.url, "a")()
	tx, s := f.begin(pgx.TxOptions{})
	_, err := s.Commit(t.Context(), put("b", 0))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan result, 1)
	go func() {
		_, err := s.Commit(ctx, put("a", 1))
		answer <- result{err: err}
	}()
	eventually(t, f.conn, someoneWaits)
	cancel()
	err = answered(t, answer).err
	require.ErrorIs(t, err, persist.ErrNotApplied)
	require.ErrorIs(t, err, context.Canceled)
	require.Error(t, tx.Commit(t.Context()))
	require.Zero(t, f.version("b"))
}

// TestPurgeOfNothingFailsNoSnapshot: a purge that removes nothing fails no transaction with a
// snapshot.
//
// Proves TX-6, SCOPE-10.
func TestPurgeOfNothingFailsNoSnapshot(t *testing.T) {
	f := newJoined(t, 4)
	ctx := t.Context()
	tx, s := f.begin(pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	_, err := s.Load(ctx, thing("a"))
	require.ErrorIs(t, err, persist.ErrNotFound)
	removed, err := f.s.Purge(ctx, persist.Query{})
	require.NoError(t, err)
	require.Zero(t, removed)
	_, err = s.Commit(ctx, put("a", 0))
	require.NoError(t, err)
	require.NoError(t, tx.Commit(ctx))
	require.EqualValues(t, 1, f.version("a"))
}
