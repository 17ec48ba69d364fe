package adk_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/pawltest"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
	"google.golang.org/adk/v2/session"
)

func requireNothingLeft(t testing.TB, s *adk.Service) {
	t.Helper()
	entries, unfinished, err := s.Leftovers(t.Context())
	require.NoError(t, err)
	require.Zero(t, entries, "entries of streams")
	require.Zero(t, unfinished, "deletions")
}

// A session that is created again under its id shows nothing of the old one, and a handle on the old
// one is refused.
func TestDelete(t *testing.T) {
	for name, config := range policies {
		t.Run(name, func(t *testing.T) {
			each(t, config, func(t *testing.T, s *adk.Service) {
				old := create(t, s, "s", map[string]any{"k": 1, "user:u": 2, "app:a": 3})
				appendTo(t, s, old, event("old", nil))
				remove(t, s, "s")
				requireNothingLeft(t, s)
				err := s.AppendEvent(t.Context(), old, event("late", nil))
				require.ErrorIs(t, err, adk.ErrNotFound)
				require.ErrorIs(t, err, pawl.ErrNotFound)
				require.ErrorContains(t, err, "session not found, cannot apply event")
				_, err = s.Get(t.Context(), &session.GetRequest{AppName: appName, UserID: userID, SessionID: "s"})
				require.ErrorIs(t, err, adk.ErrNotFound)
				require.Equal(t, 404, pawl.HTTPStatus(err))

				fresh := create(t, s, "s", nil)
				require.Equal(t, map[string]any{"user:u": 2.0, "app:a": 3.0}, state(fresh))
				require.ErrorIs(t, s.AppendEvent(t.Context(), old, event("late", nil)), adk.ErrStale)
				appendTo(t, s, fresh, event("new", nil))
				require.ErrorIs(t, s.AppendEvent(t.Context(), old, event("late", nil)), adk.ErrStale)
				require.Equal(t, []string{"new"}, ids(get(t, s, "s")))
				remove(t, s, "s")
				remove(t, s, "s")
				requireNothingLeft(t, s)
			})
		})
	}
}

// A Delete that is interrupted before any of its commits deletes the session whole or not at all, and
// a later Delete removes the rest.
func TestInterruptedDelete(t *testing.T) {
	for commit := 1; ; commit++ {
		store := pawltest.NewStore()
		s := openOn(t, store, adk.Config{}, pawl.Config{MaxDoc: smallDocs})
		s.ResumeAfter(0)
		appendTo(t, s, create(t, s, "s", nil), inEntries("old", 1100)) // two commits remove them
		store.Nth(commit, pawltest.Refused)
		err := s.Delete(t.Context(), &session.DeleteRequest{AppName: appName, UserID: userID, SessionID: "s"})
		if err == nil {
			require.Greater(t, commit, 4)
			requireNothingLeft(t, s)
			return
		}
		_, getting := s.Get(t.Context(), &session.GetRequest{AppName: appName, UserID: userID, SessionID: "s"})
		if commit == 1 {
			require.NoError(t, getting)
			require.Equal(t, []string{"old"}, ids(get(t, s, "s")))
			remove(t, s, "s")
		} else {
			require.ErrorIs(t, getting, adk.ErrNotFound)
			require.Empty(t, ids(create(t, s, "s", nil)))
			appendTo(t, s, get(t, s, "s"), event("new", nil))
			require.Equal(t, []string{"new"}, ids(get(t, s, "s")))
			if commit%2 == 0 {
				remove(t, s, "another") // finishes the old deletion, and leaves the new session alone
				require.Equal(t, []string{"new"}, ids(get(t, s, "s")))
				entries, unfinished, err := s.Leftovers(t.Context())
				require.NoError(t, err)
				require.Equal(t, []int{1, 0}, []int{entries, unfinished})
			}
			remove(t, s, "s")
		}
		requireNothingLeft(t, s)
	}
}

