package stream_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/postgres"
	"github.com/pawl-go/pawl/persist/sqlite"
	"github.com/pawl-go/pawl/stream"
)

var (
	errAnswer = errors.New("the answer was lost")
	errUndone = errors.New("undone")
)

// parcels returns the number of parcels on a shelf.
func (d *depot) parcels(t testing.TB, id string) int {
	t.Helper()
	s, err := shelves.Scope(d.rt, id).State(context.Background())
	require.NoError(t, err)
	return s.Parcels
}

// put appends events and counts them on the shelf of the same name, in one transaction.
func (d *depot) put(ctx context.Context, name string, e stream.Expect, events ...any) (made []stream.Event, err error) {
	err = pawl.Transact(ctx, d.rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := shelves.Scope(tx, name).IncState(ctx, "parcels", int64(len(events))); err != nil {
			return err
		}
		made, err = d.In(tx).Append(ctx, name, e, events...)
		return err
	})
	return made, err
}

// Events and documents are one commit. If the function fails, or the expected version is not the last
// one, neither is written. Proves STREAM-7.
func TestAppendInATransaction(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other := t.Context(), open(), open()
		made, err := d.put(ctx, "p", stream.Absent, packed{"a"}, packed{"b"})
		require.NoError(t, err)
		require.Equal(t, []int64{0, 1}, versions(made))
		other.fill(t, "p", 1) // d has not seen it
		_, err = d.put(ctx, "p", stream.At(1), packed{"c"})
		require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: 1, Last: 2}, concurrency(t, err))
		require.Equal(t, 2, d.parcels(t, "p"))
		_, err = d.put(ctx, "p", stream.At(2), packed{"c"})
		require.NoError(t, err)

		err = pawl.Transact(ctx, d.rt, func(ctx context.Context, tx *pawl.Tx) error {
			if _, err := d.In(tx).Append(ctx, "p", stream.Any, packed{"undone"}); err != nil {
				return err
			}
			_, err := shelves.Scope(tx, "p").IncState(ctx, "parcels", 100)
			return errors.Join(err, errUndone)
		})
		require.ErrorIs(t, err, errUndone)
		require.NoError(t, pawl.Transact(ctx, d.rt, func(ctx context.Context, tx *pawl.Tx) error {
			inner := pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := d.In(tx).Append(ctx, "p", stream.Any, packed{"undone"})
				return errors.Join(err, errUndone)
			})
			require.ErrorIs(t, inner, errUndone)
			for _, name := range []string{"p", "q", "p"} {
				if _, err := d.In(tx).Append(ctx, name, stream.Any, packed{"x"}); err != nil {
					return err
				}
			}
			return nil
		}))
		require.Equal(t, 3, d.parcels(t, "p"))
		require.Equal(t, []string{
			`0:packed:{"item":"a"}`, `1:packed:{"item":"b"}`, `2:moved:{"by":"fill","step":0}`, `3:packed:{"item":"c"}`,
			`4:packed:{"item":"x"}`, `5:packed:{"item":"x"}`,
		}, texts(other.all(t, "p")))
		require.Len(t, other.all(t, "q"), 1)
		require.Len(t, collect(t, other.ReadAll(ctx, stream.AllQuery{})), 7)

		err = pawl.Transact(ctx, d.rt, func(ctx context.Context, _ *pawl.Tx) error {
			_, err := d.Append(ctx, "p", stream.Any, packed{"x"})
			return err
		})
		require.ErrorIs(t, err, pawl.ErrOutsideTx, "the log is not part of the transaction")
	})
}

