package batch_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// A call that fails is repeated by the policy under the same key. Then its item has failed, is
// refunded in the same commit, and what it left is removed. Proves CANCEL-3, CANCEL-5.
func TestCallFails(t *testing.T) {
	for name, test := range map[string]struct {
		during func(ctx context.Context) error
		change func(c *config)
		calls  int
		text   string
	}{
		"error":       {during: func(context.Context) error { return errCall }, calls: 3, text: "the call failed"},
		"for good":    {during: func(context.Context) error { return pawl.NonRetryable(errCall) }, calls: 1, text: "the call failed"},
		"panic":       {during: func(context.Context) error { panic("no brush") }, calls: 3, text: "panicked: no brush"},
		"goexit":      {during: func(context.Context) error { runtime.Goexit(); return nil }, calls: 3, text: "runtime.Goexit"},
		"odd text":    {during: func(context.Context) error { return errors.New("caf\xe9\x00") }, calls: 3, text: "caf\uFFFD\uFFFD"},
		"no points":   {during: func(context.Context) error { return &batch.InsufficientError{Account: "x"} }, calls: 3, text: "needs 0"},
		"no document": {during: func(context.Context) error { return pawl.ErrNotFound }, calls: 3, text: "not found"},
		"timeout": {
			during: func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
			change: func(c *config) { c.Timeout = time.Millisecond }, calls: 3, text: "deadline exceeded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStudio()
			s.during = func(ctx context.Context, text string) error {
				if text == "p1" {
					return test.during(ctx)
				}
				return nil
			}
			rt, q := inMemory(t, s, func(c *config) {
				if c.Retry.Attempts = 3; test.change != nil {
					test.change(c)
				}
			})
			submit(t, q, "j", prompts(3, 5))
			once(t, q)
			p := progress(t, q, "j")
			require.Equal(t, batch.Completed, p.Status, "%+v", p)
			require.Equal(t, []int{2, 1}, []int{p.Done, p.Failed})
			require.Equal(t, "made failed made", states(t, q, "j"))
			require.Equal(t, 2+test.calls, s.count())
			require.Len(t, s.left(), 2)
			for it, err := range q.Items(t.Context(), "j", batch.ItemFailed) {
				require.NoError(t, err)
				require.Contains(t, it.Error, test.text)
				require.Equal(t, test.calls, it.Attempts)
			}
			checkBooks(t, rt, q, 100, "j")
		})
	}
}

// A call that succeeds after it has failed leaves no error behind.
func TestCallSucceedsLater(t *testing.T) {
	s := newStudio()
	rt, q := inMemory(t, s)
	s.during = func(context.Context, string) error {
		for it, err := range q.Items(t.Context(), "j") {
			require.NoError(t, err)
			require.Equal(t, batch.Charged, it.State)
			require.EqualValues(t, 95, balance(t, rt, "ada"))
			if it.Attempts == 1 {
				return errCall
			}
			require.Equal(t, errCall.Error(), it.Error)
		}
		return nil
	}
	submit(t, q, "j", prompts(1, 5))
	once(t, q)
	for it := range q.Items(t.Context(), "j") {
		require.Equal(t, batch.Made, it.State)
		require.Empty(t, it.Error)
	}
	checkBooks(t, rt, q, 100, "j")
}

// An artifact that cannot be stored fails its item at once: the call is not repeated for ever.
func TestArtifactCannotBeStored(t *testing.T) {
	for name, artifact := range map[string]any{
		"too large": strings.Repeat("x", 2*pawl.DefaultMaxDoc), "no JSON": math.NaN(), "a channel": make(chan int),
		"deep": deep(20_000), "digits": number(strings.Repeat("9", 2*pawl.MaxDigits)), "NUL": "a\x00b",
	} {
		t.Run(name, func(t *testing.T) {
			stores.EachOpen(t, func(t *testing.T, store persist.Store) {
				rt, calls, removed := open(t, store), 0, 0
				give(t, rt, "ada", 100)
				q, err := batch.New(rt, batch.Config[prompt, any]{
					Name: "any", Ledger: batch.ScopeLedger(wallets, "points"), Logger: quiet,
					Price: func(p prompt) (int64, error) { return p.Price, nil },
					Make: func(context.Context, string, prompt) (any, error) {
						calls++
						return artifact, nil
					},
					Remove: func(_ context.Context, _ string, artifact *any) error {
						require.Nil(t, artifact)
						removed++
						return nil
					},
				})
				require.NoError(t, err)
				_, _, err = q.Submit(t.Context(), aJob{ID: "j", Account: "ada", Items: prompts(1, 5)})
				require.NoError(t, err)
				_, err = q.Once(t.Context())
				require.NoError(t, err)
				p, err := q.Progress(t.Context(), "j")
				require.NoError(t, err)
				require.Equal(t, batch.Completed, p.Status, "%+v", p)
				require.Equal(t, []int{1, 1, 1}, []int{p.Failed, calls, removed})
				require.Zero(t, p.Cost())
				require.EqualValues(t, 100, balance(t, rt, "ada"))
			})
		})
	}
}

