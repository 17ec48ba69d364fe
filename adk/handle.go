package adk

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/adk/v2/session"
)

// handle is a session as it was read, and the changes of its holder since. It is a session.Session.
type handle struct {
	app, user, id string
	stream        string // see head

	// appending is full during AppendEvent: appends through one handle run one after the other.
	appending chan struct{}

	mu      sync.RWMutex // protects the fields below
	events  []*session.Event
	state   map[string]any // with prefixes
	updated time.Time
	seen    int64             // events that the session had
	writes  map[string]string // writes that the values in state come from, see cell
	read    map[string]string // keys that the holder has read, with the writes that it saw
	readAll bool              // the holder has read all keys, and the absence of others
	set     map[string]bool   // keys that the holder has set, and not appended yet
}

var _ session.Session = (*handle)(nil)

// newHandle returns a handle on hd. The states of the app and of the user may be nil.
func newHandle(hd *head, app, user *shared) (*handle, error) {
	h := &handle{
		app: hd.App, user: hd.User, id: hd.ID, stream: hd.Stream, updated: hd.Updated, seen: hd.Events,
		appending: make(chan struct{}, 1),
		state:     map[string]any{}, writes: map[string]string{}, read: map[string]string{}, set: map[string]bool{},
	}
	take := func(prefix string, from cells) error {
		for name, c := range from {
			var v any
			if err := json.Unmarshal(c.Value, &v); err != nil {
				return fmt.Errorf("state %q of session %s: %w", prefix+name, hd.ID, err)
			}
			h.state[prefix+name], h.writes[prefix+name] = v, c.Write
		}
		return nil
	}
	err := take("", hd.State)
	if app != nil && err == nil {
		err = take(session.KeyPrefixApp, app.State)
	}
	if user != nil && err == nil {
		err = take(session.KeyPrefixUser, user.State)
	}
	return h, err
}

// tested returns d with what the holder has read of its keys, and the number of events it has seen.
func (h *handle) tested(d delta) (delta, int64) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	mark := func(prefix string, c changes) {
		for name, ch := range c {
			seen, read := h.read[prefix+name]
			ch.read, ch.seen = read || h.readAll, seen
			c[name] = ch
		}
	}
	mark("", d.own)
	mark(session.KeyPrefixApp, d.app)
	mark(session.KeyPrefixUser, d.user)
	return d, h.seen
}

// appended notes that event was committed by write. Sums are those of its increments: they tell nothing
// of what the holder has read before. The event loses its temporary keys; the handle keeps them, like
// those of ADK.
func (h *handle) appended(event *session.Event, write string, sums map[string]any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.Copy(h.state, event.Actions.StateDelta)
	maps.Copy(h.state, sums)
	event.Actions.StateDelta = withoutTemp(event.Actions.StateDelta, sums)
	for key := range event.Actions.StateDelta {
		h.writes[key] = write
		delete(h.set, key)
		_, read := h.read[key]
		if _, sum := sums[key]; !sum && (read || h.readAll) {
			h.read[key] = write
		}
	}
	h.events = append(h.events, event)
	h.updated = event.Timestamp
	h.seen++
}

func (h *handle) ID() string      { return h.id }
func (h *handle) AppName() string { return h.app }
func (h *handle) UserID() string  { return h.user }

func (h *handle) State() session.State { return (*state)(h) }

func (h *handle) Events() session.Events {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return events(h.events[:len(h.events):len(h.events)])
}

func (h *handle) LastUpdateTime() time.Time {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.updated
}

type events []*session.Event

func (e events) All() iter.Seq[*session.Event] { return slices.Values(e) }

func (e events) Len() int { return len(e) }

func (e events) At(i int) *session.Event {
	if i >= 0 && i < len(e) {
		return e[i]
	}
	return nil
}

// state is the state of a handle. It notes which keys are read.
type state handle

func (s *state) Get(key string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.set[key] { // a value of the holder's own says nothing about the store
		s.read[key] = s.writes[key]
	}
	v, ok := s.state[key]
	if !ok {
		return nil, session.ErrStateKeyNotExist
	}
	return v, nil
}

// Set changes the handle only, as in ADK. An Inc shows as the sum that it would make.
func (s *state) Set(key string, value any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok, err := incOf(key, value)
	if err != nil {
		return fmt.Errorf("state %q: %w", key, err)
	}
	if ok { // the sum tells of the stored number, so reading it is reading the store
		old, _ := wholeNumber(s.state[key])
		s.state[key] = float64(old + n)
		return nil
	}
	s.state[key], s.set[key] = value, true
	return nil
}

func (s *state) All() iter.Seq2[string, any] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readAll = true
	maps.Copy(s.read, s.writes)
	return maps.All(maps.Clone(s.state))
}
