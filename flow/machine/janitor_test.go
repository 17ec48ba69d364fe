package machine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// claimed creates a parcel with a claim that is never renewed: its lease expires after length.
func (d *depot) claimed(t testing.TB, id string, length time.Duration) {
	t.Helper()
	d.pack(t, id)
	ctx, die := context.WithCancel(t.Context())
	_, err := parcels.Scope(d.rt, id).Acquire(ctx, pawl.LeaseFor(length), pawl.HeldBy("the dead"), pawl.WithMutation(pawl.Patch{"status": "shipping"}))
	if !errors.As(err, new(*pawl.LeaseLostError)) { // else it has expired already: the claim is committed
		require.NoError(t, err)
	}
	die()
}

// over waits until the lease of a parcel has expired.
func (d *depot) over(t testing.TB, id string) {
	t.Helper()
	testkit.Eventually(t, func() bool { r := d.record(t, id); return !r.Held(r.Now) }, "the lease has expired")
}

// A claim is reverted once its lease has been expired for the configured age, by the store's clock,
// and not before. Nothing else changes. Proves CLAIM-7, CLAIM-8.
func TestJanitor(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		ctx := t.Context()
		d := open(t, store, rescuers)
		patient := open(t, store, settings{janitor: machine.JanitorConfig{Age: time.Hour}})
		usual := open(t, store, settings{})
		d.claimed(t, "alive", time.Hour)
		d.pack(t, "packed")
		for _, each := range []*depot{d, patient, usual} {
			reverts, err := each.janitor.Sweep(ctx)
			require.NoError(t, err)
			require.Empty(t, reverts, "the lease is live")
		}
		d.claimed(t, "dead", 50*time.Millisecond)
		d.over(t, "dead")
		_, err := parcels.Scope(patient.rt, "dead").PatchState(ctx, pawl.Patch{"note": "edited since"}) // an edit is not a sign of life
		require.NoError(t, err)
		reverts, err := patient.janitor.Sweep(ctx)
		require.NoError(t, err)
		require.Empty(t, reverts, "the lease has not been expired for long enough")
		out, err := usual.fire(ctx, "dead", "no step moves it")
		require.NoError(t, err)
		require.Equal(t, machine.ClaimFailed, out.Result)
		was := d.record(t, "dead")
		testkit.Eventually(t, func() bool {
			reverts, err = d.e.Sweep(ctx)
			require.NoError(t, err)
			return len(reverts) > 0
		}, "the janitor reverts the claim")
		require.Len(t, reverts, 1)
		r := reverts[0]
		require.GreaterOrEqual(t, r.Age, time.Millisecond)
		r.Age = 0
		require.Equal(t, machine.Revert{Workflow: "shipping", ID: "dead", From: "shipping", To: "packed", Holder: "the dead"}, r)
		require.Len(t, d.reverts(), 1, "the revert is reported once")
		require.Equal(t, was.Version+1, d.record(t, "dead").Version)
		require.Equal(t, parcel{Status: "packed", Note: "edited since"}, d.parcel(t, "dead"))
		require.Equal(t, "shipping", d.parcel(t, "alive").Status)
		require.EqualValues(t, 1, d.record(t, "packed").Version)
		reverts, err = d.janitor.Sweep(ctx)
		require.NoError(t, err)
		require.Empty(t, reverts)
	})
}

// With the default settings, an action that takes far longer than its lease is not reverted while
// its holder lives. Proves CLAIM-8, CLAIM-9.
func TestSlowActionIsNotReverted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		s := settings{janitor: machine.JanitorConfig{Interval: machine.DefaultInterval}, config: machine.Config{Poll: machine.DefaultPoll}}
		d, other := open(t, store, s), open(t, store, s)
		d.pack(t, "1")
		d.claimed(t, "dead", pawl.DefaultLease)
		d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
			first := d.record(t, "1").Lease
			time.Sleep(time.Hour)
			require.NoError(t, ctx.Err())
			now := d.record(t, "1")
			require.Equal(t, first.Token, now.Lease.Token)
			require.EqualValues(t, 2, now.Version, "a renewal does not change the version")
			return book(ctx, a, in)
		})
		out, err := d.fire(t.Context(), "1", "slow")
		require.NoError(t, err)
		require.Equal(t, machine.Done, out.Result)
		freed := append(d.reverts(), other.reverts()...)
		require.Len(t, freed, 1, "only the dead claim, once")
		require.Equal(t, "dead", freed[0].ID)
		require.NoError(t, d.stop())
		require.NoError(t, other.stop())
	})
}