// Another process changes the document, or the stream, before the commit. The function runs again,
// and its events are there once. Proves STREAM-7.
func TestTransactionMeetsAConflict(t *testing.T) {
	for name, disturb := range map[string]func(t *testing.T, other *depot){
		"document": func(t *testing.T, other *depot) {
			_, err := shelves.Scope(other.rt, "p").IncState(t.Context(), "parcels", 10)
			require.NoError(t, err)
		},
		"stream": func(t *testing.T, other *depot) { other.fill(t, "p", 1) },
		"new life": func(t *testing.T, other *depot) {
			require.NoError(t, other.DeleteStream(t.Context(), "p"))
			other.fill(t, "p", 2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
				ctx, d, other := t.Context(), open(), open()
				d.fill(t, "p", 2)
				_, err := d.put(ctx, "p", stream.Any, packed{"first"})
				require.NoError(t, err)
				runs := 0
				err = pawl.Transact(ctx, d.rt, func(ctx context.Context, tx *pawl.Tx) error {
					s, err := shelves.Scope(tx, "p").State(ctx)
					if err != nil {
						return err
					}
					made, err := d.In(tx).Append(ctx, "p", stream.Any, moved{"tx", s.Parcels})
					if err != nil {
						return err
					}
					if runs++; runs == 1 {
						disturb(t, other)
					}
					_, err = shelves.Scope(tx, "last").SetState(ctx, shelf{int(made[0].Version)})
					return err
				})
				require.NoError(t, err)
				require.Equal(t, 2, runs)
				events, n := d.all(t, "p"), 0
				require.Equal(t, from(0, int64(len(events))), versions(events))
				for _, e := range events {
					if m, ok := e.Data.(moved); ok && m.By == "tx" {
						n++
						require.Equal(t, d.parcels(t, "p"), m.Step, "computed on the current document")
						require.EqualValues(t, d.parcels(t, "last"), e.Version)
					}
				}
				require.Equal(t, 1, n)
			})
		})
	}
}

// What a transaction reads of a stream is tested by its commit: if an event is appended meanwhile, the
// function runs again. Proves STREAM-7.
func TestReadInATransaction(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other := t.Context(), open(), open()
		d.fill(t, "p", 2)
		var saw []int
		require.NoError(t, pawl.Transact(ctx, d.rt, func(ctx context.Context, tx *pawl.Tx) error {
			n := len(collect(t, d.In(tx).Read(ctx, "p", stream.Query{})))
			if saw = append(saw, n); n == 2 {
				other.fill(t, "p", 3)
			}
			_, err := shelves.Scope(tx, "p").SetState(ctx, shelf{n})
			return err
		}))
		require.Equal(t, []int{2, 5}, saw)
		require.Equal(t, 5, d.parcels(t, "p"))
		saw = nil
		require.NoError(t, pawl.Transact(ctx, d.rt, func(ctx context.Context, tx *pawl.Tx) error {
			h, err := d.In(tx).Head(ctx, "absent")
			if err != nil {
				return err
			}
			if saw = append(saw, int(h.Last)); h.Last < 0 {
				other.fill(t, "absent", 1)
			}
			_, err = shelves.Scope(tx, "p").SetState(ctx, shelf{int(h.Last)})
			return err
		}))
		require.Equal(t, []int{-1, 0}, saw, "absence is tested, too")
		_, err := lastError(t, func(yield func(stream.Event, error) bool) {
			_ = pawl.Transact(ctx, d.rt, func(ctx context.Context, tx *pawl.Tx) error {
				d.In(tx).Watch(ctx, "p", -1)(yield)
				return nil
			})
		})
		require.ErrorIs(t, err, pawl.ErrInTx)
	})
}

// Under a lease that is lost, no append is made, alone or in a transaction. Proves STREAM-7.
func TestAppendUnderALostLease(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other := t.Context(), open(), open()
		lease, err := shelves.Scope(d.rt, "lock").Acquire(ctx, pawl.LeaseFor(time.Minute))
		require.NoError(t, err)
		_, err = d.Append(lease.Context(), "p", stream.Any, packed{"a"})
		require.NoError(t, err)
		_, err = d.put(lease.Context(), "p", stream.Any, packed{"b"})
		require.NoError(t, err)
		require.NoError(t, shelves.Scope(other.rt, "lock").Delete(ctx))
		_, err = d.Append(lease.Context(), "p", stream.Any, packed{"c"})
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		_, err = d.Append(context.WithoutCancel(lease.Context()), "p", stream.At(1), packed{"c"})
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		_, err = d.put(context.WithoutCancel(lease.Context()), "p", stream.Any, packed{"c"})
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		_, err = stream.Act(context.WithoutCancel(lease.Context()), d.Log, "p", stream.Any, route, add(packed{"c"}))
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		require.Len(t, d.all(t, "p"), 2)
		require.Equal(t, 1, d.parcels(t, "p"))
	})
}

