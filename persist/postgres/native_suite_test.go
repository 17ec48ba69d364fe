package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/persisttest"
	"github.com/pawl-go/pawl/persist/postgres"
)

// ownTransactions does every call of a store's in a transaction of its own.
type ownTransactions struct {
	*postgres.Store // for what cannot be joined
	pool            *pgxpool.Pool
}

func openJoined(url string) (persist.Store, error) {
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		return nil, err
	}
	s, err := postgres.New(context.Background(), pool, postgres.Config{})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return ownTransactions{s, pool}, nil
}

// do runs call with a store in a transaction, and commits that.
func do[T any](o ownTransactions, call func(persist.Store) (T, error)) (result T, err error) {
	tx, err := o.pool.Begin(context.Background())
	if err != nil {
		return result, fmt.Errorf("%w: %w", persist.ErrClosed, err) // the pool is
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	result, err = call(o.Store.Join(tx))
	if err == nil {
		err = tx.Commit(context.Background())
	}
	return result, err
}

func (o ownTransactions) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	return do(o, func(s persist.Store) (persist.Record, error) { return s.Load(ctx, key) })
}

func (o ownTransactions) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	return do(o, func(s persist.Store) ([]persist.Record, error) { return s.(persist.Reader).LoadAll(ctx, keys) })
}

func (o ownTransactions) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	return do(o, func(s persist.Store) (persist.Page, error) { return s.List(ctx, q) })
}

func (o ownTransactions) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	return do(o, func(s persist.Store) (time.Time, error) { return s.Commit(ctx, c) })
}

func (o ownTransactions) CommitWith(ctx context.Context, c persist.Commit, fn func(context.Context, any) error) (time.Time, error) {
	return do(o, func(s persist.Store) (time.Time, error) { return s.(persist.Native).CommitWith(ctx, c, fn) })
}

func (o ownTransactions) Close() error {
	err := o.Store.Close()
	o.pool.Close()
	return err
}

// TestJoinConformance: in transactions of the caller's own, commits and reads mean what they mean
// by themselves, next to the other processes of the suite, which do not join any.
//
// Proves TX-6, STORE-1, STORE-3.
func TestJoinConformance(t *testing.T) {
	t.Parallel() // with TestConformance; both wait for the database most of the time
	persisttest.Run(t, openJoined, persisttest.Options{Location: func(t *testing.T) string { return pgtest.URL(t) }})
}
