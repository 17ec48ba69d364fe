package pawl

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/internal/drain"
	"github.com/pawl-go/pawl/persist"
)

// A lease from its acquisition to its end:
//
//	Acquire ─► line (lease_line.go) ─► a version-checked write takes it ─► live ─► released, or lost
//	                                                                      │  ▲
//	                                                                      └──┘ renewed: a guard
//	                                                                           extends it, and no
//	                                                                           version moves
//
// The token of a lease is the version that taking it made. A commit under the lease states the
// token, and the store tests it inside the commit, by the store's clock. Only that test decides.
// The rest spares a holder work that would be refused.
//
// Races, and what decides each:
//   - the store cannot be reached: the context ends when the lease may have run out. The time
//     counts from before the last successful renewal was sent, so the context ends before another
//     holder can get the lease.
//   - the process was stopped (SIGSTOP, a pause of the machine): nothing here notices in time; the
//     store refuses the commit. Run, Context and Acquire look at the clocks before they return or
//     start a function, and do not wait for the timer, which may not count the pause (over).
//   - a lease runs out while a commit under it is on its way: the commit is refused, or it landed
//     before. A lost answer is settled as for every commit (internal/commit).
//   - the caller of Acquire leaves during its commit: if the commit lands, the lease is given back.
//   - two holders of one scope share a commit: the one with the smaller token has lost; only its
//     mutation is dropped.
//   - the scope is deleted: its lease ends with it, whichever caller deletes.
//   - a renewal is answered while the timer runs (expire): the one that looks first decides. If the
//     answer comes first, expire reads the later end and does nothing. If expire has read the earlier
//     end, the lease ends here although the store has renewed it; no other holder gets it until that
//     runs out. extend does nothing after an end, and keep ends with the context.
//   - a commit gives the lease back, and a renewal is refused before the commit's answer arrives:
//     the commit decides, the lease was released (endByCommit).

// DefaultLease is how long a lease lives after its acquisition or its last renewal.
const DefaultLease = 30 * time.Second

// leastRenewal is the least time that the store gets for one renewal. For a longer lease it gets a
// third of the length, so that there is time for a second try when an answer never comes.
const leastRenewal = time.Second

// Lease is a live, fenced claim on a scope. It is renewed until Release, until it is lost, or until
// the context that it was acquired with ends. It is safe for concurrent use.
type Lease struct {
	rt     *Runtime
	key    Key
	stored *stored
	holder string
	token  uint64
	length time.Duration
	outer  *Lease // the lease around it; commits are tested against both; nil: none
	ctx    *frame
	cancel context.CancelCauseFunc

	mu     sync.Mutex  // protects the fields below
	until  time.Time   // the lease is live at least until then, by this process's clock
	expiry *time.Timer // calls expire; nil before under
	ended  error       // *LeaseLostError; nil: it is live

	told atomic.Bool // the observer was told of its end
}

// Acquire takes the lease of a persisted scope; an absent scope is created with a zero state.
// Taking the lease makes a version of its own. Other writers may still write the scope, and it does
// not expire while it is held. Acquire returns *HeldError while the lease is held, unless
// WaitForLease is given. A call under that same lease returns it even then: it would wait for
// itself. Acquire returns *LeaseLostError when the answer of the store arrived after the lease had
// run out: the lease was taken then, and a mutation of WithMutation is committed. It returns
// ErrNotPersisted for a scope in memory, ErrInTx on a scope in a transaction, and the errors of the
// verbs.
func (s Scope[T]) Acquire(ctx context.Context, opts ...LeaseOption) (*Lease, error) {
	l, _, err := s.handle.acquire(ctx, opts)
	return l, err
}

// Hold runs fn while holding the scope's lease, and releases it. Fn's context ends when the lease
// is lost, and commits made with it are fenced. Hold returns the errors of Acquire, or fn's error,
// or else *LeaseLostError if the lease was lost before fn returned. If this process knows that the
// lease is lost before fn starts, fn does not run. A lease that fn gave back itself, with Release or
// with ReleaseIn in a committed transaction, is not lost.
func (s Scope[T]) Hold(ctx context.Context, fn func(ctx context.Context, l *Lease) error, opts ...LeaseOption) error {
	if fn == nil {
		return &ArgumentError{Argument: "Hold", Reason: "nil function"}
	}
	l, err := s.Acquire(ctx, opts...)
	if err != nil {
		return err
	}
	return l.Run(fn)
}

