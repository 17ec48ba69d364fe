package stream

import (
	"context"
	"errors"
	"iter"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
)

// Filter selects positions of reactions; the zero value selects all. A field that is set restricts
// the selection.
type Filter struct {
	Reactions []string       // names of reactions
	Streams   []string       // names of streams
	Stream    *regexp.Regexp // matches the names of streams
	Source    string         // only reactions of this process whose Source has this text
	Blocked   bool           // blocked ones only
}

func (f Filter) empty() bool {
	return len(f.Reactions)+len(f.Streams) == 0 && f.Stream == nil && f.Source == "" && !f.Blocked
}

// selects reports whether p is selected.
func (s *shared) selects(f Filter, p *position) bool {
	if f.Source != "" {
		s.mu.Lock()
		r := s.reactions[p.Reaction]
		s.mu.Unlock()
		if r == nil || r.Source == nil || r.Source.String() != f.Source {
			return false
		}
	}
	return (len(f.Reactions) == 0 || slices.Contains(f.Reactions, p.Reaction)) &&
		(len(f.Streams) == 0 || slices.Contains(f.Streams, p.Stream)) &&
		(f.Stream == nil || f.Stream.MatchString(p.Stream)) &&
		(!f.Blocked || p.state() == blocked)
}

// Position is where a reaction stands on a stream.
type Position struct {
	Reaction, Stream string
	// Next is the first event that was not handled.
	Next int64
	// Pending says that there are events to handle, as far as the reaction was told.
	Pending bool
	// Retry counts the failures of event Next, and Lost the leases that were lost in a row on it. A
	// claim in progress counts as one.
	Retry, Lost int
	// Blocked says that the stream is not handled until Unblock or Reset.
	Blocked bool
	// Reason says why event Next is handled again or blocked.
	Reason string
	// Due is when event Next is handled, by the store's clock; zero: the position is idle or blocked.
	Due time.Time
	// Holder is the process that handles the stream until Until; empty: none does.
	Holder string
	Until  time.Time
}

// Positions yields where reactions stand, of all processes, without leasing anything, in the order of
// streams and reactions. Errors are in the last pair: *pawl.UnavailableError and *pawl.CanceledError.
func (l *Log) Positions(ctx context.Context, f Filter) iter.Seq2[Position, error] {
	return func(yield func(Position, error) bool) {
		for r, err := range l.records(ctx, "") {
			if err != nil {
				yield(Position{}, err)
				return
			}
			p, err := positionOf(r.Doc)
			if err != nil || !l.selects(f, &p) {
				continue
			}
			out := Position{
				Reaction: p.Reaction, Stream: p.Stream, Next: p.Next, Pending: p.Next < p.Known, Retry: p.Retry, Lost: p.Lost,
				Blocked: p.state() == blocked, Reason: p.Reason, Due: r.Due,
			}
			if r.Held(r.Now) {
				out.Holder, out.Until = r.Lease.Holder, r.Lease.Until
			}
			if !yield(out, nil) {
				return
			}
		}
	}
}

// records yields the records of positions whose ids start with prefix.
func (s *shared) records(ctx context.Context, prefix string) iter.Seq2[persist.Record, error] {
	return func(yield func(persist.Record, error) bool) {
		if ctx == nil {
			yield(persist.Record{}, &pawl.ArgumentError{Argument: "ctx", Reason: "nil"})
			return
		}
		for q := (persist.Query{Kind: s.positions.Name, Prefix: prefix}); ; {
			page, err := s.rt.Store().List(ctx, q)
			if err != nil {
				yield(persist.Record{}, s.listError(ctx, err))
				return
			}
			for _, r := range page.Records {
				if !yield(r, nil) {
					return
				}
			}
			if q.After = page.Next; q.After == "" {
				return
			}
		}
	}
}

// listError returns the error of a listing of positions that failed with err.
func (s *shared) listError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &pawl.CanceledError{Scope: pawl.Key{Kind: s.positions.Name}, Phase: pawl.PhaseQueued, Cause: context.Cause(ctx)}
	}
	return &pawl.UnavailableError{Scope: pawl.Key{Kind: s.positions.Name}, Cause: err}
}

