package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	core "github.com/pawl-go/pawl"
	flowrun "github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// doc is a document or an event of the tests.
type doc struct {
	Text string `json:"text"`
}

// openRuntime returns a runtime on a store.
func openRuntime(t *testing.T, store persist.Store) *core.Runtime {
	t.Helper()
	rt, err := core.Open(core.Config{Store: store})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(testkit.Within(t, testkit.Patience))) })
	return rt
}

// newLog returns a log of streams.
func newLog(t *testing.T, rt *core.Runtime) *stream.Log {
	t.Helper()
	log, err := stream.New(rt, stream.Config{Logger: slog.New(slog.DiscardHandler), Events: []stream.Type{stream.Of[doc]("said")}})
	require.NoError(t, err)
	return log
}

// newRuns returns an engine, and its runs with two steps.
func newRuns(rt *core.Runtime, first func(context.Context, *flowrun.Attempt[doc]) (flowrun.Next, error)) (*flowrun.Engine, *flowrun.Runs[doc]) {
	e := flowrun.NewEngine(rt, flowrun.Config{Logger: slog.New(slog.DiscardHandler)})
	end := func(context.Context, *flowrun.Attempt[doc]) (flowrun.Next, error) { return flowrun.Continue(), nil }
	return e, flowrun.Register(e, flowrun.Definition[doc]{Name: "trip", Steps: []flowrun.Step[doc]{{Name: "book", Do: first}, {Name: "pay", Do: end}}})
}

// fillUsers writes records, a stream, a run and an idempotency record for each user.
func fillUsers(t *testing.T, store persist.Store, users ...string) {
	t.Helper()
	rt := openRuntime(t, store)
	log := newLog(t, rt)
	keys, err := idempotency.New(rt, idempotency.Config{})
	require.NoError(t, err)
	e, runs := newRuns(rt, func(context.Context, *flowrun.Attempt[doc]) (flowrun.Next, error) { return flowrun.Continue(), nil })
	for _, user := range users {
		for _, id := range []string{user, user + "/1"} {
			_, err := core.Session[doc](rt, id).SetState(t.Context(), doc{user})
			require.NoError(t, err)
		}
		_, err := log.Append(t.Context(), user, stream.Any, doc{user})
		require.NoError(t, err)
		r, _, err := runs.Start(t.Context(), doc{user}, flowrun.InWorkspace(user+"&"))
		require.NoError(t, err)
		require.NoError(t, e.Signal(t.Context(), r.ID, "go", user))
		_, _, err = idempotency.DoTx(t.Context(), keys, idempotency.Op{Principal: user, Name: "n", Key: "k"},
			func(context.Context, *core.Tx) (string, error) { return user, nil })
		require.NoError(t, err)
	}
}

// lines decodes the lines of --json.
func lines[T any](t *testing.T, out string) (all []T) {
	t.Helper()
	for line := range strings.Lines(out) {
		var v T
		require.NoError(t, json.Unmarshal([]byte(line), &v), line)
		all = append(all, v)
	}
	return all
}

// living returns how many records a store has that are no tombstones and no parts of logs.
func living(t *testing.T, store persist.Store) (n int) {
	t.Helper()
	for _, r := range records(t, store) {
		if !r.Deleted && !persist.IsLogKind(r.Kind) {
			n++
		}
	}
	return n
}

func TestErase(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		fillUsers(t, store, "ann", "anna")
		total := living(t, store)
		names := strings.Fields("erase --id ann --prefix ann/ --workspace ann& --principal ann --store " + flag(location))

		r := pawl(t, names...)
		require.Zero(t, r.code, r.err)
		require.Contains(t, r.err, "6 records found, 0 of them to be kept; nothing was deleted")
		require.Contains(t, r.out, "KIND")
		require.Regexp(t, `stream\s+ann\s`, r.out)
		require.NotContains(t, r.out, "anna")
		require.Equal(t, total, living(t, store))
		require.Len(t, lines[erasable](t, ok(t, append(names, "--json")...)), 6)

		// A worker holds the session.
		put(t, store, "w", persist.Write{Key: key("session", "ann"), Expected: 1, Version: 2, Doc: []byte(`{}`), Acquire: &persist.Acquire{Holder: "host:1", For: time.Hour}})
		require.Contains(t, ok(t, names...), `held by "host:1"`)
		r = pawl(t, append(names, "--yes", "--json")...)
		require.Equal(t, exitNegative, r.code)
		require.Contains(t, r.err, "5 records deleted, 1 kept")
		require.Contains(t, r.err, "run the same command again when leases and jobs have ended")
		told := lines[erasable](t, r.out)
		require.Len(t, told, 6)
		require.Equal(t, key("session", "ann"), told[5].Key)
		require.Contains(t, told[5].Left, `held by "host:1"`)
		require.False(t, told[5].Deleted)
		require.True(t, told[0].Deleted)
		entries, err := persist.Logs(store).ReadLog(t.Context(), persist.LogQuery{Key: key("stream", "ann")})
		require.NoError(t, err)
		require.Empty(t, entries)

		require.Equal(t, "deleted session/ann\n", ok(t, append(names, "--yes", "--force")...))
		require.Empty(t, ok(t, append(names, "--yes")...))
		require.Equal(t, total/2, living(t, store))
	})
}

func TestEraseByLabelAndKind(t *testing.T) {
	location := stores.SQLite.New(t)
	store := stores.OpenFor(t, location)
	fill(t, store)
	require.Equal(t, "deleted session/bob\n", ok(t, "erase", "--label", "session=done", "--yes", "--store", location))
	require.Equal(t, "deleted stream/s\n", ok(t, "erase", "--kind", "stream", "--prefix", "s", "--yes", "--store", location))
	require.Contains(t, ok(t, "erase", "--prefix", "e", "--yes", "--store", location), "session/eve") // expired
	require.Equal(t, 2, living(t, store))
}

// The output of a killed erase is not read, so it stops in the middle.
func TestKilledErase(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		const total = 800
		long := strings.Repeat("x", 230)
		var writes []persist.Write
		for i := range total {
			writes = append(writes, persist.Write{Key: key("session", fmt.Sprintf("ann/%s%d", long, i)), Version: 1, Doc: []byte(`{}`)})
		}
		for i := 0; i < total; i += 100 {
			_, err := store.Commit(t.Context(), persist.Commit{ID: fmt.Sprintf("w.%d", i+1), Writes: writes[i : i+100]})
			require.NoError(t, err)
		}
		put(t, store, "w", persist.Write{Key: key("session", "bob"), Version: 1, Doc: []byte(`{}`)})
		w := start(t, "erase", "--prefix", "ann/", "--yes", "--json", "--store", flag(location))
		testkit.Eventually(t, func() bool { return living(t, store) <= total-300 }, "the erasure made no progress")
		w.signal(syscall.SIGKILL)
		code, _ := w.wait()
		require.Equal(t, -1, code)
		left := living(t, store)
		require.Greater(t, left, 1)
		// PostgreSQL may still carry out a commit of the killed process.
		deleted := len(lines[erasable](t, ok(t, "erase", "--prefix", "ann/", "--yes", "--json", "--store", flag(location))))
		require.LessOrEqual(t, deleted, left-1)
		require.Positive(t, deleted)
		require.Equal(t, 1, living(t, store))
	})
}
