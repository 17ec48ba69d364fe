package pawl_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// The environment of child processes.
const (
	processFlaky = "PAWL_TEST_FLAKY" // share of the store's answers that the child loses
	processName  = "PAWL_TEST_NAME"  // name of the child, unique in its test
	processBatch = "PAWL_TEST_BATCH" // which scopes the child writes to
)

// openProcessStore opens a runtime on the store at a location.
func openProcessStore(location string) (*pawl.Runtime, persist.Store, error) {
	store, err := stores.Open(location)
	if err != nil {
		return nil, nil, err
	}
	if rate, err := strconv.ParseFloat(os.Getenv(processFlaky), 64); err == nil {
		store = flaky{store, rate}
	}
	rt, err := pawl.Open(pawl.Config{Store: store})
	return rt, store, err
}

// processChild runs work in a child, with a runtime on the store that the parent named.
func processChild(work func(context.Context, *pawl.Runtime) error) error {
	ctx := context.Background()
	rt, store, err := openProcessStore(os.Getenv(stores.Variable))
	if err != nil {
		return err
	}
	testkit.Begin() // after opening, so that the processes start to work together
	if err := work(ctx, rt); err != nil {
		return err
	}
	return errors.Join(rt.Close(ctx), store.Close())
}

// killsOf returns how many processes a test kills: usual, half of that and at most 20 in short mode,
// or PAWL_KILLS.
func killsOf(usual int) int { return testkit.Times(usual, min((usual+1)/2, 20), "PAWL_KILLS") }

// killAtWork lets a child work until it has sent more than the given number of lines. It kills the
// child at a random moment soon after and returns all lines.
func killAtWork(t testing.TB, role, location, name string, lines int, env ...string) (heard []string) {
	t.Helper()
	p := testkit.Start(t, role, append(env, stores.Env(location), processName+"="+name)...)
	p.Go()
	for len(heard) <= lines {
		heard = append(heard, p.Line())
	}
	if lines > 0 {
		time.Sleep(rand.N(3 * time.Millisecond)) // any moment, not right after a line
	}
	return append(heard, p.Kill()...)
}
