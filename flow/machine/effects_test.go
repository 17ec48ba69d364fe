package machine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// An after-effect runs after the commit that recorded it, with the input of its step. It is deleted
// together with the commit of its own writes. Proves EFFECT-1.
func TestEffect(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		d := open(t, store, settings{})
		d.pack(t, "1")
		type told struct {
			machine.Delivery[parcel]
			in string
		}
		got := make(chan told, 10)
		d.tells(func(ctx context.Context, e *machine.Delivery[parcel]) error {
			var in string
			require.NoError(t, e.Input(&in))
			require.NoError(t, count(ctx, e))
			got <- told{*e, in}
			return nil
		})
		d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
			require.Empty(t, d.letters(t), "no after-effect before the commit")
			return book(ctx, a, in)
		})
		out, err := d.fire(t.Context(), "1", "hello")
		require.NoError(t, err)
		e := <-got
		require.NotEmpty(t, e.ID)
		require.Equal(t, []any{"ship", "admin", 1, "hello", out.Entity.Version}, []any{e.Step, e.By, e.Attempt, e.in, e.Version})
		require.Equal(t, parcel{Status: "shipped", Log: []string{"hello"}}, e.Entity.State())
		testkit.Eventually(t, func() bool { return len(d.letters(t)) == 0 }, "delivered")
		sum, err := ledgers.Scope(d.rt, "told").State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, sum.Shipped)
		require.Empty(t, got)
	})
}

// An action that fails records no after-effect, even if its final commit is what fails.
// Proves EFFECT-1.
func TestNoEffectWithoutCommit(t *testing.T) {
	d := open(t, memory.New(), settings{})
	d.tells(func(context.Context, *machine.Delivery[parcel]) error {
		t.Error("delivered")
		return nil
	})
	for i, b := range []body{
		func(context.Context, *machine.Action[parcel], string) error { return machine.Fail("no van") },
		func(context.Context, *machine.Action[parcel], string) error { return machine.Reject("too large") },
		func(context.Context, *machine.Action[parcel], string) error { return errBody },
		func(_ context.Context, a *machine.Action[parcel], _ string) error {
			a.OnCommit(func(context.Context, *pawl.Tx, *parcel) error { return errBody })
			return nil
		},
		func(ctx context.Context, a *machine.Action[parcel], in string) error { // the claim is lost
			_, err := parcels.Scope(d.rt, a.ID).PatchState(t.Context(), pawl.Patch{"status": "returned"})
			require.NoError(t, err)
			return book(ctx, a, in)
		},
		func(_ context.Context, a *machine.Action[parcel], _ string) error { // the claim is lost just before the commit
			a.OnCommit(func(context.Context, *pawl.Tx, *parcel) error {
				r := d.record(t, a.ID)
				_, err := d.rt.Store().Commit(t.Context(), persist.Commit{ID: "foreign.1", Guards: []persist.Guard{{Key: r.Key, Token: r.Lease.Token, Release: true}}})
				require.NoError(t, err)
				return nil
			})
			return nil
		},
	} {
		id := fmt.Sprint(i)
		d.pack(t, id)
		d.does(b)
		out, err := d.fire(t.Context(), id, "in vain")
		require.True(t, err != nil || out.Result != machine.Done)
		require.Empty(t, d.letters(t))
	}
	d.does(nil)
	d.pack(t, "cron")
	_, err := d.m.Fire(t.Context(), machine.Trigger{ID: "cron", Step: "ship", By: "cron", Input: ""})
	require.NoError(t, err)
	require.Empty(t, d.letters(t), "the step has no after-effect for this requester")
}

