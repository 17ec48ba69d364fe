package adk_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"
)

// Get selects events by number and by time, however large they are and however their times are
// ordered.
func TestGetSelectsEvents(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		// Small documents: events "large" are stored in pieces.
		s := openOn(t, stores.OpenFor(t, location), adk.Config{}, pawl.Config{MaxDoc: smallDocs})
		h := create(t, s, "s", nil)
		var all []*session.Event
		for i, second := range []int{1, 5, 3, 3, 9, 2, 7, 8} {
			e := event(string(rune('a'+i)), map[string]any{"i": i})
			e.Timestamp = at(second)
			if i%3 == 1 {
				e.Content = genai.NewContentFromText(strings.Repeat("large 💬\x00\"", 100*i), "model")
			}
			appendTo(t, s, h, e)
			all = append(all, e)
		}
		for _, recent := range []int{0, 1, 2, 4, 8, 9} {
			for _, second := range []int{-1, 0, 2, 3, 5, 9, 10} {
				req := &session.GetRequest{SessionID: "s", NumRecentEvents: recent}
				if second >= 0 {
					req.After = at(second)
				}
				want := []string{}
				for i, e := range all {
					if (recent == 0 || i >= len(all)-recent) && !e.Timestamp.Before(req.After) {
						want = append(want, e.ID)
					}
				}
				got := getBy(t, s, req)
				require.Equal(t, want, ids(got), "recent %d, after %d", recent, second)
				for e := range got.Events().All() {
					require.Equal(t, all[e.ID[0]-'a'].Content, e.Content)
				}
			}
		}
		require.Len(t, ids(getBy(t, s, &session.GetRequest{SessionID: "s", NumRecentEvents: -1})), len(all))
	})
}

// Many events are read page by page.
func TestManyEvents(t *testing.T) {
	s := open(t, stores.Memory.New(t), adk.Config{})
	h := create(t, s, "s", nil)
	var want []string
	for i := range 1234 {
		e := event(time.Duration(i).String(), nil)
		e.Timestamp = at(i)
		appendTo(t, s, h, e)
		want = append(want, e.ID)
	}
	require.Equal(t, want, ids(get(t, s, "s")))
	require.Equal(t, want[1234-700:], ids(getBy(t, s, &session.GetRequest{SessionID: "s", NumRecentEvents: 700})))
	require.Equal(t, want[300:], ids(getBy(t, s, &session.GetRequest{SessionID: "s", After: at(300)})))
	remove(t, s, "s")
	require.Empty(t, ids(create(t, s, "s", nil)))
}

// Events above the limit of documents are stored, and states above it are refused.
func TestLargeEvents(t *testing.T) {
	stores.Each(t, func(t *testing.T, location string) {
		s := openOn(t, stores.OpenFor(t, location), adk.Config{}, pawl.Config{MaxDoc: 1 << 16})
		h := create(t, s, "s", nil)
		e := event("large", map[string]any{"k": "v"})
		e.Content = genai.NewContentFromBytes([]byte(strings.Repeat("0123456789", 20_000)), "image/png", "user")
		appendTo(t, s, h, e)
		require.Equal(t, e.Content, get(t, s, "s").Events().At(0).Content)

		err := s.AppendEvent(t.Context(), h, event("huge", map[string]any{"k": strings.Repeat("x", 1<<16)}))
		require.Equal(t, "LIMIT", pawl.Code(err), err)
		appendTo(t, s, h, event("small", nil))
		require.Equal(t, []string{"large", "small"}, ids(get(t, s, "s")))
		require.Equal(t, map[string]any{"k": "v"}, state(get(t, s, "s")))
	})
}
