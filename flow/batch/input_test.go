package batch_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// inMemory returns a queue on a new store in memory, and 100 points for "ada".
func inMemory(t testing.TB, s *studio, change ...func(c *config)) (*pawl.Runtime, *queue) {
	t.Helper()
	rt := open(t, memory.New())
	give(t, rt, "ada", 100)
	return rt, newQueue(t, rt, s, change...)
}

// once works on the jobs that are due.
func once(t testing.TB, q *queue) {
	t.Helper()
	_, err := q.Once(context.Background())
	require.NoError(t, err)
}

// requireCode requires an error with a code and a status.
func requireCode(t testing.TB, err error, code string, status int) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, pawl.Code(err), "%v", err)
	require.Equal(t, status, pawl.HTTPStatus(err), "%v", err)
	require.NotEmpty(t, err.Error())
}

func TestNewRefusesFaults(t *testing.T) {
	rt, s := open(t, memory.New()), newStudio()
	for name, fault := range map[string]func(c *config){
		"no name": func(c *config) { c.Name = "" }, "no ledger": func(c *config) { c.Ledger = nil },
		"no price": func(c *config) { c.Price = nil }, "no call": func(c *config) { c.Make = nil },
		"no removal": func(c *config) { c.Remove = nil }, "attempts": func(c *config) { c.Retry.Attempts = -1 },
		"first": func(c *config) { c.Retry.First = -1 }, "max": func(c *config) { c.Retry.Max = -1 },
		"timeout": func(c *config) { c.Timeout = -1 }, "jobs": func(c *config) { c.Jobs = -1 },
		"items": func(c *config) { c.Items = -1 }, "lease": func(c *config) { c.Lease = -1 },
		"poll": func(c *config) { c.Poll = -1 }, "chunk": func(c *config) { c.Chunk = -1 },
		"large chunk": func(c *config) { c.Chunk = pawl.MaxScopes/2 + 1 },
	} {
		c := config{
			Name: "images", Ledger: batch.ScopeLedger(wallets, "points"), Make: s.draw, Remove: s.remove,
			Price: func(prompt) (int64, error) { return 1, nil },
		}
		_, err := batch.New(rt, c)
		require.NoError(t, err)
		fault(&c)
		_, err = batch.New(rt, c)
		argument := (*pawl.ArgumentError)(nil)
		require.ErrorAs(t, err, &argument, name)
	}
	_, err := batch.New(nil, config{})
	require.ErrorIs(t, err, pawl.ErrNoStore)
	q := newQueue(t, rt, s, func(c *config) { c.Name = strings.Repeat("n", 300) })
	_, _, err = q.Submit(t.Context(), aJob{ID: "j", Account: "ada", Items: prompts(1, 1)})
	require.Error(t, err)
}

func TestUnknownJob(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		q := newQueue(t, rt, newStudio())
		ask := func(t *testing.T) {
			_, err := q.Cancel(t.Context(), "j")
			requireCode(t, err, "NOT_FOUND", 404)
			_, err = q.Progress(t.Context(), "j")
			requireCode(t, err, "NOT_FOUND", 404)
			requireCode(t, q.Finalize(t.Context(), "j", 0), "NOT_FOUND", 404)
			requireCode(t, q.Retry(t.Context(), "j"), "NOT_FOUND", 404)
			require.NoError(t, q.Delete(t.Context(), "j"))
			seen := 0
			for _, err := range q.Watch(t.Context(), "j") {
				requireCode(t, err, "NOT_FOUND", 404)
				seen++
			}
			require.Equal(t, 1, seen)
			for range q.Items(t.Context(), "j") {
				t.Error("an item of no job")
			}
		}
		ask(t)
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(3, 5))
		cancelJob(t, q, "j")
		require.NoError(t, q.Delete(t.Context(), "j"))
		ask(t) // as after a delete
		// The id can be used again.
		submit(t, q, "j", prompts(2, 5))
		once(t, q)
		require.Equal(t, batch.Completed, progress(t, q, "j").Status)
		checkBooks(t, rt, q, 100, "j")
		require.NoError(t, q.Delete(t.Context(), "j"))
		require.EqualValues(t, 90, balance(t, rt, "ada"))
	})
}

