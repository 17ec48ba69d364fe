package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

func init() {
	testkit.Child("waiter", waiterChild)
	testkit.Child("receiver", receiverChild)
}

// receive returns a step that awaits n signals and writes their data to the log.
func receive(n int, inside func(data string)) run.Step[order] {
	return run.Step[order]{
		Name:  "receive",
		Retry: pawl.Retry{Attempts: 10, First: time.Millisecond, Max: time.Millisecond},
		Do: func(_ context.Context, a *attempt) (run.Next, error) {
			if a.Signal != nil {
				var data string
				if err := json.Unmarshal(a.Signal.Data, &data); err != nil {
					return run.Next{}, err
				}
				a.State.Log = append(a.State.Log, data)
				inside(data)
			}
			if len(a.State.Log) == n {
				return run.Continue(), nil
			}
			return run.Await("mail", 0), nil
		},
	}
}

// work runs an engine in a child until it is killed.
func work(steps ...run.Step[order]) error {
	rt, _, err := openGiven()
	if err != nil {
		return err
	}
	e, _ := engine(rt, run.Config{Lease: shortLease, Poll: 50 * time.Millisecond}, steps...)
	if err := e.Start(context.Background()); err != nil {
		return err
	}
	select {}
}

// waiting are the steps of a run that waits for a time, then for a signal.
func waiting() []run.Step[order] {
	return []run.Step[order]{
		step("sleep", func(_ context.Context, a *attempt) (run.Next, error) {
			if !a.Resumed {
				return run.Sleep(time.Second), nil
			}
			return run.Continue(), nil
		}),
		step("await", func(_ context.Context, a *attempt) (run.Next, error) {
			if a.Signal == nil {
				return run.Await("paid", 0), nil
			}
			return run.Continue(), json.Unmarshal(a.Signal.Data, &a.State.ID)
		}),
	}
}

func waiterChild() error { return work(waiting()...) }

// The process that works on a run is killed while the run waits for a time, and another one while it
// waits for a signal. A process that works on nothing sends the signal. Proves RUN-6.
func TestWaitSurvivesARestart(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		e, runs := engine(open(t, stores.OpenFor(t, location)), run.Config{}, waiting()...)
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		p := testkit.Start(t, "waiter", stores.Env(location))
		until(t, runs, r.ID, "asleep", func(r run.Run[order]) bool { return r.Status == run.Waiting })
		p.Kill()
		p = testkit.Start(t, "waiter", stores.Env(location))
		until(t, runs, r.ID, "waiting", func(r run.Run[order]) bool { return r.Awaits == "paid" })
		p.Kill()
		require.NoError(t, e.Signal(t.Context(), r.ID, "paid", "yes"))
		p = testkit.Start(t, "waiter", stores.Env(location))
		r = finished(t, runs, r.ID)
		p.Kill()
		require.Equal(t, run.Completed, r.Status, r.Error)
		require.Equal(t, order{ID: "yes", Log: []string{"sleep", "sleep", "await", "await"}}, r.State)
	})
}

// A run that waits in one process is woken by a signal of another. Proves RUN-6.
func TestSignalWakesAnotherProcess(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		e, runs := engine(open(t, stores.OpenFor(t, location)), run.Config{}, waiting()...)
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		p := testkit.Start(t, "waiter", stores.Env(location))
		until(t, runs, r.ID, "waiting", func(r run.Run[order]) bool { return r.Awaits == "paid" })
		require.NoError(t, e.Signal(t.Context(), r.ID, "paid", "yes"))
		require.Equal(t, run.Completed, finished(t, runs, r.ID).Status)
		p.Kill()
	})
}

// A signal is sent while the step runs that will await it. Whichever of the two commits first, the
// run continues with the signal. Proves RUN-6.
func TestSignalWhileTheStepRuns(t *testing.T) {
	for name, force := range map[string]func(t *testing.T, worker, sender *stores.Tap, send func() error){
		"in the step": func(*testing.T, *stores.Tap, *stores.Tap, func() error) {},
		"signal commits first": func(t *testing.T, worker, _ *stores.Tap, send func() error) {
			sent := false
			worker.OnCommit(func(_ context.Context, c persist.Commit) error {
				if !sent && becomes(c, run.Waiting) != "" { // its inbox was empty
					sent = true
					return send()
				}
				return nil
			})
		},
		"await commits first": func(t *testing.T, worker, sender *stores.Tap, send func() error) {
			waits, sent := make(chan struct{}), make(chan error, 1)
			worker.OnCommitted(func(c persist.Commit, at time.Time, err error) (time.Time, error) {
				if err == nil && becomes(c, run.Waiting) != "" {
					close(waits)
				}
				return at, err
			})
			reads := make(chan struct{})
			sender.OnCommit(func(_ context.Context, c persist.Commit) error { // it has read that the run is RUNNING
				sender.OnCommit(nil)
				close(reads)
				<-waits
				return nil
			})
			worker.OnCommit(func(_ context.Context, c persist.Commit) error {
				if becomes(c, run.Waiting) != "" {
					worker.OnCommit(nil)
					go func() { sent <- send() }()
					<-reads
				}
				return nil
			})
			t.Cleanup(func() { require.NoError(t, testkit.Receive(t, sent)) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			stores.Each(t, func(t *testing.T, location string) {
				worker := &stores.Tap{Store: stores.OpenFor(t, location)}
				sender := &stores.Tap{Store: stores.OpenFor(t, location)}
				other, _ := engine(open(t, sender), run.Config{}, waiting()[1])
				var id string
				send := func() error { return other.Signal(context.Background(), id, "paid", "yes") }
				inStep := name == "in the step"
				e, runs := engine(open(t, worker), run.Config{Poll: 20 * time.Millisecond}, step("await", func(ctx context.Context, a *attempt) (run.Next, error) {
					if inStep {
						inStep = false
						if err := send(); err != nil {
							return run.Next{}, err
						}
					}
					return waiting()[1].Do(ctx, a)
				}))
				r, _, err := runs.Start(t.Context(), order{})
				require.NoError(t, err)
				id = r.ID
				force(t, worker, sender, send)
				require.NoError(t, e.Start(t.Context()))
				r = finished(t, runs, r.ID)
				require.NoError(t, e.Stop(t.Context()))
				require.Equal(t, run.Completed, r.Status, r.Error)
				require.Equal(t, "yes", r.State.ID)
			})
		})
	}
}

// bubble runs a test on a memory store, in virtual time.
func bubble(t *testing.T, test func(t *testing.T, rt *pawl.Runtime)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{totals}})
		require.NoError(t, err)
		test(t, rt)
		require.NoError(t, errors.Join(rt.Close(context.Background()), store.Close()))
	})
}

