package machine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// A step claims, runs its body, and commits its writes with the final status. The commit ends the
// lease. Proves CLAIM-2, CLAIM-5.
func TestFire(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		d := open(t, store, settings{runtime: pawl.Config{Holder: "depot one"}})
		d.pack(t, "1")
		d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
			r := d.record(t, "1") // the stored record while the body runs
			require.Equal(t, "shipping", r.Label)
			require.EqualValues(t, 2, r.Version)
			require.True(t, r.Held(r.Now))
			require.Equal(t, r.Version, r.Lease.Token)
			require.Equal(t, "depot one (claim: packed to shipping)", r.Lease.Holder)
			require.Equal(t, parcel{Status: "packed"}, a.Entity)
			require.Equal(t, []string{"1", "ship", "admin"}, []string{a.ID, a.Step, a.By})
			return book(ctx, a, in)
		})
		out, err := d.fire(t.Context(), "1", "first")
		require.NoError(t, err)
		require.Equal(t, machine.Done, out.Result)
		want := parcel{Status: "shipped", Log: []string{"first"}}
		require.Equal(t, want, out.Entity.State())
		require.Equal(t, want, d.parcel(t, "1"))
		r := d.record(t, "1")
		require.Equal(t, r.Version, out.Entity.Version)
		require.EqualValues(t, 3, r.Version, "created, claimed, committed")
		require.Zero(t, r.Lease, "the commit released the lease")
		require.EqualValues(t, 1, d.shipped(t))
		out, err = d.m.Fire(t.Context(), machine.Trigger{ID: "1", Step: "return", By: "admin"})
		require.NoError(t, err)
		require.Equal(t, machine.Done, out.Result, "the next step")
	})
}

// A requester without a claim runs unclaimed: two bodies may run at the same time, but only one
// commits. Proves CLAIM-1.
func TestUnclaimed(t *testing.T) {
	d := open(t, memory.New(), settings{})
	d.pack(t, "1")
	var both sync.WaitGroup
	both.Add(2)
	d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
		require.Equal(t, "packed", d.parcel(t, "1").Status)
		require.Zero(t, d.record(t, "1").Lease)
		both.Done()
		both.Wait()
		return book(ctx, a, in)
	})
	results := make(chan machine.Outcome[parcel], 2)
	for range 2 {
		go func() {
			out, err := d.m.Fire(t.Context(), machine.Trigger{ID: "1", Step: "ship", By: "cron", Input: "cron"})
			if err != nil {
				t.Error(err)
			}
			results <- out
		}()
	}
	one, other := <-results, <-results
	if one.Result != machine.Done {
		one, other = other, one
	}
	require.Equal(t, machine.Done, one.Result)
	require.Equal(t, machine.WrongStatus, other.Result)
	require.Equal(t, "shipped", other.Entity.State().Status)
	require.Equal(t, parcel{Status: "shipped", Log: []string{"cron"}}, d.parcel(t, "1"))
	require.EqualValues(t, 2, d.record(t, "1").Version)
	require.EqualValues(t, 1, d.shipped(t))
}

