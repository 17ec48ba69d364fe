package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/crashtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// Where the parent tells its children to work, and how many answers of the store they are to lose.
const (
	processStore = "PAWL_TEST_STORE"
	processFlaky = "PAWL_TEST_FLAKY"
)

// openProcessStore opens a runtime on the store at a location.
func openProcessStore(location string) (*pawl.Runtime, persist.Store, error) {
	store, err := openStore(location)
	if err != nil {
		return nil, nil, err
	}
	if rate, err := strconv.ParseFloat(os.Getenv(processFlaky), 64); err == nil {
		store = flaky{store, rate}
	}
	rt, err := pawl.Open(pawl.Config{Store: store})
	return rt, store, err
}

// processChild does work in a child, with a runtime on the store that the parent named.
func processChild(work func(context.Context, *pawl.Runtime) error) int {
	ctx := context.Background()
	rt, store, err := openProcessStore(os.Getenv(processStore))
	if err == nil {
		crashtest.Begin() // now, so that the processes meet
		err = work(ctx, rt)
	}
	if err == nil {
		err = errors.Join(rt.Close(ctx), store.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// killsOf is how often a test kills: as a rule, or as PAWL_KILLS says.
func killsOf(t testing.TB, rule int) int {
	t.Helper()
	if s := os.Getenv(crashKillsFrom); s != "" {
		kills, err := strconv.Atoi(s)
		require.NoError(t, err, crashKillsFrom)
		return kills
	}
	if shortForm {
		return min(rule, 40)
	}
	return rule
}

// killAtWork lets a child work until it has said so many lines, ends it at a random moment soon after, and returns what it said.
func killAtWork(t testing.TB, role, location, name string, lines int, env ...string) (heard []string) {
	t.Helper()
	p := crashtest.Start(t, role, append(env, processStore+"="+location, crashName+"="+name)...)
	p.Go()
	for len(heard) <= lines {
		line, ok := p.Next()
		if !ok {
			p.Kill()
			t.Fatalf("the child ended by itself: %s", p.Stderr())
		}
		heard = append(heard, line)
	}
	if lines > 0 {
		time.Sleep(rand.N(3 * time.Millisecond)) // the moment of the kill is to be anywhere, not right after a line
	}
	return append(heard, p.Kill()...)
}
