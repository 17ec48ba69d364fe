package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A transaction that only reads loses to another process before every commit that confirms it. Its
// second run reads everything at one instant and needs no commit, whether the first run started from
// cached versions or not, and whether its function fails or not.
//
// Proves TX-9.
func TestReadsSucceedByTheSecondRun(t *testing.T) {
	const scopes = 40
	refused := errors.New("refused by the function")
	onStores(t, func(t *testing.T, p path) {
		other := p.another(t)
		id := func(i int) string { return fmt.Sprint(i % scopes) }
		for i := range scopes {
			seed(t, purses.Scope(other, id(i)), purse{})
		}
		overtaken := 0
		p.store.OnCommit(func(ctx context.Context, c persist.Commit) error {
			if len(c.Writes) > 0 {
				return nil
			}
			overtaken++
			_, err := purses.Scope(other, id(overtaken)).IncState(context.Background(), "balance", 1)
			return err
		})
		defer p.store.OnCommit(nil)
		for name, fn := range map[string]func(ctx context.Context, s pawl.Scope[purse]) error{
			"read": func(ctx context.Context, s pawl.Scope[purse]) error { _, err := s.State(ctx); return err },
			"unchanged verbs": func(ctx context.Context, s pawl.Scope[purse]) error {
				_, err := s.IncState(ctx, "balance", 0)
				return err
			},
			"functions": func(ctx context.Context, s pawl.Scope[purse]) error {
				_, err := s.AtomicState(ctx, func(context.Context, *purse) error { return nil })
				return err
			},
		} {
			for _, end := range []error{nil, refused} {
				for _, attempts := range []int{1, 16} {
					rt := p.rt // has cached versions from the second transaction on
					if attempts == 16 {
						rt = openRuntime(t, p.config)
					}
					runs := 0
					err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
						runs++
						for i := range scopes {
							if err := fn(ctx, purses.Scope(tx, id(i))); err != nil {
								return err
							}
						}
						return end
					}, pawl.WithRetry(pawl.Retry{Attempts: attempts}))
					require.ErrorIs(t, err, end, "%s, %d attempts", name, attempts)
					require.LessOrEqual(t, runs, 2, "%s, %d attempts", name, attempts)
				}
			}
		}
		require.Positive(t, overtaken)
	})
}

// A transaction that reads many scopes, which this process has cached, succeeds by its second run
// while another process writes them all the time.
//
// Proves TX-9.
func TestReadsUnderLoad(t *testing.T) {
	const scopes, writers, reads = 300, 4, 10
	onStores(t, func(t *testing.T, p path) {
		other := p.another(t)
		for i := range scopes {
			_, err := purses.Scope(p.rt, fmt.Sprint(i)).IncState(t.Context(), "balance", 1)
			require.NoError(t, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		written := make(chan struct{}, 1)
		var all sync.WaitGroup
		for w := range writers {
			all.Go(func() {
				for i := w; ctx.Err() == nil; i += writers {
					_, err := purses.Scope(other, fmt.Sprint(i%scopes)).IncState(context.Background(), "balance", 1)
					assert.NoError(t, err)
					select {
					case written <- struct{}{}:
					default:
					}
				}
			})
		}
		testkit.Receive(t, written)
		for range reads {
			runs := 0
			err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				runs++
				for i := range scopes {
					if _, err := purses.Scope(tx, fmt.Sprint(i)).State(ctx); err != nil {
						return err
					}
				}
				return nil
			}, pawl.WithRetry(pawl.Retry{Attempts: 1}))
			assert.NoError(t, err)
			assert.LessOrEqual(t, runs, 2)
		}
		stop()
		all.Wait()
	})
}

// A transaction has at most MaxScopes scopes, on every store. The verb on one more returns an error,
// which is not retryable, and the others commit.
//
// Proves SCOPE-21.
func TestScopesOfATransactionAreLimited(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		fill := func(ctx context.Context, tx *pawl.Tx) {
			for i := range pawl.MaxScopes {
				_, err := purses.Scope(tx, fmt.Sprint(i)).IncState(ctx, "balance", 1)
				require.NoError(t, err)
			}
		}
		err := pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			fill(ctx, tx)
			_, err := purses.Scope(tx, "one more").IncState(ctx, "balance", 1)
			return err
		})
		var limit *pawl.LimitError
		require.ErrorAs(t, err, &limit)
		require.Equal(t, "scopes", limit.What)
		require.Equal(t, pawl.MaxScopes, limit.Limit)
		require.False(t, pawl.IsRetryable(err))
		require.Equal(t, 400, pawl.HTTPStatus(err))
		require.True(t, p.record(t, purses.Scope(p.rt, "0").Key()).Absent(), "nothing was written")
		err = pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			fill(ctx, tx)
			_, err := purses.Scope(tx, "one more").State(ctx)
			require.ErrorAs(t, err, &limit)
			_, err = purses.Scope(tx, "0").State(ctx)
			return err
		}, pawl.WithRetry(pawl.Retry{Within: 5 * time.Minute}))
		require.NoError(t, err)
		for _, id := range []string{"0", fmt.Sprint(pawl.MaxScopes - 1)} {
			require.EqualValues(t, 1, p.record(t, purses.Scope(p.rt, id).Key()).Version)
		}
	})
}