// The answer of a commit is lost, whether the commit was made or not, and whether another process
// appends before it is sent again. The events are there once, where the answer says.
// Proves STREAM-7.
func TestAppendLosesItsAnswer(t *testing.T) {
	for name, made := range map[string]bool{"committed": true, "not committed": false} {
		for then, disturb := range map[string]func(t *testing.T, other *depot){
			"":                      func(*testing.T, *depot) {},
			", then another append": func(t *testing.T, other *depot) { other.fill(t, "p", 1) },
		} {
			for how, write := range map[string]func(ctx context.Context, d *depot) ([]stream.Event, error){
				"alone": func(ctx context.Context, d *depot) ([]stream.Event, error) {
					return d.Append(ctx, "p", stream.Any, moved{"doubt", 1}, moved{"doubt", 2})
				},
				"transaction": func(ctx context.Context, d *depot) ([]stream.Event, error) {
					return d.put(ctx, "p", stream.Any, moved{"doubt", 1}, moved{"doubt", 2})
				},
				"expected": func(ctx context.Context, d *depot) ([]stream.Event, error) {
					return d.Append(ctx, "p", stream.At(1), moved{"doubt", 1}, moved{"doubt", 2})
				},
			} {
				t.Run(how+" "+name+then, func(t *testing.T) {
					onTaps(t, func(t *testing.T, d *depot, tap *meter, other func() *depot) {
						d.fill(t, "p", 2)
						elsewhere := other()
						var once sync.Once
						tap.Around(func(_ persist.Commit, commit func() (time.Time, error)) (at time.Time, err error) {
							lost := false
							once.Do(func() {
								if made {
									_, err := commit()
									require.NoError(t, err)
								}
								disturb(t, elsewhere)
								lost = true
							})
							if lost {
								return time.Time{}, errAnswer
							}
							return commit()
						})
						answer, err := write(t.Context(), d)
						tap.Around(nil)
						if how == "expected" && !made && then != "" {
							require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: 1, Last: 2}, concurrency(t, err))
							require.Len(t, d.all(t, "p"), 3)
							return
						}
						require.NoError(t, err)
						events := d.all(t, "p")
						require.Equal(t, from(0, int64(len(events))), versions(events))
						var found []stream.Event
						for _, e := range events {
							if e.Data.(moved).By == "doubt" {
								found = append(found, e)
							}
						}
						require.Equal(t, texts(answer), texts(found))
						require.Equal(t, answer[0].ID, found[0].ID)
						require.Len(t, collect(t, d.ReadAll(t.Context(), stream.AllQuery{})), len(events))
						if how == "transaction" {
							require.Equal(t, 2, d.parcels(t, "p"))
						}
					})
				})
			}
		}
	}
}

// Act in a transaction decides on the events of its stream. If an event is appended meanwhile, the
// transaction runs again as a whole. Proves STREAM-4, STREAM-7.
func TestActInATransaction(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other := t.Context(), open(every10), open()
		d.fill(t, "p", 20)
		var saw []int
		require.NoError(t, pawl.Transact(ctx, d.rt, func(ctx context.Context, tx *pawl.Tx) error {
			state, err := stream.Act(ctx, d.In(tx), "p", stream.Any, route, func(_ context.Context, s trip) ([]any, error) {
				if saw = append(saw, s.Seen); len(saw) == 1 {
					other.fill(t, "p", 1)
				}
				return []any{packed{"a"}}, nil
			})
			if err != nil {
				return err
			}
			_, err = shelves.Scope(tx, "p").IncState(ctx, "parcels", int64(state.Seen))
			return err
		}))
		require.Equal(t, []int{20, 21}, saw)
		require.Equal(t, 22, d.parcels(t, "p"))
		require.Len(t, d.all(t, "p"), 22)
		require.Nil(t, d.snapshotOf(t, "p"), "no snapshot of what is not committed")

		err := pawl.Transact(ctx, d.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := stream.Act(ctx, d.In(tx), "p", stream.At(3), route, add(packed{"a"}))
			return err
		})
		require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: 3, Last: 21}, concurrency(t, err))
		require.Len(t, d.all(t, "p"), 22)
	})
}

