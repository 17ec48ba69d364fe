package stream

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/worker"
	"github.com/pawl-go/pawl/persist"
)

// A position of a reaction on a stream:
//
//	from           event                                 to         changes
//	none, idle     route: an event was appended          ready      Known, Due
//	ready          claim                                 claimed    lease, Lost +1
//	claimed        ack, events are left                  ready      Next, Retry 0, Lost 0
//	claimed        ack, none is left                     idle       the same
//	claimed        failure, Defer, Stop                  ready      Due; a failure: Retry +1
//	claimed        budget spent, NonRetryable, MaxLost   blocked    Reason
//	blocked        Unblock                               ready      Turn +1
//	any            Reset                                 ready      Next 0, Turn +1
//
// A position is claimed while it has a live lease; its label stays ready.
//
// Routing goes through the order of all streams: for each event it makes the positions of the
// reactions that want it ready, and then moves the cursor of those reactions. So an event is routed
// at least once whatever process dies, and routing twice changes nothing. There is one exception: a
// position that cannot be written, such as one that does not decode, is logged and left out, so that
// it does not stop all others. The next event of its stream tries it again.
//
// Races, and what decides each:
//   - Two processes route the same events: a position is only moved forward, and so is the cursor.
//   - An event is appended while its stream is handled: routing raises Known of the position, and the
//     ack becomes idle only if it has handled all that is known. Both are version-checked writes of
//     one document.
//   - An event is appended after the events were read and before the ack: as above, or the routing
//     comes after the ack and makes the idle position ready.
//   - Two workers claim one position: taking is a version-checked write. One of them gets the lease.
//   - A worker that was paused until its lease ran out acks, fails or appends: its commit is tested
//     against the token of the lease, and refused.
//   - A process dies after the handler returned and before the ack: the events are handled again.
//     Appends of the handler and its OnCommit writes are not made twice: the one is noted in the
//     position, the other is part of the ack.
//   - An event kills its process: the lease was counted when it was taken. After MaxLost leases in a
//     row without an end the position is blocked, before the handler runs.
//   - Reset while the stream is handled: it raises Turn. The ack sees another Turn, makes no writes of
//     OnCommit, and only releases the lease. Appends of the handler return ErrMoved.
//   - The stream was deleted and made anew: its head has another life. The position starts again with
//     the first event of that life.
//   - A wake-up while the process looks for work: the loop remembers it, and looks again. A lost hint
//     costs one Poll.

// point is a moment at which a test can interrupt the work.
type point string

const (
	pointRouted   point = "routed"   // positions are ready, the cursor has not moved
	pointMoved    point = "moved"    // the cursor has moved
	pointClaimed  point = "claimed"  // the lease is taken, nothing was read
	pointHandled  point = "handled"  // a handler has returned
	pointAcked    point = "acked"    // the ack is committed
	pointFailed   point = "failed"   // a failure is recorded
	pointGuarded  point = "guarded"  // CloseStream: appends are refused
	pointArchived point = "archived" // CloseStream: the archive has returned
	pointRecorded point = "recorded" // CloseStream: that is recorded
	pointEnded    point = "ended"    // CloseStream: the events are removed
)

// points are all points, for tests.
var points = []point{
	pointRouted, pointMoved, pointClaimed, pointHandled, pointAcked, pointFailed,
	pointGuarded, pointArchived, pointRecorded, pointEnded,
}

// commitRetry is the budget of a commit that ends a claim.
var commitRetry = pawl.Retry{Attempts: 100, First: 5 * time.Millisecond, Max: 500 * time.Millisecond, Within: time.Minute}

// Start runs the reactions, in the background, until Stop or until ctx ends. The contexts of the
// handlers are made from ctx. Starting a started log does nothing. Start returns the cause of a ctx
// that has ended, and ErrStopped after Stop.
func (l *Log) Start(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.loop.Start(ctx); err != nil || l.started {
		return stopped(err)
	}
	l.started = true
	ctx, l.stop = context.WithCancel(ctx)
	l.ended = make(chan struct{})
	go l.follow(ctx, l.heads.Wakeups(ctx, l.rt), l.positions.Wakeups(ctx, l.rt), l.ended)
	l.loop.Wake() // for a hint after its first look, and before Wakeups
	return nil
}

// follow wakes the loop for each hint of the store.
func (s *shared) follow(ctx context.Context, events, positions <-chan struct{}, ended chan struct{}) {
	defer close(ended)
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
		case <-positions:
		}
		s.loop.Wake()
	}
}

// Stop takes no more streams and waits for the handlers in progress. When ctx ends first, it ends
// their contexts and returns an error that wraps the cause of ctx; another Stop can wait for them.
// An interrupted event is handled again, by another process or a new Log, and the attempt is not
// counted. Stopping twice is safe. A handler must not call Stop.
func (l *Log) Stop(ctx context.Context) error {
	err := l.loop.Stop(ctx)
	l.mu.Lock()
	stop, ended := l.stop, l.ended
	l.mu.Unlock()
	if stop != nil {
		stop()
		<-ended
	}
	return err
}

