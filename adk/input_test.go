package adk_test

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/session"
)

func TestNew(t *testing.T) {
	_, err := adk.New(nil, adk.Config{})
	require.ErrorIs(t, err, pawl.ErrNoStore)
	rt, err := pawl.Open(pawl.Config{})
	require.NoError(t, err)
	defer rt.Close(t.Context())
	_, err = adk.New(rt, adk.Config{})
	require.ErrorIs(t, err, pawl.ErrNoStore)
	_, err = adk.New(rt, adk.Config{Policy: 7})
	require.Equal(t, "ARGUMENT", pawl.Code(err))
}

// Names of any length and with any characters are kept apart. Names that no store can keep are
// refused.
func TestNames(t *testing.T) {
	long := strings.Repeat("x", 300)
	hash := sha256.Sum256([]byte(long))
	names := []string{
		"a", "A", "a/b", "a%2Fb", "a b", "ä", "\t\n\x7f", "..", ".", "~", "~" + strings.Repeat("0", 63), "%", "a:b",
		long, "~" + hex.EncodeToString(hash[:])[:63], long + "y", strings.Repeat("ü", 100), strings.Repeat("/", 60),
	}
	each(t, adk.Config{}, func(t *testing.T, s *adk.Service) {
		for _, name := range names {
			req := &session.CreateRequest{AppName: name, UserID: name, SessionID: name, State: map[string]any{"k": name, "user:k": name, "app:k": name}}
			_, err := s.Create(t.Context(), req)
			require.NoError(t, err, "%q", name)
			_, err = s.Create(t.Context(), req)
			require.ErrorIs(t, err, pawl.ErrExists)
			require.EqualError(t, err, "session "+name+" already exists")
		}
		for _, name := range names {
			r, err := s.Get(t.Context(), &session.GetRequest{AppName: name, UserID: name, SessionID: name})
			require.NoError(t, err, "%q", name)
			require.Equal(t, []string{name, name, name}, []string{r.Session.AppName(), r.Session.UserID(), r.Session.ID()})
			require.Equal(t, map[string]any{"k": name, "user:k": name, "app:k": name}, state(r.Session))
			for _, user := range []string{"", name} {
				list, err := s.List(t.Context(), &session.ListRequest{AppName: name, UserID: user})
				require.NoError(t, err)
				require.Len(t, list.Sessions, 1, "%q", name)
				require.Equal(t, name, list.Sessions[0].ID())
				require.Equal(t, name, state(list.Sessions[0])["user:k"])
			}
		}
		for _, name := range []string{"\x00", "a\x00b", "\xff"} {
			for _, req := range []*session.CreateRequest{
				{AppName: name, UserID: "u", SessionID: "s"}, {AppName: "a", UserID: name, SessionID: "s"}, {AppName: "a", UserID: "u", SessionID: name},
			} {
				_, err := s.Create(t.Context(), req)
				require.Equal(t, "ARGUMENT", pawl.Code(err), "%q", name)
				_, err = s.Get(t.Context(), &session.GetRequest{AppName: req.AppName, UserID: req.UserID, SessionID: req.SessionID})
				require.Equal(t, "ARGUMENT", pawl.Code(err), "%q", name)
				err = s.Delete(t.Context(), &session.DeleteRequest{AppName: req.AppName, UserID: req.UserID, SessionID: req.SessionID})
				require.Equal(t, "ARGUMENT", pawl.Code(err), "%q", name)
			}
			_, err := s.List(t.Context(), &session.ListRequest{AppName: name})
			require.Equal(t, "ARGUMENT", pawl.Code(err), "%q", name)
		}
	})
}