// A claim fails, and no body runs, if the status differs or the version moved. Proves CLAIM-3.
func TestClaimFailed(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		d, other := open(t, store, settings{}), open(t, store, settings{})
		ctx := t.Context()
		refused := func(out machine.Outcome[parcel], err error) {
			t.Helper()
			require.NoError(t, err)
			require.Equal(t, machine.ClaimFailed, out.Result)
			require.Equal(t, "claim_failed", out.Result.String())
			require.Equal(t, "another operation is already in progress", out.Reasons[0])
		}
		other.does(func(context.Context, *machine.Action[parcel], string) error {
			t.Error("a second body ran")
			return nil
		})

		d.pack(t, "claimed")
		d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
			refused(other.fire(t.Context(), "claimed", "second"))
			refused(other.m.Fire(t.Context(), machine.Trigger{ID: "claimed", Step: "return", By: "admin"})) // another step of the same entity
			refused(other.m.Fire(t.Context(), machine.Trigger{ID: "claimed", Step: "ship", By: "cron", Input: "unclaimed"}))
			return book(ctx, a, in)
		})
		out, err := d.fire(ctx, "claimed", "first")
		require.NoError(t, err)
		require.Equal(t, machine.Done, out.Result)
		require.Equal(t, []string{"first"}, d.parcel(t, "claimed").Log)

		d.pack(t, "edited") // edited between the read and the claim
		other.e.Observe(func(step string) {
			if step == "before claim" {
				_, err := parcels.Scope(d.rt, "edited").PatchState(ctx, pawl.Patch{"note": "fragile"})
				require.NoError(t, err)
			}
		})
		refused(other.fire(ctx, "edited", "moved"))
		require.Equal(t, parcel{Status: "packed", Note: "fragile"}, d.parcel(t, "edited"))
		other.e.Observe(func(string) {})

		d.pack(t, "overtaken") // claimed and released between the read and the claim
		other.e.Observe(func(step string) {
			if step == "before claim" {
				d.does(func(context.Context, *machine.Action[parcel], string) error { return machine.Fail("no van") })
				out, err := d.fire(ctx, "overtaken", "faster")
				require.NoError(t, err)
				require.Equal(t, machine.Failed, out.Result)
			}
		})
		refused(other.fire(ctx, "overtaken", "slower"))
		require.Equal(t, parcel{Status: "packed"}, d.parcel(t, "overtaken"))
		other.e.Observe(func(string) {})

		d.pack(t, "held") // its lease is held for another purpose
		l, err := parcels.Scope(d.rt, "held").Acquire(ctx)
		require.NoError(t, err)
		refused(other.fire(ctx, "held", "late"))
		require.NoError(t, l.Release(ctx))

		out, err = other.fire(ctx, "claimed", "again")
		require.NoError(t, err)
		require.Equal(t, machine.WrongStatus, out.Result, "the parcel is shipped, and no operation is in progress")
		require.Equal(t, "wrong_status", out.Result.String())
		require.Equal(t, "shipped", out.Entity.State().Status)
	})
}

var errBody = errors.New("the body failed")