// Await ends at its time without a signal, and before it with one. Sleep ends at its time, not at the
// next poll. Proves RUN-6.
func TestAwaitWithATimeout(t *testing.T) {
	bubble(t, func(t *testing.T, rt *pawl.Runtime) {
		var ended []time.Duration
		begin := time.Now()
		e, runs := engine(rt, run.Config{Poll: 24 * time.Hour},
			step("sleep", func(_ context.Context, a *attempt) (run.Next, error) {
				if !a.Resumed {
					return run.Sleep(2 * time.Hour), nil
				}
				ended = append(ended, time.Since(begin).Truncate(time.Second))
				return run.Continue(), nil
			}),
			step("await", func(_ context.Context, a *attempt) (run.Next, error) {
				if !a.Resumed {
					return run.Await("paid", time.Hour), nil
				}
				ended = append(ended, time.Since(begin).Truncate(time.Second))
				if a.Signal != nil {
					return run.Continue(), json.Unmarshal(a.Signal.Data, &a.State.ID)
				}
				a.State.ID = "too late"
				return run.Continue(), nil
			}))
		require.NoError(t, e.Start(t.Context()))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		time.Sleep(2*time.Hour + 30*time.Minute)
		got, err := runs.Get(t.Context(), r.ID)
		require.NoError(t, err)
		require.Equal(t, run.Waiting, got.Status)
		require.Equal(t, "paid", got.Awaits)
		require.Equal(t, 3*time.Hour, got.Due.Sub(begin).Truncate(time.Second))
		time.Sleep(time.Hour)
		got, err = runs.Get(t.Context(), r.ID)
		require.NoError(t, err)
		require.Equal(t, "too late", got.State.ID)
		require.Equal(t, []time.Duration{2 * time.Hour, 3 * time.Hour}, ended)

		begin, ended = time.Now(), nil
		r, _, err = runs.Start(t.Context(), order{})
		require.NoError(t, err)
		time.Sleep(2*time.Hour + 30*time.Minute)
		require.NoError(t, e.Signal(t.Context(), r.ID, "paid", "in time"))
		time.Sleep(time.Second)
		got, err = runs.Get(t.Context(), r.ID)
		require.NoError(t, err)
		require.Equal(t, run.Completed, got.Status)
		require.Equal(t, "in time", got.State.ID)
		require.Equal(t, []time.Duration{2 * time.Hour, 150 * time.Minute}, ended)
		require.NoError(t, e.Stop(t.Context()))
	})
}

const mails = 5

// receiverChild blocks when it has received the third signal.
func receiverChild() error {
	return work(receive(mails, func(data string) {
		if data == "2" {
			testkit.Say("received %s", data)
			select {}
		}
	}))
}

// Signals of one name are received in order, each once: also when the process that received one is
// killed before its commit, and when the step fails. Proves RUN-6, RUN-8.
func TestSignalsAreReceivedInOrder(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // it mostly waits
		store := stores.OpenFor(t, location)
		failed := false
		rt := open(t, store)
		e, runs := engine(rt, run.Config{Poll: 50 * time.Millisecond}, receive(mails, func(data string) {
			if data == "3" && !failed {
				failed = true
				panic("no printer")
			}
		}))
		r, _, err := runs.Start(t.Context(), order{})
		require.NoError(t, err)
		for i := range mails {
			require.NoError(t, e.Signal(t.Context(), r.ID, "mail", fmt.Sprint(i)))
			require.NoError(t, e.Signal(t.Context(), r.ID, "other", fmt.Sprint(i)))
		}
		p := testkit.Start(t, "receiver", stores.Env(location))
		p.Expect("received 2")
		p.Kill()
		require.NoError(t, e.Start(t.Context()))
		r = finished(t, runs, r.ID)
		require.NoError(t, e.Stop(t.Context()))
		require.Equal(t, run.Completed, r.Status, r.Error)
		require.Equal(t, []string{"0", "1", "2", "3", "4"}, r.State.Log)
		require.True(t, failed)
	})
}

// A signal with a bad name or bad data is refused.
func TestBadSignals(t *testing.T) {
	e, runs := engine(open(t, memory.New()), run.Config{}, waiting()...)
	r, _, err := runs.Start(t.Context(), order{})
	require.NoError(t, err)
	var argument *pawl.ArgumentError
	require.ErrorAs(t, e.Signal(t.Context(), r.ID, "", 1), &argument)
	require.ErrorAs(t, e.Signal(t.Context(), r.ID, string(make([]byte, 65)), 1), &argument)
	require.ErrorAs(t, e.Signal(t.Context(), r.ID, "paid", func() {}), &argument)
}