// The name of an app that starts with the name of another shows nothing of that one.
func TestListOfASimilarName(t *testing.T) {
	s := open(t, stores.Memory.New(t), adk.Config{})
	for _, user := range []string{"ann", "anna"} {
		createFor(t, s, user, "s", map[string]any{"user:k": user})
	}
	list, err := s.List(t.Context(), &session.ListRequest{AppName: appName, UserID: "ann"})
	require.NoError(t, err)
	require.Len(t, list.Sessions, 1)
	require.Equal(t, "ann", state(list.Sessions[0])["user:k"])
	list, err = s.List(t.Context(), &session.ListRequest{AppName: appName[:2]})
	require.NoError(t, err)
	require.Empty(t, list.Sessions)
}

// Values that no store can keep are refused on every store alike, and change nothing.
func TestBadValues(t *testing.T) {
	each(t, adk.Config{}, func(t *testing.T, s *adk.Service) {
		h := create(t, s, "s", nil)
		for name, bad := range map[string]any{
			"U+0000": "a\x00b", "a key with U+0000": map[string]any{"\x00": 1}, "NaN": math.NaN(), "infinity": math.Inf(1), "a channel": make(chan int), "a function": func() {},
		} {
			for _, key := range []string{"k", "user:k", "app:k"} {
				require.Error(t, s.AppendEvent(t.Context(), h, event("bad", map[string]any{key: bad})), name)
				_, err := s.Create(t.Context(), &session.CreateRequest{AppName: appName, UserID: userID, SessionID: "bad", State: map[string]any{key: bad}})
				require.Error(t, err, name)
			}
		}
		require.Error(t, s.AppendEvent(t.Context(), h, event("bad", map[string]any{"k\x00": 1})))
		year := event("bad", nil)
		year.Timestamp = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
		require.Error(t, s.AppendEvent(t.Context(), h, year))
		output := event("bad", nil)
		output.Output = math.NaN()
		require.ErrorContains(t, s.AppendEvent(t.Context(), h, output), "failed to encode event")

		appendTo(t, s, h, event("temporary", map[string]any{"temp:t": make(chan int)})) // never stored
		appendTo(t, s, h, event("good", map[string]any{"": "empty key", "a.b": 1, `a\b`: 2}))
		require.Equal(t, map[string]any{"": "empty key", "a.b": 1.0, `a\b`: 2.0}, state(get(t, s, "s")))
		require.Equal(t, []string{"temporary", "good"}, ids(get(t, s, "s")))
	})
}

func TestBadArguments(t *testing.T) {
	s := open(t, stores.Memory.New(t), adk.Config{})
	h := create(t, s, "s", nil)
	require.EqualError(t, s.AppendEvent(t.Context(), nil, event("e", nil)), "session is nil")
	require.EqualError(t, s.AppendEvent(t.Context(), h, nil), "event is nil")
	foreign := createFor(t, session.InMemoryService(), userID, "s", nil)
	require.ErrorContains(t, s.AppendEvent(t.Context(), foreign, event("e", nil)), "unexpected session type")
	elsewhere := create(t, open(t, stores.Memory.New(t), adk.Config{}), "s", nil)
	require.ErrorIs(t, s.AppendEvent(t.Context(), elsewhere, event("e", nil)), adk.ErrStale)

	_, err := s.Create(t.Context(), nil)
	require.EqualError(t, err, "request is nil")
	_, err = s.Get(t.Context(), nil)
	require.EqualError(t, err, "request is nil")
	_, err = s.List(t.Context(), nil)
	require.EqualError(t, err, "request is nil")
	require.EqualError(t, s.Delete(t.Context(), nil), "request is nil")
	_, err = s.Create(t.Context(), &session.CreateRequest{AppName: appName})
	require.ErrorContains(t, err, "app_name and user_id are required")
	_, err = s.Get(t.Context(), &session.GetRequest{AppName: appName, UserID: userID})
	require.ErrorContains(t, err, "session_id are required")
	require.ErrorContains(t, s.Delete(t.Context(), &session.DeleteRequest{}), "session_id are required")
	_, err = s.List(t.Context(), &session.ListRequest{UserID: userID})
	require.ErrorContains(t, err, "app_name is required")
	require.Empty(t, ids(get(t, s, "s")))
}
