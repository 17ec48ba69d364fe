package pawl

import (
	"context"
	"errors"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/document"
	"github.com/pawl-go/pawl/internal/queue"
	"github.com/pawl-go/pawl/persist"
)

// Calls of the store: commits, up to their verdict, and calls for a batch.

// route returns the route of a commit to the runtime's store that runs no code of the caller's.
func (rt *Runtime) route() commit.Route { return commit.Route{Store: rt.logs} }

// send commits c, whose writes replace bases, and returns the verdict. It returns an error unless c
// landed or was lost; see verdictError. A commit beyond the limits of the store is not sent: the error
// is *LimitError.
func (rt *Runtime) send(
	ctx context.Context, route commit.Route, retry Retry, c persist.Commit, bases []commit.Base,
) (commit.Verdict, error) {
	if limit, ok := errors.AsType[*persist.LimitError](rt.limits.Check(c)); ok {
		return commit.Verdict{}, overLimit(c.Keys()[0], limit)
	}
	v := commit.Send(ctx, rt.env.observed(route), retry.backoff(), c, bases)
	return v, verdictError(v)
}

// baseOf returns the facts about a base that settle a commit in doubt.
func baseOf(d *document.Doc) commit.Base {
	return commit.Base{Absent: d.Life == absent, Born: d.Born}
}

// ask lets fn call the store for b, until the last budget of its members ends. The context belongs
// to no caller: several share the call, and canceling it for one would leave the others in doubt. A
// panic of the store is returned as an error. If the store ends this goroutine
// (runtime.Goexit), every member gets an error and a new goroutine drives the queue.
func (s *stored) ask(b *batch, fn func(ctx context.Context) error) (err error) {
	until := time.Now()
	for _, w := range b.members {
		if d := w.Value.submitted.Add(w.Value.call.retry.Within); d.After(until) {
			until = d
		}
	}
	ctx := &patient{deadlineContext{Context: context.Background(), until: until}}
	defer ctx.release()
	p := guarded(func() { err = fn(ctx) }, func() {
		go func() {
			s.failAll(b, b.broken(errors.New("the store called runtime.Goexit")))
			if s.ended(b) == queue.Kept {
				s.Work()
			}
		}()
	})
	if p != nil {
		return b.broken(p)
	}
	return err
}

// storeTimeout is how long the store may take to answer where no caller's budget limits it.
const storeTimeout = 5 * time.Second

// patient is a context that ends at its deadline, or when the call that it is made for returns. No
// caller waits for that goroutine, so a store need not start another one to return in time.
type patient struct{ deadlineContext }

var _ persist.Patient = (*patient)(nil)

// Patient marks the context for stores; see persist.Patient.
func (*patient) Patient() {}

// broken returns the error of the members of b when the store panics or ends the goroutine.
func (b *batch) broken(cause error) error {
	return noAnswer(b.members[0].Value.call.key, "", b.draft.Changed > 0, cause)
}

// noAnswer returns the error of a call to which the store gave no valid answer. Id is that of its
// commit, if known; changes says whether the commit changes anything.
func noAnswer(key Key, id string, changes bool, cause error) error {
	if changes {
		return &UnknownOutcomeError{Scope: key, Commit: id, Cause: cause}
	}
	return &UnavailableError{Scope: key, Cause: cause}
}
