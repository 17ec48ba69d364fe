package stream

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl"
)

// Routing: from the order of all streams to the positions of reactions.

// cursor is how far the order of all streams was routed, by reaction.
type cursor struct {
	At map[string]uint64 `json:"at"`
}

const (
	cursorID      = "routed" // the id of the cursor
	routePage     = 500      // events that are routed at a time
	routeParallel = 16       // positions that are written at a time
)

// news is an event that a reaction has to handle: the last one of its stream on a page.
type news struct {
	reaction     *reaction
	stream, life string
	version      int64
	at           time.Time // of its commit, by the store's clock
}

// route makes positions ready for the events that are new. It reports whether there may be more.
// Reactions that are behind, such as a new one that has the whole history before it, are routed
// apart, so that they do not hold up the others.
func (s *shared) route(ctx context.Context, reactions []*reaction) (more bool, err error) {
	scope := s.cursors.Scope(s.rt, cursorID)
	seen, known := scope.LastSeen()
	if !known {
		if seen, err = scope.Snapshot(ctx); err != nil {
			return false, err
		}
	}
	front, behind := split(seen, reactions)
	for _, some := range [][]*reaction{front, behind} {
		if len(some) == 0 {
			continue
		}
		again, err := s.routeSome(ctx, scope, seen, known, some)
		if err != nil {
			return false, err
		}
		more = more || again
	}
	return more, nil
}

// split returns the reactions that are furthest ahead, and the others.
func split(seen pawl.Snapshot[cursor], reactions []*reaction) (front, behind []*reaction) {
	var c cursor
	if seen.Exists() {
		c = *seen.ReadOnly()
	}
	var most uint64
	for _, r := range reactions {
		most = max(most, c.At[r.Name])
	}
	for _, r := range reactions {
		if c.At[r.Name] == most {
			front = append(front, r)
		} else {
			behind = append(behind, r)
		}
	}
	return front, behind
}

// routeSome routes one page of events after the cursor of the reaction that is furthest behind. Seen
// is the cursor, which another process may have moved if it is cached.
func (s *shared) routeSome(ctx context.Context, scope pawl.Scope[cursor], seen pawl.Snapshot[cursor], cached bool, reactions []*reaction) (more bool, err error) {
	page, at, err := s.unrouted(ctx, seen, reactions)
	if err != nil || len(page) == 0 {
		return false, err // usually: one query
	}
	if cached { // another process may have routed them
		now, err := scope.Snapshot(ctx)
		if err != nil {
			return false, err
		}
		if now.Version != seen.Version {
			return s.routeSome(ctx, scope, now, false, reactions)
		}
	}
	if err := s.spread(ctx, s.newsFor(reactions, at, page)); err != nil {
		return false, err
	}
	s.hook(pointRouted, "")
	last := page[len(page)-1].Position
	_, err = scope.AtomicState(ctx, func(_ context.Context, c *cursor) error {
		if c.At == nil {
			c.At = map[string]uint64{}
		}
		for _, r := range reactions {
			c.At[r.Name] = max(c.At[r.Name], last)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	s.hook(pointMoved, "")
	return len(page) == routePage, nil
}

// unrouted returns the page of events after the cursor of the reaction that is furthest behind, and
// the cursors of all reactions.
func (s *shared) unrouted(ctx context.Context, seen pawl.Snapshot[cursor], reactions []*reaction) (page []pawl.LogEntry, at map[string]uint64, err error) {
	at = map[string]uint64{}
	var c cursor
	if seen.Exists() {
		c = *seen.ReadOnly()
	}
	least := c.At[reactions[0].Name]
	for _, r := range reactions {
		at[r.Name] = c.At[r.Name]
		least = min(least, at[r.Name])
	}
	page, err = s.rt.ReadLogs(ctx, least, routePage, s.config.Name)
	return page, at, err
}

// newsFor returns what the page has for each reaction.
func (s *shared) newsFor(reactions []*reaction, at map[string]uint64, page []pawl.LogEntry) []news {
	type place struct{ reaction, stream string }
	last := map[place]news{}
	for _, raw := range page {
		var e struct {
			Life string `json:"life"`
			Type string `json:"type"`
		}
		if err := json.Unmarshal(raw.Data, &e); err != nil { // the handler will meet it, and block
			s.config.Logger.Error("stream: an entry is not an event", "stream", raw.ID, "version", raw.Number, "err", err)
		}
		for _, r := range reactions {
			if raw.Position > at[r.Name] && r.wants(raw.ID, e.Type) {
				last[place{r.Name, raw.ID}] = news{r, raw.ID, e.Life, int64(raw.Number), raw.At}
			}
		}
	}
	all := make([]news, 0, len(last))
	for _, n := range last {
		all = append(all, n)
	}
	return all
}

// spread makes the positions of news ready.
func (s *shared) spread(ctx context.Context, all []news) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(routeParallel)
	for _, n := range all {
		g.Go(func() error {
			err := s.tell(ctx, n)
			if err == nil || ctx.Err() != nil || pawl.IsRetryable(err) || pawl.OutcomeUnknown(err) || errors.Is(err, pawl.ErrClosed) {
				return err
			}
			// About this position: it must not hold up the others. The next event tells it again.
			s.config.Logger.ErrorContext(ctx, "stream: a position cannot be written", "reaction", n.reaction.Name, "stream", n.stream, "err", err)
			return nil
		})
	}
	return g.Wait()
}

// errOtherLife is returned by a change of a position that belongs to another life of the stream.
var errOtherLife = errors.New("stream: another life")

// tell makes one position ready. A position that is blocked stays so, and one that waits for its
// next attempt is not hurried.
func (s *shared) tell(ctx context.Context, n news) error {
	scope := s.positions.Scope(s.rt, positionID(n.stream, n.reaction.Name))
	if n.life == "" { // the entry is not an event, and does not say its life
		h, err := (&Log{s, s.rt}).head(ctx, n.stream)
		if err != nil {
			return err
		}
		n.life = h.Life
	}
	var other, over string // a life that the position has, and one that is known to be over; empty: none
	tell := func(_ context.Context, p *position) error {
		if p.Life == over || p.Life == "" {
			*p = position{Reaction: n.reaction.Name, Stream: n.stream, Life: n.life, Turn: p.Turn + 1}
			p.become(idle)
		}
		if p.Life != n.life {
			other = p.Life
			return errOtherLife
		}
		if p.Known = max(p.Known, n.version+1); p.Known > p.Next && p.state() == idle {
			p.become(ready)
			p.Due = n.at
		}
		return nil
	}
	err := change(ctx, scope, tell)
	if !errors.Is(err, errOtherLife) {
		return err
	}
	// The stream was deleted and made anew. Which of the two lives is the later one, its head says.
	h, err := (&Log{s, s.rt}).head(ctx, n.stream)
	if err != nil || h.Life != n.life {
		return err
	}
	over = other
	if err = change(ctx, scope, tell); errors.Is(err, errOtherLife) {
		return nil // changed meanwhile, to the life that the head has, or a later one
	}
	return err
}

// change applies fn to the document of scope, and makes a new one if it was deleted. It tries again
// if the document comes and goes between the two tests.
func change[T any](ctx context.Context, scope pawl.Scope[T], fn func(context.Context, *T) error) error {
	for {
		_, err := scope.AtomicState(ctx, fn)
		if !errors.Is(err, pawl.ErrDeleted) {
			return err
		}
		if _, err = scope.AtomicState(ctx, fn, pawl.IfAbsent()); !errors.Is(err, pawl.ErrExists) {
			return err
		}
	}
}
