package batch_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// A store takes few documents in a commit. Submit stores a job in smaller parts, and Cancel refunds it
// in smaller parts. A job that is part of a transaction is refused whole. Proves CANCEL-3.
func TestStoreWithSmallCommits(t *testing.T) {
	tap := &stores.Tap{Store: stores.OpenFor(t, stores.Memory.New(t))}
	most := 0 // items in a commit
	tap.OnCommit(func(_ context.Context, c persist.Commit) error {
		if err := (persist.Limits{MaxKeys: 7}).Check(c); err != nil {
			return err
		}
		items := 0
		for _, w := range c.Writes {
			if strings.HasSuffix(w.Kind, ".item") {
				items++
			}
		}
		most = max(most, items)
		return nil
	})
	rt, s := open(t, tap), newStudio()
	q := newQueue(t, rt, s)
	give(t, rt, "ada", 10)
	submit(t, q, "j", prompts(20, 1))
	require.Equal(t, 5, most, "of 20, 10, 5")
	_, err := q.Once(t.Context())
	require.NoError(t, err)
	require.Equal(t, batch.Failed, progress(t, q, "j").Status, "there are too few points")
	require.Zero(t, balance(t, rt, "ada"))

	most = 0
	c := cancelJob(t, q, "j")
	require.Equal(t, batch.NowCanceled, c.Answer)
	require.Equal(t, []int64{10, 10, 20}, []int64{c.Progress.Charged, c.Progress.Refunded, int64(c.Progress.Canceled)})
	require.Equal(t, 5, most)
	require.Empty(t, s.left())
	checkBooks(t, rt, q, 10, "j")

	var limit *pawl.LimitError
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, _, err := q.In(tx).Submit(ctx, aJob{ID: "k", Account: "ada", Items: prompts(20, 1)})
		return err
	})
	require.ErrorAs(t, err, &limit)
	_, err = q.Progress(t.Context(), "k")
	require.ErrorIs(t, err, pawl.ErrNotFound)

	large := prompts(20, 1)
	large[19].Text = strings.Repeat("x", rt.MaxDoc())
	commits := tap.Commits.Load()
	_, _, err = q.Submit(t.Context(), aJob{ID: "l", Account: "ada", Items: large})
	require.ErrorAs(t, err, &limit)
	require.Equal(t, "document", limit.What)
	require.Equal(t, commits, tap.Commits.Load())
}

// An item that no commit can store is refused with the whole job, not after the items before it.
// Proves CANCEL-3.
func TestItemThatIsTooDeep(t *testing.T) {
	rt := open(t, stores.OpenFor(t, stores.Memory.New(t)))
	q, err := batch.New(rt, batch.Config[any, string]{
		Name: "deep", Ledger: batch.ScopeLedger(wallets, "points"),
		Price:  func(any) (int64, error) { return 1, nil },
		Make:   func(context.Context, string, any) (string, error) { return "", nil },
		Remove: func(context.Context, string, *string) error { return nil },
	})
	require.NoError(t, err)
	give(t, rt, "ada", 10)
	var deep any
	for range 200 {
		deep = []any{deep}
	}
	items := append(make([]any, 9), deep)
	_, _, err = q.Submit(t.Context(), batch.Job[any]{ID: "j", Account: "ada", Items: items})
	var limit *pawl.LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, "depth", limit.What)
	_, err = q.Progress(t.Context(), "j")
	require.ErrorIs(t, err, pawl.ErrNotFound)
}
