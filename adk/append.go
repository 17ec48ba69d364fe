package adk

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/stream"
	"google.golang.org/adk/v2/session"
)

// AppendEvent adds an event to the session of a handle, and applies its state delta, in one commit.
// It does nothing for a partial event. Afterwards the handle shows the event and the delta, and the
// event has lost its temporary keys. After an error the handle and the event are as before.
//
// It returns ErrStale as Config.Policy says, and for a handle on a session that was deleted and
// created again. It returns ErrNotFound if the session does not exist, an error for a Session that is
// not of a Service, *pawl.FieldError for a value that no store can keep or that Inc cannot add to, and
// *pawl.LimitError for a state above the limit of documents. Get the session and look for the id of
// the event after an error for which pawl.OutcomeUnknown is true: the event may be stored.
func (s *Service) AppendEvent(ctx context.Context, cur session.Session, event *session.Event) error {
	h, ok := cur.(*handle)
	switch {
	case cur == nil || ok && h == nil:
		return errNoSession
	case event == nil:
		return errNoEvent
	case event.Partial:
		return nil
	case !ok:
		return fmt.Errorf("unexpected session type %T for session ID %s", cur, cur.ID())
	}
	select {
	case h.appending <- struct{}{}:
		defer func() { <-h.appending }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	d, err := newDelta(event.Actions.StateDelta)
	if err != nil {
		return err
	}
	a := pending{s: s, h: h, event: event, write: newWrite()}
	a.delta, a.seen = h.tested(d)
	if err := pawl.Transact(ctx, s.rt, a.run, patient); err != nil {
		return err
	}
	event.Timestamp = microseconds(event.Timestamp)
	h.appended(event, a.write, a.sums)
	return nil
}

// patient lets the time of the runtime's retry budget decide, and not the number of conflicts: a refusal
// costs the caller a turn of the agent.
var patient = pawl.WithRetry(pawl.Retry{Attempts: 1000})

// microseconds returns t as ADK's database service keeps it.
func microseconds(t time.Time) time.Time { return t.Truncate(time.Microsecond) }

// pending is an append in progress.
type pending struct {
	s     *Service
	h     *handle
	event *session.Event // not changed
	write string         // names this append; see cell
	delta delta
	seen  int64 // events that the handle has seen

	// sums holds the results of increments in the last run.
	sums map[string]any
}

// run is the function of the transaction.
func (a *pending) run(ctx context.Context, tx *pawl.Tx) error {
	a.sums = map[string]any{}
	stored := *a.event
	stored.Timestamp = microseconds(stored.Timestamp)

	if _, _, err := a.s.applyShared(ctx, tx, a.h.app, a.h.user, a.delta, a.write, a.sums); err != nil {
		return err
	}
	var entries []any
	var last int64
	scope := sessions.Scope(tx, sessionID(a.h.app, a.h.user, a.h.id))
	_, err := scope.AtomicState(ctx, func(_ context.Context, hd *head) error {
		switch {
		case hd.Stream != a.h.stream:
			return fmt.Errorf("%w: session %s was deleted and created again", ErrStale, a.h.id)
		case a.s.config.Policy == WholeSession && hd.Events != a.seen:
			return fmt.Errorf("%w: session %s has %d events, and the handle has seen %d", ErrStale, a.h.id, hd.Events, a.seen)
		}
		if err := a.delta.own.apply(&hd.State, a.write, "", scope.Key(), a.sums); err != nil {
			return err
		}
		stored.Actions.StateDelta = withoutTemp(maps.Clone(a.event.Actions.StateDelta), a.sums)
		var err error
		if entries, err = encodeEvent(&stored, hd.Latest, a.s.piece); err != nil {
			return err
		}
		last = hd.Entries - 1
		hd.Updated = stored.Timestamp
		if stored.Timestamp.After(hd.Latest) {
			hd.Latest = stored.Timestamp
		}
		hd.Events++
		hd.Entries += int64(len(entries))
		return nil
	}, pawl.IfExists())
	if pawl.IsAbsent(err) {
		return fmt.Errorf("%w, cannot apply event", ErrNotFound)
	}
	if err != nil {
		return err
	}
	_, err = a.s.log.In(tx).Append(ctx, a.h.stream, stream.At(last), entries...)
	return err
}
