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
	defaultKills  = 200 // kills per store, 40 in the short form; PAWL_KILLS overrides it
	crashTrials   = 2   // trials per store
	crashWriters  = 5   // goroutines of a child
	crashScopes   = 3   // scopes that the writers share
	killsPerBatch = 10  // kills before the writers change to new scopes, which keeps documents small
	wantInFlight  = 0.3 // least share of the kills that interrupt a commit
)

// crashLedger is the state that the writers change. A mutation adds its id, to the list or as a
// record, and increments the counter.
type crashLedger struct {
	Count int64           `json:"count"`
	IDs   []string        `json:"ids"`
	Done  map[string]bool `json:"done"`
}

// crashStore reports when a commit is sent and when it is answered, so that the parent knows which
// commit a kill interrupted.
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

// crashWrite makes one mutation, of the kind that turn selects, and reports its id and its answer.
// It returns an unexpected error.
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

// crashAnswers holds what the writers of one scope submitted and were told, by mutation id.
type crashAnswers struct {
	submitted map[string]bool
	refused   map[string]bool
	versions  map[string]uint64 // of acknowledged mutations
}

// crashTrial is one store whose writers are killed again and again, with all their answers.
type crashTrial struct {
	location               string
	scopes                 map[string]*crashAnswers
	kills, inFlight        int
	lost, landed, answered int // mutations: unacknowledged and absent, unacknowledged and present, acknowledged
}

func (l *crashTrial) of(scope string) *crashAnswers {
	if l.scopes[scope] == nil {
		l.scopes[scope] = &crashAnswers{submitted: map[string]bool{}, refused: map[string]bool{}, versions: map[string]uint64{}}
	}
	return l.scopes[scope]
}

// record parses the output of one writer process, and reports whether a commit was unanswered when
// the process ended.
func (l *crashTrial) record(t testing.TB, lines []string) (inFlight bool) {
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
			t.Fatalf("unexpected line from the child: %q", line)
		}
	}
	return len(open) > 0
}

// check compares a scope with the answers that its writers got.
func (l *crashTrial) check(t testing.TB, rt *pawl.Runtime, scope string) (lost, landed int) {
	snap, err := pawl.Session[crashLedger](rt, scope).Snapshot(context.Background())
	require.NoError(t, err)
	state := snap.State()
	known := l.of(scope)
	present := map[string]int{} // occurrences by id
	for _, id := range state.IDs {
		present[id]++
	}
	for id := range state.Done {
		present[id]++
	}
	for id, times := range present {
		require.Equal(t, 1, times, "%s was applied more than once", id)
		require.True(t, known.submitted[id], "%s is present, but was never submitted", id)
		require.False(t, known.refused[id], "%s was refused, but is present", id)
	}
	taken := map[uint64]string{}
	for id, version := range known.versions {
		require.Equal(t, 1, present[id], "%s was acknowledged, but is lost", id)
		require.Empty(t, taken[version], "version %d was also given to %s", version, id)
		require.LessOrEqual(t, version, snap.Version)
		taken[version] = id
	}
	require.EqualValues(t, len(present), state.Count, "the counter and the ids disagree")
	require.EqualValues(t, len(present), snap.Version, "the version is not the number of mutations")
	last := uint64(0) // acknowledged versions ascend along the list
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

// kill starts a writer process, kills it at a random moment, and checks the scopes it wrote to.
func (l *crashTrial) kill(t testing.TB, name string, batch string) {
	// Mostly while it writes, sometimes while it opens and recovers the store.
	lines := killAtWork(t, "crash", l.location, name, rand.IntN(120)-5, processBatch+"="+batch)
	l.kills++
	if l.record(t, lines) {
		l.inFlight++
	}
	rt, store, err := openProcessStore(l.location)
	require.NoError(t, err, "the store cannot be opened after the kill")
	for i := range crashScopes {
		l.check(t, rt, crashScope(batch, i))
	}
	require.NoError(t, rt.Close(context.Background()))
	require.NoError(t, store.Close())
}

// After a writer process is killed, each acknowledged mutation is present once and each refused one
// is absent. A mutation without an answer is present at most once.
//
// Proves CAS-4, CAS-5, CAS-6, STORE-6.
func TestKilledWritersLoseAndRepeatNothing(t *testing.T) {
	for _, s := range stores.Shared {
		t.Run(s.Name, func(t *testing.T) { testKilledWriters(t, s) })
	}
}

func testKilledWriters(t *testing.T, s stores.Store) {
	kills := killsOf(defaultKills)
	trials := make([]*crashTrial, crashTrials)
	for i := range trials {
		trials[i] = &crashTrial{location: s.New(t), scopes: map[string]*crashAnswers{}}
	}
	t.Run("kill", func(t *testing.T) {
		for i, l := range trials {
			t.Run(fmt.Sprint("trial", i), func(t *testing.T) {
				t.Parallel()
				for n := range kills / crashTrials {
					l.kill(t, fmt.Sprintf("p%d", n), strconv.Itoa(n/killsPerBatch))
				}
			})
		}
	})
	if t.Failed() {
		return
	}
	var sum crashTrial
	for _, l := range trials {
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
	testkit.Figures(t, "%d kills, %d with a commit in flight; %d mutations acknowledged; of the others, %d were present and %d absent",
		sum.kills, sum.inFlight, sum.answered, sum.landed, sum.lost)
	require.Equal(t, kills/crashTrials*crashTrials, sum.kills)
	require.GreaterOrEqual(t, float64(sum.inFlight), wantInFlight*float64(sum.kills), "too few kills interrupted a commit")
	require.Greater(t, sum.answered, 2*sum.kills, "too few mutations were acknowledged")
	require.Positive(t, sum.landed, "no kill fell between a commit and its answer")
	require.Positive(t, sum.lost, "no kill fell before a commit")
}
