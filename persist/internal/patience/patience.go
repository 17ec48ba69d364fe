// Package patience is about those who wait in a store, and for whom nobody waits.
//
// The context of such a caller has a method Patient(). It has a deadline, and ends no sooner while the call lasts, and what the caller has handed
// over is never changed. So a store need not be back before it has an answer, can use what it was given as it is, and can wait with others'
// timers: to make one takes longer than what is done with it as a rule.
package patience

import (
	"context"
	"sync/atomic"
	"time"
)

// Has reports whether ctx is that of a patient caller.
func Has(ctx context.Context) bool {
	_, ok := ctx.(interface{ Patient() })
	return ok
}

// EndOf returns when a call that begins now and may take so long ends at the latest, and whether that is known from ctx, too, because it is
// patient. The end of any other is left to itself: of two timers that are set to the same moment, this one could be first.
func EndOf(ctx context.Context, limit time.Duration) (end time.Time, patient bool) {
	end = time.Now().Add(limit)
	if patient = Has(ctx); patient {
		if given, ok := ctx.Deadline(); ok && given.Before(end) {
			end = given
		}
	}
	return end, patient
}

// Ends are the contexts of those who wait for nothing but time, and share them. Its zero value is ready.
type Ends struct{ last atomic.Pointer[moment] }

// moment is a context that ends then. It is not canceled, because nobody knows who has it.
type moment struct {
	context.Context
	then   time.Time
	cancel context.CancelFunc
}

// At returns a context that ends at a time, or earlier by no more than a fraction of the time until then.
func (e *Ends) At(then time.Time) context.Context {
	if last := e.last.Load(); last != nil && !last.then.After(then) && then.Sub(last.then) <= time.Until(then)/64 {
		return last
	}
	m := &moment{then: then}
	m.Context, m.cancel = context.WithDeadline(context.Background(), then)
	e.last.Store(m)
	return m
}

// shared is how long it is waited with others' timers. Most have their answer by then; and nobody ends a timer that is shared, so that those of
// callers whose times are far apart would add up until the last of these.
const shared = time.Second

func soonest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Wait waits for an answer, or until ctx ends: then it reports false. The ends are of those who wait for such answers.
func Wait[T any](ctx context.Context, ends *Ends, answer <-chan T) (got T, ok bool) {
	if until, bounded := ctx.Deadline(); bounded && Has(ctx) {
		select {
		case got = <-answer:
			return got, true
		case <-ends.At(soonest(until, time.Now().Add(shared))).Done(): // perhaps a little early
		}
	}
	select {
	case got = <-answer:
		return got, true
	case <-ctx.Done():
		return got, false
	}
}
