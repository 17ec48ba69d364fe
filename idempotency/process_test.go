package idempotency_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// These tests start this binary several times as servers on one store, and kill them.

const serveLease = "PAWL_TEST_IDEM_LEASE"

func init() { testkit.Child("serve", serveChild) }

// run counts the executions of a key.
type run struct {
	Times int64 `json:"times"`
}

var executions = pawl.Kind[run]{Name: "execution"}

// serveChild is a server process. It reports its address.
func serveChild() error {
	store, err := stores.OpenGiven()
	if err != nil {
		return err
	}
	rt, err := pawl.Open(pawl.Config{Store: store})
	if err != nil {
		return err
	}
	lease, _ := time.ParseDuration(os.Getenv(serveLease))
	keys, err := idempotency.New(rt, idempotency.Config{Principal: user, Require: true, Lease: lease})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /plain/{key}", keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { work(rt, w, r, false) })))
	mux.Handle("POST /tx/{key}", keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { work(rt, w, r, true) })))
	testkit.Begin()
	testkit.Say("http://%s", listener.Addr())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); os.Exit(0) }() // exit when the parent is gone
	return http.Serve(listener, mux)
}

// done is the response: its key, payload and execution.
type done struct{ Key, Payload, Execution string }

// work is the handler of the servers. The header Stop makes it report a point in its work and block
// there.
func work(rt *pawl.Runtime, w http.ResponseWriter, r *http.Request, respond bool) {
	reach := func(point string) {
		if r.Header.Get("Stop") == point {
			testkit.Say("at %s", point)
			<-r.Context().Done()
			testkit.Say("ended")
		}
	}
	payload, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	key := r.PathValue("key")
	answer := done{key, string(payload), strconv.FormatUint(rand.Uint64(), 36)}
	reach("start")
	if respond {
		err = pawl.Transact(r.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			if _, err := executions.Scope(tx, key).IncState(ctx, "times", 1); err != nil {
				return err
			}
			return idempotency.Respond(ctx, tx, 201, nil, answer)
		})
	} else {
		_, err = executions.Scope(rt, key).IncState(r.Context(), "times", 1)
	}
	if err != nil {
		if r.Header.Get("Stop") != "" {
			testkit.Say("refused %s", pawl.Code(err))
		}
		http.Error(w, err.Error(), 500)
		return
	}
	reach("worked")
	w.WriteHeader(201)
	_ = json.NewEncoder(w).Encode(answer)
}

// process is a server process.
type process struct {
	*testkit.Process
	url string
}

// startServers starts n processes on one store.
func startServers(t testing.TB, location string, lease time.Duration, n int) (all []*process) {
	for range n {
		all = append(all, &process{Process: testkit.Start(t, "serve", stores.Env(location), serveLease+"="+lease.String())})
	}
	for _, p := range all {
		testkit.Ready(p.Process)
		p.url = p.Line()
	}
	return all
}

var processClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testkit.Patience}

// ask sends a request to a server process, which may be dead.
func ask(url, mode, key, payload, stop string) (answer, error) {
	r, err := http.NewRequest("POST", url+"/"+mode+"/"+key, strings.NewReader(payload))
	if err != nil {
		return answer{}, err
	}
	r.Header = http.Header{"User": {"ann"}, idempotency.Header: {strconv.Quote(key)}}
	if stop != "" {
		r.Header.Set("Stop", stop)
	}
	response, err := processClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(body)}, err
}

// times returns the number of executions of a key.
func times(t testing.TB, rt *pawl.Runtime, key string) int64 {
	t.Helper()
	r, err := executions.Scope(rt, key).State(context.Background())
	require.NoError(t, err)
	return r.Times
}

// onSharedStores runs test on every store that several processes can share, with the test's own
// runtime.
func onSharedStores(t *testing.T, test func(t *testing.T, location string, rt *pawl.Runtime)) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // most of the time is waiting for leases
		test(t, location, runtimeOn(t, stores.OpenFor(t, location)))
	})
}

// Two first requests arrive at the same time in two processes: one handler runs. PAWL_RACES sets
// the number of rounds. Proves IDEM-2.
func TestTwoFirstRequests(t *testing.T) {
	onSharedStores(t, func(t *testing.T, location string, rt *pawl.Runtime) {
		servers := startServers(t, location, time.Minute, 2)
		replays, refusals := 0, 0
		for n := range testkit.Times(50, 50, "PAWL_RACES") {
			key := fmt.Sprint("race-", n)
			var answers [4]answer
			var errs [4]error
			var both sync.WaitGroup
			at := make(chan struct{})
			for i := range answers {
				both.Go(func() {
					<-at
					answers[i], errs[i] = ask(servers[i%2].url, "plain", key, "p", "")
				})
			}
			close(at)
			both.Wait()
			firsts := 0
			for i, a := range answers {
				require.NoError(t, errs[i])
				switch {
				case a.status == 409:
					refusals++
				case a.replayed():
					replays++
				default:
					require.Equal(t, 201, a.status, a.body)
					firsts++
				}
			}
			require.Equal(t, 1, firsts)
			require.EqualValues(t, 1, times(t, rt, key))
		}
		testkit.Figures(t, "%d replays, %d refusals", replays, refusals)
	})
}