// A failing after-effect is retried under the same id, with growing delays, and is given up in the
// end. Undelivered lists it, and Redeliver retries it. Proves EFFECT-1.
func TestEffectIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gaveUp := make(chan machine.Undelivered, 1)
		d := open(t, memory.New(), settings{config: machine.Config{
			Effects: pawl.Retry{Attempts: 5, First: time.Second, Max: 4 * time.Second},
			Poll:    time.Hour,
			GaveUp:  func(u machine.Undelivered) { gaveUp <- u },
		}})
		d.pack(t, "1")
		var (
			mu    sync.Mutex
			ids   []string
			tries []int
			last  = time.Now()
			mends = false
			done  = make(chan struct{})
		)
		d.tells(func(_ context.Context, e *machine.Delivery[parcel]) error {
			mu.Lock()
			defer mu.Unlock()
			ids, tries = append(ids, e.ID), append(tries, e.Attempt)
			if n := len(ids); n > 1 && n <= 5 {
				bound := []time.Duration{0, 0, time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second}[n]
				require.LessOrEqual(t, time.Since(last), bound+time.Millisecond, "attempt %d", n)
			}
			last = time.Now()
			switch {
			case mends:
				close(done)
				return nil
			case len(ids) == 2:
				panic(errBody)
			case len(ids) == 3:
				runtime.Goexit()
			}
			return errBody
		})
		_, err := d.fire(t.Context(), "1", "hello")
		require.NoError(t, err)
		u := <-gaveUp
		require.Equal(t, []int{1, 2, 3, 4, 5}, tries)
		require.Len(t, slices.Compact(slices.Clone(ids)), 1)
		want := machine.Undelivered{ID: ids[0], Workflow: "shipping", Effect: "Tell", Step: "ship", By: "admin", Entity: "1", Version: 3, Attempts: 5, Error: errBody.Error()}
		require.Equal(t, want, u)
		time.Sleep(3 * time.Hour)
		require.Len(t, tries, 5, "no further attempts")
		var all []machine.Undelivered
		for u, err := range d.e.Undelivered(t.Context()) {
			require.NoError(t, err)
			all = append(all, u)
		}
		require.Equal(t, []machine.Undelivered{want}, all)

		require.ErrorIs(t, d.e.Redeliver(t.Context(), "nothing"), pawl.ErrNotFound)
		mu.Lock()
		mends = true
		mu.Unlock()
		require.NoError(t, d.e.Redeliver(t.Context(), u.ID))
		<-done
		require.Equal(t, ids[0], ids[len(ids)-1])
		require.Equal(t, 1, tries[len(tries)-1], "attempts start again at 1")
		synctest.Wait()
		require.Empty(t, d.letters(t))
		require.ErrorIs(t, d.e.Redeliver(t.Context(), u.ID), pawl.ErrNotFound, "it has been delivered")
		require.NoError(t, d.stop())
	})
}

// An error marked by pawl.NonRetryable gives an after-effect up after one attempt, whether its
// handler or its commit returned it. Proves EFFECT-1.
func TestEffectGivenUpAtOnce(t *testing.T) {
	final := fmt.Errorf("wrapped: %w", pawl.NonRetryable(errBody))
	for name, tell := range map[string]func(context.Context, *machine.Delivery[parcel]) error{
		"handler": func(context.Context, *machine.Delivery[parcel]) error { return final },
		"commit": func(_ context.Context, d *machine.Delivery[parcel]) error {
			d.OnCommit(func(context.Context, *pawl.Tx) error { return final })
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			gaveUp := make(chan machine.Undelivered, 1)
			d := open(t, memory.New(), settings{tell: tell, config: machine.Config{
				Effects: pawl.Retry{Attempts: 3, First: time.Millisecond, Max: time.Millisecond},
				GaveUp:  func(u machine.Undelivered) { gaveUp <- u },
			}})
			d.pack(t, "1")
			_, err := d.fire(t.Context(), "1", "hello")
			require.NoError(t, err)
			u := <-gaveUp
			require.Equal(t, 1, u.Attempts)
			require.Contains(t, u.Error, final.Error())
		})
	}
}

// An error marked by pawl.NonRetryable is final even if Stop has already ended the context of its
// handler. Proves EFFECT-1.
func TestFinalErrorAtStop(t *testing.T) {
	d := open(t, memory.New(), settings{config: machine.Config{GaveUp: func(machine.Undelivered) {}}})
	began := make(chan struct{})
	d.tells(func(ctx context.Context, _ *machine.Delivery[parcel]) error {
		close(began)
		<-ctx.Done()
		return pawl.NonRetryable(errBody)
	})
	d.pack(t, "1")
	_, err := d.fire(t.Context(), "1", "hello")
	require.NoError(t, err)
	<-began
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = d.e.Stop(ended) // Stop may return before the handler does
	require.NoError(t, d.e.Stop(t.Context()))
	var all []machine.Undelivered
	for u, err := range d.e.Undelivered(t.Context()) {
		require.NoError(t, err)
		all = append(all, u)
	}
	require.Len(t, all, 1)
	require.Equal(t, 1, all[0].Attempts)
}

