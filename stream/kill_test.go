package stream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/stream"
)

func init() {
	testkit.Child("closer", closeAll)
	testkit.Child("appender", appendUntilKilled)
}

// envBooks names the variable with the folder of the archive.
const envBooks = "PAWL_TEST_BOOKS"

// openGiven opens a log of parcels in a child.
func openGiven() (*stream.Log, error) {
	store, err := stores.OpenGiven()
	if err != nil {
		return nil, err
	}
	rt, err := pawl.Open(pawl.Config{Store: store, Retry: pawl.Retry{Attempts: 1000}})
	if err != nil {
		return nil, err
	}
	return stream.New(rt, stream.Config{
		Events: []stream.Type{stream.Of[packed]("packed"), stream.Of[moved]("moved")}, Logger: slog.New(slog.DiscardHandler),
	})
}

// closing is a stream that a child closes until it reaches a point.
type closing struct {
	point string
	seed  bool
}

func (c closing) name() string { return fmt.Sprintf("%s/%v", c.point, c.seed) }

func (c closing) seeds() []any {
	if c.seed {
		return []any{packed{"seed"}}
	}
	return nil
}

// closings are all of them.
func closings() (all []closing) {
	for _, point := range stream.ClosePoints {
		all = append(all, closing{point, false}, closing{point, true})
	}
	return all
}

// bookIn returns an archive function that writes a file for each book, and replaces one that is there.
func bookIn(folder, name string) func(context.Context, iter.Seq2[stream.Event, error]) error {
	return func(_ context.Context, events iter.Seq2[stream.Event, error]) error {
		var lines []string
		for e, err := range events {
			if err != nil {
				return err
			}
			lines = append(lines, fmt.Sprintf("%d:%s:%s", e.Version, e.Type, e.Raw))
		}
		file := filepath.Join(folder, strings.ReplaceAll(name, "/", "-"))
		text, err := json.Marshal(lines)
		if err == nil {
			err = os.WriteFile(file+".new", text, 0o600)
		}
		return errors.Join(err, os.Rename(file+".new", file))
	}
}

// closeAll closes each stream, in a child, and blocks at its point for ever.
func closeAll() error {
	log, err := openGiven()
	if err != nil {
		return err
	}
	log.Interrupt(func(point, name string) {
		if strings.HasPrefix(name, point+"/") {
			testkit.Say("%s", name)
			select {}
		}
	})
	var all sync.WaitGroup
	for _, c := range closings() {
		all.Go(func() {
			err := log.CloseStream(context.Background(), c.name(), stream.At(2), bookIn(os.Getenv(envBooks), c.name()), c.seeds()...)
			fmt.Fprintln(os.Stderr, c.name(), "was not blocked:", err)
		})
	}
	all.Wait()
	return errors.New("no stream is blocked")
}

// A process is killed at each point of CloseStream, and another one calls it again. The archive has
// all events, the stream has only its seed, and is closed without one. Proves STREAM-6.
func TestKilledWhileClosing(t *testing.T) {
	onShared(t, func(t *testing.T, location string, open func() *depot) {
		d, folder := open(), t.TempDir()
		missing := map[string]bool{}
		for _, c := range closings() {
			d.fill(t, c.name(), 3)
			missing[c.name()] = true
		}
		child := testkit.Start(t, "closer", stores.Env(location), envBooks+"="+folder)
		for len(missing) > 0 {
			line, ok := child.Next()
			require.True(t, ok, "the child has ended before %v: %s", missing, child.Stderr())
			require.True(t, missing[line], line)
			delete(missing, line)
		}
		child.Kill()
		for _, c := range closings() {
			if c.point != "ended" {
				requireClosed(t, d, c.name())
			}
			require.NoError(t, d.CloseStream(t.Context(), c.name(), stream.At(2), bookIn(folder, c.name()), c.seeds()...), c.name())
			requireEnd(t, d, c.name(), c.seeds())
			text, err := os.ReadFile(filepath.Join(folder, strings.ReplaceAll(c.name(), "/", "-")))
			require.NoError(t, err)
			var lines []string
			require.NoError(t, json.Unmarshal(text, &lines))
			require.Equal(t, texts(steps3), lines, c.name())
		}
		testkit.Figures(t, "%d streams, one killed at each point of CloseStream", len(closings()))
	})
}

