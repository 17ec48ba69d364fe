package hints

import (
	"context"
	"sync"

	"github.com/pawl-go/pawl/persist"
)

// Listening is what all Watch calls of a store share if it hears of changes from outside, for example
// a connection that listens. It runs while there are Watch calls. The zero value is ready to use.
//
// Races, and what decides them:
//   - The last Watch leaves while another begins: the lock decides. The other one joins the listener
//     before it ends, or starts a new one while the old one returns.
//   - Close during the start of a Watch: one of them sees the other under the lock.
type Listening struct {
	running sync.WaitGroup // listeners

	mu      sync.Mutex // protects the fields below
	closed  bool
	current *Listener // nil: no Watch call
}

// Listener is one run of a Listening.
type Listener struct {
	life     context.Context
	end      context.CancelCauseFunc
	ready    chan struct{} // closed by Ready
	readied  sync.Once
	watchers int // protected by Listening.mu
}

// Life ends with the last Watch call, with Close, and with Fail.
func (l *Listener) Life() context.Context { return l.life }

// Ready says that changes are heard from now on. Until the first call no Watch calls wake.
func (l *Listener) Ready() { l.readied.Do(func() { close(l.ready) }) }

// Fail ends the Watch calls of l with err. A later Watch starts another listener.
func (l *Listener) Fail(err error) { l.end(err) }

// Watch is persist.Watcher.Watch for a store that sends what it hears to hub. It runs listen, on a
// goroutine of its own, unless another Watch does: listen calls Ready, and returns when Life ends. Watch
// returns ctx's error when ctx ends, persist.ErrClosed after Close, and the error of Fail.
func (g *Listening) Watch(ctx context.Context, hub *Hub, listen func(*Listener), wake func(persist.Hint)) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	subscription := hub.Subscribe()
	defer subscription.End()
	l := g.join(listen)
	if l == nil {
		return persist.ErrClosed
	}
	defer g.leave(l)
	select {
	case <-l.ready:
	case <-l.life.Done():
		return context.Cause(l.life)
	case <-ctx.Done():
		return ctx.Err()
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)()
	err := subscription.Deliver(watching, wake)
	if ctx.Err() == nil && l.life.Err() != nil {
		return context.Cause(l.life)
	}
	return err
}

// join returns the common listener and counts one more watcher, which calls leave. It returns nil after
// Close.
func (g *Listening) join(listen func(*Listener)) *Listener {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	l := g.current
	if l == nil || l.life.Err() != nil {
		l = &Listener{ready: make(chan struct{})}
		l.life, l.end = context.WithCancelCause(context.Background())
		g.current = l
		g.running.Go(func() { listen(l) })
	}
	l.watchers++
	return l
}

// leave counts one watcher less. The last one ends the listener without waiting.
func (g *Listening) leave(l *Listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.watchers--; l.watchers > 0 {
		return
	}
	l.end(nil)
	if g.current == l {
		g.current = nil
	}
}

// Close ends every Watch with persist.ErrClosed and waits until nothing listens.
func (g *Listening) Close() {
	g.mu.Lock()
	g.closed = true
	if g.current != nil {
		g.current.end(persist.ErrClosed)
	}
	g.mu.Unlock()
	g.running.Wait()
}