// A transaction cannot fold the events that it has appended itself: Act and Load return
// *pawl.ArgumentError rather than a state without them. Proves STREAM-4.
func TestActAfterAnAppendOfTheTransaction(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		var refused *pawl.ArgumentError
		for _, n := range []int{0, 3} {
			name := []string{"empty", "", "", "filled"}[n]
			d.fill(t, name, n)
			err := pawl.Transact(ctx, d.rt, func(ctx context.Context, tx *pawl.Tx) error {
				in := d.In(tx)
				if _, err := stream.Act(ctx, in, name, stream.Any, route, add(packed{"a"})); err != nil {
					return err
				}
				_, _, err := stream.Load(ctx, in, name, route)
				require.ErrorAs(t, err, &refused)
				_, err = stream.Act(ctx, in, name, stream.Any, route, func(context.Context, trip) ([]any, error) {
					t.Error("decide was called with a part of the events")
					return nil, nil
				})
				return err
			})
			require.ErrorAs(t, err, &refused)
			require.Len(t, d.all(t, name), n)
		}
	})
}

// CloseStream, Trim and DeleteStream have several commits, so they are refused in a transaction.
// Proves STREAM-6.
func TestCloseInATransaction(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		d.fill(t, "p", 3)
		for _, fn := range []func(ctx context.Context, in *stream.Log) error{
			func(ctx context.Context, in *stream.Log) error { return in.CloseStream(ctx, "p", stream.Any, never(t)) },
			func(ctx context.Context, in *stream.Log) error { return in.Trim(ctx, "p", 2) },
			func(ctx context.Context, in *stream.Log) error { return in.DeleteStream(ctx, "p") },
		} {
			require.ErrorIs(t, pawl.Transact(ctx, d.rt, func(ctx context.Context, tx *pawl.Tx) error { return fn(ctx, d.In(tx)) }), pawl.ErrInTx)
		}
		require.Len(t, d.all(t, "p"), 3)
		h, err := d.Head(ctx, "p")
		require.NoError(t, err)
		require.False(t, h.Closed)
	})
}

// database is a table of the user's beside the streams.
type database struct {
	*depot
	// join begins a transaction of the user's with a row, and returns a store that is joined to it.
	join func(t *testing.T) (joined persist.Store, end func(commit bool))
	// native adds a row inside the commit of tx.
	native func(tx *pawl.Tx, fail error) error
	rows   func(t *testing.T) int
}

// onDatabases runs test on SQLite and PostgreSQL.
func onDatabases(t *testing.T, test func(t *testing.T, d database)) {
	for _, s := range stores.Shared {
		switch s.Name {
		case "sqlite":
			t.Run(s.Name, func(t *testing.T) { test(t, sqliteDatabase(t, s.New(t))) })
		case "postgres":
			t.Run(s.Name, func(t *testing.T) { test(t, postgresDatabase(t, s.New(t))) })
		}
	}
}

func sqliteDatabase(t *testing.T, location string) database {
	store := stores.OpenFor(t, location).(*sqlite.Store)
	const settings = "?_txlock=immediate&_synchronous=FULL&_pragma=synchronous(FULL)&_busy_timeout=10000&_pragma=busy_timeout(10000)"
	db, err := sql.Open(sqlite.Driver, "file:"+location[len("sqlite:"):]+settings)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.Exec("CREATE TABLE note (n INTEGER)")
	require.NoError(t, err)
	return database{
		depot: newDepot(t, store),
		join: func(t *testing.T) (persist.Store, func(bool)) {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = tx.Exec("INSERT INTO note VALUES (1)")
			require.NoError(t, err)
			return store.Join(tx), func(commit bool) {
				if commit {
					require.NoError(t, tx.Commit())
					return
				}
				require.NoError(t, tx.Rollback())
			}
		},
		native: func(tx *pawl.Tx, fail error) error {
			return pawl.WithNative(tx, func(ctx context.Context, db *sql.Tx) error {
				_, err := db.ExecContext(ctx, "INSERT INTO note VALUES (1)")
				return errors.Join(err, fail)
			})
		},
		rows: func(t *testing.T) (n int) {
			require.NoError(t, db.QueryRow("SELECT count(*) FROM note").Scan(&n))
			return n
		},
	}
}