// steps3 are the events that fill appends.
var steps3 = []stream.Event{
	{Version: 0, Type: "moved", Raw: []byte(`{"by":"fill","step":0}`)},
	{Version: 1, Type: "moved", Raw: []byte(`{"by":"fill","step":1}`)},
	{Version: 2, Type: "moved", Raw: []byte(`{"by":"fill","step":2}`)},
}

// appendUntilKilled appends pairs of events to three streams, in a child, and says the ID of the first
// event of each append.
func appendUntilKilled() error {
	log, err := openGiven()
	if err != nil {
		return err
	}
	testkit.Begin()
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := 0; ; i++ {
				made, err := log.Append(context.Background(), fmt.Sprint("p", i%3), stream.Any, steps(fmt.Sprintf("%d.%d", os.Getpid(), w), 2*i, 2)...)
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				testkit.Say("%s", made[0].ID)
			}
		})
	}
	all.Wait()
	return nil
}

// Processes are killed while they append. Each acknowledged append is there, the versions have no
// gaps, no append is there in part, and a reader of all streams sees every event once.
// Proves STREAM-1.
func TestKilledWriters(t *testing.T) {
	onShared(t, func(t *testing.T, location string, open func() *depot) {
		kills := testkit.Times(8, 4, "PAWL_KILLS")
		acked := map[string]bool{}
		for killed := 0; killed < kills; killed += 2 {
			killPair(t, location, acked)
		}
		d := open()
		d.fill(t, "p0", 1)
		found := map[string]stream.Event{}
		for _, name := range []string{"p0", "p1", "p2"} {
			events := d.all(t, name)
			require.Equal(t, from(0, int64(len(events))), versions(events), name)
			for i, e := range events {
				found[e.ID] = e
				if m := e.Data.(moved); m.By != "fill" && m.Step%2 == 0 {
					require.Less(t, i+1, len(events), "an append is there in part")
					require.Equal(t, moved{m.By, m.Step + 1}, events[i+1].Data, "an append is there as a whole")
				}
			}
		}
		for id := range acked {
			_, ok := found[id]
			require.True(t, ok, "%s was acknowledged, and is not there", id)
		}
		all := collect(t, d.ReadAll(t.Context(), stream.AllQuery{}))
		testkit.Figures(t, "%d kills, %d appends acknowledged, %d events found", kills, len(acked), len(found))
		require.Len(t, all, len(found))
		for _, e := range all {
			_, ok := found[e.ID]
			require.True(t, ok, e.ID)
		}
	})
}

// killPair starts two processes that append, kills each at a random moment, and adds what was
// acknowledged to acked.
func killPair(t *testing.T, location string, acked map[string]bool) {
	pair := []*testkit.Process{testkit.Start(t, "appender", stores.Env(location)), testkit.Start(t, "appender", stores.Env(location))}
	testkit.Ready(pair...)
	var (
		mu      sync.Mutex // protects acked
		readers sync.WaitGroup
		enough  = make(chan struct{}, len(pair))
	)
	for _, c := range pair {
		readers.Go(func() {
			for n := 0; ; n++ {
				line, ok := c.Next()
				if n == 8 || !ok && n < 8 {
					enough <- struct{}{}
				}
				if !ok {
					return
				}
				mu.Lock()
				acked[line] = true
				mu.Unlock()
			}
		})
	}
	for range pair {
		<-enough
	}
	for _, c := range pair {
		time.Sleep(rand.N(10 * time.Millisecond)) // a random place in an append
		process, err := os.FindProcess(c.PID())
		require.NoError(t, err)
		require.NoError(t, process.Kill())
	}
	readers.Wait()
	for _, c := range pair {
		c.Kill()
		require.Empty(t, c.Stderr())
	}
}

// onShared runs test on each store that processes can share.
func onShared(t *testing.T, test func(t *testing.T, location string, open func() *depot)) {
	t.Helper()
	stores.EachShared(t, func(t *testing.T, location string) {
		test(t, location, func() *depot { return newDepot(t, stores.OpenFor(t, location)) })
	})
}