func TestDeleteOfAnUnfinishedJob(t *testing.T) {
	s := newStudio()
	_, q := inMemory(t, s)
	submit(t, q, "j", prompts(1, 5))
	requireCode(t, q.Delete(t.Context(), "j"), "JOB_STATUS", 409)
	s.during = func(ctx context.Context, _ string) error {
		requireCode(t, q.Delete(pawl.WithoutLeases(ctx), "j"), "JOB_STATUS", 409) // at once
		return nil
	}
	submit(t, q, "poor", prompts(1, 500))
	once(t, q)
	require.Equal(t, batch.Failed, progress(t, q, "poor").Status)
	requireCode(t, q.Delete(t.Context(), "poor"), "JOB_STATUS", 409)
	require.NoError(t, q.Delete(t.Context(), "j"))
	_, err := q.Progress(t.Context(), "poor")
	require.NoError(t, err)
}

// Finalize accepts all of the items or none, each of them once, and never one that is to be refunded.
// Proves CANCEL-10.
func TestFinalize(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		s.during = func(_ context.Context, text string) error {
			if text == "p1" {
				return pawl.NonRetryable(errCall)
			}
			return nil
		}
		refuse := error(nil)
		q := newQueue(t, rt, s, func(c *config) {
			c.Finalize = func(ctx context.Context, tx *pawl.Tx, it batch.Item[prompt, image]) error {
				if it.Item.Text == "p2" && refuse != nil {
					return refuse
				}
				_, err := wallets.Scope(tx, "artist").IncState(ctx, "points", it.Price)
				return err
			}
		})
		give(t, rt, "ada", 100)
		give(t, rt, "artist", 0)
		submit(t, q, "j", prompts(4, 5))
		requireState := func(err error, item int, state batch.ItemState) {
			t.Helper()
			requireCode(t, err, "ITEM_STATE", 409)
			wrong := (*batch.ItemError)(nil)
			require.ErrorAs(t, err, &wrong)
			require.Equal(t, batch.ItemError{Job: "j", Item: item, State: state}, *wrong)
		}
		requireState(q.Finalize(t.Context(), "j", 0), 0, batch.Waiting)
		once(t, q)
		require.Equal(t, "made failed made made", states(t, q, "j"))
		requireState(q.Finalize(t.Context(), "j", 0, 1), 1, batch.ItemFailed)
		requireState(q.Finalize(t.Context(), "j", 0, 4), 4, "")
		requireState(q.Finalize(t.Context(), "j", -1), -1, "")
		require.NoError(t, q.Finalize(t.Context(), "j"))
		many := make([]int, pawl.MaxScopes/2+1)
		limit := (*pawl.LimitError)(nil)
		require.ErrorAs(t, q.Finalize(t.Context(), "j", many...), &limit)
		refuse = errors.New("no more pictures")
		require.ErrorIs(t, q.Finalize(t.Context(), "j", 0, 2), refuse)
		refuse = nil
		require.Equal(t, "made failed made made", states(t, q, "j"), "none")
		require.EqualValues(t, 0, balance(t, rt, "artist"))
		require.NoError(t, q.Finalize(t.Context(), "j", 2, 0, 2))
		require.Equal(t, 2, progress(t, q, "j").Finalized)
		require.EqualValues(t, 10, balance(t, rt, "artist"))
		requireState(q.Finalize(t.Context(), "j", 3, 0), 0, batch.Finalized)
		require.Equal(t, "finalized failed finalized made", states(t, q, "j"))
		checkBooks(t, rt, q, 100, "j")
	})
}