// Every action that does not succeed releases its claim before Fire returns, and writes nothing.
// Proves CLAIM-6.
func TestRelease(t *testing.T) {
	onCommit := func(fn func() error) body {
		return func(_ context.Context, a *machine.Action[parcel], _ string) error {
			a.OnCommit(func(ctx context.Context, tx *pawl.Tx, p *parcel) error {
				p.Note = "written"
				_, err := ledgers.Scope(tx, "all").IncState(ctx, "shipped", 1)
				require.NoError(t, err)
				return fn()
			})
			return nil
		}
	}
	plain := func(fn func() error) body {
		return func(context.Context, *machine.Action[parcel], string) error { return fn() }
	}
	for _, c := range []struct {
		name   string
		body   body
		result machine.Result
		err    error
		panics bool
		exits  bool
	}{
		{name: "failed", body: plain(func() error { return machine.Fail("no van") }), result: machine.Failed},
		{name: "rejected", body: plain(func() error { return machine.Reject("too large", "too heavy") }), result: machine.Rejected},
		{name: "error", body: plain(func() error { return errBody }), err: errBody},
		{name: "panic", body: plain(func() error { panic(errBody) }), panics: true},
		{name: "runtime.Goexit", body: plain(func() error { runtime.Goexit(); return nil }), exits: true},
		{name: "failed in the commit", body: onCommit(func() error { return machine.Fail("no van") }), result: machine.Failed},
		{name: "rejected in the commit", body: onCommit(func() error { return machine.Reject("too large", "too heavy") }), result: machine.Rejected},
		{name: "error in the commit", body: onCommit(func() error { return errBody }), err: errBody},
		{name: "panic in the commit", body: onCommit(func() error { panic(errBody) }), panics: true},
		{name: "refused commit", body: func(_ context.Context, a *machine.Action[parcel], _ string) error {
			a.OnCommit(func(ctx context.Context, tx *pawl.Tx, p *parcel) error {
				_, err := ledgers.Scope(tx, "all").SetState(ctx, ledger{}, pawl.IfAbsent())
				return err
			})
			return nil
		}, err: pawl.ErrExists},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := open(t, memory.New(), settings{})
			d.pack(t, "1")
			_, err := ledgers.Scope(d.rt, "all").SetState(t.Context(), ledger{})
			require.NoError(t, err)
			d.does(c.body)
			var (
				out    machine.Outcome[parcel]
				raised any
				exited = true
				done   = make(chan struct{})
			)
			go func() {
				defer close(done)
				defer func() { raised = recover() }()
				out, err = d.fire(t.Context(), "1", "in vain")
				exited = false
			}()
			<-done
			require.Equal(t, c.exits, exited && raised == nil)
			if p, ok := raised.(*pawl.PanicError); c.panics {
				require.True(t, ok)
				require.ErrorIs(t, p, errBody)
				require.Contains(t, string(p.Stack), "fire_test.go", "the error has the stack of the panic itself")
			} else {
				require.Nil(t, raised)
				require.ErrorIs(t, err, c.err)
				require.Equal(t, c.result, out.Result)
			}
			switch c.result {
			case machine.Rejected:
				require.Equal(t, []string{"too large", "too heavy"}, out.Reasons)
			case machine.Failed:
				require.Equal(t, []string{"no van"}, out.Reasons)
			}
			require.Equal(t, parcel{Status: "packed"}, d.parcel(t, "1"))
			require.Zero(t, d.shipped(t))
			require.Zero(t, d.record(t, "1").Lease)
			d.does(nil)
			out, err = d.fire(t.Context(), "1", "second try")
			require.NoError(t, err)
			require.Equal(t, machine.Done, out.Result)
			require.Equal(t, parcel{Status: "shipped", Log: []string{"second try"}}, d.parcel(t, "1"))
		})
	}
}

// A conflict repeats the commit, not the body. The claim and concurrent writes to other fields are
// kept. Proves CLAIM-5, CLAIM-9.
func TestBodyRunsOnce(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		d, other := open(t, store, settings{}), open(t, store, settings{})
		d.pack(t, "1")
		edit := func(note string) {
			_, err := parcels.Scope(other.rt, "1").PatchState(t.Context(), pawl.Patch{"note": note})
			require.NoError(t, err)
		}
		var bodies, commits atomic.Int32
		var key string
		d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
			bodies.Add(1)
			key = a.Key()
			edit("in the body")
			a.OnCommit(func(ctx context.Context, tx *pawl.Tx, p *parcel) error {
				if commits.Add(1) <= 3 {
					edit("before commit " + string('0'+commits.Load()))
				}
				require.Equal(t, key, a.Key())
				return nil
			})
			return book(ctx, a, in)
		})
		out, err := d.fire(t.Context(), "1", "once")
		require.NoError(t, err)
		require.Equal(t, machine.Done, out.Result)
		require.EqualValues(t, 1, bodies.Load())
		require.GreaterOrEqual(t, commits.Load(), int32(4))
		require.Equal(t, parcel{Status: "shipped", Note: "before commit 3", Log: []string{"once"}}, d.parcel(t, "1"))
		require.EqualValues(t, 1, d.shipped(t))
	})
}