// Run runs fn as Hold does, with a lease that was acquired before, and releases it. It returns fn's
// error, or *LeaseLostError as Hold does. For a lease that was lost or released before, fn does not
// run.
func (l *Lease) Run(fn func(ctx context.Context, l *Lease) error) error {
	if fn == nil {
		return &ArgumentError{Argument: "Run", Reason: "nil function"}
	}
	l.rt.leases.runs.Continue(l)
	defer l.rt.leases.runs.End(l)
	defer func() {
		if err := l.Release(context.WithoutCancel(l.ctx)); err != nil {
			l.rt.env.logger().WarnContext(l.ctx, "pawl: lease not released; it will run out", "scope", l.key.String(), "err", err)
		}
	}()
	if err := l.lostAny(); err != nil {
		return err
	}
	if err := fn(l.ctx, l); err != nil {
		return err
	}
	lost := l.lost()
	if why, ok := lost.(*LeaseLostError); ok && why.Released {
		return nil // fn gave it back itself
	}
	return lost
}

// acquire is Acquire; it also returns the state of the scope when the lease was taken.
func (s *handle) acquire(ctx context.Context, opts []LeaseOption) (*Lease, snapshot, error) {
	none := snapshot{}
	switch {
	case s.fault() != nil:
		return nil, none, s.fault()
	case ctx == nil:
		return nil, none, &ArgumentError{Argument: "ctx", Reason: "nil"}
	case s.stored == nil:
		return nil, none, wrapKey(ErrNotPersisted, s.key)
	case s.tx != nil:
		return nil, none, wrapKey(ErrInTx, s.key)
	case frameOf(ctx).outerTx() != nil:
		return nil, none, wrapKey(ErrOutsideTx, s.key)
	case ctx.Err() != nil:
		return nil, none, leftBy(ctx, s.key, PhaseQueued)
	}
	rt := s.bound.rt
	asked, err := rt.leaseCall(opts)
	if err != nil {
		return nil, none, err
	}
	for l := innermost(ctx).held(); l != nil; l = l.outer {
		if l.key == s.key {
			asked.wait = false // the call would wait for itself
		}
	}
	if f := frameOf(ctx); f != nil && f.Inside(&s.stored.lane) {
		return nil, none, wrapKey(ErrReentrant, s.key) // it would, too: the line comes before the queue
	}
	var snap snapshot
	take := func(ctx context.Context) (*Lease, error) {
		t, err := s.target()
		if err != nil {
			return nil, err
		}
		sent := time.Now()
		r, err := t.take(ctx, asked)
		if err != nil {
			return nil, err
		}
		snap = r.snapshot
		return rt.newLease(ctx, s.stored, s.key, asked, r.landed, sent), nil
	}
	l, err := s.stored.inLine(ctx, rt, s.key, asked, take)
	if err != nil {
		return nil, none, err
	}
	if rt.closed.Load() {
		_ = l.giveBack(context.WithoutCancel(ctx))
		return nil, none, wrapKey(ErrClosed, s.key)
	}
	l.under(ctx)
	if err := l.lost(); err != nil {
		_ = l.Release(context.WithoutCancel(ctx)) // tells the store only where Close ended the lease
		return nil, none, err
	}
	return l, snap, nil
}

// take applies the mutation of asked and takes the lease with the same commit.
func (t *target) take(ctx context.Context, asked leaseCall) (reply, error) {
	call, err := t.call(ctx, asked.opts)
	if err != nil {
		return reply{}, err
	}
	var ch change
	if err := ch.compile(call.key, t.typ, asked.mutation); err != nil {
		return reply{}, err
	}
	around, err := t.admit(ctx, &call)
	if err != nil {
		return reply{}, err
	}
	ch.verb, ch.creates = "Acquire", true
	ch.takes = &persist.Acquire{Holder: asked.holder, For: asked.length}
	return t.stored.apply(ctx, around.caller(), &call, &ch, t.backend)
}

// newLease returns a lease that the store has given; sent is when the store was asked.
func (rt *Runtime) newLease(ctx context.Context, s *stored, key Key, asked leaseCall, token uint64, sent time.Time) *Lease {
	l := &Lease{rt: rt, key: key, stored: s, holder: asked.holder, token: token, length: asked.length, outer: innermost(ctx).held()}
	l.until = sent.Add(l.trusted())
	return l
}

