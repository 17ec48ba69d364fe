package fs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

func init() { testkit.Child("crash", crashChild) }

const (
	crashLineages = 2 // directories, each with writers that are killed again and again
	crashName     = "PAWL_FS_NAME"
)

func mover(name string) persist.Key     { return persist.Key{Kind: "mover", ID: name} }
func counterOf(name string) persist.Key { return persist.Key{Kind: "counter", ID: name} }

// crashChild makes commits of one record and of several until it is killed, and prints the
// acknowledged ones.
func crashChild() error {
	testkit.Begin()
	s, err := Open(context.Background(), os.Getenv(childDir), Config{LockTimeout: time.Minute})
	if err != nil {
		return err
	}
	name := os.Getenv(crashName)
	failed := make(chan error)
	for work, do := range map[string]func(n int) error{
		"count": func(n int) error {
			return addAll(context.Background(), s, fmt.Sprintf("%s-c.%d", name, n), by{counterOf(name), 1})
		},
		"total": func(n int) error {
			return addAll(context.Background(), s, fmt.Sprintf("%s-t.%d", name, n), by{thing("total"), 1})
		},
		"pair": func(n int) error {
			return addAll(context.Background(), s, fmt.Sprintf("%s-p.%d", name, n), by{left, 1}, by{right, 1})
		},
		"move": func(n int) error {
			return addAll(context.Background(), s, fmt.Sprintf("%s-m.%d", name, n), append(transfers(), by{mover(name), 1})...)
		},
	} {
		go func() {
			for n := 1; ; n++ {
				if err := do(n); err != nil {
					failed <- fmt.Errorf("%s: %w", work, err)
					return
				}
				testkit.Say("%s %d", work, n)
			}
		}()
	}
	return <-failed
}

// TestKilledWriters kills processes that write to one directory at random moments, while other
// processes write and read. At every moment every acknowledged commit is there, none in part and
// none twice.
//
// Proves TX-3, STORE-6, STORE-3.
func TestKilledWriters(t *testing.T) {
	kills := testkit.Times(200, 80, "PAWL_KILLS")
	for lineage := range crashLineages {
		t.Run(strconv.Itoa(lineage), func(t *testing.T) {
			t.Parallel()
			killWriters(t, kills/crashLineages)
		})
	}
}

func killWriters(t *testing.T, kills int) {
	dir := t.TempDir()
	s := witnessed(t, dir)
	stop := make(chan struct{})
	var witness sync.WaitGroup
	witness.Go(func() {
		for looks := 0; ; looks++ {
			select {
			case <-stop:
				t.Logf("looked %d times", looks)
				return
			default:
				lookAround(t, s)
			}
		}
	})
	said := map[string]map[string]int{} // acknowledged commits, by child and work
	started := map[string]*testkit.Process{}
	start := func(n int) {
		name := fmt.Sprintf("p%d", n)
		started[name] = testkit.Start(t, "crash", childDir+"="+dir, crashName+"="+name)
		said[name] = map[string]int{}
		testkit.Ready(started[name])
	}
	hear := func(name, line string) {
		work, n, _ := strings.Cut(line, " ")
		count, err := strconv.Atoi(n)
		require.NoError(t, err, line)
		said[name][work] = max(said[name][work], count)
	}
	start(0)
	for n := range kills { // two children run at any time
		start(n + 1)
		name := fmt.Sprintf("p%d", n)
		child := started[name]
		for range 1 + rand.IntN(4) {
			line, ok := child.Next()
			require.True(t, ok, "the child ended early: %s", child.Stderr())
			hear(name, line)
		}
		time.Sleep(rand.N(2 * time.Millisecond)) // so that it dies at a random moment
		for _, line := range child.Kill() {
			hear(name, line)
		}
	}
	for _, line := range started[fmt.Sprintf("p%d", kills)].Kill() {
		hear(fmt.Sprintf("p%d", kills), line)
	}
	close(stop)
	witness.Wait()
	lookAround(t, s)

	value := func(key persist.Key) (n int, version uint64) {
		r, err := s.Load(t.Context(), key)
		if errors.Is(err, persist.ErrNotFound) {
			return 0, 0
		}
		require.NoError(t, err)
		n, err = numberOf(r)
		require.NoError(t, err)
		return n, r.Version
	}
	acknowledged := map[string]int{}
	moves := 0
	for name, work := range said {
		counted, _ := value(counterOf(name))
		moved, _ := value(mover(name))
		require.Contains(t, []int{work["count"], work["count"] + 1}, counted, "%s counted", name)
		require.Contains(t, []int{work["move"], work["move"] + 1}, moved, "%s moved", name)
		moves += moved
		for kind, n := range work {
			acknowledged[kind] += n
		}
	}
	versions := 0
	for i := range accounts {
		_, version := value(account(i))
		versions += int(version) - 1
	}
	require.Equal(t, 2*moves, versions, "each move changes two accounts, once")
	total, _ := value(thing("total"))
	pairs, _ := value(left)
	for work, n := range map[string]int{"total": total, "pair": pairs - 1} {
		require.GreaterOrEqual(t, n, acknowledged[work], work)
		require.LessOrEqual(t, n, acknowledged[work]+len(said), work)
	}
	testkit.Figures(t, "%d kills; acknowledged: %v", kills, acknowledged)
}