// Appends, deletions and creations of one id at the same time: every acknowledged event is in the
// session that it was appended to, once, and its increments count once.
func TestAppendsRaceDeletions(t *testing.T) {
	for name, config := range policies {
		t.Run(name, func(t *testing.T) {
			stores.Each(t, func(t *testing.T, location string) {
				services := []*adk.Service{open(t, location, config), open(t, location, config)}
				var lives atomic.Int64
				renew := func(ctx context.Context, s *adk.Service) error {
					_, err := s.Create(ctx, &session.CreateRequest{AppName: appName, UserID: userID, SessionID: "s", State: map[string]any{"life": lives.Add(1)}})
					if errors.Is(err, pawl.ErrExists) {
						return nil
					}
					return err
				}
				require.NoError(t, renew(t.Context(), services[0]))

				var mu sync.Mutex
				acknowledged := map[float64][]string{} // by life
				total := 0
				var all sync.WaitGroup
				rounds := testkit.Times(60, 12)
				for w := range 4 {
					s := services[w%2]
					all.Go(func() {
						for i := range rounds {
							r, err := s.Get(t.Context(), &session.GetRequest{AppName: appName, UserID: userID, SessionID: "s"})
							if errors.Is(err, adk.ErrNotFound) {
								continue
							}
							if err != nil {
								t.Error(err)
								return
							}
							life, _ := r.Session.State().Get("life")
							n, _ := r.Session.State().Get("n")
							if n == nil {
								n = 0.0
							}
							if got := r.Session.Events().Len(); float64(got) != n {
								t.Errorf("life %v: %d events, n is %v", life, got, n)
							}
							id := fmt.Sprintf("%d-%d", w, i)
							err = s.AppendEvent(t.Context(), r.Session, event(id, map[string]any{"n": adk.Inc(1), "user:n": adk.Inc(1)}))
							if errors.Is(err, adk.ErrStale) || errors.Is(err, adk.ErrNotFound) {
								continue
							}
							if err != nil {
								t.Error(err)
								return
							}
							mu.Lock()
							acknowledged[life.(float64)] = append(acknowledged[life.(float64)], id)
							total++
							mu.Unlock()
						}
					})
				}
				for _, s := range services {
					all.Go(func() {
						for range rounds / 4 {
							err := s.Delete(t.Context(), &session.DeleteRequest{AppName: appName, UserID: userID, SessionID: "s"})
							if err = errors.Join(err, renew(t.Context(), s)); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				final := get(t, services[0], "s")
				got := state(final)
				require.ElementsMatch(t, acknowledged[got["life"].(float64)], ids(final))
				if total > 0 {
					require.Equal(t, float64(total), got["user:n"])
				}
				remove(t, services[1], "s")
				requireNothingLeft(t, services[0])
			})
		})
	}
}

// A commit whose answer is lost lands once, and one that loses to another writer is tested again.
func TestAppendWithFaults(t *testing.T) {
	for name, config := range policies {
		t.Run(name, func(t *testing.T) {
			store := pawltest.NewStore()
			s := openOn(t, store, config, pawl.Config{})
			rival := openOn(t, store.Below(), config, pawl.Config{})
			h := create(t, s, "s", nil)
			for i, fault := range []pawltest.Fault{pawltest.LostAnswer, pawltest.LostRequest, pawltest.Conflict} {
				store.Next(fault)
				appendTo(t, s, h, event(fmt.Sprint(i), map[string]any{"n": adk.Inc(1), "user:n": adk.Inc(1), "app:n": adk.Inc(1)}))
			}
			require.Equal(t, []string{"0", "1", "2"}, ids(get(t, s, "s")))
			require.Equal(t, map[string]any{"n": 3.0, "user:n": 3.0, "app:n": 3.0}, state(get(t, s, "s")))

			store.Next(pawltest.Refused)
			err := s.AppendEvent(t.Context(), h, event("3", map[string]any{"n": adk.Inc(1)}))
			require.ErrorIs(t, err, pawl.ErrUnavailable)
			appendTo(t, s, h, event("3", map[string]any{"n": adk.Inc(1)}))

			store.Next(pawltest.Rival(func() error {
				return rival.AppendEvent(t.Context(), get(t, rival, "s"), event("rival", map[string]any{"n": adk.Inc(1)}))
			}))
			err = s.AppendEvent(t.Context(), h, event("4", map[string]any{"n": adk.Inc(1)}))
			if config.Policy == adk.WholeSession {
				require.ErrorIs(t, err, adk.ErrStale)
				require.Equal(t, []string{"0", "1", "2", "3", "rival"}, ids(get(t, s, "s")))
			} else {
				require.NoError(t, err)
				require.Equal(t, []string{"0", "1", "2", "3", "rival", "4"}, ids(get(t, s, "s")))
				require.Equal(t, 6.0, state(h)["n"])
			}

			store.Next(pawltest.Rival(func() error {
				return rival.Delete(t.Context(), &session.DeleteRequest{AppName: appName, UserID: userID, SessionID: "s"})
			}))
			require.ErrorIs(t, s.AppendEvent(t.Context(), get(t, s, "s"), event("5", nil)), adk.ErrNotFound)
			requireNothingLeft(t, s)
		})
	}
}

// A Get that meets a deletion halfway through finds the session that follows it, or none.
func TestGetDuringADeletion(t *testing.T) {
	for _, again := range []bool{true, false} {
		store := pawltest.NewStore()
		admin := openOn(t, store, adk.Config{}, pawl.Config{MaxDoc: smallDocs})
		appendTo(t, admin, create(t, admin, "s", nil), inEntries("old", 1200))
		tap := &readTap{Store: store, before: func(n int) {
			if n != 2 { // the second page of events
				return
			}
			remove(t, admin, "s")
			if again {
				appendTo(t, admin, create(t, admin, "s", nil), event("new", nil))
			}
		}}
		s := openOn(t, tap, adk.Config{}, pawl.Config{MaxDoc: smallDocs})
		r, err := s.Get(t.Context(), &session.GetRequest{AppName: appName, UserID: userID, SessionID: "s"})
		if !again {
			require.ErrorIs(t, err, adk.ErrNotFound)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []string{"new"}, ids(r.Session))
	}
}

// readTap calls before ahead of each reading of a log.
type readTap struct {
	*pawltest.Store
	before func(n int)
	n      int
}

func (r *readTap) ReadLog(ctx context.Context, q persist.LogQuery) ([]persist.LogEntry, error) {
	r.n++
	r.before(r.n)
	return r.Store.ReadLog(ctx, q)
}
