package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/session"
)

var (
	lost = flag.Bool("lost", false, "count the lost updates of all services")
	each = flag.Int("each", 10, "events of each of the 64 writers")
)

// work is what the writers do.
type work struct {
	name   string
	prefix string
	// delta returns the change of one event. Key is the one that all writers have in common.
	delta func(s session.State, key string, writer, i int) map[string]any
}

func increment(s session.State, key string, _, _ int) map[string]any {
	v, err := s.Get(key)
	if err != nil && !errors.Is(err, session.ErrStateKeyNotExist) {
		panic(err)
	}
	return map[string]any{key: number(v) + 1}
}

func ownKeys(_ session.State, key string, writer, i int) map[string]any {
	return map[string]any{fmt.Sprintf("%s/%d-%d", key, writer, i): 1}
}

func inc(_ session.State, key string, _, _ int) map[string]any {
	return map[string]any{key: adk.Inc(1)}
}

var (
	shared = []work{
		{"increments of a `user:` key", "user:", increment},
		{"increments of an `app:` key", "app:", increment},
		{"own `user:` keys", "user:", ownKeys},
		{"own `app:` keys", "app:", ownKeys},
	}
	alone = []work{{"increments of a key of one session", "", increment}, {"own keys of one session", "", ownKeys}}
	incs  = []work{{"adk.Inc of a `user:` key", "user:", inc}, {"adk.Inc of an `app:` key", "app:", inc}}
)

// tally counts the events of one work.
type tally struct {
	acknowledged, refused atomic.Int64
	present               int
}

func (t *tally) lost() int { return int(t.acknowledged.Load()) - t.present }

// run lets the writers change state as ADK prescribes: each gets its session and appends an event. A
// writer whose session was stale gets it again. Writers of shared keys have a session each.
func (w work) run(t *testing.T, s session.Service, writers, each int) *tally {
	t.Helper()
	ctx := t.Context()
	user := fmt.Sprintf("user-%d", rand.Uint64())
	key := w.prefix + user
	sessionOf := func(writer int) string {
		if w.prefix == "" {
			return "one"
		}
		return fmt.Sprint("of ", writer)
	}
	for i := range writers {
		if i == 0 || w.prefix != "" {
			_, err := s.Create(ctx, &session.CreateRequest{AppName: "bench", UserID: user, SessionID: sessionOf(i)})
			require.NoError(t, err)
		}
	}
	var count tally
	var all sync.WaitGroup
	start := make(chan struct{})
	for writer := range writers {
		all.Go(func() {
			<-start
			for i := range each {
				if err := w.once(ctx, s, user, sessionOf(writer), key, writer, i, &count); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	close(start)
	all.Wait()
	last, err := get(ctx, s, user, sessionOf(0))
	require.NoError(t, err)
	for k, v := range last.State().All() {
		if k == key {
			count.present += int(number(v))
		} else if strings.HasPrefix(k, key+"/") {
			count.present++
		}
	}
	return &count
}

// once makes one change, again and again while the session is stale.
func (w work) once(ctx context.Context, s session.Service, user, id, key string, writer, i int, count *tally) error {
	for n := 1; ; n++ {
		h, err := get(ctx, s, user, id)
		if err != nil {
			return err
		}
		e := session.NewEvent(ctx, "bench")
		e.Author, e.Actions.StateDelta = "tool", w.delta(h.State(), key, writer, i)
		err = s.AppendEvent(ctx, h, e)
		if err == nil {
			count.acknowledged.Add(1)
			return nil
		}
		if !strings.Contains(err.Error(), "stale session error") { // ADK has no error value for it
			return err
		}
		count.refused.Add(1)
		time.Sleep(pawl.DefaultRetry.Delay(min(n, 5)))
	}
}

func get(ctx context.Context, s session.Service, user, id string) (session.Session, error) {
	r, err := s.Get(ctx, &session.GetRequest{AppName: "bench", UserID: user, SessionID: id, NumRecentEvents: 1})
	if err != nil {
		return nil, err
	}
	return r.Session, nil
}

// number returns a number of a state. ADK in memory keeps the types of Go.
func number(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case float64:
		return int64(v)
	}
	return 0
}

// 64 writers lose nothing, on every store, with both policies.
func TestNothingIsLost(t *testing.T) {
	p := &places{t: t}
	events := testkit.Times(2, 1)
	for _, store := range []string{"memory", "files", "SQLite", "PostgreSQL"} {
		for _, service := range []service{pawlWhole, pawlByKey} {
			t.Run(store+"/"+service.name, func(t *testing.T) {
				at, writers := &places{t: t}, 64
				switch store {
				case "PostgreSQL":
					at.server = p.start()
				case "files":
					writers = 16 // each event writes several files, and most attempts are refused
				}
				s := service.open(at, store)
				works := []work{shared[0], shared[3], alone[0]}
				if service.name == pawlByKey.name {
					works = []work{incs[0], incs[1], alone[1]}
				}
				for _, w := range works {
					got := w.run(t, s, writers, events)
					require.EqualValues(t, writers*events, got.acknowledged.Load(), w.name)
					require.Zero(t, got.lost(), w.name)
				}
			})
		}
	}
}

// TestLostUpdates prints the table of docs/adk.md.
func TestLostUpdates(t *testing.T) {
	if !*lost {
		t.Skip("without -lost")
	}
	p := &places{t: t}
	fmt.Fprintf(os.Stdout, "| 64 writers, %d events each | store | ADK | Pawl |\n|---|---|---|---|\n", *each)
	for _, w := range append(shared[:4:4], alone...) {
		for _, store := range []string{"memory", "SQLite", "PostgreSQL"} {
			row := fmt.Sprintf("| %s | %s |", w.name, store)
			for _, service := range []service{adkService, pawlWhole} {
				got := w.run(t, service.open(p, store), 64, *each)
				row += fmt.Sprintf(" %d acknowledged, %d present", got.acknowledged.Load(), got.present)
				if n := got.lost(); n != 0 {
					row += fmt.Sprintf(", **%d lost**", n)
				}
				row += " |"
			}
			fmt.Fprintln(os.Stdout, row)
		}
	}
}