// An after-effect whose worker died is taken over when its lease expires, and given up if all its
// workers die. A worker that resumes late commits nothing. Proves EFFECT-1.
func TestEffectOfDeadWorker(t *testing.T) {
	store := memory.New()
	quiet := settings{config: machine.Config{Poll: time.Hour, Lease: time.Hour, Effects: pawl.Retry{Attempts: 3}, Deliveries: 1}}
	first := open(t, store, quiet)
	late, began := make(chan struct{}), make(chan struct{})
	first.tells(func(ctx context.Context, e *machine.Delivery[parcel]) error {
		require.NoError(t, count(ctx, e))
		close(began)
		<-late // ignores its context
		return nil
	})
	first.pack(t, "1")
	_, err := first.fire(t.Context(), "1", "hello")
	require.NoError(t, err)
	<-began
	letter := first.letters(t)[0]
	require.Equal(t, 1, letter.Attempts, "an attempt is counted before it runs")

	// Release the lease of the after-effect, as if it had expired.
	var key pawl.Key
	for snap, err := range machine.Letters.List(t.Context(), first.rt, pawl.Query{}) {
		require.NoError(t, err)
		key = pawl.Key{Kind: "machine.effect", ID: snap.ID}
	}
	end := func() {
		r, err := store.Load(t.Context(), key)
		require.NoError(t, err)
		_, err = store.Commit(t.Context(), persist.Commit{ID: "foreign.1", Guards: []persist.Guard{{Key: key, Token: r.Lease.Token, Release: true}}})
		require.NoError(t, err)
	}
	end()
	took := make(chan int, 1)
	s := quiet
	s.config.Poll = time.Millisecond
	block := make(chan struct{})
	s.tell = func(ctx context.Context, e *machine.Delivery[parcel]) error {
		took <- e.Attempt
		<-block
		return errBody
	}
	second := open(t, store, s)
	require.Equal(t, 2, <-took)
	close(late)
	testkit.Eventually(t, func() bool { return second.letters(t)[0].Attempts == 2 }, "")
	require.NoError(t, first.e.Stop(t.Context()))
	require.Len(t, second.letters(t), 1, "the late worker must not delete the record")
	told, err := ledgers.Scope(first.rt, "told").State(t.Context())
	require.NoError(t, err)
	require.Zero(t, told.Shipped, "the late worker must write nothing")

	_, err = machine.Letters.Scope(first.rt, key.ID).IncState(t.Context(), "attempts", 20) // many workers died
	require.NoError(t, err)
	end()
	gaveUp := make(chan machine.Undelivered, 1)
	s.config.GaveUp = func(u machine.Undelivered) { gaveUp <- u }
	s.tell = func(context.Context, *machine.Delivery[parcel]) error {
		t.Error("the after-effect was tried again")
		return nil
	}
	open(t, store, s)
	u := <-gaveUp
	require.Contains(t, u.Error, "did not end")
	close(block)
}

// Stop waits for a running delivery. A delivery that Stop interrupts does not count as an attempt.
// Proves EFFECT-1.
func TestEffectAtStop(t *testing.T) {
	store := memory.New()
	d := open(t, store, settings{})
	began, finish := make(chan struct{}), make(chan struct{})
	d.tells(func(ctx context.Context, e *machine.Delivery[parcel]) error {
		close(began)
		<-finish
		return nil
	})
	d.pack(t, "1")
	_, err := d.fire(t.Context(), "1", "hello")
	require.NoError(t, err)
	<-began
	stopped := make(chan error)
	go func() { stopped <- d.e.Stop(context.Background()) }()
	close(finish)
	require.NoError(t, <-stopped)
	require.Empty(t, d.letters(t))

	d = open(t, store, settings{})
	began = make(chan struct{})
	d.tells(func(ctx context.Context, e *machine.Delivery[parcel]) error {
		close(began)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	d.pack(t, "2")
	_, err = d.fire(t.Context(), "2", "hello")
	require.NoError(t, err)
	<-began
	impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	for err = errors.New(""); err != nil; { // the first Stop may run out of time
		err = d.e.Stop(impatient)
		impatient = t.Context()
	}
	letters := d.letters(t)
	require.Len(t, letters, 1)
	require.Zero(t, letters[0].Attempts)
	require.NoError(t, d.rt.Close(t.Context()))

	d = open(t, store, settings{})
	testkit.Eventually(t, func() bool { return len(d.letters(t)) == 0 }, "delivered by the next process")
}