// Unblock lets the blocked positions that f selects go on where they stopped, with a full budget, and
// returns how many. The zero Filter selects all that are blocked. It returns the number also with an
// error: those of Positions and of pawl.Scope.AtomicState.
func (l *Log) Unblock(ctx context.Context, f Filter) (int, error) {
	f.Blocked = true
	return l.changeAll(ctx, f, func(p *position) bool {
		if p.state() != blocked {
			return false
		}
		p.restart(p.Next) // appends that were made for the event stay known
		return true
	})
}

// Reset lets the positions that f selects start again with event 0, also those that are blocked, and
// returns how many. Events that are handled again make their appends again. A handler in progress is
// not interrupted; its acknowledgement does not move the position. It returns *pawl.ArgumentError for
// the zero Filter, and the number also with an error: those of Positions and of
// pawl.Scope.AtomicState.
func (l *Log) Reset(ctx context.Context, f Filter) (int, error) {
	if f.empty() {
		return 0, &pawl.ArgumentError{Argument: "Filter", Reason: "an empty filter would reset all positions"}
	}
	return l.changeAll(ctx, f, func(p *position) bool {
		p.restart(0)
		p.Made = nil
		return true
	})
}

// restart makes p ready at an event, with a full budget.
func (p *position) restart(next int64) {
	p.Next, p.Retry, p.Lost, p.Reason = next, 0, 0, ""
	p.Turn++
	p.become(ready)
	p.Due = time.Unix(0, 0).UTC() // at once, and before others
}

// changeAll applies fn to the positions that f selects, and returns for how many it reported true.
func (l *Log) changeAll(ctx context.Context, f Filter, fn func(p *position) bool) (n int, err error) {
	var ids []string
	for r, err := range l.records(ctx, "") {
		if err != nil {
			return 0, err
		}
		if p, err := positionOf(r.Doc); err == nil && l.selects(f, &p) {
			ids = append(ids, r.ID)
		}
	}
	for _, id := range ids {
		changed := false
		_, err := l.positions.Scope(l.rt, id).AtomicState(ctx, func(_ context.Context, p *position) error {
			changed = l.selects(f, p) && fn(p)
			return nil
		}, pawl.IfExists())
		if err != nil && !pawl.IsAbsent(err) {
			return n, err
		}
		if err == nil && changed {
			n++
		}
	}
	l.loop.Wake()
	return n, nil
}

// Forget removes the cursor and the positions of a reaction that no process has any more. Until then
// CloseStream and Trim return *PendingError if that reaction is behind. A process that still has the
// reaction would handle all events again. Forget returns the errors of Positions,
// pawl.Scope.AtomicState and pawl.Scope.Delete.
func (l *Log) Forget(ctx context.Context, reaction string) error {
	_, err := l.cursors.Scope(l.rt, cursorID).AtomicState(ctx, func(_ context.Context, c *cursor) error {
		delete(c.At, reaction)
		return nil
	})
	if err != nil {
		return err
	}
	for r, err := range l.records(ctx, "") {
		if err != nil {
			return err
		}
		if r.ID[strings.LastIndexByte(r.ID, '/')+1:] != reaction { // no name of a reaction has a slash
			continue
		}
		if err := l.positions.Scope(l.rt, r.ID).Delete(ctx); err != nil {
			return err
		}
	}
	return nil
}

// standing is the position of a reaction on a stream, with its record. One that cannot be read has only
// the stream and the reaction, from its id.
type standing struct {
	position
	record     persist.Record
	unreadable error // nil: it was read
}

// standings returns the positions of all reactions on a stream.
func (s *shared) standings(ctx context.Context, stream string) (all []standing, err error) {
	prefix := positionID(stream, "")
	for r, err := range s.records(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		reaction := strings.TrimPrefix(r.ID, prefix)
		if strings.Contains(reaction, "/") {
			continue // of a stream whose name starts with this name and a slash
		}
		p, err := positionOf(r.Doc)
		if err == nil && (p.Stream != stream || p.Reaction != reaction) {
			err = errors.New("it is not about the stream and the reaction of its id")
		}
		if err != nil {
			p = position{Stream: stream, Reaction: reaction}
		}
		all = append(all, standing{position: p, record: r, unreadable: err})
	}
	return all, nil
}