// A pinned commit is refused if the entity was changed since the body saw it, and the claim is
// released. Without Pin the commit keeps the change. Proves CLAIM-20.
func TestPin(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		d, other := open(t, store, settings{}), open(t, store, settings{})
		edit := func(id string) {
			_, err := parcels.Scope(other.rt, id).PatchState(t.Context(), pawl.Patch{"note": "edited"})
			require.NoError(t, err)
		}
		bodies := map[string]func(ctx context.Context, a *machine.Action[parcel], in string) error{
			"body": func(ctx context.Context, a *machine.Action[parcel], in string) error {
				a.Pin()
				edit(a.ID)
				return book(ctx, a, in)
			},
			"commit": func(ctx context.Context, a *machine.Action[parcel], in string) error {
				a.Pin()
				a.OnCommit(func(context.Context, *pawl.Tx, *parcel) error {
					edit(a.ID) // between the read and the commit of the transaction
					return nil
				})
				return book(ctx, a, in)
			},
		}
		for _, by := range []string{"admin", "cron"} { // with and without a claim
			for name, body := range bodies {
				id := by + "-" + name
				d.pack(t, id)
				d.does(body)
				_, err := d.m.Fire(t.Context(), machine.Trigger{ID: id, Step: "ship", By: by, Input: "pinned"})
				var moved *pawl.ConcurrencyError
				require.ErrorAs(t, err, &moved, id)
				require.Equal(t, moved.Expected+1, moved.Actual)
				require.Equal(t, 409, pawl.HTTPStatus(err))
				require.Equal(t, parcel{Status: "packed", Note: "edited"}, d.parcel(t, id), "the claim was released, the edit stays")
				require.Zero(t, d.shipped(t))
			}
		}
		d.pack(t, "unchanged")
		d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
			a.Pin()
			return book(ctx, a, in)
		})
		out, err := d.fire(t.Context(), "unchanged", "pinned")
		require.NoError(t, err)
		require.Equal(t, machine.Done, out.Result)
		d.pack(t, "not pinned")
		d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
			edit(a.ID)
			return book(ctx, a, in)
		})
		out, err = d.fire(t.Context(), "not pinned", "default")
		require.NoError(t, err)
		require.Equal(t, machine.Done, out.Result)
		require.Equal(t, parcel{Status: "shipped", Note: "edited", Log: []string{"default"}}, d.parcel(t, "not pinned"))
	})
}

// A claim is lost if its status is changed by other means, and that change stays. Proves CLAIM-4.
func TestStatusChangedWithoutStep(t *testing.T) {
	d := open(t, memory.New(), settings{})
	for id, change := range map[string]func(s pawl.Scope[parcel]) error{
		"changed": func(s pawl.Scope[parcel]) error {
			_, err := s.PatchState(t.Context(), pawl.Patch{"status": "returned"})
			return err
		},
		"deleted": func(s pawl.Scope[parcel]) error { return s.Delete(t.Context()) },
	} {
		d.pack(t, id)
		d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
			require.NoError(t, change(parcels.Scope(d.rt, id)))
			return book(ctx, a, in)
		})
		_, err := d.fire(t.Context(), id, "too late")
		var lost *machine.ClaimLostError
		require.ErrorAs(t, err, &lost, id)
		require.ErrorIs(t, err, pawl.ErrLeaseLost)
		require.Equal(t, "CLAIM_LOST", pawl.Code(err))
		require.Equal(t, 409, pawl.HTTPStatus(err))
		require.Zero(t, d.record(t, id).Lease)
	}
	require.Equal(t, parcel{Status: "returned"}, d.parcel(t, "changed"))
	require.Zero(t, d.shipped(t))
}

