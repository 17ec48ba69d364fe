package pawl

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/persist"
)

// How the runtime calls its store: commits to their verdict, and calls for a round.

// route sends commits to the runtime's store as they are.
func (rt *Runtime) route() commit.Route { return commit.Route{Store: rt.store} }

// send commits c, whose writes replace bases, and returns the verdict. It returns an error unless c landed or was lost; see verdictError.
func (rt *Runtime) send(ctx context.Context, route commit.Route, retry Retry, c persist.Commit, bases []commit.Base) (commit.Verdict, error) {
	v := commit.Send(ctx, route, retry.backoff(), c, bases)
	return v, verdictError(v)
}

// baseOf returns what settling a commit in doubt depends on.
func baseOf(d *document.Doc) commit.Base {
	return commit.Base{Absent: d.Life == absent, Born: d.Born}
}

// ask lets fn call the store for r, until the last budget of its members ends. The context is no caller's: the call is made for several
// of them, and one that is cut in mid-commit would leave the others in doubt. A panic of the store is an answer like
// others; if it ends this goroutine (runtime.Goexit), everybody gets an error and a new one goes on.
func (c *cell) ask(r *round, fn func(ctx context.Context) error) (err error) {
	until := time.Now()
	if r.solo != nil || r.slow {
		until = until.Add(leastTime)
	}
	for _, w := range r.members {
		if d := w.submitted.Add(w.call.retry.Within); d.After(until) {
			until = d
		}
	}
	ctx := &patient{until: until}
	defer ctx.over()
	p := guarded(func() { err = fn(ctx) }, func() {
		go func() {
			c.answerAll(r, r.broken(errors.New("the store called runtime.Goexit")))
			if c.ended(r) {
				c.work(c)
			}
		}()
	})
	if p != nil {
		return r.broken(p)
	}
	return err
}

// patient is a context that ends at its deadline only, or with the call that it is for, in a goroutine that no caller waits for: a store need not start another one to be back
// when it ends. Until somebody wants to be told of that, it is no more than the time.
type patient struct {
	until  time.Time
	mu     sync.Mutex
	ctx    context.Context // that tells; nil: nobody has asked
	cancel context.CancelFunc
}

// Patient marks it, for stores.
func (*patient) Patient() {}

func (p *patient) Deadline() (time.Time, bool) { return p.until, true }

func (p *patient) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil {
		p.ctx, p.cancel = context.WithDeadline(context.Background(), p.until)
	}
	return p.ctx.Done()
}

func (p *patient) Err() error {
	if ctx := p.told(); ctx != nil {
		return ctx.Err()
	}
	if time.Now().Before(p.until) {
		return nil
	}
	return context.DeadlineExceeded
}

func (p *patient) Value(key any) any {
	if ctx := p.told(); ctx != nil {
		return ctx.Value(key) // a context that is made of this one finds out that way how to be told
	}
	return nil
}

func (p *patient) told() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ctx
}

// over ends it, for whoever still has it or asks later, and lets go of the timer, if there is one.
func (p *patient) over() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil {
		p.ctx = endedContext
		return
	}
	p.cancel()
}

// endedContext is one that has been canceled.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// broken is what a store that answers in no proper way means for the members of r.
func (r *round) broken(cause error) error {
	key := r.members[0].call.key
	if r.draft.Changed > 0 {
		return &UnknownOutcomeError{Scope: key, Cause: cause}
	}
	return &UnavailableError{Scope: key, Cause: cause}
}
