package stream

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/worker"
)

// Defaults of Config.
const (
	DefaultName          = "stream"
	DefaultSnapshotEvery = 100
	DefaultConcurrency   = 16
	DefaultPoll          = 15 * time.Second
)

// MaxEvents is the number of events that one append can have.
const MaxEvents = pawl.MaxEntries

// DefaultRetry is the budget of Act.
var DefaultRetry = pawl.Retry{Attempts: 20, First: 5 * time.Millisecond, Max: 500 * time.Millisecond, Within: 30 * time.Second}

// Config configures a Log; its zero value is ready to use.
type Config struct {
	// Name is the kind of the streams. Other documents of the log have kinds that start with it. Empty:
	// DefaultName.
	Name string
	// Events are the types of events that the log knows; see Of.
	Events []Type
	// TTL lets a stream expire that long after its last append, like pawl.Kind.TTL; 0: never.
	TTL time.Duration
	// SnapshotEvery is the number of events between two snapshots that Act and Load keep; 0:
	// DefaultSnapshotEvery.
	SnapshotEvery int
	// Retry is the budget of Act; zero fields: DefaultRetry.
	Retry pawl.Retry
	// Lease is the length of the lease of a reaction; 0: pawl.DefaultLease.
	Lease time.Duration
	// Concurrency is the number of streams that this process handles at a time; 0: DefaultConcurrency.
	Concurrency int
	// Poll is how often this process looks for events without a hint of the store; 0: DefaultPoll. A
	// look is three queries when it finds nothing.
	Poll time.Duration
	// Logger gets the errors that cannot be returned to a caller; nil: slog.Default().
	Logger *slog.Logger
}

// Type connects the stored name of an event with its Go type.
type Type struct {
	name   string
	goType reflect.Type
	decode func(json.RawMessage) (any, error)
}

// Of returns the Type of events of the Go type E that are stored under a name. The name stays when
// the Go type is renamed.
func Of[E any](name string) Type {
	return Type{name, reflect.TypeFor[E](), func(raw json.RawMessage) (data any, err error) {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("UnmarshalJSON panicked: %v", v)
			}
		}()
		var e E
		err = json.Unmarshal(raw, &e)
		return e, err
	}}
}

// Log reads and appends to the event streams of a runtime. Its methods are safe for concurrent use.
type Log struct {
	*shared
	owner pawl.Owner // of appends and reads: the runtime, or the transaction of In
}

// shared holds the fields that a Log and the logs of In have in common.
type shared struct {
	rt     *pawl.Runtime
	config Config
	names  map[reflect.Type]string
	types  map[string]Type

	heads     pawl.Kind[head]
	positions pawl.Kind[position]
	cursors   pawl.Kind[cursor]
	snapshots pawl.Kind[snapshot]

	loop *worker.Loop[claim]
	hook func(p point, stream string) // for tests

	mu        sync.Mutex // protects the fields below
	reactions map[string]*reaction
	running   map[string]int // claims in progress, by reaction
	started   bool
	stop      context.CancelFunc // ends the goroutine that follows hints; nil: not started
	ended     chan struct{}      // closed when that goroutine has ended
}