// Finalize is refused from the request to cancel on. What was accepted before is not refunded, and
// stays. Proves CANCEL-10.
func TestFinalizeAndCancel(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		calling, goOn := make(chan struct{}), make(chan struct{})
		s.during = func(_ context.Context, text string) error {
			if text == "p2" {
				close(calling)
				<-goOn
			}
			return nil
		}
		q := newQueue(t, rt, s)
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(4, 5))
		start(t, q)
		release := sync.OnceFunc(func() { close(goOn) })
		t.Cleanup(release)
		testkit.Receive(t, calling)
		require.NoError(t, q.Finalize(t.Context(), "j", 0))
		require.Equal(t, batch.Accepted, cancelJob(t, q, "j").Answer)
		err := q.Finalize(t.Context(), "j", 1)
		requireCode(t, err, "JOB_STATUS", 409)
		require.ErrorContains(t, err, "and to be canceled")
		release()
		p := finished(t, q, "j")
		require.Equal(t, []int{1, 3, 3}, []int{p.Finalized, p.Canceled, p.Done})
		require.Equal(t, []int64{15, 10}, []int64{p.Charged, p.Refunded})
		require.Len(t, s.left(), 1)
		require.EqualValues(t, 95, balance(t, rt, "ada"))
		requireCode(t, q.Finalize(t.Context(), "j", 1), "JOB_STATUS", 409)
		checkBooks(t, rt, q, 100, "j")
	})
}

func TestPrices(t *testing.T) {
	rt, s := open(t, memory.New()), newStudio()
	unknown := errors.New("no price list")
	q := newQueue(t, rt, s, func(c *config) {
		c.Price = func(p prompt) (int64, error) {
			if p.Text == "?" {
				return 0, unknown
			}
			return p.Price, nil
		}
	})
	give(t, rt, "ada", 100)
	for name, test := range map[string]struct {
		items []prompt
		item  int
		text  string
	}{
		"negative": {[]prompt{{"a", 1}, {"b", -1}}, 1, "negative price -1"},
		"sum":      {[]prompt{{"a", math.MaxInt64}, {"b", 0}, {"c", 1}}, 2, "more than an int64 holds"},
		"error":    {[]prompt{{"?", 1}}, 0, "no price list"},
	} {
		_, _, err := q.Submit(t.Context(), aJob{ID: "j", Account: "ada", Items: test.items})
		price := (*batch.PriceError)(nil)
		require.ErrorAs(t, err, &price, name)
		require.Equal(t, test.item, price.Item, name)
		require.ErrorContains(t, err, test.text)
		require.Equal(t, name == "error", errors.Is(err, unknown))
		requireCode(t, err, "INVALID_PRICE", 422)
	}
	_, err := q.Progress(t.Context(), "j")
	require.ErrorIs(t, err, pawl.ErrNotFound, "nothing is stored")
	// Items without a price cost nothing, and are torn down like the others.
	submit(t, q, "free", prompts(2, 0))
	once(t, q)
	require.Equal(t, "made made", states(t, q, "free"))
	checkBooks(t, rt, q, 100, "free")
}

