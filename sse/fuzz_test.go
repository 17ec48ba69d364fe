package sse_test

import (
	"context"
	"encoding/json"
	"iter"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/sse"
)

// An event is refused, or it arrives as one event with its id, its name and its data: no text can add a
// line. The handler gets the last id as the client sent it.
func FuzzEvent(f *testing.F) {
	f.Add("7", "message", "hello", "6")
	f.Add("", "", "a\nb\r\n\ndata: x", "")
	f.Add("1\nevent: x", "a\rb", "\x00", "x y")
	f.Fuzz(func(t *testing.T, id, name, data, last string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["Last-Event-Id"] = []string{last}
		w := httptest.NewRecorder()
		var seen string
		err := sse.ServeEvents(w, r, func(_ context.Context, last string) iter.Seq2[sse.Event, error] {
			seen = last
			return func(yield func(sse.Event, error) bool) { yield(sse.Event{ID: id, Name: name, Data: data}, nil) }
		})
		require.Equal(t, last, seen)
		if err != nil {
			require.True(t, strings.ContainsAny(id, "\r\n\x00") || strings.ContainsAny(name, "\r\n"), "%v", err)
			return
		}
		var ids, names, texts []string
		for line := range strings.SplitSeq(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(w.Body.String()), "\n") {
			field, value, _ := strings.Cut(line, ":")
			value = strings.TrimPrefix(value, " ")
			switch field {
			case "id":
				ids = append(ids, value)
			case "event":
				names = append(names, value)
			case "data":
				texts = append(texts, value)
			case "", "retry":
			default:
				t.Fatalf("unexpected line %q", line)
			}
		}
		require.Equal(t, present(id), ids)
		require.Equal(t, present(name), names)
		want, err := json.Marshal(data)
		require.NoError(t, err)
		require.Equal(t, []string{string(want)}, texts)
	})
}

// present returns the values that a field with this text has.
func present(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}