// A caller that leaves while its claim commits leaves no claim behind. If it leaves while its body
// runs, the body's context ends, and the claim is kept until the body returns.
// Proves CLAIM-6, CLAIM-9.
func TestCallerLeaves(t *testing.T) {
	g := &stores.Tap{Store: memory.New()}
	d := open(t, stores.Bare{Store: g}, settings{config: machine.Config{Lease: 3 * time.Second}})
	d.pack(t, "claiming")
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	g.OnCommit(func(_ context.Context, c persist.Commit) error {
		if len(c.Writes) > 0 && c.Writes[0].Acquire != nil && c.Writes[0].Kind == "parcel" {
			g.OnCommit(nil)
			leave()
			<-gone
		}
		return nil
	})
	_, err := d.fire(ctx, "claiming", "gone")
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "packed", d.parcel(t, "claiming").Status)
	close(gone) // now the claim commits
	testkit.Eventually(t, func() bool { return d.record(t, "claiming").Version > 1 }, "the claim is committed")
	testkit.Eventually(t, func() bool {
		return d.parcel(t, "claiming").Status == "packed" && d.record(t, "claiming").Lease.Token == 0
	}, "the claim is released")

	d.pack(t, "running")
	ctx, leave = context.WithCancel(t.Context())
	d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
		leave()
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), context.Canceled)
		until := d.record(t, "running").Lease.Until
		testkit.Eventually(t, func() bool { return d.record(t, "running").Lease.Until.After(until) }, "renewed")
		return book(ctx, a, in)
	})
	out, err := d.fire(ctx, "running", "ran to its end")
	require.NoError(t, err)
	require.Equal(t, machine.Done, out.Result)

	ctx, leave = context.WithCancel(t.Context())
	leave()
	d.pack(t, "never")
	_, err = d.fire(ctx, "never", "left before")
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 1, d.record(t, "never").Version)
}

// No body starts under a claim that this process knows to be lost: because the store answered late,
// or because the lease ran out before the body. The janitor reverts the claim. Proves CLAIM-19.
func TestNoBodyUnderALostClaim(t *testing.T) {
	const lease = 100 * time.Millisecond
	for _, late := range []string{"answer", "body"} {
		t.Run("late "+late, func(t *testing.T) {
			g := &stores.Tap{Store: memory.New()}
			d := open(t, g, settings{config: machine.Config{Lease: lease}})
			other := open(t, g.Store, rescuers)
			d.pack(t, "1")
			bodies := 0
			d.does(func(context.Context, *machine.Action[parcel], string) error {
				bodies++
				return nil
			})
			if late == "answer" {
				g.OnCommitted(func(c persist.Commit, at time.Time, err error) (time.Time, error) {
					if len(c.Writes) > 0 && c.Writes[0].Acquire != nil {
						time.Sleep(2 * lease)
					}
					return at, err
				})
			} else {
				g.Refuse(func(c persist.Commit) bool { return len(c.Writes) == 0 }) // renewals
				d.e.Observe(func(step string) {
					if step == "after claim" {
						time.Sleep(2 * lease)
					}
				})
			}
			_, err := d.fire(t.Context(), "1", "late")
			var lost *machine.ClaimLostError
			require.ErrorAs(t, err, &lost)
			require.Zero(t, bodies)
			require.Equal(t, "shipping", d.parcel(t, "1").Status)
			testkit.Eventually(t, func() bool {
				reverts, err := other.janitor.Sweep(t.Context())
				require.NoError(t, err)
				return len(reverts) == 1
			})
			out, err := other.fire(t.Context(), "1", "in time")
			require.NoError(t, err)
			require.Equal(t, machine.Done, out.Result)
		})
	}
}

// The final commit survives a short outage of the store. Proves CLAIM-5.
func TestCommitOutlivesOutage(t *testing.T) {
	g := &stores.Tap{Store: memory.New()}
	d := open(t, stores.Bare{Store: g}, settings{config: machine.Config{Commit: pawl.Retry{First: time.Millisecond, Max: time.Millisecond}}})
	d.pack(t, "1")
	bodies, refused := 0, 0
	d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
		bodies++
		g.OnCommit(func(_ context.Context, c persist.Commit) error {
			switch refused++; {
			case refused <= 3:
				return fmt.Errorf("%w: %w", persist.ErrUnavailable, persist.ErrNotApplied)
			case refused <= 6:
				return persist.ErrUnavailable // the outcome is unknown
			}
			return nil
		})
		return book(ctx, a, in)
	})
	out, err := d.fire(t.Context(), "1", "patient")
	require.NoError(t, err)
	require.Equal(t, machine.Done, out.Result)
	require.Equal(t, 1, bodies)
	require.Equal(t, []string{"patient"}, d.parcel(t, "1").Log)
}

