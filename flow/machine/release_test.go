package machine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// This file tests two releases of a program whose workflows differ, on one store.

// sorted is the workflow of a release in which parcels are shipped from another status.
func sorted(w *machine.Workflow) {
	w.Initial, w.Statuses[0], w.Steps[0].Status = "sorted", "sorted", "sorted"
	w.Steps[0].Claim = map[string]machine.Claim{"admin": {"shipping", "sorted"}}
}

// dying fires a step in a process that is cut off from the store while its body runs. It returns
// when the lease of the claim is over. It needs a synctest bubble.
func dying(t *testing.T, store persist.Store, id string, s settings) {
	t.Helper()
	way := &cuttable{Store: store}
	s.config.Poll = time.Hour
	s.janitor.Interval = 1000 * time.Hour
	d, err := build(way, s)
	require.NoError(t, err)
	require.NoError(t, d.e.Start(context.Background()))
	d.pack(t, id)
	d.does(func(ctx context.Context, _ *machine.Action[parcel], _ string) error {
		way.cut.Store(true)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	_, err = d.fire(context.Background(), id, "cut off")
	require.ErrorIs(t, err, pawl.ErrLeaseLost)
	time.Sleep(pawl.DefaultLease) // the store's clock decides
	way.cut.Store(false)
	require.NoError(t, d.stop())
	require.Equal(t, "shipping", d.record(t, id).Label)
}

// The janitor of another release reverts a dead claim to the status that the entity came from, not
// to the revert_to of its own workflow. Proves CLAIM-8, CLAIM-18.
func TestClaimOfAnotherRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		quiet := settings{config: machine.Config{Poll: time.Hour}, janitor: machine.JanitorConfig{Interval: 1000 * time.Hour}}
		changed := quiet
		changed.change = sorted
		old, now := open(t, store, quiet), open(t, store, changed)
		for i, c := range []struct {
			dead    func(*machine.Workflow)
			janitor *depot
			want    string
		}{{nil, now, "packed"}, {sorted, old, "sorted"}, {nil, old, "packed"}} {
			id := fmt.Sprint(i)
			dying(t, store, id, settings{change: c.dead, runtime: pawl.Config{Holder: "the dead"}})
			reverts, err := c.janitor.janitor.Sweep(t.Context())
			require.NoError(t, err)
			require.Len(t, reverts, 1)
			require.Equal(t, []string{"shipping", c.want, "the dead"}, []string{reverts[0].From, reverts[0].To, reverts[0].Holder})
			require.Equal(t, c.want, old.record(t, id).Label)
		}
		require.NoError(t, errors.Join(old.stop(), now.stop()))
	})
}

// The name of a claim's holder keeps the origin of the entity within the limits of a name.
func TestClaimHolder(t *testing.T) {
	for _, c := range []struct{ holder, from, into, want string }{
		{"host:1", "packed", "shipping", "packed"},
		{"host:1", "paid (late)", "in work", "paid (late)"},
		{"host:1", "a to b", "c to d", "a to b"},
		{"x (claim: a to shipping)", "packed", "shipping", "packed"},
		{strings.Repeat("ü", 127), "packed", "shipping", "packed"},
		{"host:1", strings.Repeat("s", 120), strings.Repeat("t", 120), strings.Repeat("s", 120)},
		{"host:1", strings.Repeat("s", 255), "shipping", ""},
		{"host:1", "line\nbreak", "shipping", ""},
		{"host:1", "\xff", "shipping", ""},
		{"host:1", "a (claim: b", "shipping", ""},
	} {
		name := machine.ClaimHolder(c.holder, c.from, c.into)
		require.LessOrEqual(t, len(name), pawl.MaxHolder)
		require.True(t, utf8.ValidString(name))
		holder, from := machine.CutOrigin(name, c.into)
		require.Equal(t, c.want, from, name)
		require.True(t, strings.HasPrefix(c.holder, holder), name)
		_, from = machine.CutOrigin(name, "another state")
		require.Empty(t, from, "the name belongs to another claim")
	}
}

// Entities in a status that the workflow does not know are reported with their number and an
// example. Entities that an action holds are not. Proves CLAIM-20.
func TestSurvey(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		var told []machine.Stranded
		quiet := slog.New(slog.DiscardHandler)
		d := open(t, store, settings{config: machine.Config{Logger: quiet}, janitor: machine.JanitorConfig{Batch: 3, Stranded: func(s machine.Stranded) {
			told = append(told, s)
			panic("the janitor continues")
		}}})
		for i := range 10 {
			d.pack(t, fmt.Sprint(i))
		}
		stranded, err := d.janitor.Survey(t.Context())
		require.NoError(t, err)
		require.Empty(t, stranded)
		for i, status := range []string{"loading", "loading", "", "loading", "sorting"} {
			_, err := parcels.Scope(d.rt, fmt.Sprint(i)).PatchState(t.Context(), pawl.Patch{"status": status})
			require.NoError(t, err)
		}
		_, err = parcels.Scope(d.rt, "4").Acquire(t.Context()) // by an action of another release
		require.NoError(t, err)
		stranded, err = d.janitor.Survey(t.Context())
		require.NoError(t, err)
		require.Len(t, stranded, 2)
		require.Contains(t, []string{"0", "1", "3"}, stranded[1].Example)
		stranded[1].Example = "0"
		require.Equal(t, []machine.Stranded{{"shipping", "", 1, "2"}, {"shipping", "loading", 3, "0"}}, stranded)
		require.Len(t, told, 2, "each is reported, even if the callback panics")
	})
}

// A survey that cannot read all entities reports none, and names the kind.
func TestSurveyFails(t *testing.T) {
	way := &cuttable{Store: memory.New()}
	d := open(t, way, settings{})
	d.pack(t, "1")
	way.cut.Store(true)
	_, err := d.janitor.Survey(t.Context())
	way.cut.Store(false)
	var failed *pawl.UnavailableError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "parcel", failed.Scope.Kind)
}

// A claim state that a release renames strands the entities of dead claims, and the log says so.
// The same release with the old state under a retired requester frees them. Proves CLAIM-20.
func TestRenamedClaimState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		dying(t, store, "1", settings{})
		renamed := func(w *machine.Workflow) {
			w.Statuses[1] = "in_transit"
			w.Steps[0].Claim["admin"] = machine.Claim{"in_transit", "packed"}
		}
		var log bytes.Buffer
		s := settings{change: renamed, config: machine.Config{Poll: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		s.janitor.Interval = machine.DefaultInterval
		d := open(t, store, s)
		time.Sleep(3 * time.Hour)
		require.NoError(t, d.stop())
		require.Equal(t, "shipping", d.record(t, "1").Label, "no janitor moves it")
		require.Contains(t, log.String(), "workflow=shipping status=shipping count=1 example=1")
		require.GreaterOrEqual(t, strings.Count(log.String(), "does not know"), 3, "again in every survey")

		log.Reset()
		s.change = func(w *machine.Workflow) {
			renamed(w)
			w.Statuses = append(w.Statuses, "shipping")
			w.Steps[0].Claim["retired"] = machine.Claim{"shipping", "packed"}
			w.Steps[0].To["retired"], w.Steps[0].Action["retired"] = "shipped", "Ship"
		}
		d = open(t, store, s)
		time.Sleep(time.Minute)
		require.Equal(t, "packed", d.parcel(t, "1").Status)
		require.NoError(t, d.stop())
		require.NotContains(t, log.String(), "does not know")
	})
}