func TestSubmitRefusesBadInput(t *testing.T) {
	rt, q := inMemory(t, newStudio())
	for name, j := range map[string]aJob{
		"no id": {Account: "ada", Items: prompts(1, 1)}, "no account": {ID: "j", Items: prompts(1, 1)},
		"no items": {ID: "j", Account: "ada"},
	} {
		_, _, err := q.Submit(t.Context(), j)
		argument := (*pawl.ArgumentError)(nil)
		require.ErrorAs(t, err, &argument, name)
	}
	limit := (*pawl.LimitError)(nil)
	_, _, err := q.Submit(t.Context(), aJob{ID: "j", Account: "ada", Items: make([]prompt, batch.MaxItems+1)})
	require.ErrorAs(t, err, &limit)
	long := strings.Repeat("j", pawl.MaxID-9)
	_, _, err = q.Submit(t.Context(), aJob{ID: long + "j", Account: "ada", Items: prompts(1, 1)})
	require.ErrorAs(t, err, &limit)
	_, _, err = q.Submit(t.Context(), aJob{ID: strings.Repeat("/", 100), Account: "ada", Items: prompts(1, 1)})
	require.ErrorAs(t, err, &limit, "each slash takes three bytes")
	_, _, err = q.Submit(t.Context(), aJob{ID: "j", Account: "bob", Items: prompts(1, 1)})
	requireCode(t, err, "NOT_FOUND", 404)
	odd, err := batch.New(rt, batch.Config[any, image]{
		Name: "odd", Ledger: batch.ScopeLedger(wallets, "points"), Price: func(any) (int64, error) { return 1, nil },
		Make:   func(context.Context, string, any) (image, error) { return image{}, nil },
		Remove: func(context.Context, string, *image) error { return nil },
	})
	require.NoError(t, err)
	_, _, err = odd.Submit(t.Context(), batch.Job[any]{ID: "j", Account: "ada", Items: []any{1, make(chan int)}})
	argument := (*pawl.ArgumentError)(nil)
	require.ErrorAs(t, err, &argument)
	require.ErrorContains(t, err, "item 1")
	for p := range q.List(t.Context()) {
		t.Errorf("%+v is stored", p)
	}
	submit(t, q, long, prompts(1, 1))
	submit(t, q, "a/b", prompts(2, 1))
	submit(t, q, "a", prompts(1, 1))
	submit(t, q, "a%2Fb", prompts(3, 1))
	once(t, q)
	for id, n := range map[string]int{long: 1, "a/b": 2, "a": 1, "a%2Fb": 3} {
		require.Equal(t, n, progress(t, q, id).Done, id)
		require.Equal(t, batch.Completed, progress(t, q, id).Status, id)
	}
	checkBooks(t, rt, q, 100, long, "a/b", "a", "a%2Fb")
}

// A repeated Submit returns the job. Other items, or another account, under the same id are refused.
// An interrupted Submit is continued. Proves CANCEL-1.
func TestSubmitAgain(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s, func(c *config) { c.Chunk = 2 })
		give(t, rt, "ada", 100)
		give(t, rt, "bob", 100)
		j := aJob{ID: "j", Account: "ada", Items: prompts(5, 5)}
		ctx, cancel := context.WithCancel(t.Context())
		chunks := 0
		q.Hook(func(point, _ string) {
			if chunks++; point == "stored" && chunks == 2 {
				cancel()
			}
		})
		_, created, err := q.Submit(ctx, j)
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, created)
		q.Hook(func(string, string) {})
		require.Equal(t, batch.Pending, progress(t, q, "j").Status)
		once(t, q)
		require.Zero(t, s.count(), "it is not complete")
		for _, other := range []aJob{{ID: "j", Account: "bob", Items: j.Items}, {ID: "j", Account: "ada", Items: prompts(4, 5)}} {
			_, _, err := q.Submit(t.Context(), other)
			requireCode(t, err, "EXISTS", 409)
		}
		p, created, err := q.Submit(t.Context(), j)
		require.NoError(t, err)
		require.False(t, created)
		require.Equal(t, batch.Queued, p.Status)
		require.Len(t, strings.Fields(states(t, q, "j")), 5)
		once(t, q)
		p, created, err = q.Submit(t.Context(), j)
		require.NoError(t, err)
		require.False(t, created)
		require.Equal(t, batch.Completed, p.Status)
		require.Equal(t, 5, s.count())
		checkBooks(t, rt, q, 100, "j")
	})
}

// A job that is canceled before all of its items are stored is not continued. Proves CANCEL-2.
func TestCancelOfAPendingJob(t *testing.T) {
	rt, q := inMemory(t, newStudio(), func(c *config) { c.Chunk = 2 })
	j := aJob{ID: "j", Account: "ada", Items: prompts(5, 5)}
	q.Hook(func(point, id string) {
		if point == "stored" && progress(t, q, id).Status == batch.Pending {
			require.Equal(t, batch.NowCanceled, cancelJob(t, q, "j").Answer)
		}
	})
	_, created, err := q.Submit(t.Context(), j)
	requireCode(t, err, "JOB_STATUS", 409)
	require.True(t, created)
	require.Equal(t, "canceled canceled", states(t, q, "j"))
	_, _, err = q.Submit(t.Context(), j)
	requireCode(t, err, "JOB_STATUS", 409)
	checkBooks(t, rt, q, 100, "j")
}

