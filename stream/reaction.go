package stream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pawl-go/pawl"
)

// Defaults of Reaction.
const (
	DefaultMaxRetries = 3
	DefaultMaxLost    = 10
	DefaultBatch      = 100
)

// NoRetries as Reaction.MaxRetries blocks at the first failure.
const NoRetries = -1

// DefaultBackoff is the pause between two attempts.
var DefaultBackoff = pawl.Retry{First: time.Second, Max: 10 * time.Minute}

// MaxAppends is the number of appends that the handler of one event can make, Act included. Each is
// noted in one document until the event is acknowledged.
const MaxAppends = 1000

// MaxReaction is the length of the name of a reaction in bytes.
const MaxReaction = 64

// Reaction handles the events of the streams that match Source: those of one stream one after the
// other, each at least once, in one process at a time. Name and Handle are required.
type Reaction struct {
	// Name is the name under which the positions of the reaction are stored. It has no slash.
	Name string
	// Source matches the names of the streams; nil: all streams. A new reaction starts with the first
	// event of each of them. If Source or Types is to match more than before, give the reaction a new
	// name: events that it did not want are behind it.
	Source *regexp.Regexp
	// Types are the stored names of the types of events; none: all types. Other events are skipped.
	Types []string
	// Handle handles one event. An error is retried, by MaxRetries and Backoff, unless it is marked by
	// pawl.NonRetryable: then the stream is blocked for this reaction. A panic is an error. Defer asks
	// for the event again later.
	//
	// Its context ends with the cause ErrStopped or *pawl.LeaseLostError, and after Timeout. Every
	// commit made with it is fenced by the lease. The lease is renewed while the handler runs, so a
	// handler that never returns stops its stream: set Timeout. A handler that ignores the end of its
	// context may run at the same time as the next one.
	Handle func(ctx context.Context, d *Delivery) error
	// MaxRetries is how often an event is tried again after its first failure, before the stream is
	// blocked; 0: DefaultMaxRetries; NoRetries: never.
	MaxRetries int
	// RetryForever never blocks a stream because of a failed event: it is tried again until it
	// succeeds. pawl.NonRetryable blocks nevertheless.
	RetryForever bool
	// Backoff is the pause before an event is tried again: a random time up to a bound that doubles
	// from First to Max; zero fields: DefaultBackoff. Attempts and Within are ignored.
	Backoff pawl.Retry
	// MaxLost is how many leases in a row may be lost on a stream before it is blocked: the event may
	// kill its process. 0: DefaultMaxLost.
	MaxLost int
	// Timeout ends the context of the handler; 0: none.
	Timeout time.Duration
	// Batch is how many events are handled under one lease, and acknowledged by one commit; 0:
	// DefaultBatch. After a crash they are handled again.
	Batch int
	// Concurrency is how many streams this process handles at a time for the reaction; 0: as many as
	// Config.Concurrency.
	Concurrency int
	// Priority puts the reaction before others with a lower one, if both have streams to handle.
	Priority int
}

// reaction is a Reaction with its defaults filled in.
type reaction struct {
	Reaction
	types map[string]bool // nil: all
}

// wants reports whether the reaction handles events of a type on a stream.
func (r *reaction) wants(stream, typ string) bool {
	return (r.types == nil || r.types[typ]) && r.matches(stream)
}

func (r *reaction) matches(stream string) bool {
	return r.Source == nil || r.Source.MatchString(stream)
}

