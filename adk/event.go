package adk

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/pawl-go/pawl/stream"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"
)

// An event is one entry of the stream, or several if it is large: pieces, and one last entry that
// says how many pieces come before it. So a reader in either direction knows where an event begins.
const (
	typeEvent = "event" // record
	typePiece = "piece" // a JSON string: base64 of a part of the record
	typeLast  = "last"  // lastPiece
)

// lastPiece is the end of a record in pieces.
type lastPiece struct {
	Pieces int    `json:"pieces"` // entries of typePiece before this one
	Data   []byte `json:"data"`
}

// record is an event as it is stored: all fields that JSON sees of it, without those that are zero.
type record struct {
	session.Event
	Extra extra `json:"pawl,omitzero"`
}

// extra is what the JSON of an event does not tell.
type extra struct {
	// Latest is the latest time of all events so far, if it is not that of this event.
	Latest time.Time `json:"latest,omitzero"`
	// EmptyResponses and EmptyArgs are the indices of the parts with a map that is empty and not nil.
	// The types of genai leave both kinds out, but a model refuses a response that is null.
	EmptyResponses []int `json:"emptyResponses,omitempty"`
	EmptyArgs      []int `json:"emptyArgs,omitempty"`
}

// encodeEvent returns the entries of an event. Latest is the latest time of the events before it.
// Limit is the length in bytes of an entry.
func encodeEvent(e *session.Event, latest time.Time, limit int) ([]any, error) {
	r := record{Event: *e}
	if latest.After(e.Timestamp) {
		r.Extra.Latest = latest
	}
	if e.Content != nil {
		for i, p := range e.Content.Parts {
			if p != nil && p.FunctionResponse != nil && isEmpty(p.FunctionResponse.Response) {
				r.Extra.EmptyResponses = append(r.Extra.EmptyResponses, i)
			}
			if p != nil && p.FunctionCall != nil && isEmpty(p.FunctionCall.Args) {
				r.Extra.EmptyArgs = append(r.Extra.EmptyArgs, i)
			}
		}
	}
	text, err := json.Marshal(r)
	if err == nil {
		text, err = compact(text, eventZeros, map[string]zeros{"Actions": actionsZeros})
	}
	if err != nil {
		return nil, fmt.Errorf("failed to encode event: %w", err)
	}
	if len(text) <= limit {
		return []any{stream.Raw{Type: typeEvent, Data: text}}, nil
	}
	var entries []any
	size := limit / 2 // base64 makes four bytes of three
	for ; len(text) > size; text = text[size:] {
		piece, err := json.Marshal(text[:size])
		if err != nil {
			return nil, err
		}
		entries = append(entries, stream.Raw{Type: typePiece, Data: piece})
	}
	last, err := json.Marshal(lastPiece{Pieces: len(entries), Data: text})
	if err != nil {
		return nil, err
	}
	return append(entries, stream.Raw{Type: typeLast, Data: last}), nil
}

func isEmpty(m map[string]any) bool { return m != nil && len(m) == 0 }

// zeros holds the JSON of the zero value of each field of a struct, by its name in JSON.
type zeros map[string]string

var (
	eventZeros   = zerosOf(reflect.TypeFor[session.Event]())
	actionsZeros = zerosOf(reflect.TypeFor[session.EventActions]())
)

func zerosOf(t reflect.Type) zeros {
	z := zeros{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch f.Type.Kind() {
		case reflect.String:
			z[cmp.Or(name, f.Name)] = `""`
		case reflect.Bool:
			z[cmp.Or(name, f.Name)] = "false"
		case reflect.Float64:
			z[cmp.Or(name, f.Name)] = "0"
		case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
			z[cmp.Or(name, f.Name)] = "null"
		}
	}
	return z
}

// compact removes the members of a JSON object that are zero: decoding gives the same without them.
func compact(object []byte, z zeros, nested map[string]zeros) ([]byte, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(object, &members); err != nil {
		return nil, err
	}
	for name, v := range members {
		if zero, ok := z[name]; ok && string(v) == zero {
			delete(members, name)
			continue
		}
		if z, ok := nested[name]; ok {
			inner, err := compact(v, z, nil)
			if err != nil {
				return nil, err
			}
			members[name] = inner
		}
	}
	return json.Marshal(members)
}

// decodeEvent returns an event, and the latest time of the events up to it.
func decodeEvent(text []byte) (*session.Event, time.Time, error) {
	r := new(record)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, time.Time{}, fmt.Errorf("failed to decode event: %w", err)
	}
	part := func(i int) genai.Part {
		if r.Content == nil || i < 0 || i >= len(r.Content.Parts) || r.Content.Parts[i] == nil {
			return genai.Part{}
		}
		return *r.Content.Parts[i]
	}
	for _, i := range r.Extra.EmptyResponses {
		if f := part(i).FunctionResponse; f != nil {
			f.Response = map[string]any{}
		}
	}
	for _, i := range r.Extra.EmptyArgs {
		if f := part(i).FunctionCall; f != nil {
			f.Args = map[string]any{}
		}
	}
	latest := r.Extra.Latest
	if r.Timestamp.After(latest) {
		latest = r.Timestamp
	}
	return &r.Event, latest, nil
}

var errPieces = errors.New("pieces of an event are missing")

// join returns the text of the record that ends with last. Pieces are the entries before it, up to the
// event before.
func join(pieces []json.RawMessage, last json.RawMessage) ([]byte, error) {
	var l lastPiece
	if err := json.Unmarshal(last, &l); err != nil {
		return nil, err
	}
	if l.Pieces != len(pieces) {
		return nil, errPieces
	}
	var text []byte
	for _, p := range pieces {
		var data []byte
		if err := json.Unmarshal(p, &data); err != nil {
			return nil, err
		}
		text = append(text, data...)
	}
	return append(text, l.Data...), nil
}