// Drain handles all events that are there and all that handlers append, and returns how many times
// it claimed a stream. Events whose next attempt is due later are left. It is for tests and tools,
// and works without Start. It returns the errors of the store, ErrStopped after Stop, and the cause
// of a ctx that has ended.
func (l *Log) Drain(ctx context.Context) (int, error) {
	n, err := l.loop.Once(ctx)
	return n, stopped(err)
}

// claim is a position whose lease this process holds.
type claim struct {
	pawl.Taken[position]
	reaction *reaction
	from     position  // as it was taken
	at       time.Time // just after it was taken, by the clock of this process
}

// now estimates the time by the store's clock. It is not ahead of it.
func (c *claim) now() time.Time { return c.Time.Add(time.Since(c.at)) }

// take is the Take of the loop: it routes what is new, and claims positions.
func (s *shared) take(ctx context.Context, limit int) (claims []claim, err error) {
	s.mu.Lock()
	reactions := slices.Collect(maps.Values(s.reactions))
	s.mu.Unlock()
	if len(reactions) == 0 {
		return nil, nil
	}
	for more := true; more && len(claims) == 0; { // a page may have nothing for the reactions
		if more, err = s.route(ctx, reactions); err != nil {
			return nil, err
		}
		if claims, err = s.claimAll(ctx, reactions, limit); err != nil {
			return claims, err
		}
		if more {
			s.loop.Wake()
		}
	}
	return claims, nil
}

// claimAll claims up to limit positions, in the order of priorities.
func (s *shared) claimAll(ctx context.Context, reactions []*reaction, limit int) (claims []claim, err error) {
	// Before the claims: a position that falls due between the two is claimed.
	in, err := s.positions.NextDue(ctx, s.rt, pawl.Query{Labels: readyLabels(reactions)}, 2*s.config.Poll)
	if err != nil {
		return nil, err
	}
	if in > 0 {
		s.loop.WakeIn(in)
	}
	groups := s.groups(reactions)
	if len(groups) > 1 { // one query for all of them, because most looks find nothing
		if found, err := s.anyDue(ctx, reactions); err != nil || !found {
			return nil, err
		}
	}
	for _, g := range groups {
		size := min(limit-len(claims), g.room)
		if size <= 0 {
			continue
		}
		some, err := s.claim(ctx, g.reactions, size)
		claims = append(claims, some...)
		if err != nil {
			return claims, err
		}
	}
	return claims, nil
}

// anyDue reports whether a position can be claimed.
func (s *shared) anyDue(ctx context.Context, reactions []*reaction) (bool, error) {
	page, err := s.rt.Store().List(ctx, persist.Query{
		Kind: s.positions.Name, Labels: readyLabels(reactions), Due: true, Unheld: true, Limit: 1,
	})
	if err != nil {
		return false, s.listError(ctx, err)
	}
	return len(page.Records) > 0, nil
}

// group is a set of reactions that are claimed together, and how many positions they may claim now.
type group struct {
	reactions []*reaction
	room      int
}

// groups returns the reactions in the order of their priorities. A reaction with a limit of its own
// is a group by itself.
func (s *shared) groups(reactions []*reaction) (groups []group) {
	slices.SortFunc(reactions, func(a, b *reaction) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Concurrency, b.Concurrency), cmp.Compare(a.Name, b.Name))
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range reactions {
		limited := r.Concurrency < s.config.Concurrency
		if last := len(groups) - 1; last >= 0 && !limited {
			before := groups[last].reactions[0]
			if before.Priority == r.Priority && before.Concurrency == r.Concurrency {
				groups[last].reactions = append(groups[last].reactions, r)
				continue
			}
		}
		room := s.config.Concurrency
		if limited {
			room = r.Concurrency - s.running[r.Name]
		}
		groups = append(groups, group{[]*reaction{r}, room})
	}
	return groups
}

// claim takes the leases of up to limit positions. They outlive ctx, because Stop waits for handlers
// in progress.
func (s *shared) claim(ctx context.Context, reactions []*reaction, limit int) (claims []claim, err error) {
	q := pawl.Query{Due: true, Labels: readyLabels(reactions), Limit: limit}
	taken, err := s.positions.Take(context.WithoutCancel(ctx), s.rt, q, pawl.LeaseFor(s.config.Lease),
		pawl.WithMutation(pawl.Inc{Field: "lost", By: 1}))
	at := time.Now() // afterwards, so that claim.now is not ahead of the store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range taken {
		doc := t.State()
		s.running[doc.Reaction]++
		claims = append(claims, claim{t, s.reactions[doc.Reaction], doc, at})
	}
	if err == nil || ctx.Err() != nil || pawl.IsRetryable(err) || pawl.OutcomeUnknown(err) || errors.Is(err, pawl.ErrClosed) {
		return claims, err
	}
	// About single documents: they must not delay the others.
	s.config.Logger.WarnContext(ctx, "stream: positions were left alone", "kind", s.positions.Name, "err", err)
	return claims, nil
}

// stopped returns err, with ErrStopped in place of the error of the loop.
func stopped(err error) error {
	if errors.Is(err, worker.ErrStopped) {
		return ErrStopped
	}
	return err
}