// React adds a reaction, which Start runs. It returns *pawl.ArgumentError for a missing, negative or
// malformed field, for a name used twice, and after Start.
func (l *Log) React(r Reaction) error {
	bad := func(reason string) error { return &pawl.ArgumentError{Argument: "Reaction", Reason: reason} }
	switch {
	case r.Name == "" || len(r.Name) > MaxReaction || !utf8.ValidString(r.Name) ||
		strings.ContainsFunc(r.Name, func(c rune) bool { return c == '/' || unicode.IsControl(c) }):
		return bad(fmt.Sprintf("Name must have 1 to %d bytes of UTF-8, without slash and control characters", MaxReaction))
	case r.Handle == nil:
		return bad("Handle is nil")
	case r.MaxRetries < NoRetries || r.MaxLost < 0 || r.Timeout < 0 || r.Batch < 0 || r.Concurrency < 0 || r.Backoff.First < 0 || r.Backoff.Max < 0:
		return bad("MaxLost, Timeout, Batch, Concurrency and Backoff must not be negative, nor MaxRetries below NoRetries")
	}
	own := &reaction{Reaction: r}
	if own.Backoff = r.Backoff.Or(DefaultBackoff); r.MaxRetries == 0 {
		own.MaxRetries = DefaultMaxRetries
	}
	if r.MaxRetries == NoRetries {
		own.MaxRetries = 0
	}
	if r.MaxLost == 0 {
		own.MaxLost = DefaultMaxLost
	}
	if r.Batch == 0 {
		own.Batch = DefaultBatch
	}
	if r.Concurrency == 0 {
		own.Concurrency = l.config.Concurrency
	}
	for _, t := range r.Types {
		if own.types == nil {
			own.types = map[string]bool{}
		}
		own.types[t] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started {
		return bad("React must come before Start")
	}
	if l.reactions[r.Name] != nil {
		return bad(fmt.Sprintf("the name %q is used twice", r.Name))
	}
	l.reactions[r.Name] = own
	return nil
}

// Delivery is one attempt at one event.
type Delivery struct {
	Event
	// Attempt is 1 in the first attempt. Only failures are counted: not Defer, Stop or a lost lease.
	Attempt int

	log      *shared
	claim    *claim
	onCommit []func(ctx context.Context, tx *pawl.Tx) error

	mu      sync.Mutex     // protects the fields below
	appends map[string]int // calls of Append and Act so far, by sort
	over    bool           // the handler has returned
}

// Key returns a key that is the same in every attempt at this event by this reaction. Pass it to
// systems that recognise a repeated call by a key.
func (d *Delivery) Key() string { return d.claim.reaction.Name + "/" + d.ID }

// OnCommit adds writes to the commit that acknowledges the event. They are made once; Reset makes them
// again. If that commit meets a conflict, fn runs again, and the handler does not. An error of fn
// fails the attempt. Call it from the goroutine of the handler, before that returns.
func (d *Delivery) OnCommit(fn func(ctx context.Context, tx *pawl.Tx) error) {
	d.onCommit = append(d.onCommit, fn)
}

type deliveryKey struct{}

// deliveryOf returns the delivery whose handler ctx belongs to, nil if there is none. Work that goes on
// without the lease of the claim, as by pawl.WithoutLeases, is not the handler's any more.
func deliveryOf(ctx context.Context, s *shared) *Delivery {
	d, _ := ctx.Value(deliveryKey{}).(*Delivery)
	if d == nil || d.log != s || !d.claim.Lease.Guards(ctx) {
		return nil
	}
	return d
}

// meta returns ctx with the metadata of appends that the event leads to.
func (d *Delivery) meta(ctx context.Context) context.Context {
	return WithMeta(ctx, Meta{Correlation: d.Meta.Correlation, Causation: d.ID, Actor: d.Meta.Actor})
}

// appended returns how many calls of Append and Act the handler has made.
func (d *Delivery) appended() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, calls := range d.appends {
		n += calls
	}
	return n
}

// end makes appends with the context of the handler fail: the handler has returned.
func (d *Delivery) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
}

// ErrMoved is returned by an append in a handler whose position was moved by Reset or Unblock, or by a
// new stream under the same name. Nothing was appended. The claim ends without effect.
var ErrMoved = errors.New("stream: the position was moved meanwhile")