func TestSubmitInATransaction(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s, func(c *config) { c.Chunk = 2 })
		undone := errors.New("undone")
		both := func(end error) error {
			return pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				if _, err := wallets.Scope(tx, "ada").SetState(ctx, wallet{100}); err != nil {
					return err
				}
				_, created, err := q.In(tx).Submit(ctx, aJob{ID: "j", Account: "ada", Items: prompts(5, 5)})
				require.True(t, err != nil || created)
				return errors.Join(err, end)
			})
		}
		require.ErrorIs(t, both(undone), undone)
		_, err := q.Progress(t.Context(), "j")
		require.ErrorIs(t, err, pawl.ErrNotFound)
		require.NoError(t, both(nil))
		once(t, q)
		require.Equal(t, batch.Completed, progress(t, q, "j").Status)
		checkBooks(t, rt, q, 100, "j")
	})
}

// A job whose account is short of points fails in an orderly way: what is made stays, and Retry goes
// on after a top-up, without a second charge. Proves CANCEL-11.
func TestInsufficientPoints(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s)
		give(t, rt, "ada", 12)
		submit(t, q, "j", prompts(4, 5))
		once(t, q)
		p := progress(t, q, "j")
		require.Equal(t, batch.Failed, p.Status)
		require.False(t, p.Final)
		require.Contains(t, p.Reason, "has 2 points and needs 5")
		require.Equal(t, "made made waiting waiting", states(t, q, "j"))
		require.Len(t, s.left(), 2)
		checkBooks(t, rt, q, 12, "j")
		once(t, q)
		require.Equal(t, 2, s.count(), "it waits for Retry")

		give(t, rt, "ada", 22)
		require.NoError(t, q.Retry(t.Context(), "j"))
		require.Empty(t, progress(t, q, "j").Reason)
		requireCode(t, q.Retry(t.Context(), "j"), "JOB_STATUS", 409)
		once(t, q)
		require.Equal(t, batch.Completed, progress(t, q, "j").Status)
		require.Equal(t, 4, s.count())
		require.EqualValues(t, 12, balance(t, rt, "ada"))
		checkBooks(t, rt, q, 32, "j")
		requireCode(t, q.Retry(t.Context(), "j"), "JOB_STATUS", 409)
	})
}

// A job that has failed can be canceled. Its made items are refunded and removed. Proves CANCEL-9.
func TestCancelOfAFailedJob(t *testing.T) {
	s := newStudio()
	rt, q := inMemory(t, s)
	give(t, rt, "ada", 12)
	submit(t, q, "j", prompts(4, 5))
	once(t, q)
	require.NoError(t, q.Finalize(t.Context(), "j", 1))
	c := cancelJob(t, q, "j")
	require.Equal(t, batch.NowCanceled, c.Answer)
	require.Empty(t, c.Progress.Reason)
	require.Equal(t, "canceled finalized canceled canceled", states(t, q, "j"))
	require.EqualValues(t, 7, balance(t, rt, "ada"))
	require.Len(t, s.left(), 1)
	requireCode(t, q.Retry(t.Context(), "j"), "JOB_STATUS", 409)
	checkBooks(t, rt, q, 12, "j")
}

