package bench

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"
)

var (
	speed   = flag.Bool("speed", false, "measure the speed of all services")
	span    = flag.Duration("span", 2*time.Second, "how long each measurement of appends takes")
	rounds  = flag.Int("rounds", 5, "measurements of each service; the median counts")
	only    = flag.String("only", "", "measure this store only: SQLite or PostgreSQL")
	longest = flag.Int("longest", 10_000, "events of the longest session")
)

// message is an event of a chat, of 440 bytes of text and two keys.
func message(t *testing.T, i int) *session.Event {
	e := session.NewEvent(t.Context(), "invocation")
	e.Author = "agent"
	e.Content = genai.NewContentFromText(strings.Repeat("All work and no play. ", 20), "model")
	e.Actions.StateDelta = map[string]any{"step": i, "topic": "pawl"}
	return e
}

// appends returns the events per second that writers append, each to a session of its own.
func appends(t *testing.T, s session.Service, writers int, d time.Duration) float64 {
	ctx := t.Context()
	handles := make([]session.Session, writers)
	for w := range writers {
		r, err := s.Create(ctx, &session.CreateRequest{AppName: "bench", UserID: fmt.Sprint("user ", w)})
		require.NoError(t, err)
		handles[w] = r.Session
	}
	counts := make([]int, writers)
	var all sync.WaitGroup
	began := time.Now()
	for w := range writers {
		all.Go(func() {
			for ; time.Since(began) < d; counts[w]++ {
				if err := s.AppendEvent(ctx, handles[w], message(t, counts[w])); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(began).Seconds()
}

// gets returns how many times per second a session of a length can be read.
func gets(t *testing.T, s session.Service, id string, recent int) float64 {
	n, began := 0, time.Now()
	for ; n < 3 || time.Since(began) < *span/4; n++ {
		_, err := s.Get(t.Context(), &session.GetRequest{AppName: "bench", UserID: "reader", SessionID: id, NumRecentEvents: recent})
		require.NoError(t, err)
	}
	return float64(n) / time.Since(began).Seconds()
}

// fill makes a session of a length.
func fill(t *testing.T, s session.Service, id string, length int) {
	r, err := s.Create(t.Context(), &session.CreateRequest{AppName: "bench", UserID: "reader", SessionID: id})
	require.NoError(t, err)
	for i := range length {
		require.NoError(t, s.AppendEvent(t.Context(), r.Session, message(t, i)))
	}
}

// TestSpeed prints a table with the ratio of Pawl to ADK, measured in turns.
func TestSpeed(t *testing.T) {
	if !*speed {
		t.Skip("without -speed")
	}
	p := &places{t: t}
	sides := []service{adkService, pawlWhole}
	row := func(what, store string, measure func(side int) float64) {
		rates := make([][]float64, len(sides))
		costs := make([][]float64, len(sides))
		for range *rounds {
			for i := range sides {
				cpu, began := processorTime(), time.Now()
				rate := measure(i)
				calls := rate * time.Since(began).Seconds()
				rates[i] = append(rates[i], rate)
				costs[i] = append(costs[i], float64((processorTime()-cpu).Microseconds())/calls)
			}
		}
		for i := range rates {
			slices.Sort(rates[i])
			slices.Sort(costs[i])
		}
		middle := *rounds / 2
		fmt.Fprintf(os.Stdout, "| %s | %s | %.0f/s | %.0f/s | %.2f | %.0f µs | %.0f µs |\n", what, store,
			rates[0][middle], rates[1][middle], rates[1][middle]/rates[0][middle], costs[0][middle], costs[1][middle])
	}
	fmt.Fprintln(os.Stdout, "| | store | ADK | Pawl | Pawl / ADK | CPU of a call, ADK | Pawl |\n|---|---|---|---|---|---|---|")
	for _, store := range []string{"SQLite", "PostgreSQL"} {
		if *only != "" && *only != store {
			continue
		}
		services := []session.Service{sides[0].open(p, store), sides[1].open(p, store)}
		for _, writers := range []int{1, 16} {
			row(fmt.Sprintf("AppendEvent, %d writers", writers), store, func(side int) float64 { return appends(t, services[side], writers, *span) })
		}
		for _, length := range []int{10, 1000, 10_000} {
			if length > *longest {
				break
			}
			id := fmt.Sprint(length)
			for _, s := range services {
				fill(t, s, id, length)
			}
			row(fmt.Sprintf("Get of all %d events", length), store, func(side int) float64 { return gets(t, services[side], id, 0) })
			row(fmt.Sprintf("Get of the last 10 of %d events", length), store, func(side int) float64 { return gets(t, services[side], id, 10) })
		}
	}
}

// processorTime returns the time that this process has used. It does not include a database server.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