// With the default settings, a dead claim is freed within its lease plus one interval, whenever its
// holder dies, and that is under a minute. Proves CLAIM-8.
func TestDeadClaimIsFreedWithinAMinute(t *testing.T) {
	require.Less(t, pawl.DefaultLease+machine.DefaultInterval, time.Minute)
	synctest.Test(t, func(t *testing.T) {
		d := open(t, memory.New(), settings{janitor: machine.JanitorConfig{Interval: machine.DefaultInterval}, config: machine.Config{Poll: time.Hour}})
		died := map[string]time.Time{}
		for i := range 40 { // at any time between two rounds
			id := fmt.Sprint(i)
			d.claimed(t, id, pawl.DefaultLease)
			died[id] = time.Now()
			time.Sleep(3100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		require.Len(t, d.reverts(), len(died))
		slowest := time.Duration(0)
		for id, at := range died {
			slowest = max(slowest, d.record(t, id).Updated.Sub(at))
		}
		require.LessOrEqual(t, slowest, pawl.DefaultLease+machine.DefaultInterval)
		t.Logf("freed after at most %v", slowest)
		require.NoError(t, d.stop())
	})
}

// The age of a claim counts from the end of its lease. The length of the action and later edits do
// not matter. Proves CLAIM-8, CLAIM-9.
func TestAgeCountsFromEndOfLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		way := &cuttable{Store: store}
		quiet := settings{config: machine.Config{Poll: time.Hour}, janitor: machine.JanitorConfig{Interval: 1000 * time.Hour, Age: 5 * time.Minute}}
		d, other := open(t, way, quiet), open(t, store, quiet)
		d.pack(t, "1")
		d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), pawl.ErrLeaseLost)
			return context.Cause(ctx)
		})
		answer := make(chan error, 1)
		go func() {
			_, err := d.fire(context.Background(), "1", "cut off")
			answer <- err
		}()
		time.Sleep(time.Hour)
		way.cut.Store(true)
		for minute := 1; minute <= 6; minute++ {
			time.Sleep(time.Minute)
			reverts, err := other.janitor.Sweep(t.Context())
			require.NoError(t, err)
			require.Equal(t, minute == 6, len(reverts) == 1, "minute %d", minute)
			if minute < 6 {
				_, err = parcels.Scope(other.rt, "1").PatchState(t.Context(), pawl.Patch{"note": fmt.Sprint(minute)})
				require.NoError(t, err)
			}
		}
		require.ErrorIs(t, <-answer, pawl.ErrLeaseLost)
		require.Equal(t, parcel{Status: "packed", Note: "5"}, other.parcel(t, "1"))
		way.cut.Store(false)
		require.NoError(t, d.stop())
		require.NoError(t, other.stop())
	})
}

// Several janitors of one module together revert each claim once, in batches. Proves CLAIM-8.
func TestSeveralJanitors(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		const dead = 20
		s := rescuers
		s.janitor.Batch = 3
		var depots []*depot
		for range 4 {
			depots = append(depots, open(t, store, s))
		}
		for i := range dead {
			depots[0].claimed(t, fmt.Sprint(i), 10*time.Millisecond)
		}
		depots[0].over(t, fmt.Sprint(dead-1))
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			freed = map[string]int{}
		)
		for _, d := range depots {
			wg.Go(func() {
				for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
					reverts, err := d.janitor.Sweep(t.Context())
					mu.Lock()
					if err != nil {
						t.Error(err)
					}
					for _, r := range reverts {
						freed[r.ID]++
					}
					done := len(freed) == dead
					mu.Unlock()
					if done {
						return
					}
				}
			})
		}
		wg.Wait()
		require.Len(t, freed, dead)
		reported := map[string]int{}
		for _, d := range depots {
			for _, r := range d.reverts() {
				reported[r.ID]++
			}
		}
		require.Equal(t, freed, reported)
		for id, n := range freed {
			require.Equal(t, 1, n, id)
			require.EqualValues(t, 3, depots[0].record(t, id).Version, "created, claimed, reverted")
		}
	})
}

