package persisttest

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy passes TCP connections on to a server, and can lose answers, hold everything back, or end
// the connections. Adapters build Options.Link on it. The client has to speak first. All methods are
// safe for concurrent use.
type Proxy struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex // protects the fields below
	closed  bool
	links   map[*link]struct{}
	muted   bool
	blocked func(first []byte) bool // nil: no connection
	changed chan struct{}           // closed when muted or blocked changes
}

// link is one connection through a proxy.
type link struct {
	client, server net.Conn
	first          []byte        // the first bytes of the client, up to firstBytes; protected by Proxy.mu
	cut            chan struct{} // closed with the connections
}

// firstBytes is the number of bytes of a client that Block looks at.
const firstBytes = 1 << 14

// NewProxy returns a proxy on the loopback interface in front of target, a host and port. It ends
// with t.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: target, listener: listener, links: make(map[*link]struct{}), changed: make(chan struct{})}
	p.running.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Addr returns the host and port of the proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Mute passes requests on and drops answers, until Cut.
func (p *Proxy) Mute() { p.set(true, nil) }

// Block holds all bytes back, in both directions, until Heal or Cut. Given texts, it does so only on
// connections whose client has sent one of them among its first bytes.
func (p *Proxy) Block(texts ...string) {
	p.set(false, func(first []byte) bool {
		for _, text := range texts {
			if bytes.Contains(first, []byte(text)) {
				return true
			}
		}
		return len(texts) == 0
	})
}

// Heal ends Block: the bytes that were held back go on.
func (p *Proxy) Heal() { p.set(false, nil) }

// Cut ends all connections. Later ones work, also after Mute and Block.
func (p *Proxy) Cut() {
	p.set(false, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		p.end(l)
	}
}

// Close ends the proxy and its connections, and waits for them.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.running.Wait()
}

func (p *Proxy) set(muted bool, blocked func([]byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.muted, p.blocked = muted, blocked
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := &link{client: client, cut: make(chan struct{})}
		if !p.add(l) {
			return
		}
		p.running.Go(func() { p.serve(l) })
	}
}

// add registers l. It reports false, and ends l, if the proxy is closed.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = l.client.Close()
		return false
	}
	p.links[l] = struct{}{}
	return true
}

// end ends l unless it has ended. The caller holds mu.
func (p *Proxy) end(l *link) {
	if _, ok := p.links[l]; !ok {
		return
	}
	delete(p.links, l)
	close(l.cut)
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
}

func (p *Proxy) drop(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(l)
}

// serve passes bytes on until one side ends.
func (p *Proxy) serve(l *link) {
	defer p.drop(l)
	first := make([]byte, firstBytes)
	n, err := l.client.Read(first)
	if err != nil {
		return
	}
	server, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		return
	}
	p.mu.Lock()
	_, open := p.links[l]
	l.server, l.first = server, first[:n]
	p.mu.Unlock()
	first = first[:n:n]
	if !open {
		_ = server.Close()
		return
	}
	if !p.pass(l, false) {
		return
	}
	if _, err := server.Write(first); err != nil {
		return
	}
	p.running.Go(func() {
		defer p.drop(l)
		p.copy(l, l.client, server, true)
	})
	p.copy(l, server, l.client, false)
}

// copy passes the bytes of src on to dst. Answers are those of the server.
func (p *Proxy) copy(l *link, dst, src net.Conn, answers bool) {
	buffer := make([]byte, 1<<15)
	for {
		n, err := src.Read(buffer)
		if err != nil {
			return
		}
		if !answers {
			p.sent(l, buffer[:n])
		}
		if !p.pass(l, answers) {
			continue
		}
		if _, err := dst.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// sent remembers the first bytes of the client of l.
func (p *Proxy) sent(l *link, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.first = append(l.first, b[:min(len(b), firstBytes-len(l.first))]...)
}

// pass waits while l is blocked. It reports whether bytes are to be passed on.
func (p *Proxy) pass(l *link, answers bool) bool {
	for {
		p.mu.Lock()
		_, open := p.links[l]
		blocked, muted, changed := p.blocked != nil && p.blocked(l.first), p.muted, p.changed
		p.mu.Unlock()
		switch {
		case !open:
			return false
		case !blocked:
			return !answers || !muted
		}
		select {
		case <-changed:
		case <-l.cut:
			return false
		}
	}
}
