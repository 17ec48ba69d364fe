// Package pgproxy stands between a client and a PostgreSQL server and breaks connections at the
// moments that matter most: around a commit, which is where a client cannot know what became of it.
//
//	proxy := pgproxy.Start(t, "tcp", "127.0.0.1:5432")
//	proxy.Cut(0.1, 1) // every tenth commit, at random moments
//	pool, err := pgxpool.New(ctx, proxy.URL(serverURL))
//
// It follows the protocol in both directions, message by message, and knows which message of the
// client makes a transaction durable, if the server accepts it: a COMMIT, as a simple query or as
// the execution of a statement; a simple query that writes outside a transaction; the Sync behind
// statements that write outside a transaction. What is done about it is an [Action].
//
// What writes is judged by the words of a statement. COPY is passed on and never taken for a commit,
// and a client has to ask for its answers with Sync, as pgx does, not with Flush. TLS is refused.
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
	running          sync.WaitGroup // the listener's goroutine and those of connections

	mu          sync.Mutex // protects what follows
	closed      bool
	listener    net.Listener             // nil: refusing, or closed
	connections map[*connection]struct{} // open
	accepted    int                      // connections, ever
	script      func(Commit) Action      // nil: pass all
	commits     int                      // that were asked about
	counts      [hold + 1]int            // by moment
	resets      int
}

// Counts says how often each action took place, entirely: a connection that broke by itself meanwhile
// does not count.
type Counts struct {
	Pass, BeforeCommit, AfterSend, AfterExecute, Hold int
	Resets                                            int // cuts by a TCP reset; the others were an orderly end
}

// Cuts returns how many connections were cut at a commit.
func (c Counts) Cuts() int { return c.BeforeCommit + c.AfterSend + c.AfterExecute }

// Start starts a proxy for the server at an address and ends it with t. writers are endings of the
// names of functions that write: a statement which calls one writes, as does one with INSERT, UPDATE,
// DELETE, MERGE or TRUNCATE in it.
func Start(t testing.TB, network, address string, writers ...string) *Proxy {
	t.Helper()
	p := &Proxy{
		t:           t,
		network:     network,
		address:     address,
		words:       newWords(writers),
		connections: make(map[*connection]struct{}),
	}
	// A port that the kernel does not give to outgoing connections is still free after Refuse.
	for range 100 {
		p.own = net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+rand.IntN(12000)))
		if p.listen() == nil {
			t.Cleanup(p.Close)
			return p
		}
	}
	t.Fatal("pgproxy: no free port found")
	return nil
}

// URL returns a URL of the server with the proxy in its place.
func (p *Proxy) URL(server string) string {
	p.t.Helper()
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		p.t.Fatal("pgproxy: not the URL of a server")
	}
	u.Host = p.own
	return u.String()
}

// Script makes the proxy ask at every commit what to do about it, nil: pass it on. The commit waits
// for script, and so does Close; script is called for several connections at the same time. A commit
// that a client sends before it knows the answer to one that is cut or held is not asked about.
func (p *Proxy) Script(script func(Commit) Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = script
}

// Cut makes the proxy cut that share of all commits, at one of the three moments at random.
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

// Counts returns what has taken place since Start.
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

// Refuse makes the proxy look like a server that is down: it cuts all connections and refuses new
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
		time.Sleep(10 * time.Millisecond) // somebody else has the port
	}
}

// Close cuts all connections and returns when nothing of the proxy is left.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.running.Wait()
}

// listen accepts connections, unless it does already.
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

// accept serves a client, unless the listener that let it in is no longer the proxy's.
func (p *Proxy) accept(listener net.Listener, client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != listener {
		hangUp(client, true)
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

// stop accepts nothing more and cuts what is there.
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

// decide asks the script about a commit.
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

// count takes note that something took place.
func (p *Proxy) count(m moment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[m]++
}

// cut drops a connection, in turns by a reset and in order.
func (p *Proxy) cut(c *connection, m moment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	abruptly := p.counts[m]%2 == 1
	if !c.drop(abruptly) {
		return
	}
	p.counts[m]++
	if abruptly {
		p.resets++
	}
}
