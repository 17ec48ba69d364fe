package machine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist/memory"
)

func init() { testkit.Child("callers", callersChild) }

// Environment variables that the parent sets for its children.
const (
	envStep = "PAWL_TEST_STEP"
	envName = "PAWL_TEST_NAME"
)

const (
	callersEach = 100 // in each process
	crowds      = 3   // parcels, one after another
)

// childDepot opens a depot on the store that the parent named.
func childDepot(s settings) (*depot, func() error, error) {
	store, err := stores.OpenGiven()
	if err != nil {
		return nil, nil, err
	}
	d, err := build(store, s)
	if err != nil {
		return nil, nil, err
	}
	return d, func() error { return errors.Join(d.stop(), store.Close()) }, d.e.Start(context.Background())
}

// crowd fires one step from many callers at the same time, and counts the results.
func crowd(d *depot, id, name string) (map[machine.Result]int, error) {
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		results = map[machine.Result]int{}
		errs    []error
		start   = make(chan struct{})
	)
	for i := range callersEach {
		wg.Go(func() {
			<-start
			out, err := d.fire(context.Background(), id, fmt.Sprint(name, "-", i))
			mu.Lock()
			defer mu.Unlock()
			results[out.Result]++
			errs = append(errs, err)
		})
	}
	close(start)
	wg.Wait()
	return results, errors.Join(errs...)
}

func callersChild() error {
	name := os.Getenv(envName)
	d, stop, err := childDepot(settings{})
	if err != nil {
		return err
	}
	d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
		testkit.Say("body %s", a.ID)
		return book(ctx, a, in)
	})
	testkit.Begin()
	for i := range crowds {
		results, err := crowd(d, fmt.Sprint("parcel-", i), name)
		if err != nil {
			return err
		}
		testkit.Say("done %d refused %d", results[machine.Done], results[machine.ClaimFailed]+results[machine.WrongStatus])
	}
	return stop()
}

// Of 300 callers in three processes, exactly one runs its body; the others are refused.
// Proves CLAIM-3, CLAIM-4.
func TestProcessesRunOneBody(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		d := open(t, store, settings{})
		for i := range crowds {
			d.pack(t, fmt.Sprint("parcel-", i))
		}
		var processes []*testkit.Process
		for i := range 3 {
			processes = append(processes, testkit.Start(t, "callers", stores.Env(location), envName+"="+strconv.Itoa(i)))
		}
		testkit.Ready(processes...)
		bodies, done, refused := map[string]int{}, 0, 0
		for _, p := range processes {
			for _, line := range p.Wait() {
				var a, b int
				if id, ok := strings.CutPrefix(line, "body "); ok {
					bodies[id]++
				} else {
					_, err := fmt.Sscanf(line, "done %d refused %d", &a, &b)
					require.NoError(t, err, line)
					done, refused = done+a, refused+b
				}
			}
		}
		require.Equal(t, map[string]int{"parcel-0": 1, "parcel-1": 1, "parcel-2": 1}, bodies)
		require.Equal(t, crowds, done)
		require.Equal(t, crowds*(3*callersEach-1), refused)
		for i := range crowds {
			require.Len(t, d.parcel(t, fmt.Sprint("parcel-", i)).Log, 1)
		}
		require.EqualValues(t, crowds, d.shipped(t))
	})
}

// Of many callers in several runtimes of one process, exactly one runs its body. Proves CLAIM-4.
func TestGoroutinesRunOneBody(t *testing.T) {
	store := memory.New()
	depots := []*depot{open(t, store, settings{}), open(t, store, settings{}), open(t, store, settings{})}
	for i := range 5 {
		id := fmt.Sprint("parcel-", i)
		depots[0].pack(t, id)
		var wg sync.WaitGroup
		var mu sync.Mutex
		bodies, total := 0, map[machine.Result]int{}
		for _, d := range depots {
			d.does(func(ctx context.Context, a *machine.Action[parcel], in string) error {
				mu.Lock()
				defer mu.Unlock()
				bodies++
				return book(ctx, a, in)
			})
			wg.Go(func() {
				results, err := crowd(d, id, "")
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				for r, n := range results {
					total[r] += n
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, bodies)
		require.Equal(t, 1, total[machine.Done])
		require.Equal(t, 3*callersEach-1, total[machine.ClaimFailed]+total[machine.WrongStatus])
		require.Len(t, depots[0].parcel(t, id).Log, 1)
	}
	require.EqualValues(t, 5, depots[0].shipped(t))
}

// shortLease is the lease of processes that the tests kill. It survives a short pause of a busy
// machine.
const shortLease = 1500 * time.Millisecond

// rescuers configures depots that clean up after a crash.
var rescuers = settings{janitor: machine.JanitorConfig{Age: time.Millisecond}, runtime: pawl.Config{Holder: "rescuer"}}