// One sweep frees all expired claims, however small its batches are. Proves CLAIM-8.
func TestSweepInSmallBatches(t *testing.T) {
	s := rescuers
	s.janitor.Batch, s.janitor.Age = 2, time.Nanosecond
	d := open(t, memory.New(), s)
	for i := range 7 {
		d.claimed(t, fmt.Sprint(i), 10*time.Millisecond)
	}
	for i := range 7 {
		d.over(t, fmt.Sprint(i))
	}
	reverts, err := d.janitor.Sweep(t.Context())
	require.NoError(t, err)
	require.Len(t, reverts, 7)
}

// A janitor sweeps at its interval, and Stop ends it. Proves CLAIM-8.
func TestJanitorInTheBackground(t *testing.T) {
	s := rescuers
	s.janitor.Interval = 10 * time.Millisecond
	d := open(t, memory.New(), s)
	for i := range 3 {
		id := fmt.Sprint(i)
		d.claimed(t, id, 10*time.Millisecond)
		testkit.Eventually(t, func() bool { return d.parcel(t, id).Status == "packed" }, "freed")
	}
	require.NoError(t, d.e.Stop(t.Context()))
	require.NoError(t, d.e.Stop(t.Context()), "twice")
	require.Len(t, d.reverts(), 3)
	require.Error(t, d.janitor.Start(t.Context()))
	_, err := d.fire(t.Context(), "1", "stopped")
	require.ErrorIs(t, err, machine.ErrNotRunning)
	require.ErrorIs(t, d.e.Start(t.Context()), machine.ErrNotRunning)
	require.Equal(t, 503, pawl.HTTPStatus(machine.ErrNotRunning))
}

// An entity that is edited all the time is still freed, and one that is claimed again is not
// touched. Proves CLAIM-8.
func TestJanitorDuringEdits(t *testing.T) {
	g := &listed{Store: memory.New()}
	hasty := rescuers
	hasty.janitor.Age = time.Nanosecond // every listed claim is old enough
	d := open(t, g, hasty)
	d.claimed(t, "edited", 10*time.Millisecond)
	d.over(t, "edited")
	edits := 0
	g.after = func() { // the page that the janitor listed is stale
		edits++
		_, err := parcels.Scope(d.rt, "edited").PatchState(t.Context(), pawl.Patch{"note": fmt.Sprint(edits)})
		require.NoError(t, err)
	}
	reverts, err := d.janitor.Sweep(t.Context())
	require.NoError(t, err)
	require.Len(t, reverts, 1)
	require.Equal(t, parcel{Status: "packed", Note: fmt.Sprint(edits)}, d.parcel(t, "edited"))
	g.after = nil

	d.claimed(t, "again", 10*time.Millisecond)
	d.over(t, "again")
	g.after = func() { // another janitor reverts it first, and another caller claims it
		s := parcels.Scope(d.rt, "again")
		_, err := s.PatchState(t.Context(), pawl.Patch{"status": "packed"})
		require.NoError(t, err)
		_, err = s.Acquire(t.Context(), pawl.LeaseFor(time.Hour), pawl.WithMutation(pawl.Patch{"status": "shipping"}))
		require.NoError(t, err)
		g.after = nil
	}
	reverts, err = d.janitor.Sweep(t.Context())
	require.NoError(t, err)
	require.Empty(t, reverts)
	require.Nil(t, g.after, "the entity was listed")
	require.Equal(t, "shipping", d.parcel(t, "again").Status)
}

// listed is a store that calls after when List has found parcels.
type listed struct {
	persist.Store
	after func()
}

func (l *listed) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	page, err := l.Store.List(ctx, q)
	if q.Kind == "parcel" && len(page.Records) > 0 && l.after != nil { // kind first: other lists run at the same time
		l.after()
	}
	return page, err
}