// A server is killed at a point in its handler. Before the commit, the key is free after the lease,
// and another server does the work. After the commit of Respond, the response is replayed at once.
// Proves IDEM-4, IDEM-6.
func TestKilledInHandler(t *testing.T) {
	onSharedStores(t, func(t *testing.T, location string, rt *pawl.Runtime) {
		const lease = 3 * time.Second
		for _, test := range []struct {
			mode, at string
			times    int64
		}{{"tx", "start", 1}, {"tx", "worked", 1}, {"plain", "start", 1}, {"plain", "worked", 2}} {
			key := test.mode + "-" + test.at
			servers := startServers(t, location, lease, 2)
			gone := make(chan error, 1)
			go func() {
				_, err := ask(servers[0].url, test.mode, key, "p", test.at)
				gone <- err
			}()
			servers[0].Expect("at " + test.at)
			if key != "tx-worked" {
				a, err := ask(servers[1].url, test.mode, key, "p", "")
				require.NoError(t, err)
				require.Equal(t, 409, a.status)
			}
			servers[0].Kill()
			require.Error(t, <-gone)
			killed := time.Now()
			var a answer
			testkit.Eventually(t, func() bool {
				var err error
				a, err = ask(servers[1].url, test.mode, key, "p", "")
				return err == nil && a.status == 201
			})
			if key == "tx-worked" {
				require.True(t, a.replayed(), "the response was committed")
			} else {
				require.False(t, a.replayed())
				require.Less(t, time.Since(killed), testkit.Patience)
			}
			require.Equal(t, test.times, times(t, rt, key))
			again, err := ask(servers[1].url, test.mode, key, "p", "")
			require.NoError(t, err)
			require.JSONEq(t, a.body, again.body)
			servers[1].Kill()
		}
	})
}

// Clients send requests to two servers that are killed at random moments. Each key has one answer.
// Its work is done once with Respond, and at least once without. PAWL_KILLS sets the number of
// kills. Proves IDEM-2, IDEM-6.
func TestKilledServers(t *testing.T) {
	onSharedStores(t, func(t *testing.T, location string, rt *pawl.Runtime) {
		const clients = 6
		kills := testkit.Times(6, 6, "PAWL_KILLS")
		h := &hammer{t: t, answers: map[string]string{}}
		h.urls = make([]string, 2)
		servers := startServers(t, location, 300*time.Millisecond, 2)
		for i, s := range servers {
			h.urls[i] = s.url
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() { h.client(ctx, i) })
		}
		for n := range kills {
			before := h.count()
			testkit.Eventually(t, func() bool { return h.count() > before+5 })
			i := n % 2
			servers[i].Kill()
			servers[i] = startServers(t, location, 300*time.Millisecond, 1)[0]
			h.mu.Lock()
			h.urls[i] = servers[i].url
			h.mu.Unlock()
		}
		stop()
		all.Wait()
		for _, s := range servers {
			s.Kill()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		require.Empty(t, h.faults)
		again := 0
		for _, key := range h.tried {
			n, least := times(t, rt, key), int64(0)
			if h.answers[key] != "" {
				least = 1
			}
			require.GreaterOrEqual(t, n, least, key)
			if strings.HasPrefix(key, "tx-") {
				require.LessOrEqual(t, n, int64(1), key)
			}
			again += max(0, int(n)-1)
		}
		testkit.Figures(t, "%d kills, %d keys, %d repeats, %d replays; %d executions too many without Respond", kills, len(h.tried), h.repeats, h.replays, again)
	})
}

// hammer collects the results of all clients.
type hammer struct {
	t       *testing.T
	mu      sync.Mutex
	urls    []string
	tried   []string          // all keys that clients used
	answers map[string]string // execution by key
	faults  []string
	repeats int
	replays int
}

func (h *hammer) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.answers)
}

// heard records an answer and checks it.
func (h *hammer) heard(key, payload string, a answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var d done
	if err := json.Unmarshal([]byte(a.body), &d); err != nil || d.Key != key || d.Payload != payload {
		h.faults = append(h.faults, fmt.Sprintf("%s: answer of another request: %s", key, a.body))
	}
	if was, ok := h.answers[key]; ok && was != d.Execution {
		h.faults = append(h.faults, fmt.Sprintf("%s: two answers: %s and %s", key, was, d.Execution))
	}
	h.answers[key] = d.Execution
	if a.replayed() {
		h.replays++
	}
}

// client sends one request after another, each until it has an answer, and then once more.
func (h *hammer) client(ctx context.Context, number int) {
	for n := 0; ctx.Err() == nil; n++ {
		mode := []string{"plain", "tx"}[n%2]
		key, payload := fmt.Sprintf("%s-%d-%d", mode, number, n), fmt.Sprint("payload ", n)
		h.mu.Lock()
		h.tried = append(h.tried, key)
		h.mu.Unlock()
		deadline := time.Now().Add(testkit.Patience)
		for answers := 0; answers < 2 && ctx.Err() == nil; {
			h.mu.Lock()
			url := h.urls[rand.IntN(2)]
			h.repeats++
			h.mu.Unlock()
			a, err := ask(url, mode, key, payload, "")
			switch {
			case err == nil && a.status == 201:
				h.heard(key, payload, a)
				answers++
				continue
			case err == nil && a.status != 409 && a.status < 500, time.Now().After(deadline):
				h.mu.Lock()
				h.faults = append(h.faults, fmt.Sprintf("%s: %d %s %v", key, a.status, a.body, err))
				h.mu.Unlock()
				return
			}
			time.Sleep(rand.N(20 * time.Millisecond))
		}
	}
}
