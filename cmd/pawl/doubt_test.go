package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/open"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// newApp returns an app without a process of its own.
func newApp() *app {
	return &app{out: newOutput(io.Discard), errOut: io.Discard, settling: 50 * time.Millisecond}
}

// restless is a store with a writer that commits after each list, as often as changes says.
type restless struct {
	*sqlite.Store
	t       *testing.T
	changes int
	version uint64
}

func (s *restless) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	page, err := s.Store.List(ctx, q)
	if s.changes > 0 {
		s.changes--
		s.version++
		put(s.t, s.Store, "writer", persist.Write{Key: key("n", "restless"), Expected: s.version - 1, Version: s.version, Doc: []byte(`{}`)})
	}
	return page, err
}

// An export is compared with the store until nothing has changed meanwhile.
func TestExportOfBusyStore(t *testing.T) {
	for name, c := range map[string]struct {
		changes int
		skip    bool
		want    int // exit code
	}{
		"calm_in_the_end": {changes: 4, want: exitOK},
		"never_calm":      {changes: 1000, want: exitNegative},
		"skip_verify":     {changes: 1000, skip: true, want: exitOK},
	} {
		t.Run(name, func(t *testing.T) {
			from := &restless{Store: stores.OpenFor(t, stores.SQLite.New(t)).(*sqlite.Store), t: t, changes: c.changes}
			put(t, from.Store, "w", many("n", 3)...)
			to := stores.OpenFor(t, stores.SQLite.New(t))
			err := newApp().fetch(t.Context(), from, to, c.skip)
			var coded *codedError
			if c.want == exitOK {
				require.NoError(t, err)
			} else {
				require.ErrorAs(t, err, &coded)
				require.Equal(t, c.want, coded.code)
				require.ErrorContains(t, err, "changed during each of 3 attempts")
			}
			if c.changes < 10 {
				requireEqual(t, from.Store, to)
			}
		})
	}
}

func TestExitCode(t *testing.T) {
	cause := errors.New("interrupt signal received")
	interrupted, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{t.Context(), nil, exitOK},
		{interrupted, nil, exitOK},
		{interrupted, fmt.Errorf("list: %w", context.Canceled), exitInterrupted},
		{interrupted, negative("line 3: %w", cause), exitInterrupted},
		{interrupted, persist.ErrUnavailable, exitInterrupted},
		{interrupted, negative("no record"), exitNegative},
		{interrupted, outputError(io.ErrShortWrite), exitOutput},
		{t.Context(), fmt.Errorf("store: %w", open.ErrLocation), exitUsage},
		{t.Context(), persist.ErrNewerSchema, exitSchema},
		{t.Context(), persist.ErrOlderSchema, exitSchema},
		{t.Context(), persist.ErrMissingStore, exitUnavailable},
		{t.Context(), context.Canceled, exitUnavailable},
	} {
		require.Equal(t, c.want, (&app{started: true}).exitCode(c.ctx, c.err), "%v", c.err)
	}
	require.Equal(t, exitUsage, (&app{}).exitCode(t.Context(), errors.New("unknown flag")))
}

// The answer to rm is lost, but the record shows that it was deleted.
func TestRemoveWithLostAnswer(t *testing.T) {
	stores.Need(t, "postgres")
	location := stores.Postgres.New(t)
	store := stores.OpenFor(t, location)
	fill(t, store)
	u, err := url.Parse(location)
	require.NoError(t, err)
	proxy := pgproxy.Start(t, "tcp", u.Host, "write", "write_together", "create_records", "replace_records", "touch_records", "change_logs")
	first := true
	proxy.Script(func(pgproxy.Commit) pgproxy.Action {
		if !first {
			return pgproxy.Pass
		}
		first = false
		return pgproxy.AfterExecute
	})
	require.Contains(t, ok(t, "rm", "session/ann", "--store", proxy.URL(location)), "at version 3")
	require.Equal(t, 1, proxy.Counts().AfterExecute)
	r, err := store.Load(t.Context(), key("session", "ann"))
	require.NoError(t, err)
	require.EqualValues(t, 3, r.Version)
}

// Rm says so if the outcome stays unknown, and if nothing was deleted.
func TestRemoveDuringOutage(t *testing.T) {
	store := stores.OpenFor(t, stores.SQLite.New(t))
	fill(t, store)
	tap := &stores.Tap{Store: store}
	lost := errors.New("connection lost")
	tap.Around(func(persist.Commit, func() (time.Time, error)) (time.Time, error) { return time.Time{}, lost })
	err := newApp().remove(t.Context(), tap, key("session", "ann"), 0, false)
	var coded *codedError
	require.ErrorAs(t, err, &coded)
	require.Equal(t, exitUnknown, coded.code)
	require.ErrorIs(t, err, lost)

	tap.Around(func(persist.Commit, func() (time.Time, error)) (time.Time, error) {
		return time.Time{}, errors.Join(persist.ErrNotApplied, persist.ErrUnavailable)
	})
	err = newApp().remove(t.Context(), tap, key("session", "ann"), 0, false)
	require.ErrorContains(t, err, "nothing was deleted")
	require.NotErrorAs(t, err, &coded)

	// Another process changes the record between the look and the delete.
	tap.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
		put(t, store, "other", persist.Write{Key: key("session", "ann"), Expected: 2, Version: 3, Doc: []byte(`{}`)})
		return commit()
	})
	err = newApp().remove(t.Context(), tap, key("session", "ann"), 2, false)
	require.ErrorAs(t, err, &coded)
	require.Equal(t, exitNegative, coded.code)
	r, err := store.Load(t.Context(), key("session", "ann"))
	require.NoError(t, err)
	require.False(t, r.Deleted)
}

// A record counts as seen once it was shown: what shows it may need the store, which may be down.
func TestSeenOnceShown(t *testing.T) {
	w := &watch{known: map[string]mark{}}
	r := persist.Record{Key: key("n", "a"), Version: 1}
	require.ErrorIs(t, w.note(r, func(persist.Record) error { return persist.ErrUnavailable }), persist.ErrUnavailable)
	shown := 0
	for range 2 {
		require.NoError(t, w.note(r, func(persist.Record) error { shown++; return nil }))
	}
	require.Equal(t, 1, shown)
}

// A watch waits for a store that is down, and prints what has changed meanwhile.
func TestWatchDuringOutage(t *testing.T) {
	stores.Need(t, "postgres")
	location := stores.Postgres.New(t)
	store := stores.OpenFor(t, location)
	u, err := url.Parse(location)
	require.NoError(t, err)
	proxy := pgproxy.Start(t, "tcp", u.Host)
	w := start(t, "watch", "n", "--store", proxy.URL(location))
	w.until("watching n")
	proxy.Refuse(true)
	w.until("waiting")
	put(t, store, "w", many("n", 2)...)
	proxy.Refuse(false)
	lines := bufio.NewScanner(w.out)
	for _, want := range []string{"n/0000", "n/0001"} {
		require.True(t, lines.Scan(), w.said.String())
		require.Contains(t, lines.Text(), want)
	}
}