// place returns the key of an append in position.Made: it is the nth one of this sort in the handler.
// The sort is the stream and the types of events, or an Act on the stream. Other appends do not count,
// so one that failed, or that the handler leaves out when it runs again, does not move the others.
func (d *Delivery) place(stream string, sort ...string) string {
	if d == nil {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", stream, sort))
	what := hex.EncodeToString(sum[:8])
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.appends == nil {
		d.appends = map[string]int{}
	}
	d.appends[what]++
	return fmt.Sprintf("%s/%s/%d", d.ID, what, d.appends[what])
}

// typesOf returns the types of events.
func typesOf(events []Event) (types []string) {
	for _, e := range events {
		types = append(types, e.Type)
	}
	return types
}

// made reports whether an earlier attempt has made the append at this place.
func (d *Delivery) made(ctx context.Context, place string) (bool, error) {
	if d == nil {
		return false, nil
	}
	snap, err := d.log.positions.Scope(d.log.rt, d.claim.ID).Snapshot(ctx)
	if err != nil || !snap.Exists() {
		return false, err
	}
	_, done := snap.ReadOnly().Made[place]
	return done, nil
}

// append is Append in a handler. The commit also notes in the position that the append was made, so
// that a repeated handler does not make it again. The lease of the position fences it.
func (d *Delivery) append(ctx context.Context, l *Log, place, stream string, fresh []Event) (made []Event, err error) {
	d.mu.Lock()
	over := d.over
	d.mu.Unlock()
	switch calls := d.appended(); {
	case calls > MaxAppends:
		return nil, &pawl.LimitError{Scope: pawl.Key{Kind: d.log.positions.Name, ID: d.claim.ID}, What: "appends", Limit: MaxAppends, Got: calls,
			Reason: "of the handler of one event"}
	case over:
		return nil, &pawl.ArgumentError{Argument: "ctx", Reason: "of a handler that has returned"}
	case l.owner != pawl.Owner(l.rt):
		return nil, &pawl.ArgumentError{Argument: "Log.In", Reason: "cannot append in a handler; use Delivery.OnCommit"}
	}
	s := d.log
	err = pawl.Transact(ctx, s.rt, func(ctx context.Context, tx *pawl.Tx) error {
		scope := s.positions.Scope(tx, d.claim.ID)
		now, err := scope.State(ctx)
		if err != nil {
			return err
		}
		if now.Turn != d.claim.from.Turn {
			return ErrMoved
		}
		if done, ok := now.Made[place]; ok {
			made = done.events(stream, fresh)
			return nil
		}
		made, err = (&Log{s, tx}).append(ctx, stream, Any, "", fresh)
		if err != nil {
			return err
		}
		_, err = scope.AtomicState(ctx, func(_ context.Context, p *position) error {
			if p.Made == nil {
				p.Made = map[string]appended{}
			}
			p.Made[place] = appended{lifeOf(made[0]), made[0].Version}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	s.loop.Wake()
	return made, nil
}

// appended is an append that a handler has made.
type appended struct {
	Life  string `json:"life"`
	First int64  `json:"first"`
}

// events returns the events that were appended. Their data is that of the repeated call.
func (a appended) events(stream string, fresh []Event) []Event {
	made := slices.Clone(fresh)
	for i := range made {
		made[i].Stream, made[i].Version = stream, a.First+int64(i)
		made[i].ID = eventID(a.Life, made[i].Version)
	}
	return made
}

// ErrStopped is returned by Start and Drain after Stop. It is also the cause that ends the context of a
// handler that Stop interrupts.
var ErrStopped = errors.New("stream: stopped")

// deferral is the error of Defer.
type deferral struct{ in time.Duration }

func (d *deferral) Error() string { return fmt.Sprintf("stream: deferred for %s", d.in) }

// Defer returns an error for a handler: the same event is handled again after d, by the store's
// clock, and the attempt is not counted.
func Defer(d time.Duration) error { return &deferral{max(d, 0)} }

// position is where a reaction stands on a stream.
type position struct {
	// Label is a state and the name of the reaction: workers look for it.
	Label string `json:"label"`
	// Due is when the events are to be handled.
	Due      time.Time `json:"due,omitzero"`
	Reaction string    `json:"reaction"`
	Stream   string    `json:"stream"`
	// Life is the life of the stream that Next counts in.
	Life string `json:"life,omitempty"`
	// Next is the version of the first event that was not handled.
	Next int64 `json:"next"`
	// Known is above the last version that the reaction was told of.
	Known int64 `json:"known"`
	// Turn counts the changes by Unblock, Reset and a new life of the stream: the end of a claim that
	// began before one of them does not undo it.
	Turn int `json:"turn,omitempty"`
	// Retry counts the failures of event Next.
	Retry int `json:"retry,omitempty"`
	// Lost counts the leases since the last one whose end was recorded.
	Lost int `json:"lost,omitempty"`
	// Reason says why event Next is handled again or blocked: an error of the handler or the store,
	// Defer, or Stop.
	Reason string `json:"reason,omitempty"`
	// Made are the appends that handlers have made for events from Next on; see Delivery.place.
	Made map[string]appended `json:"made,omitempty"`
}

// States of a position, as its label has them.
const (
	ready   = "ready"   // there may be events to handle
	idle    = "idle"    // all events that are known are handled
	blocked = "blocked" // not handled until Unblock or Reset
)

func (p *position) state() string { s, _, _ := strings.Cut(p.Label, "/"); return s }

// become changes the state. All changes of a label go through here.
func (p *position) become(state string) { p.Label = state + "/" + p.Reaction }

// readyLabels returns the labels of positions that are ready for one of the reactions.
func readyLabels(reactions []*reaction) (labels []string) {
	for _, r := range reactions {
		labels = append(labels, ready+"/"+r.Name)
	}
	slices.Sort(labels)
	return labels
}

// positionID returns the id of the position of a reaction on a stream. All positions on a stream
// start with the same text.
func positionID(stream, reaction string) string { return idOf(stream, MaxReaction+1) + "/" + reaction }

// snapshotID returns the id of the snapshot of a fold of a stream.
func snapshotID(stream, fold string) string { return idOf(stream, MaxFold+1) + "/" + fold }

// idOf returns name as a part of an id that leaves room for more. A long name is hashed, and so is
// one that could be taken for a hash.
func idOf(name string, room int) string {
	if len(name) <= pawl.MaxID-room && !strings.HasPrefix(name, "#") {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "#" + hex.EncodeToString(sum[:])
}

// positionOf returns the position of a stored record.
func positionOf(doc json.RawMessage) (p position, err error) {
	err = json.Unmarshal(doc, &p)
	return p, err
}