func postgresDatabase(t *testing.T, location string) database {
	pool, err := pgxpool.New(t.Context(), location)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	store, err := postgres.New(t.Context(), pool, postgres.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	_, err = pool.Exec(t.Context(), "CREATE TABLE note (n bigint)")
	require.NoError(t, err)
	return database{
		depot: newDepot(t, store),
		join: func(t *testing.T) (persist.Store, func(bool)) {
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), "INSERT INTO note VALUES (1)")
			require.NoError(t, err)
			return store.Join(tx), func(commit bool) {
				if commit {
					require.NoError(t, tx.Commit(context.Background()))
					return
				}
				require.NoError(t, tx.Rollback(context.Background()))
			}
		},
		native: func(tx *pawl.Tx, fail error) error {
			return pawl.WithNative(tx, func(ctx context.Context, db pgx.Tx) error {
				_, err := db.Exec(ctx, "INSERT INTO note VALUES (1)")
				return errors.Join(err, fail)
			})
		},
		rows: func(t *testing.T) (n int) {
			require.NoError(t, pool.QueryRow(context.Background(), "SELECT count(*) FROM note").Scan(&n))
			return n
		},
	}
}

// requireNoLogs asserts that err says that the store keeps logs as documents, which code of the user's
// inside the commit does not allow.
func requireNoLogs(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, persist.ErrUnsupported)
	require.False(t, pawl.IsRetryable(err))
	require.False(t, pawl.OutcomeUnknown(err))
}

// Events are appended in a transaction of the user's, beside its rows: both are there if it commits,
// and neither if it is rolled back. A store that keeps logs as documents refuses it.
// Proves STREAM-7.
func TestAppendThroughTheUsersTransaction(t *testing.T) {
	onDatabases(t, func(t *testing.T, d database) {
		d.fill(t, "p", 1)
		put := func(commit bool) error {
			joined, end := d.join(t)
			err := pawl.Transact(t.Context(), d.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := shelves.Scope(tx, "p").IncState(ctx, "parcels", 1); err != nil {
					return err
				}
				_, err := d.In(tx).Append(ctx, "p", stream.At(0), packed{"a"}, packed{"b"})
				return err
			}, pawl.CommitThrough(joined))
			if err == nil {
				err = pawl.Transact(t.Context(), d.rt, func(ctx context.Context, tx *pawl.Tx) error {
					require.Equal(t, []int64{0, 1, 2}, versions(collect(t, d.In(tx).Read(ctx, "p", stream.Query{}))), "the transaction sees its own events")
					_, err := d.In(tx).Append(ctx, "p", stream.At(2), packed{"c"})
					return err
				}, pawl.CommitThrough(joined))
			}
			end(commit && err == nil)
			return err
		}
		if _, native := d.store.(persist.Logger); !native {
			requireNoLogs(t, put(true))
			require.Zero(t, d.rows(t))
			require.Zero(t, d.parcels(t, "p"))
			require.Len(t, d.all(t, "p"), 1)
			return
		}
		require.NoError(t, put(false))
		require.Zero(t, d.rows(t))
		require.Zero(t, d.parcels(t, "p"))
		require.Len(t, d.all(t, "p"), 1)
		require.NoError(t, put(true))
		require.Equal(t, 1, d.rows(t))
		require.Equal(t, 1, d.parcels(t, "p"))
		require.Equal(t, []int64{0, 1, 2, 3}, versions(d.all(t, "p")))
		concurrency(t, put(true))
		require.Equal(t, 1, d.rows(t))
		require.Len(t, collect(t, d.ReadAll(t.Context(), stream.AllQuery{})), 4)
	})
}

// SQL of the user's runs inside the commit of an append: if it fails, no event is there. A store that
// keeps logs as documents refuses it. Proves STREAM-7.
func TestAppendWithNative(t *testing.T) {
	onDatabases(t, func(t *testing.T, d database) {
		d.fill(t, "p", 1)
		put := func(fail error) error {
			return pawl.Transact(t.Context(), d.rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := d.In(tx).Append(ctx, "p", stream.At(0), packed{"a"}); err != nil {
					return err
				}
				return d.native(tx, fail)
			})
		}
		if _, native := d.store.(persist.Logger); !native {
			requireNoLogs(t, put(nil))
			require.Zero(t, d.rows(t))
			require.Len(t, d.all(t, "p"), 1)
			return
		}
		require.ErrorIs(t, put(errUndone), errUndone)
		require.Zero(t, d.rows(t))
		require.Len(t, d.all(t, "p"), 1)
		require.NoError(t, put(nil))
		require.Equal(t, 1, d.rows(t))
		require.Equal(t, []int64{0, 1}, versions(d.all(t, "p")))
		concurrency(t, put(nil))
		require.Equal(t, 1, d.rows(t))
	})
}
