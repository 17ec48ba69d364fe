package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/stream"
)

// The events of a ticket.
type (
	Opened struct {
		Title string `json:"title"`
	}
	Assigned struct {
		To string `json:"to"`
	}
	Escalated struct {
		After time.Duration `json:"after"` // without an assignment
	}
	Solved struct {
		By string `json:"by"`
	}
)

// Ticket is the state that the events of a ticket make.
type Ticket struct {
	Title     string
	Owner     string
	Escalated bool
	Solved    bool
}

// fold makes a Ticket of events. Tickets are short, so it keeps no snapshots.
var fold = stream.Fold[Ticket]{Apply: func(t *Ticket, e stream.Event) error {
	switch e := e.Data.(type) {
	case Opened:
		t.Title = e.Title
	case Assigned:
		t.Owner = e.To
	case Escalated:
		t.Escalated = true
	case Solved:
		t.Solved = true
	}
	return nil
}}

var (
	ErrUnknown = errors.New("there is no such ticket")
	ErrSolved  = errors.New("the ticket is solved")
)

// Desk keeps tickets. Each of them is a stream.
type Desk struct {
	log      *stream.Log
	patience time.Duration // how long a ticket may wait for its owner
	archive  string        // the folder of solved tickets
}

// newDesk returns a desk, whose log is not started.
func newDesk(rt *pawl.Runtime, patience time.Duration, archive string) (*Desk, error) {
	log, err := stream.New(rt, stream.Config{Name: "ticket", Events: []stream.Type{
		stream.Of[Opened]("opened"), stream.Of[Assigned]("assigned"), stream.Of[Escalated]("escalated"), stream.Of[Solved]("solved"),
	}})
	if err != nil {
		return nil, err
	}
	d := &Desk{log, patience, archive}
	return d, log.React(stream.Reaction{
		Name: "escalate", Source: regexp.MustCompile("^ticket-"), Types: []string{"opened"}, Handle: d.escalate,
	})
}

// Open opens a ticket, whose id must be new.
func (d *Desk) Open(ctx context.Context, id, title string) error {
	_, err := d.log.Append(ctx, id, stream.Absent, Opened{title})
	return err
}

// Assign gives a ticket to an owner.
func (d *Desk) Assign(ctx context.Context, id, to string) error {
	return d.act(ctx, id, Assigned{to})
}

// Solve ends the work on a ticket.
func (d *Desk) Solve(ctx context.Context, id, by string) error {
	return d.act(ctx, id, Solved{by})
}

// act appends an event to a ticket that is open. If another writer is faster, it decides again.
func (d *Desk) act(ctx context.Context, id string, event any) error {
	_, err := stream.Act(ctx, d.log, id, stream.Any, fold, func(_ context.Context, t Ticket) ([]any, error) {
		switch {
		case t.Title == "":
			return nil, ErrUnknown
		case t.Solved:
			return nil, ErrSolved
		}
		return []any{event}, nil
	})
	return err
}

// escalate handles the event Opened: a ticket without an owner is looked at again when its time is
// over, and escalated then. No process has to run meanwhile. If this one dies after the append, the
// event is handled again, and the append is not made twice.
func (d *Desk) escalate(ctx context.Context, e *stream.Delivery) error {
	t, _, err := stream.Load(ctx, d.log, e.Stream, fold)
	if err != nil || t.Owner != "" || t.Solved {
		return err
	}
	if left := d.patience - time.Since(e.At); left > 0 {
		return stream.Defer(left)
	}
	_, err = d.log.Append(ctx, e.Stream, stream.Any, Escalated{d.patience})
	return err
}

// Close writes the events of a solved ticket to a file, and removes them from the store. The ticket
// stays closed. It waits until the reaction has handled all events. After a crash, it goes on where it
// stopped.
func (d *Desk) Close(ctx context.Context, id string) error {
	for {
		err := d.log.CloseStream(ctx, id, stream.Any, d.write)
		if _, pending := errors.AsType[*stream.PendingError](err); !pending {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// write writes events to the file of their ticket, one line each. It may be called again: the file is
// replaced as a whole.
func (d *Desk) write(_ context.Context, events iter.Seq2[stream.Event, error]) error {
	file, err := os.CreateTemp(d.archive, "*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // unless it was renamed
	defer file.Close()
	lines := json.NewEncoder(file)
	id := ""
	for e, err := range events {
		if err != nil {
			return err
		}
		id = e.Stream
		if err := lines.Encode(map[string]any{"version": e.Version, "type": e.Type, "at": e.At, "data": e.Raw}); err != nil {
			return err
		}
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), filepath.Join(d.archive, id+".jsonl"))
}

// tell returns a line about an event.
func tell(e stream.Event) string {
	switch data := e.Data.(type) {
	case Opened:
		return fmt.Sprintf("%s: opened: %s", e.Stream, data.Title)
	case Assigned:
		return fmt.Sprintf("%s: assigned to %s", e.Stream, data.To)
	case Escalated:
		return fmt.Sprintf("%s: escalated: no owner for %s", e.Stream, data.After)
	case Solved:
		return fmt.Sprintf("%s: solved by %s", e.Stream, data.By)
	}
	return fmt.Sprintf("%s: %s", e.Stream, e.Type)
}