// A job whose account is gone fails before it is charged. A teardown whose account is gone waits, says
// why, and ends after the account is back. Proves CANCEL-3, CANCEL-6.
func TestAccountIsGone(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt, s := open(t, store), newStudio()
		q := newQueue(t, rt, s)
		give(t, rt, "ada", 100)
		submit(t, q, "early", prompts(2, 5))
		require.NoError(t, wallets.Scope(rt, "ada").Delete(t.Context()))
		once(t, q)
		p := progress(t, q, "early")
		require.Equal(t, batch.Failed, p.Status)
		require.Contains(t, p.Reason, "account \"ada\"")
		require.Zero(t, s.count())

		reopen := func(points int64) {
			_, err := wallets.Scope(rt, "ada").SetState(t.Context(), wallet{points}, pawl.IfAbsent())
			require.NoError(t, err)
		}
		reopen(7)
		require.NoError(t, q.Retry(t.Context(), "early"))
		once(t, q)
		require.Equal(t, "made waiting", states(t, q, "early"))
		require.NoError(t, wallets.Scope(rt, "ada").Delete(t.Context()))
		_, err := q.Cancel(t.Context(), "early")
		requireCode(t, err, "NOT_FOUND", 404)
		p = progress(t, q, "early")
		require.Equal(t, batch.Canceling, p.Status)
		require.Contains(t, p.Reason, "account \"ada\"")
		require.Equal(t, "made waiting", states(t, q, "early"))
		require.Len(t, s.left(), 1)
		start(t, q)
		reopen(2)
		p = finished(t, q, "early")
		require.Equal(t, batch.Canceled, p.Status)
		require.Empty(t, p.Reason)
		require.Empty(t, s.left())
		checkBooks(t, rt, q, 7, "early")
	})
}

// A removal that fails reaches the caller of Cancel, and the job stays in its teardown until it
// succeeds. No item is refunded twice by that. Proves CANCEL-5, CANCEL-6, CANCEL-7.
func TestRemovalFails(t *testing.T) {
	for name, fault := range map[string]func() error{
		"error": func() error { return errCall }, "for good": func() error { return pawl.NonRetryable(errCall) },
		"panic": func() error { panic(errCall) }, "goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStudio()
			var broken atomic.Bool
			var removals atomic.Int32
			s.removing = func(key string) error {
				if removals.Add(1); broken.Load() && strings.HasSuffix(key, "1") {
					return fault()
				}
				return nil
			}
			rt, q := inMemory(t, s)
			give(t, rt, "ada", 12)
			submit(t, q, "j", prompts(3, 5))
			once(t, q)
			broken.Store(true)
			for range 2 {
				_, err := q.Cancel(t.Context(), "j")
				requireCode(t, err, "REMOVE_FAILED", 502)
				removal := (*batch.RemoveError)(nil)
				require.ErrorAs(t, err, &removal)
				require.Equal(t, 1, removal.Item)
				p := progress(t, q, "j")
				require.Equal(t, batch.Canceling, p.Status)
				require.Contains(t, p.Reason, "item 1")
				require.EqualValues(t, 12, balance(t, rt, "ada"))
			}
			start(t, q) // a worker tries again
			before := removals.Load()
			testkit.Eventually(t, func() bool { return removals.Load() >= before+2 }, "a worker removes again")
			require.Equal(t, batch.Canceling, progress(t, q, "j").Status)
			broken.Store(false)
			require.Equal(t, batch.Canceled, finished(t, q, "j").Status)
			require.Empty(t, s.left())
			checkBooks(t, rt, q, 12, "j")
		})
	}
}

func TestErrorTexts(t *testing.T) {
	requireCode(t, &batch.InsufficientError{Account: "ada", Have: 1, Need: 2}, "INSUFFICIENT_BALANCE", 402)
	require.Equal(t, `batch: account "ada" has 1 points and needs 2`, (&batch.InsufficientError{Account: "ada", Have: 1, Need: 2}).Error())
	require.Equal(t, `batch: cannot retry job "j": it is queued`, (&batch.StatusError{Job: "j", Status: batch.Queued, Wanted: "retry"}).Error())
	require.Equal(t, `batch: job "j" has no item 3`, (&batch.ItemError{Job: "j", Item: 3}).Error())
	require.ErrorIs(t, &batch.RemoveError{Err: errCall}, errCall)
	require.ErrorIs(t, &batch.PriceError{Err: errCall}, errCall)
}