// New returns a log. It returns pawl.ErrNoStore without a store, and *pawl.ArgumentError for a
// negative field, or an event type that is listed twice or has no name in UTF-8. A name that a kind
// cannot have is refused by the first operation (*pawl.KindError, *pawl.LimitError).
func New(rt *pawl.Runtime, c Config) (*Log, error) {
	bad := func(format string, args ...any) error {
		return &pawl.ArgumentError{Argument: "Config", Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case rt == nil || rt.Store() == nil:
		return nil, pawl.ErrNoStore
	case c.TTL < 0 || c.Lease < 0 || c.Poll < 0 || c.SnapshotEvery < 0 || c.Concurrency < 0:
		return nil, bad("TTL, SnapshotEvery, Lease, Concurrency and Poll must not be negative")
	case c.Retry.Attempts < 0 || c.Retry.First < 0 || c.Retry.Max < 0 || c.Retry.Within < 0:
		return nil, bad("Retry must not be negative, got %+v", c.Retry)
	}
	c.Name, c.Logger = cmp.Or(c.Name, DefaultName), cmp.Or(c.Logger, slog.Default())
	c.SnapshotEvery, c.Retry = cmp.Or(c.SnapshotEvery, DefaultSnapshotEvery), c.Retry.Or(DefaultRetry)
	c.Lease, c.Concurrency, c.Poll = cmp.Or(c.Lease, pawl.DefaultLease), cmp.Or(c.Concurrency, DefaultConcurrency), cmp.Or(c.Poll, DefaultPoll)
	s := &shared{
		rt: rt, config: c, names: map[reflect.Type]string{}, types: map[string]Type{},
		heads:     pawl.Kind[head]{Name: c.Name, TTL: c.TTL, Log: true},
		positions: pawl.Kind[position]{Name: c.Name + ".position", Label: "label", Due: "due"},
		cursors:   pawl.Kind[cursor]{Name: c.Name + ".cursor"},
		snapshots: pawl.Kind[snapshot]{Name: c.Name + ".snapshot", TTL: c.TTL},
		hook:      func(point, string) {},
		reactions: map[string]*reaction{}, running: map[string]int{},
	}
	for _, t := range c.Events {
		if t.name == "" || t.goType == nil {
			return nil, bad("an event type has no name")
		}
		if !utf8.ValidString(t.name) {
			return nil, bad("the name %q of event type %s is not UTF-8", t.name, t.goType)
		}
		if s.types[t.name].goType != nil || s.names[t.goType] != "" {
			return nil, bad("event type %s, named %q, is there twice", t.goType, t.name)
		}
		s.types[t.name], s.names[t.goType] = t, t.name
	}
	s.loop = worker.New(worker.Config[claim]{
		Name: c.Name, Take: s.take, Run: s.run, Concurrency: c.Concurrency, Poll: c.Poll, Logger: c.Logger,
	})
	return &Log{s, rt}, nil
}

// In returns the log inside tx: Append and the reads of the result are part of the transaction. The
// reactions are those of l.
func (l *Log) In(tx *pawl.Tx) *Log { return &Log{l.shared, tx} }

// head is the document of a stream.
type head struct {
	// Life is different for each stream that had the name: a stream that is deleted and appended to
	// again starts at version 0. Empty: there is no stream.
	Life string `json:"life"`
	// Next is the version of the next event.
	Next int64 `json:"next"`
	// First is the version of the first event that is kept.
	First int64 `json:"first,omitempty"`
	// Closed is above the last event of the books that were closed last.
	Closed int64 `json:"closed,omitempty"`
	// Closing is set while CloseStream is under way, and after it if there is no seed.
	Closing *closing `json:"closing,omitempty"`
}

// entry is an event as the log keeps it.
type entry struct {
	Life string          `json:"life"`
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
	Meta *Meta           `json:"meta,omitempty"`
}

// Meta says where an event comes from. The library stores it and does not look at it.
type Meta struct {
	Correlation string `json:"correlation,omitempty"` // of all events that one request led to
	Causation   string `json:"causation,omitempty"`   // the ID of the event that led to this one
	Actor       string `json:"actor,omitempty"`       // the user or the service that acted
}

type metaKey struct{}

// WithMeta returns a context whose appends have this metadata. A reaction's context has the
// correlation and the actor of its event, and its ID as the causation.
func WithMeta(ctx context.Context, m Meta) context.Context {
	return context.WithValue(ctx, metaKey{}, m)
}

// MetaOf returns the metadata of ctx.
func MetaOf(ctx context.Context) Meta {
	m, _ := ctx.Value(metaKey{}).(Meta)
	return m
}

// Event is an event that was committed.
type Event struct {
	// ID is different for each event, also of streams that had the same name.
	ID string
	// Stream is the name of the stream, and Version the place in it, from 0 on without gaps.
	Stream  string
	Version int64
	// Position is the place among the events of all streams. It is 0 unless ReadAll returned the event.
	Position uint64
	// Type is the stored name of the type.
	Type string
	// Data is of the Go type that is registered for Type, nil if there is none.
	Data any
	// Raw is the data as it is stored.
	Raw json.RawMessage
	// At is the store's time of the commit. It is zero in the answer of Append.
	At   time.Time
	Meta Meta
}

// Raw is an event for Append with its data as JSON. Its type need not be registered.
type Raw struct {
	Type string
	Data json.RawMessage
}

// Expect is the last version of a stream that an append asserts.
type Expect int64

const (
	// Any asserts nothing. Appends with it share commits.
	Any Expect = -2
	// Absent asserts that nothing was appended to the stream in this life.
	Absent Expect = -1

	malformed Expect = -3 // of a version that is no version
)

// At asserts that this version is the last one that was appended, also if Trim has removed its event.
// At(-1) is Absent; a lower version is refused.
func At(version int64) Expect {
	if version < int64(Absent) {
		return malformed
	}
	return Expect(version)
}

// Append adds events to a stream, which need not exist, and returns them. Each is of a type in
// Config.Events, or a Raw. All are appended, or none. No events: nothing is done.
//
// It returns *ConcurrencyError if the last version is not the expected one, *ClosedError,
// *EventError for an event of an unknown type or without a JSON form, *pawl.LimitError for more than
// MaxEvents events, one above the limit of documents or a bad name of a stream, *pawl.ArgumentError
// for an Expect below Any, and the errors of pawl.Scope.AtomicState.
//
// In a handler of a reaction, with its context, the append asserts no version, and is made once for
// the event however often the event is handled. The n-th append of these types to this stream is not
// made again: it returns the versions and IDs of the first time, with the data of this call. So a
// handler returns an error that Append returned, and does not call it again. With a context of
// pawl.WithoutLeases, such as that of an action of flow's Go, it is an append like any other. It returns
// *pawl.ArgumentError with a log of In (use Delivery.OnCommit) and after the handler has returned,
// *pawl.LeaseLostError when the lease is lost, and ErrMoved when Reset, Unblock or a new life of the
// stream has moved the position.
func (l *Log) Append(ctx context.Context, stream string, e Expect, events ...any) ([]Event, error) {
	if ctx == nil {
		return nil, &pawl.ArgumentError{Argument: "ctx", Reason: "nil"}
	}
	if e < Any {
		return nil, &pawl.ArgumentError{Argument: "Expect", Reason: "negative version"}
	}
	if len(events) > MaxEvents {
		return nil, &pawl.LimitError{Scope: pawl.Key{Kind: l.config.Name, ID: stream}, What: "events", Limit: MaxEvents, Got: len(events), Reason: "in one append"}
	}
	fresh, err := l.encode(ctx, events)
	if err != nil || len(fresh) == 0 {
		return nil, err
	}
	if d := deliveryOf(ctx, l.shared); d != nil {
		return d.append(ctx, l, d.place(stream, typesOf(fresh)...), stream, fresh)
	}
	return l.appendTo(ctx, stream, e, "", fresh)
}

// appendTo is Append of encoded events outside a handler. Life is the life that the stream must be
// in; empty: any.
func (l *Log) appendTo(ctx context.Context, stream string, e Expect, life string, fresh []Event) ([]Event, error) {
	made, err := l.append(ctx, stream, e, life, fresh)
	if err == nil && l.owner == pawl.Owner(l.rt) { // the commit of a transaction is found by its hint
		l.loop.Wake()
	}
	return made, err
}

// append adds fresh events to a stream.
func (l *Log) append(ctx context.Context, stream string, e Expect, life string, fresh []Event) ([]Event, error) {
	scope := l.heads.Scope(l.owner, stream)
	var made []Event // read only after success: the function may outlive this call
	err := change(ctx, scope, func(ctx context.Context, h *head) error {
		if h.Closing != nil {
			return &ClosedError{stream}
		}
		if e != Any && int64(e) != h.Next-1 || life != "" && life != h.Life {
			return &ConcurrencyError{Stream: stream, Expected: int64(e), Last: h.Next - 1}
		}
		added, err := h.add(ctx, scope, fresh)
		made = added
		return err
	})
	if err == nil {
		return made, nil
	}
	// A number that is taken is a conflict too. A caller that expected a version gets one error for both.
	if _, spent := errors.AsType[*pawl.ConcurrentModificationError](err); spent && e != Any {
		h, failed := l.head(ctx, stream)
		if failed == nil {
			err = &ConcurrencyError{Stream: stream, Expected: int64(e), Last: h.Next - 1}
		}
	}
	return nil, err
}

// add appends fresh events to the stream of h, inside a function on scope.
func (h *head) add(ctx context.Context, scope pawl.Scope[head], fresh []Event) ([]Event, error) {
	if h.Life == "" {
		h.Life = rand.Text()[:16]
	}
	made, entries := make([]Event, len(fresh)), make([]json.RawMessage, len(fresh))
	for i, f := range fresh {
		stored := entry{Life: h.Life, Type: f.Type, Data: f.Raw}
		if f.Meta != (Meta{}) {
			stored.Meta = &f.Meta
		}
		raw, err := json.Marshal(stored)
		if err != nil {
			return nil, &EventError{Version: -1, Type: f.Type, Err: err}
		}
		entries[i] = raw
		f.Stream, f.Version = scope.Key().ID, h.Next+int64(i)
		f.ID = eventID(h.Life, f.Version)
		made[i] = f
	}
	if err := scope.AppendLog(ctx, uint64(h.Next), entries...); err != nil {
		return nil, err
	}
	h.Next += int64(len(fresh))
	return made, nil
}

// encode checks and marshals events. The results have no stream, version and ID yet.
func (s *shared) encode(ctx context.Context, events []any) ([]Event, error) {
	meta := MetaOf(ctx)
	fresh := make([]Event, len(events))
	for i, e := range events {
		f := Event{Data: e, Meta: meta}
		var err error
		if raw, ok := e.(Raw); ok {
			f.Type, f.Raw, f.Data = raw.Type, raw.Data, nil
			switch {
			case raw.Type == "":
				err = errors.New("no type")
			case !utf8.ValidString(raw.Type):
				err = errors.New("type is not UTF-8")
			case !json.Valid(raw.Data):
				err = errors.New("data is not JSON")
			}
		} else if f.Type = s.names[reflect.TypeOf(e)]; f.Type == "" {
			f.Type, err = fmt.Sprintf("%T", e), errors.New("not registered in Config.Events")
		} else {
			f.Raw, err = json.Marshal(e)
		}
		if err == nil && !utf8.Valid(f.Raw) {
			err = errors.New("data is not UTF-8")
		}
		if err != nil {
			return nil, &EventError{Version: -1, Type: f.Type, Err: err}
		}
		fresh[i] = f
	}
	return fresh, nil
}

// lifeOf returns the life of the stream of an event.
func lifeOf(e Event) string { return e.ID[:strings.LastIndexByte(e.ID, '-')] }

// eventID returns the ID of an event.
func eventID(life string, version int64) string { return fmt.Sprintf("%s-%d", life, version) }