// under starts the life of the lease in this process, with a context derived from ctx.
func (l *Lease) under(ctx context.Context) *Lease {
	inner, cancel := context.WithCancelCause(ctx)
	l.ctx, l.cancel = newFrame(inner, frameOf(ctx), l), cancel
	l.mu.Lock()
	l.expiry = time.AfterFunc(time.Until(l.until), l.expire)
	l.mu.Unlock()
	l.rt.leases.add(l)
	l.observe(EventLeaseAcquired, nil)
	if l.lost() == nil {
		go l.keep()
	}
	return l
}

// Context ends when the lease is lost or released, with *LeaseLostError as its cause, or when the
// context that it was acquired with ends. It also carries the fence: a verb or Transact called with
// it, or with a context derived from it, commits only while the lease is live, whatever scope it
// writes, and otherwise returns *LeaseLostError. State in memory and containers of the caller's own
// have no store to test that: there, what this process knows of the lease decides.
//
// Context looks at the clock: the result has ended already where the lease may have run out, even
// if this process was stopped and its timers are late.
func (l *Lease) Context() context.Context {
	l.expire()
	return l.ctx
}

// Token is the fencing token: larger for every later holder of the scope. Pass it to outside
// systems that can check one.
func (l *Lease) Token() uint64 { return l.token }

// Release gives the lease back. Releasing a lost or released lease does nothing; one that ended
// with Close is still given back. It returns *UnavailableError or *CanceledError when the store
// could not be told: the lease then ends by itself, after its length.
func (l *Lease) Release(ctx context.Context) error {
	if ctx == nil {
		return &ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	why := &LeaseLostError{Scope: l.key, Token: l.token, Released: true}
	if !l.end(why) {
		return nil
	}
	if context.Cause(ctx) == error(why) { // ctx is the lease's own, or derived from it
		ctx = context.WithoutCancel(ctx)
	}
	err := l.giveBack(ctx)
	l.observe(EventLeaseReleased, err)
	return err
}

// Abandon ends the lease in this process without telling the store, where it runs out after its
// length. It spares a commit where the state of the scope says that the work is done, so that no
// other holder is going to ask for the lease. Abandoning a lost or released lease does nothing.
func (l *Lease) Abandon() {
	if l.end(&LeaseLostError{Scope: l.key, Token: l.token, Released: true}) {
		l.observe(EventLeaseReleased, nil)
	}
}

// giveBack tells the store that the lease is over.
func (l *Lease) giveBack(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, min(l.length, storeTimeout))
	defer cancel()
	err := l.guard(limited, persist.Guard{Release: true})
	for n := 1; err != nil && asFenced(err) == nil && !errors.Is(err, ErrClosed) && commit.Sleep(limited, rand.N(backoff(l.rt.retry, n))); n++ {
		err = l.guard(limited, persist.Guard{Release: true})
	}
	switch {
	case err == nil, asFenced(err) != nil:
		l.stored.released()
		return nil
	case ctx.Err() != nil:
		return leftBy(ctx, l.key, PhaseCommitting)
	}
	return err
}

// guard commits g alone, for the token of l. A panic of the store becomes an error: there may be no
// caller to raise it to.
func (l *Lease) guard(ctx context.Context, g persist.Guard) (err error) {
	g.Key, g.Token = l.key, l.token
	c := persist.Commit{ID: l.rt.env.newCommitID(), Guards: []persist.Guard{g}}
	if p := guarded(func() { _, err = l.rt.send(ctx, l.rt.route(), l.rt.retry, c, nil) }, func() {}); p != nil {
		return &UnavailableError{Scope: l.key, Cause: p}
	}
	return err
}

// keep renews the lease until it ends.
func (l *Lease) keep() {
	step := l.length / 3
	wait := time.Until(l.until) - 2*step
	for n := 1; commit.Sleep(l.ctx, wait); {
		sent := time.Now()
		until := l.knownUntil()
		if one := sent.Add(max(step, leastRenewal)); one.Before(until) {
			until = one
		}
		limited, cancel := context.WithDeadline(l.ctx, until)
		err := l.guard(limited, persist.Guard{Extend: l.length})
		cancel()
		if f := asFenced(err); f != nil {
			l.end(l.lostTo(f))
			return
		}
		if err == nil {
			l.extend(sent.Add(l.trusted()))
			n, wait = 1, step
			continue
		}
		n, wait = n+1, rand.N(min(backoff(l.rt.retry, n), step))
	}
}

// trusted is how long this process relies on the lease after the store was asked. It is less than
// the length, so that the context has ended when another holder can get the lease.
func (l *Lease) trusted() time.Duration { return l.length - l.length/20 }

func (l *Lease) knownUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

