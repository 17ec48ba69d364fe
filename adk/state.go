package adk

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/pawl-go/pawl"
	"google.golang.org/adk/v2/session"
)

// cell is the value of one key of a state.
type cell struct {
	Value json.RawMessage `json:"v"`
	// Write names the append that wrote the value. No other append has the same.
	Write string `json:"w"`
}

type cells map[string]cell

// shared is the document of the state of an app, or of a user of an app.
type shared struct {
	App   string `json:"app"`
	User  string `json:"user,omitempty"`
	State cells  `json:"state,omitempty"`
}

// head is the document of a session: all but its events.
type head struct {
	App  string `json:"app"`
	User string `json:"user"`
	ID   string `json:"id"`
	// Stream is the name of the stream of the events. It is different for each session that had the id.
	Stream string `json:"stream"`
	State  cells  `json:"state,omitempty"`
	// Updated is the time of the last event, or of Create.
	Updated time.Time `json:"updated"`
	// Latest is the latest time of all events.
	Latest time.Time `json:"latest,omitzero"`
	// Events is the number of events, and Entries that of entries of the stream. A large event has
	// several entries.
	Events  int64 `json:"events"`
	Entries int64 `json:"entries"`
}

// deletion is the work that is left of a Delete, under the name of the stream.
type deletion struct {
	Entries int64 `json:"entries"`
}

var (
	apps      = pawl.Kind[shared]{Name: "adk.app"}
	users     = pawl.Kind[shared]{Name: "adk.user"}
	sessions  = pawl.Kind[head]{Name: "adk.session"}
	deletions = pawl.Kind[deletion]{Name: "adk.deletion"}
)

// streams is the kind of the streams.
const streams = "adk.events"

// Kinds returns the kinds of documents that a Service keeps, for pawl.Config.
func Kinds() []pawl.AnyKind { return []pawl.AnyKind{apps, users, sessions, deletions} }

// change is what an event does to one key.
type change struct {
	value json.RawMessage // nil: an increment
	inc   int64
	// read is set if the holder of the handle has read the key; seen is the write that it saw, empty
	// for an absent key.
	read bool
	seen string
}

// changes are those of one document. Keys have no prefix.
type changes map[string]change

// delta is what an event does to the three documents.
type delta struct{ app, user, own changes }

// newDelta sorts the keys of a state delta by their prefixes. Keys with the prefix temp: are dropped.
// It returns an error for a value without a JSON form.
func newDelta(values map[string]any) (d delta, err error) {
	d = delta{changes{}, changes{}, changes{}}
	for key, v := range values {
		inc, ok, err := incOf(key, v)
		c := change{inc: inc}
		into, name := d.of(key)
		if err == nil && !ok && into != nil {
			if c.value, err = json.Marshal(v); err == nil {
				err = noIncInside(c.value)
			}
		}
		if err != nil {
			return delta{}, fmt.Errorf("state %q: %w", key, err)
		}
		if into != nil {
			into[name] = c
		}
	}
	return d, nil
}

// of returns the changes that a key belongs to, and its name there; nil for a temporary key.
func (d delta) of(key string) (changes, string) {
	if name, ok := strings.CutPrefix(key, session.KeyPrefixApp); ok {
		return d.app, name
	}
	if name, ok := strings.CutPrefix(key, session.KeyPrefixUser); ok {
		return d.user, name
	}
	if strings.HasPrefix(key, session.KeyPrefixTemp) {
		return nil, ""
	}
	return d.own, key
}

// apply changes a state, unless a key that was read has changed. It adds the results of increments to
// sums, under their prefixed keys. Scope is for errors.
func (c changes) apply(state *cells, write, prefix string, scope pawl.Key, sums map[string]any) error {
	for name, ch := range c {
		if old := (*state)[name]; ch.read && ch.value != nil && old.Write != ch.seen {
			return fmt.Errorf("%w: state %q has changed since it was read", ErrStale, prefix+name)
		}
	}
	if *state == nil {
		*state = cells{}
	}
	for name, ch := range c {
		value := ch.value
		if value == nil {
			sum, err := increment((*state)[name].Value, ch.inc)
			if err != "" {
				return &pawl.FieldError{Scope: scope, Field: pawl.Field(prefix + name), Verb: "Inc", Reason: err}
			}
			value = json.RawMessage(fmt.Sprint(sum))
			sums[prefix+name] = float64(sum)
		}
		(*state)[name] = cell{value, write}
	}
	return nil
}

// increment adds n to a stored number, which may be absent. Reason says why it cannot.
func increment(stored json.RawMessage, n int64) (sum int64, reason string) {
	var old any
	if len(stored) > 0 {
		d := json.NewDecoder(bytes.NewReader(stored))
		d.UseNumber()
		if err := d.Decode(&old); err != nil {
			return 0, err.Error()
		}
	}
	base, ok := wholeNumber(old)
	if !ok {
		return 0, "not a whole number"
	}
	if sum, ok = add(base, n); !ok {
		return 0, "overflow"
	}
	return sum, ""
}

// withoutTemp returns a state delta without temporary keys, and with the sums of increments. It
// returns an empty one as it is, like ADK.
func withoutTemp(values, sums map[string]any) map[string]any {
	if len(values) == 0 {
		return values
	}
	kept := make(map[string]any, len(values))
	for key, v := range values {
		if strings.HasPrefix(key, session.KeyPrefixTemp) {
			continue
		}
		if sum, ok := sums[key]; ok {
			v = sum
		}
		kept[key] = v
	}
	return kept
}