// An invalid trigger is refused before anything is written. Proves CLAIM-17.
func TestInvalidTriggers(t *testing.T) {
	d := open(t, memory.New(), settings{})
	d.pack(t, "1")
	d.does(func(context.Context, *machine.Action[parcel], string) error {
		t.Error("a body ran")
		return nil
	})
	for name, c := range map[string]struct {
		trigger machine.Trigger
		want    string
	}{
		"unknown step":        {machine.Trigger{ID: "1", Step: "sink", By: "admin", Input: ""}, "STEP"},
		"no step":             {machine.Trigger{ID: "1", By: "admin", Input: ""}, "STEP"},
		"unknown requester":   {machine.Trigger{ID: "1", Step: "ship", By: "stranger", Input: ""}, "STEP"},
		"input of wrong type": {machine.Trigger{ID: "1", Step: "ship", By: "admin", Input: 7}, "STEP"},
		"no input":            {machine.Trigger{ID: "1", Step: "ship", By: "admin"}, "STEP"},
		"input for no input":  {machine.Trigger{ID: "1", Step: "return", By: "admin", Input: "x"}, "STEP"},
		"no such entity":      {machine.Trigger{ID: "2", Step: "ship", By: "admin", Input: ""}, "NOT_FOUND"},
		"no id":               {machine.Trigger{Step: "ship", By: "admin", Input: ""}, "LIMIT"},
	} {
		_, err := d.m.Fire(t.Context(), c.trigger)
		require.Equal(t, c.want, pawl.Code(err), name)
	}
	var none context.Context
	_, err := d.m.Fire(none, machine.Trigger{})
	require.Equal(t, "ARGUMENT", pawl.Code(err))
	require.EqualValues(t, 1, d.record(t, "1").Version)
	_, err = d.rt.Store().Load(t.Context(), pawl.Key{Kind: "parcel", ID: "2"})
	require.ErrorIs(t, err, persist.ErrNotFound)
	for _, status := range []string{"shipping", "lost"} {
		_, err = d.m.Create(t.Context(), "3", parcel{Status: status})
		require.Equal(t, "STEP", pawl.Code(err), status)
	}
	_, err = d.m.Create(t.Context(), "1", parcel{})
	require.ErrorIs(t, err, pawl.ErrExists)
	require.NoError(t, parcels.Scope(d.rt, "1").Delete(t.Context()))
	_, err = d.fire(t.Context(), "1", "gone")
	require.ErrorIs(t, err, pawl.ErrNotFound)
}

// An unclaimed action takes one commit, a claim one more, and a release none of its own.
func TestCommitsPerAction(t *testing.T) {
	g := &stores.Tap{Store: memory.New()}
	d := open(t, stores.Bare{Store: g}, settings{})
	var entities, letters atomic.Int32
	g.OnCommit(func(_ context.Context, c persist.Commit) error {
		if c.Keys()[0].Kind == machine.Letters.Name {
			letters.Add(1)
		} else {
			entities.Add(1)
		}
		return nil
	})
	cost := func(by, id string, b body) int32 {
		d.does(b)
		d.pack(t, id)
		entities.Store(0)
		_, err := d.m.Fire(t.Context(), machine.Trigger{ID: id, Step: "ship", By: by, Input: id})
		require.NoError(t, err)
		return entities.Load()
	}
	require.EqualValues(t, 1, cost("cron", "unclaimed", nil))
	require.EqualValues(t, 2, cost("admin", "claimed", nil))
	require.EqualValues(t, 2, cost("admin", "failed", func(context.Context, *machine.Action[parcel], string) error { return machine.Fail("no van") }))
	testkit.Eventually(t, func() bool { return len(d.letters(t)) == 0 }, "delivered")
	require.EqualValues(t, 2, letters.Load(), "an after-effect takes two commits: take, delete")
}