func (l *Lease) extend(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.until = until
		l.expiry.Reset(time.Until(until))
	}
}

// over reports whether until has passed by either clock. Go's monotonic clock stands still while the
// machine is suspended, and the wall clock can be set back.
func (l *Lease) over(until time.Time) bool {
	return !time.Now().Before(until) || !l.rt.env.wallClock().Before(until.Round(0))
}

// expire ends a lease that may have run out.
func (l *Lease) expire() {
	if l.over(l.knownUntil()) {
		l.end(&LeaseLostError{Scope: l.key, Token: l.token, Cause: errors.New("not renewed in time")})
	}
}

// end ends the lease in this process. It reports false if the lease had ended before.
func (l *Lease) end(why *LeaseLostError) bool {
	l.mu.Lock()
	if l.ended != nil {
		untold := why.Released && errors.Is(l.ended, ErrClosed) // Close does not tell the store
		if untold {
			l.ended = why
		}
		l.mu.Unlock()
		return untold
	}
	l.ended = why
	l.expiry.Stop()
	l.cancel(why) // under the lock: Context must not return before it, once the lease has ended
	l.mu.Unlock()
	l.rt.leases.remove(l)
	if !why.Released { // otherwise the store has to be told first
		l.stored.released()
		l.observe(EventLeaseLost, why)
	}
	return true
}

// endByCommit ends a lease that a commit of this process gave back. The commit proves that the
// lease was live, even if the renewal or the timer ended it here before the answer arrived.
func (l *Lease) endByCommit() {
	why := &LeaseLostError{Scope: l.key, Token: l.token, Released: true}
	if l.end(why) {
		l.stored.released()
		l.observe(EventLeaseReleased, nil)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = why
}

// live reports whether the lease is live, as far as this process knows. It may be called before
// under.
func (l *Lease) live() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended == nil && !l.over(l.until)
}

// lost returns why the lease has ended, as far as this process knows; nil: it is live.
func (l *Lease) lost() error {
	l.expire()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// lostTo returns the error of a lease that the store refused, with the present holder.
func (l *Lease) lostTo(f *fenced) *LeaseLostError {
	e := &LeaseLostError{Scope: l.key, Token: l.token}
	if f.current.Held(f.current.Now) {
		e.Holder = f.current.Lease.Holder
	}
	return e
}

// observe reports an event of the lease, but only one end of it: Release may follow Close.
func (l *Lease) observe(t EventType, err error) {
	if t != EventLeaseAcquired && l.told.Swap(true) {
		return
	}
	l.rt.env.observe(l.ctx, Event{Type: t, Key: l.key, Verb: "Lease", Version: l.token, Err: err})
}

// leases are the live leases of a runtime.
type leases struct {
	mu     sync.Mutex // protects live and closed
	live   map[Key]*Lease
	closed bool

	runs drain.Group[*Lease] // leases under which a function runs
}

// add registers l as live, or ends it after Close. Of two leases of one scope the earlier is lost,
// even if it was not told yet.
func (s *leases) add(l *Lease) {
	s.mu.Lock()
	closed, lost, last := s.closed, s.live[l.key], l
	if lost != nil && lost.token > l.token {
		lost, last = l, lost
	}
	if !closed {
		if s.live == nil {
			s.live = map[Key]*Lease{}
		}
		s.live[l.key] = last
	}
	s.mu.Unlock()
	if closed {
		l.end(&LeaseLostError{Scope: l.key, Token: l.token, Cause: ErrClosed})
		return
	}
	if lost != nil {
		lost.end(&LeaseLostError{Scope: l.key, Token: lost.token, Holder: last.holder})
	}
	if l.lost() != nil { // it ended before it was registered
		s.remove(l)
	}
}

func (s *leases) remove(l *Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[l.key] == l {
		delete(s.live, l.key)
	}
}

// close ends the contexts of the live leases. It does not release them: work under them may still go
// on. It returns a channel that is closed once no function of Hold runs; nil if none runs now.
func (s *leases) close() <-chan struct{} {
	s.mu.Lock()
	s.closed = true
	live := slices.Collect(maps.Values(s.live))
	s.mu.Unlock()
	for _, l := range live {
		l.end(&LeaseLostError{Scope: l.key, Token: l.token, Cause: ErrClosed})
	}
	return s.runs.Close()
}

// busy describes the functions that still run, for BusyError.
func (s *leases) busy() (out []Running) {
	for _, l := range s.runs.Live() {
		out = append(out, Running{Scope: l.key, Verb: "Hold"})
	}
	return out
}
