package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
)

func init() { testkit.Child("server", serverChild) }

const serverStore = "CHAT_TEST_STORE"

// serverChild runs a server until the test kills it or sends SIGTERM. It prints its URL.
func serverChild() error {
	c := Command{Addr: "127.0.0.1:0", Store: os.Getenv(serverStore), Model: "local", Delay: 10 * time.Millisecond, Lease: time.Second,
		StopTimeout: 20 * time.Second, Logger: quiet}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return c.Run(ctx)
}

// process is a server in a separate process.
type process struct {
	*testkit.Process
	url string
}

func startProcess(t *testing.T, location string) process {
	t.Helper()
	p := testkit.Start(t, "server", serverStore+"="+location)
	return process{p, p.Line()}
}

// Servers are killed at random moments of turns with tools. The next server answers every accepted
// question completely and in order, and each charge, transfer and mail happens once.
func TestKilledServers(t *testing.T) {
	onStores(t, func(t *testing.T, location string) {
		p := startProcess(t, location)
		u, friend := visit(t, p.url), visit(t, p.url)
		to := get[me](friend, p.url+"/api/me").User
		session := u.newSession(p.url)
		const turns = 5
		for i := range turns {
			question := fmt.Sprintf("charge %d; transfer 2 to %s; email bob@example.com %d; search pawl lease", 10+i, to, i)
			if i == 2 {
				question = "count to 200"
			}
			turn := u.ask(p.url, session, question)
			// A random moment between the question and its answer.
			until := rand.IntN(12)
			u.watch(p.url, turn, func(turnView) bool { until--; return until < 0 })
			p.Kill()
			before := p.url
			p = startProcess(t, location)
			u.copyCookies(before, p.url)
			friend.copyCookies(before, p.url)
		}
		th := u.settled(p.url, session)
		require.Len(t, th.Messages, 2*turns)
		for i := range turns {
			answer := th.Messages[2*i+1]
			require.Equal(t, done, answer.Status)
			if i == 2 {
				require.Equal(t, count(200), answer.Text)
				continue
			}
			require.Contains(t, answer.Text, fmt.Sprintf("charged %d", 10+i))
			require.Contains(t, answer.Text, "pawl: the catch")
		}
		now := get[me](u, p.url+"/api/me")
		require.EqualValues(t, freeCredits-turns+(10+11+13+14)-4*2, now.Credits, "each charge and transfer must happen once")
		require.EqualValues(t, freeCredits+4*2, get[me](friend, p.url+"/api/me").Credits)

		s := start(t, location) // to read the state
		charges := 0
		for c, err := range Charges.List(t.Context(), s.rt, pawl.Query{}) {
			require.NoError(t, err)
			require.Equal(t, "paid", c.ReadOnly().Status)
			charges++
			captured, err := Bank.Scope(s.rt, c.ID).State(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.ReadOnly().Amount, captured.Amount)
			require.LessOrEqual(t, captured.Asked, int64(2), "the bank may be asked again only after a kill")
		}
		require.Equal(t, 4, charges)
		testkit.EventuallyWithin(t, time.Minute, func() bool {
			delivered := 0
			for m, err := range Mails.List(t.Context(), s.rt, pawl.Query{Labels: []string{"sent"}}) {
				require.NoError(t, err)
				if m.ReadOnly().Delivered {
					delivered++
				}
			}
			return delivered == 4
		})
	})
}

// If the server that answers is killed, another server on the same store answers the remaining
// turns.
func TestSurvivorTakesOver(t *testing.T) {
	onStores(t, func(t *testing.T, location string) {
		p := startProcess(t, location)
		s := start(t, location)
		u := visit(t, p.url)
		u.copyCookies(p.url, s.url)
		session := u.newSession(p.url)
		first, second := u.ask(p.url, session, "count to 300"), u.ask(p.url, session, "count to 3")
		u.watch(s.url, first, func(v turnView) bool { return len(v.Text) > 20 })
		p.Kill()
		v := u.watch(s.url, second, func(v turnView) bool { return v.Status == done })
		require.Equal(t, count(3), v.Text)
		require.Equal(t, count(300), u.settled(s.url, session).Messages[1].Text)
		require.EqualValues(t, freeCredits-2, get[me](u, s.url+"/api/me").Credits)
	})
}

// A server that is told to stop finishes what it can and leaves the rest to the next server. No
// accepted question is lost.
func TestShutdown(t *testing.T) {
	onStores(t, func(t *testing.T, location string) {
		a := start(t, location)
		u := visit(t, a.url)
		session, other := u.newSession(a.url), u.newSession(a.url)
		long := u.ask(a.url, session, "count to 2000")
		u.ask(a.url, session, "count to 2")
		u.watch(a.url, long, func(v turnView) bool { return len(v.Text) > 20 })
		var wg sync.WaitGroup
		accepted := make(chan string, 8)
		for i := range cap(accepted) {
			wg.Go(func() { // in flight when the server stops
				r, err := http.NewRequest("POST", a.url+"/api/sessions/"+other+"/messages", strings.NewReader(`{"text":"hello"}`))
				assert.NoError(t, err)
				r.Header.Set("Idempotency-Key", fmt.Sprint("k", i))
				response, err := u.client.Do(r)
				if err != nil {
					return // not accepted
				}
				defer response.Body.Close()
				if response.StatusCode == http.StatusAccepted {
					accepted <- fmt.Sprint("k", i)
				}
			})
		}
		require.NoError(t, a.end(20*time.Millisecond))
		wg.Wait()

		began := time.Now()
		b := start(t, location)
		u.copyCookies(a.url, b.url)
		th := u.settled(b.url, session)
		t.Log("resumed and done after", time.Since(began))
		require.Len(t, th.Messages, 4)
		require.Equal(t, count(2000), th.Messages[1].Text)
		require.Equal(t, count(2), th.Messages[3].Text)
		for i := range cap(accepted) { // clients repeat requests whose outcome they do not know
			u.ask(b.url, other, "hello", "Idempotency-Key", fmt.Sprint("k", i))
		}
		require.Len(t, u.settled(b.url, other).Messages, 2*cap(accepted))
		require.EqualValues(t, freeCredits-2-cap(accepted), get[me](u, b.url+"/api/me").Credits)
	})
}
