package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

func init() { testkit.Child("crash", crashChild) }

const (
	defaultKills  = 200 // of each store, 40 in the short form; PAWL_KILLS overrides it
	crashLineages = 2   // stores, each killed over and over
	crashWriters  = 5   // goroutines of a child
	crashScopes   = 3   // that they share
	killsPerBatch = 10  // kills before the writers move on to new scopes, so that documents stay small
	wantInFlight  = 0.3 // of the kills
)

// crashLedger is what the writers fill: every mutation leaves its id, in the list or as a record, and counts itself.
type crashLedger struct {
	Count int64           `json:"count"`
	IDs   []string        `json:"ids"`
	Done  map[string]bool `json:"done"`
}

// crashStore says when a commit is sent and when it is answered, so that the parent knows what a kill interrupted.
type crashStore struct {
	persist.Store
	sent atomic.Int64
}

func (s *crashStore) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	n := s.sent.Add(1)
	testkit.Say("begin %d", n)
	at, err := s.Store.Commit(ctx, c)
	testkit.Say("end %d", n)
	return at, err
}

// crashChild writes until it is killed.
func crashChild() error {
	testkit.Begin()
	ctx := context.Background()
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	rt, err := pawl.Open(pawl.Config{Store: &crashStore{Store: store}})
	if err != nil {
		return err
	}
	failed := make(chan error)
	for i := range crashWriters {
		go func() {
			for n := 0; ; n++ {
				scope := pawl.Session[crashLedger](rt, crashScope(os.Getenv(processBatch), (i+n)%crashScopes))
				if err := crashWrite(ctx, scope, fmt.Sprintf("%s-%d-%d", os.Getenv(processName), i, n), i+n/crashScopes); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}

func crashScope(batch string, i int) string { return "batch-" + batch + "-" + strconv.Itoa(i) }

// crashWrite makes one mutation, of the sort that turn picks, and says what it submits and what the answer is. It returns an error for an
// answer that should not be.
func crashWrite(ctx context.Context, scope pawl.Scope[crashLedger], id string, turn int) error {
	testkit.Say("submit %s %s", scope.Key().ID, id)
	push := pawl.All{pawl.Push{Field: "ids", Values: []any{id}}, pawl.Inc{Field: "count", By: 1}}
	record := pawl.All{pawl.SetRecord{Field: "done", Key: id, Value: true}, pawl.Inc{Field: "count", By: 1}}
	boom := errors.New("boom")
	var snap pawl.Snapshot[crashLedger]
	var err error
	switch turn % 6 {
	case 0, 1:
		snap, err = scope.Apply(ctx, push)
	case 2:
		snap, err = scope.Apply(ctx, record)
	case 3:
		snap, err = scope.AtomicState(ctx, func(_ context.Context, l *crashLedger) error {
			l.IDs = append(l.IDs, id)
			l.Count++
			return nil
		})
	case 4:
		if snap, err = scope.Snapshot(ctx); err == nil {
			snap, err = scope.Apply(ctx, push, pawl.IfVersion(snap.Version))
		}
	default:
		snap, err = scope.AtomicState(ctx, func(_ context.Context, l *crashLedger) error {
			l.IDs = append(l.IDs, id)
			return boom
		})
	}
	if errors.Is(err, boom) || errors.Is(err, pawl.ErrConflict) || errors.Is(err, pawl.ErrExists) {
		testkit.Say("refused %s %s", scope.Key().ID, id)
		return nil
	}
	if err != nil {
		return err
	}
	testkit.Say("acknowledged %s %s %d", scope.Key().ID, id, snap.Version)
	return nil
}

// crashFates is what is known of the mutations of one scope.
type crashFates struct {
	submitted map[string]bool
	refused   map[string]bool
	versions  map[string]uint64 // of those that were acknowledged
}

// crashLineage is one store and all that its writers were told.
type crashLineage struct {
	location               string
	scopes                 map[string]*crashFates
	kills, inFlight        int
	lost, landed, answered int // unacknowledged mutations that are not there, and that are; acknowledged ones
}

func (l *crashLineage) of(scope string) *crashFates {
	if l.scopes[scope] == nil {
		l.scopes[scope] = &crashFates{submitted: map[string]bool{}, refused: map[string]bool{}, versions: map[string]uint64{}}
	}
	return l.scopes[scope]
}

// hear takes in what one writer process said, and reports whether a commit had been sent and not answered when it ended.
func (l *crashLineage) hear(t testing.TB, lines []string) (inFlight bool) {
	open := map[string]bool{}
	for _, line := range lines {
		words := strings.Fields(line)
		switch words[0] {
		case "ready":
		case "begin":
			open[words[1]] = true
		case "end":
			delete(open, words[1])
		case "submit":
			l.of(words[1]).submitted[words[2]] = true
		case "refused":
			l.of(words[1]).refused[words[2]] = true
		case "acknowledged":
			version, err := strconv.ParseUint(words[3], 10, 64)
			require.NoError(t, err)
			l.of(words[1]).versions[words[2]] = version
			l.answered++
		default:
			t.Fatalf("the child says %q", line)
		}
	}
	return len(open) > 0
}

// check compares a scope with what its writers were told.
func (l *crashLineage) check(t testing.TB, rt *pawl.Runtime, scope string) (lost, landed int) {
	snap, err := pawl.Session[crashLedger](rt, scope).Snapshot(context.Background())
	require.NoError(t, err)
	state := snap.State()
	known := l.of(scope)
	present := map[string]int{} // how often
	for _, id := range state.IDs {
		present[id]++
	}
	for id := range state.Done {
		present[id]++
	}
	for id, times := range present {
		require.Equal(t, 1, times, "%s is there more than once", id)
		require.True(t, known.submitted[id], "%s was never submitted", id)
		require.False(t, known.refused[id], "%s was refused and is there", id)
	}
	taken := map[uint64]string{}
	for id, version := range known.versions {
		require.Equal(t, 1, present[id], "%s was acknowledged and is lost", id)
		require.Empty(t, taken[version], "version %d was given to %s too", version, id)
		require.LessOrEqual(t, version, snap.Version)
		taken[version] = id
	}
	require.EqualValues(t, len(present), state.Count, "the counter and the ids disagree")
	require.EqualValues(t, len(present), snap.Version, "the version is not the number of mutations")
	last := uint64(0) // the list is in the order of the versions that were acknowledged
	for _, id := range state.IDs {
		if version, ok := known.versions[id]; ok {
			require.Greater(t, version, last, "%s is out of order", id)
			last = version
		}
	}
	for id := range known.submitted {
		switch _, acknowledged := known.versions[id]; {
		case acknowledged || known.refused[id]:
		case present[id] > 0:
			landed++
		default:
			lost++
		}
	}
	return lost, landed
}

// kill lets a writer process work, ends it at a random moment, and looks at what it left.
func (l *crashLineage) kill(t testing.TB, name string, batch string) {
	// Mostly in the midst of the work, at times while the store is being opened and recovered.
	heard := killAtWork(t, "crash", l.location, name, rand.IntN(120)-5, processBatch+"="+batch)
	l.kills++
	if l.hear(t, heard) {
		l.inFlight++
	}
	rt, store, err := openProcessStore(l.location)
	require.NoError(t, err, "the survivor cannot be opened")
	for i := range crashScopes {
		l.check(t, rt, crashScope(batch, i))
	}
	require.NoError(t, rt.Close(context.Background()))
	require.NoError(t, store.Close())
}

// TestKilledWritersLoseAndDoubleNothing kills a process with several writers, in the midst of shared commits, over and over on the same
// stores. What was acknowledged is there once, what was refused is not, what was neither is there once at most.
//
// Proves CAS-4, CAS-5, CAS-6, STORE-6.
func TestKilledWritersLoseAndDoubleNothing(t *testing.T) {
	for _, s := range stores.Shared {
		t.Run(s.Name, func(t *testing.T) { testKilledWriters(t, s) })
	}
}

func testKilledWriters(t *testing.T, s stores.Store) {
	kills := killsOf(defaultKills)
	lineages := make([]*crashLineage, crashLineages)
	for i := range lineages {
		lineages[i] = &crashLineage{location: s.New(t), scopes: map[string]*crashFates{}}
	}
	t.Run("kill", func(t *testing.T) {
		for i, l := range lineages {
			t.Run(fmt.Sprint("lineage", i), func(t *testing.T) {
				t.Parallel()
				for n := range kills / crashLineages {
					l.kill(t, fmt.Sprintf("p%d", n), strconv.Itoa(n/killsPerBatch))
				}
			})
		}
	})
	if t.Failed() {
		return
	}
	var sum crashLineage
	for _, l := range lineages {
		rt, store, err := openProcessStore(l.location)
		require.NoError(t, err)
		for scope := range l.scopes {
			lost, landed := l.check(t, rt, scope)
			sum.lost, sum.landed = sum.lost+lost, sum.landed+landed
		}
		require.NoError(t, rt.Close(t.Context()))
		require.NoError(t, store.Close())
		sum.kills, sum.inFlight, sum.answered = sum.kills+l.kills, sum.inFlight+l.inFlight, sum.answered+l.answered
	}
	t.Logf("%d kills, %d with a commit in flight; %d mutations acknowledged; of the others %d were there and %d were not",
		sum.kills, sum.inFlight, sum.answered, sum.landed, sum.lost)
	require.Equal(t, kills/crashLineages*crashLineages, sum.kills)
	require.GreaterOrEqual(t, float64(sum.inFlight), wantInFlight*float64(sum.kills), "too few kills interrupted a commit")
	require.Greater(t, sum.answered, 2*sum.kills, "the writers hardly wrote")
	require.Positive(t, sum.landed, "no kill came between a commit and its answer")
	require.Positive(t, sum.lost, "no kill came before a commit")
}
