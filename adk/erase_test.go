package adk_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/session"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/erase"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// Everything about one user of an app can be erased, whatever the user's name looks like. Other users and
// the app stay.
func TestErase(t *testing.T) {
	for _, user := range []string{"ann", "ann/x y", strings.Repeat("ann", 50)} {
		stores.Each(t, func(t *testing.T, location string) {
			store := stores.OpenFor(t, location)
			s := openOn(t, store, adk.Config{}, pawl.Config{})
			others := []string{"anna", "an", "bob"}
			for _, name := range append(others, user) {
				h := createFor(t, s, name, "s", map[string]any{"k": 1, "user:u": 2, "app:a": 3})
				appendTo(t, s, h, event("said by "+name, nil))
			}
			parts, err := erase.Parts(t.Context(), store, adk.Subject(appName, user))
			require.NoError(t, err)
			report, err := erase.Erase(t.Context(), store, parts, erase.Options{})
			require.NoError(t, err)
			require.Equal(t, 3, report.Deleted, "the user, the session and its stream")

			_, err = s.Get(t.Context(), &session.GetRequest{AppName: appName, UserID: user, SessionID: "s"})
			require.ErrorIs(t, err, adk.ErrNotFound)
			for _, name := range others {
				h := getBy(t, s, &session.GetRequest{AppName: appName, UserID: name, SessionID: "s"})
				require.Equal(t, []string{"said by " + name}, ids(h))
				require.Equal(t, map[string]any{"k": 1.0, "user:u": 2.0, "app:a": 3.0}, state(h))
			}
			entries, err := persist.Logs(store).ReadOrder(t.Context(), persist.OrderQuery{})
			require.NoError(t, err)
			require.Len(t, entries, len(others))
			fresh := createFor(t, s, user, "s", nil)
			require.Equal(t, map[string]any{"app:a": 3.0}, state(fresh))
			appendTo(t, s, fresh, event("back", map[string]any{"user:u": 4}))
			require.Equal(t, map[string]any{"user:u": 4.0, "app:a": 3.0}, state(getBy(t, s, &session.GetRequest{AppName: appName, UserID: user, SessionID: "s"})))
		})
	}
}
