// Package pgproxy is a proxy between a client and a PostgreSQL server that breaks connections
// around a commit, where a client cannot know the outcome.
//
//	proxy := pgproxy.Start(t, "tcp", "127.0.0.1:5432")
//	proxy.Cut(0.1, 1) // one commit in ten, at random moments
//	pool, err := pgxpool.New(ctx, proxy.URL(serverURL))
//
// It reads the protocol in both directions, message by message. It knows the messages of the client
// that make a transaction durable, if the server accepts them: a COMMIT, as a simple query or as
// the execution of a statement; a simple query that writes outside a transaction; the Sync after
// statements that write outside a transaction. An [Action] says what to do with such a message.
//
// The words of a statement decide whether it writes. COPY is forwarded and never counts as a
// commit. A client has to request its answers with Sync, as pgx does, not with Flush. TLS is
// refused.
package pgproxy

import (
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Proxy is a proxy in front of one server. Its methods are safe for concurrent use.
type Proxy struct {
	t                testing.TB
	network, address string // of the server
	own              string // the proxy's address
	words            words
	running          sync.WaitGroup // the goroutines of the listener and the connections

	mu          sync.Mutex // protects the fields below
	closed      bool
	listener    net.Listener             // nil: refusing, or closed
	connections map[*connection]struct{} // open ones
	accepted    int                      // connections since Start
	script      func(Commit) Action      // nil: forward all
	commits     int                      // that the script was asked about
	counts      [hold + 1]int            // by moment
	resets      int                      // cuts by a TCP reset
}

// Counts says how often each action was completed. A connection that broke by itself meanwhile does
// not count.
type Counts struct {
	Pass, BeforeCommit, AfterSend, AfterExecute, Hold int
	Resets                                            int // cuts by a TCP reset; the others were orderly
}

// Cuts returns how many connections were cut at a commit.
func (c Counts) Cuts() int { return c.BeforeCommit + c.AfterSend + c.AfterExecute }

// Start starts a proxy for the server at an address and closes it when t ends. A statement writes
// if it contains INSERT, UPDATE, DELETE, MERGE or TRUNCATE, or calls a function whose name ends
// with one of writers.
func Start(t testing.TB, network, address string, writers ...string) *Proxy {
	t.Helper()
	p := &Proxy{
		t:           t,
		network:     network,
		address:     address,
		words:       newWords(writers),
		connections: make(map[*connection]struct{}),
	}
	// The kernel gives no port of this range to an outgoing connection, so it is still free after
	// Refuse.
	for range 100 {
		p.own = net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+rand.IntN(12000)))
		if p.listen() == nil {
			t.Cleanup(p.Close)
			return p
		}
	}
	t.Fatal("pgproxy: no free port in 100 tries")
	return nil
}

// URL returns the URL of the server with the proxy's address in it.
func (p *Proxy) URL(server string) string {
	p.t.Helper()
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		p.t.Fatal("pgproxy: invalid server URL")
	}
	u.Host = p.own
	return u.String()
}

// Script sets the function that decides about every commit; nil: forward all. The commit waits for
// script, and so does Close. Script is called concurrently for several connections. It is not
// called for a commit that a client sends before the answer to one that is cut or held.
func (p *Proxy) Script(script func(Commit) Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = script
}

// Cut makes the proxy cut a share of all commits, each at one of the three moments at random.
func (p *Proxy) Cut(rate float64, seed uint64) {
	var mu sync.Mutex // protects random
	random := rand.New(rand.NewPCG(seed, seed))
	moments := []Action{BeforeCommit, AfterSend, AfterExecute}
	p.Script(func(Commit) Action {
		mu.Lock()
		defer mu.Unlock()
		if random.Float64() >= rate {
			return Pass
		}
		return moments[random.IntN(len(moments))]
	})
}

// Counts returns the counts since Start.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Counts{
		Pass:         p.counts[pass],
		BeforeCommit: p.counts[beforeCommit],
		AfterSend:    p.counts[afterSend],
		AfterExecute: p.counts[afterExecute],
		Hold:         p.counts[hold],
		Resets:       p.resets,
	}
}

// Refuse makes the proxy behave like a server that is down: it cuts all connections and refuses new
// ones, until it is called with false.
func (p *Proxy) Refuse(refuse bool) {
	p.t.Helper()
	if refuse {
		p.stop()
		return
	}
	deadline := time.Now().Add(10 * time.Second)
	for err := p.listen(); err != nil; err = p.listen() {
		if time.Now().After(deadline) {
			p.t.Fatalf("pgproxy: %v", err)
		}
		time.Sleep(10 * time.Millisecond) // another process has the port
	}
}

// Close cuts all connections and waits for the goroutines of the proxy.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.running.Wait()
}

// listen starts to accept connections. It does nothing if the proxy does already, or is closed.
func (p *Proxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.own)
	if err != nil {
		return err
	}
	p.listener = listener
	p.running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			p.accept(listener, client)
		}
	})
	return nil
}

// accept serves a client, unless the listener that accepted it was closed meanwhile.
func (p *Proxy) accept(listener net.Listener, client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != listener {
		closeConn(client, true)
		return
	}
	p.accepted++
	c := newConnection(p, p.accepted, client)
	p.connections[c] = struct{}{}
	p.running.Go(func() {
		c.serve()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.connections, c)
	})
}

// stop accepts no more connections and cuts the open ones.
func (p *Proxy) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for c := range p.connections {
		c.drop(true)
	}
}

// decide returns the script's action for a commit.
func (p *Proxy) decide(c Commit) Action {
	p.mu.Lock()
	p.commits++
	c.Number = p.commits
	script := p.script
	p.mu.Unlock()
	if script == nil {
		return Pass
	}
	return script(c)
}

// count counts a completed action.
func (p *Proxy) count(m moment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[m]++
}

// cut drops a connection, alternately by a TCP reset and orderly.
func (p *Proxy) cut(c *connection, m moment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	reset := p.counts[m]%2 == 1
	if !c.drop(reset) {
		return
	}
	p.counts[m]++
	if reset {
		p.resets++
	}
}