// A claim whose lease was released without its status is freed by the time of its last write.
// Proves CLAIM-8.
func TestJanitorWithoutLease(t *testing.T) {
	store := memory.New()
	d, patient := open(t, store, rescuers), open(t, store, settings{janitor: machine.JanitorConfig{Age: time.Hour}})
	d.pack(t, "1")
	_, err := parcels.Scope(d.rt, "1").PatchState(t.Context(), pawl.Patch{"status": "shipping"})
	require.NoError(t, err)
	reverts, err := patient.janitor.Sweep(t.Context())
	require.NoError(t, err)
	require.Empty(t, reverts)
	testkit.Eventually(t, func() bool {
		reverts, err := d.janitor.Sweep(t.Context())
		require.NoError(t, err)
		return len(reverts) == 1
	}, "freed")
}

// An entity that this release cannot read is reported, and does not keep others from being freed.
// Proves CLAIM-8.
func TestJanitorSkipsUnreadable(t *testing.T) {
	store := memory.New()
	d := open(t, store, rescuers)
	for _, id := range []string{"a", "b", "c"} {
		d.claimed(t, id, 10*time.Millisecond)
	}
	r := d.record(t, "b")
	_, err := store.Commit(t.Context(), persist.Commit{ID: "newer.1", Writes: []persist.Write{{
		Key: r.Key, Expected: r.Version, Version: r.Version + 1, Doc: json.RawMessage(`{"status":"shipping"}`), Label: "shipping", Schema: 7,
	}}})
	require.NoError(t, err)
	freed := map[string]bool{}
	var failed error
	testkit.Eventually(t, func() bool {
		reverts, err := d.janitor.Sweep(t.Context())
		for _, r := range reverts {
			freed[r.ID] = true
		}
		failed = err
		return len(freed) == 2
	}, "the other claims are freed")
	var schema *pawl.SchemaError
	require.ErrorAs(t, failed, &schema)
	require.Equal(t, "b", schema.Scope.ID)
	require.Equal(t, map[string]bool{"a": true, "c": true}, freed)
}

// unreadable is a store that loads no parcel while on is set.
type unreadable struct {
	listed
	on bool
}

func (u *unreadable) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if key.Kind == "parcel" && u.on {
		return persist.Record{}, errors.New("no answer")
	}
	return u.Store.Load(ctx, key)
}

// The janitor's error names an entity that was edited concurrently and cannot be read again.
// Proves CLAIM-8.
func TestJanitorNamesUnreadableEntity(t *testing.T) {
	s := rescuers
	s.janitor.Age = time.Nanosecond
	store := memory.New()
	u := &unreadable{listed: listed{Store: store}}
	d, other := open(t, u, s), open(t, store, settings{})
	d.claimed(t, "1", 10*time.Millisecond)
	d.over(t, "1")
	u.after = func() {
		_, err := parcels.Scope(other.rt, "1").PatchState(t.Context(), pawl.Patch{"note": "edited"})
		require.NoError(t, err)
		u.on = true
	}
	_, err := d.janitor.Sweep(t.Context())
	u.on, u.after = false, nil
	var failed *pawl.UnavailableError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, pawl.Key{Kind: "parcel", ID: "1"}, failed.Scope)
}

// The observer of the runtime is told of each revert.
func TestRevertIsObserved(t *testing.T) {
	var told []pawl.Event
	observer := pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		if e.Type == pawl.EventNoted {
			told = append(told, e)
		}
	})
	rt, err := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{parcels}, Observer: observer})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	d := &depot{rt: rt}
	e := machine.NewEngine(rt, machine.Config{})
	janitor := e.AddJanitor(machine.JanitorConfig{Module: "depot", Age: time.Nanosecond, Reverted: func(machine.Revert) {}})
	d.m = machine.Add(e, parcels, shipping())
	d.claimed(t, "a", 10*time.Millisecond)
	d.over(t, "a")
	reverts, err := janitor.Sweep(t.Context())
	require.NoError(t, err)
	require.Len(t, reverts, 1)
	require.Equal(t, []pawl.Event{{
		Type: pawl.EventNoted, Path: "machine", Verb: machine.VerbReverted, Waited: reverts[0].Age, Key: parcels.Scope(rt, "a").Key(),
	}}, told)
}