// deep returns lists in each other.
func deep(n int) (list any) {
	for range n {
		list = []any{list}
	}
	return list
}

// number is a JSON number.
type number string

func (n number) MarshalJSON() ([]byte, error) { return []byte(n), nil }

// An item whose call never ends, because each one outlives its lease, fails in the end.
func TestCallNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, s := &stores.Tap{Store: memory.New()}, newStudio()
		rt := open(t, store)
		q := newQueue(t, rt, s, func(c *config) { c.Retry.Attempts, c.Lease = 1, time.Second })
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(2, 5))
		s.during = func(ctx context.Context, text string) error {
			if text == "p0" {
				store.RefuseAll() // the lease is not renewed
				<-ctx.Done()
				store.Refuse(nil)
			}
			return context.Cause(ctx)
		}
		for range 25 {
			if progress(t, q, "j").Status.Finished() {
				break
			}
			time.Sleep(2 * time.Second) // until the lease has run out
			_, err := q.Once(t.Context())
			require.NoError(t, err)
		}
		p := progress(t, q, "j")
		require.Equal(t, batch.Completed, p.Status)
		require.Equal(t, "failed made", states(t, q, "j"))
		require.Equal(t, 21, s.count())
		require.Len(t, s.left(), 1)
		checkBooks(t, rt, q, 100, "j")
	})
}

// A call that was interrupted by a crash is not one of the failures that the policy allows. Proves
// CANCEL-11.
func TestCrashIsNotAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, s := &stores.Tap{Store: memory.New()}, newStudio()
		rt := open(t, store)
		q := newQueue(t, rt, s, func(c *config) { c.Retry.Attempts, c.Lease = 2, time.Second })
		give(t, rt, "ada", 100)
		submit(t, q, "j", prompts(1, 5))
		calls := 0
		s.during = func(ctx context.Context, text string) error {
			switch calls++; calls {
			case 1:
				store.RefuseAll()
				<-ctx.Done()
				store.Refuse(nil)
			case 2:
				return errCall
			}
			return nil
		}
		for range 2 {
			time.Sleep(2 * time.Second)
			_, err := q.Once(t.Context())
			require.NoError(t, err)
		}
		require.Equal(t, "made", states(t, q, "j"))
		require.Equal(t, 3, calls)
		checkBooks(t, rt, q, 100, "j")
	})
}

// A call has failed, and before it is made again, the queue is stopped, or its lease is lost as if its
// process had died. The failure is one of those that the policy allows. Proves CANCEL-11.
func TestFailureBeforeAnEndCounts(t *testing.T) {
	for name, end := range map[string]func(store *stores.Tap, q *queue){
		"stop":  func(_ *stores.Tap, q *queue) { _ = q.Stop(context.Background()) },
		"death": func(store *stores.Tap, _ *queue) { store.RefuseAll() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, s := &stores.Tap{Store: memory.New()}, newStudio()
				rt := open(t, store)
				const years = 1 << 60 // a delay is random, and must not end before the queue does
				policy := func(c *config) {
					c.Retry, c.Lease = pawl.Retry{Attempts: 3, First: years, Max: years}, time.Second
				}
				give(t, rt, "ada", 100)
				submit(t, newQueue(t, rt, s, policy), "j", prompts(1, 5))
				for calls := range 3 {
					time.Sleep(time.Minute) // until the lease has run out
					q := newQueue(t, rt, s, policy)
					s.during = func(context.Context, string) error {
						time.AfterFunc(time.Minute, func() { end(store, q) })
						return errCall
					}
					_, _ = q.Once(t.Context())
					store.Refuse(nil)
					require.Equal(t, calls+1, s.count())
				}
				require.Equal(t, "failed", states(t, newQueue(t, rt, s, policy), "j"))
				checkBooks(t, rt, newQueue(t, rt, s, policy), 100, "j")
			})
		})
	}
}

// A call that Stop interrupts is made again, however often, and does not count as an attempt.
func TestInterruptedCallsDoNotCount(t *testing.T) {
	s := newStudio()
	rt, q := inMemory(t, s, func(c *config) { c.Retry.Attempts = 1 })
	submit(t, q, "j", prompts(1, 5))
	for range 25 {
		worker := newQueue(t, rt, s, func(c *config) { c.Retry.Attempts = 1 })
		s.during = func(ctx context.Context, _ string) error {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			go func() { _ = worker.Stop(ended) }()
			<-ctx.Done()
			return context.Cause(ctx)
		}
		_, _ = worker.Once(t.Context())
		require.Equal(t, "charged", states(t, q, "j"))
	}
	s.during = nil
	_, err := q.Once(t.Context())
	require.NoError(t, err)
	require.Equal(t, batch.Completed, progress(t, q, "j").Status)
	require.Equal(t, "made", states(t, q, "j"))
	require.Equal(t, 26, s.count())
	checkBooks(t, rt, q, 100, "j")
}
