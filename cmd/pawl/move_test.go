package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgproxy"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// requireEqual fails unless the stores hold the same records and log entries. Nothing is copied.
func requireEqual(t *testing.T, from, to persist.Store) {
	t.Helper()
	report, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
	require.NoError(t, err)
	require.Zero(t, report.Copied)
	require.Zero(t, report.Logs.Copied)
}

func TestCopy(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		from, target := stores.OpenFor(t, location), another(t, location)
		fill(t, from)
		out := ok(t, "copy", flag(location), flag(target))
		require.Contains(t, out, "records: 6 copied, 0 unchanged, 6 verified, 0 differ")
		require.Contains(t, out, "log entries: 2 copied")
		to := stores.OpenFor(t, target)
		requireEqual(t, from, to)

		// The application goes on, and the copy is continued.
		put(t, from, "filler2", persist.Write{Key: key("session", "bob"), Expected: 1, Version: 2, Doc: []byte(`{}`)})
		put(t, from, "filler", persist.Write{Key: key("session", "bob"), Expected: 2, Version: 3, Doc: []byte(`{}`)})
		var report persist.CopyReport
		require.NoError(t, json.Unmarshal([]byte(ok(t, "copy", flag(location), flag(target), "--json")), &report))
		require.Equal(t, 1, report.Copied)
		requireEqual(t, from, to)

		// And back to a store of this sort.
		back := map[string]stores.Store{"sqlite": stores.SQLite, "fs": stores.FS, "postgres": stores.Postgres}[stores.Name(location)].New(t)
		ok(t, "copy", flag(target), flag(back))
		requireEqual(t, from, stores.OpenFor(t, back))
	})
}

// A target that is no earlier copy of the source stays as it is.
func TestCopyToStoreInUse(t *testing.T) {
	one := func(id string) persist.Write {
		return persist.Write{Key: key("session", id), Version: 1, Doc: []byte(`{}`)}
	}
	next := func(id string) persist.Write {
		return persist.Write{Key: key("session", id), Expected: 1, Version: 2, Doc: []byte(`{}`)}
	}
	for name, c := range map[string]struct {
		target func(t *testing.T, to persist.Store)
		want   string
	}{
		"other_record": {func(t *testing.T, to persist.Store) { put(t, to, "other", one("zoe")) }, "only in the target"},
		"same_id":      {func(t *testing.T, to persist.Store) { put(t, to, "other", one("ann")) }, "version 1 was not written in the source"},
		"newer": {func(t *testing.T, to persist.Store) {
			put(t, to, "w", one("ann"), next("ann"), persist.Write{Key: key("session", "ann"), Expected: 2, Version: 3, Doc: []byte(`{}`)})
		}, "version 3 in the target, 2 in the source"},
		"same_version": {func(t *testing.T, to persist.Store) { put(t, to, "w", one("ann"), next("ann")) }, "written at another time"},
		"tombstone": {func(t *testing.T, to persist.Store) {
			put(t, to, "w", one("zoe"), persist.Write{Key: key("session", "zoe"), Expected: 1, Version: 2, Deleted: true})
		}, "only in the target"},
	} {
		t.Run(name, func(t *testing.T) {
			location, target := stores.SQLite.New(t), stores.FS.New(t)
			put(t, stores.OpenFor(t, location), "w", one("ann"), next("ann"), one("bob"))
			to := stores.OpenFor(t, target)
			c.target(t, to)
			before := records(t, to)
			for _, args := range [][]string{{"copy", location, flag(target)}, {"copy", "--skip-verify", location, flag(target)}} {
				r := pawl(t, args...)
				require.Equal(t, exitNegative, r.code)
				require.Contains(t, r.err, "the target is not empty")
				require.Contains(t, r.err, c.want)
				require.Equal(t, before, records(t, to))
			}
		})
	}
}

// A copy whose expiry or lease moved on without a new version is in use.
func TestCopyThatWasUsed(t *testing.T) {
	now := time.Now()
	original := persist.Record{
		Key: key("session", "ann"), Version: 2, Updated: now, Expires: now.Add(time.Hour),
		Lease: persist.Lease{Holder: "a", Token: 2, Until: now.Add(time.Minute)},
	}
	for name, c := range map[string]struct {
		change func(*persist.Record)
		used   bool
	}{
		"same":     {func(*persist.Record) {}, false},
		"older":    {func(r *persist.Record) { r.Expires, r.Lease.Until = now, now }, false},
		"renewed":  {func(r *persist.Record) { r.Expires = now.Add(2 * time.Hour) }, true},
		"kept":     {func(r *persist.Record) { r.Expires = time.Time{} }, true},
		"extended": {func(r *persist.Record) { r.Lease.Until = now.Add(2 * time.Minute) }, true},
		"released": {func(r *persist.Record) { r.Lease = persist.Lease{} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := original
			c.change(&r)
			if reason := foreign(original, r, 0, true); c.used {
				require.Equal(t, "version 2 was renewed or released in the target", reason)
			} else {
				require.Empty(t, reason)
			}
		})
	}
}

// A lease that was released in the source, after the copy, does not keep the copy from going on.
func TestCopyAfterARelease(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		from, target := stores.OpenFor(t, location), another(t, location)
		put(t, from, "a", persist.Write{Key: key("leader", "job"), Version: 1, Doc: []byte(`{}`), Acquire: &persist.Acquire{Holder: "a", For: time.Hour}})
		ok(t, "copy", flag(location), flag(target), "--skip-verify")
		_, err := from.Commit(t.Context(), persist.Commit{ID: "b.1", Guards: []persist.Guard{{Key: key("leader", "job"), Token: 1, Release: true}}})
		require.NoError(t, err)
		ok(t, "copy", flag(location), flag(target))
		requireEqual(t, from, stores.OpenFor(t, target))
	})
}

// late is a store that lists expired records once a time has passed.
type late struct {
	*sqlite.Store
	until time.Time
}

func (l late) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	if q.Expired {
		time.Sleep(time.Until(l.until) + time.Millisecond)
	}
	return l.Store.List(ctx, q)
}

// A record that expires while the export is written is in it once.
func TestExportBesideAnExpiry(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "pawl.db"), sqlite.Config{})
	require.NoError(t, err)
	defer store.Close()
	put(t, store, "a", persist.Write{Key: key("session", "ann"), Version: 1, Doc: []byte(`{}`), TTL: 2 * time.Second})
	put(t, store, "b", persist.Write{Key: key("session", "bob"), Version: 1, Doc: []byte(`{}`)})
	r, err := store.Load(t.Context(), key("session", "ann"))
	require.NoError(t, err)
	var text bytes.Buffer
	out := newOutput(&text)
	require.NoError(t, writeLines(t.Context(), late{store, r.Expires}, out))
	require.NoError(t, out.flush())
	require.Equal(t, 1, strings.Count(text.String(), `"ann"`))
	require.Contains(t, text.String(), `"end":{"records":2,`)
}

// records returns all records of a store.
func records(t *testing.T, store persist.Store) (all []persist.Record) {
	t.Helper()
	for _, q := range allRecords {
		require.NoError(t, each(t.Context(), store, q, func(page []persist.Record) error {
			for _, r := range page {
				r.Now = r.Updated
				all = append(all, r)
			}
			return nil
		}))
	}
	return all
}

// proxied returns a new PostgreSQL database and a proxy in front of it. Reached is closed when the
// proxy is asked about the commit of the given number, whose answer is then held.
func proxied(t *testing.T, number int) (target string, proxy *pgproxy.Proxy, reached chan struct{}) {
	t.Helper()
	target = stores.Postgres.New(t)
	stores.OpenFor(t, target) // creates the tables
	u, err := url.Parse(target)
	require.NoError(t, err)
	proxy = pgproxy.Start(t, "tcp", u.Host, "create_records", "replace_records", "touch_records", "write", "change_logs")
	reached = make(chan struct{})
	commits := 0
	proxy.Script(func(pgproxy.Commit) pgproxy.Action {
		if commits++; commits != number {
			return pgproxy.Pass
		}
		close(reached)
		return pgproxy.HoldUntil(t.Context().Done())
	})
	return target, proxy, reached
}

// A copy that ends in the middle, in whatever way, is continued by the same command.
func TestCopyEndsInTheMiddle(t *testing.T) {
	stores.Need(t, "postgres")
	const total, middle = 60, 20
	for name, c := range map[string]struct {
		end  func(w *running, proxy *pgproxy.Proxy)
		code int
		want string
	}{
		"killed":      {func(w *running, _ *pgproxy.Proxy) { w.signal(syscall.SIGKILL) }, -1, ""},
		"interrupted": {func(w *running, _ *pgproxy.Proxy) { w.signal(syscall.SIGINT) }, exitInterrupted, "Run the same command again"},
		"outage":      {func(_ *running, proxy *pgproxy.Proxy) { proxy.Refuse(true) }, exitUnavailable, "Run the same command again"},
	} {
		t.Run(name, func(t *testing.T) {
			location := stores.SQLite.New(t)
			from := stores.OpenFor(t, location)
			put(t, from, "w", many("n", total)...)
			target, proxy, reached := proxied(t, middle)
			w := start(t, "copy", location, proxy.URL(target), "--page-size", "1")
			testkit.Receive(t, reached, "the copy made no progress")
			c.end(w, proxy)
			code, errOut := w.wait()
			require.Equal(t, c.code, code, errOut)
			require.Contains(t, errOut, c.want)
			to := stores.OpenFor(t, target)
			n := len(records(t, to))
			require.GreaterOrEqual(t, n, middle-1)
			require.Less(t, n, total)

			var report persist.CopyReport
			require.NoError(t, json.Unmarshal([]byte(ok(t, "copy", location, target, "--json")), &report))
			// The server may have executed the last commit of the ended copy only after the count.
			require.Contains(t, []int{n, n + 1}, report.Unchanged)
			require.Equal(t, total, report.Unchanged+report.Copied)
			require.Equal(t, total, report.Verified)
			requireEqual(t, from, to)
		})
	}
}

// A copy to local stores is killed as soon as the first record has arrived.
func TestKilledCopyToFiles(t *testing.T) {
	for _, s := range []stores.Store{stores.SQLite, stores.FS} {
		t.Run(s.Name, func(t *testing.T) {
			location, target := stores.SQLite.New(t), s.New(t)
			from, to := stores.OpenFor(t, location), stores.OpenFor(t, target)
			put(t, from, "w", many("n", 500)...)
			w := start(t, "copy", location, flag(target), "--page-size", "1")
			testkit.Eventually(t, func() bool { return len(records(t, to)) > 0 }, "the copy made no progress")
			w.signal(syscall.SIGKILL)
			w.wait()
			ok(t, "copy", location, flag(target))
			requireEqual(t, from, to)
		})
	}
}

func TestExportAndImport(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		from, target := stores.OpenFor(t, location), another(t, location)
		fill(t, from)
		_, err := from.(persist.Purger).Purge(t.Context(), persist.Query{})
		require.NoError(t, err)
		export := ok(t, "export", "--store", flag(location))
		file := filepath.Join(t.TempDir(), "export.jsonl")
		require.NoError(t, os.WriteFile(file, []byte(export), 0o600))
		require.Contains(t, ok(t, "import", file, "--store", flag(target)), "5 copied")
		to := stores.OpenFor(t, target)
		requireEqual(t, from, to)

		// Again, after an interruption.
		r := pawlWith(t, export, "import", "--store", flag(target))
		require.Zero(t, r.code, r.err)
		require.Contains(t, r.out, "0 copied, 5 unchanged")

		// Never over a record that was written meanwhile, nor beside others.
		put(t, to, "new", persist.Write{Key: key("session", "ann"), Expected: 2, Version: 3, Doc: []byte(`{"new":1}`)})
		before := records(t, to)
		r = pawlWith(t, export, "import", "--store", flag(target))
		require.Equal(t, exitNegative, r.code)
		require.Contains(t, r.err, "version 3 in the target, 2 in the source")
		require.Equal(t, before, records(t, to))
		older := stores.SQLite.New(t)
		put(t, stores.OpenFor(t, older), "filler", persist.Write{Key: key("session", "ann"), Version: 1, Doc: []byte(`{"old":1}`)})
		r = pawlWith(t, export, "import", "--store", older)
		require.Equal(t, exitNegative, r.code)
		require.Contains(t, r.err, "version 1 in the target, 2 in the source")
	})
}

// A damaged export changes nothing, and creates no store.
func TestDamagedExport(t *testing.T) {
	location := stores.SQLite.New(t)
	fill(t, stores.OpenFor(t, location))
	export := ok(t, "export", "--store", location)
	lines := strings.SplitAfter(export, "\n")
	lines = lines[:len(lines)-1]
	last := len(lines) - 1
	join := func(parts ...string) string { return strings.Join(parts, "") }
	for name, c := range map[string]struct{ text, want string }{
		"empty":       {"", "no end line"},
		"other_json":  {`{"a":1}`, "line 1: not a line of an export"},
		"no_json":     {"PK\x03\x04\x1b[2J", "line 1: not a line of an export"},
		"cut":         {export[:len(export)/2], "line "},
		"no_end":      {join(lines[:last]...), "no end line"},
		"no_head":     {join(lines[1:]...), "line 1: not an export"},
		"missing":     {join(append([]string{lines[0]}, lines[2:]...)...), "the export was changed"},
		"twice":       {join(append([]string{lines[0], lines[1], lines[1]}, lines[3:]...)...), "malformed: two records"},
		"after_end":   {join(export, lines[1]), "line after the end"},
		"two_on_line": {join(lines[0], strings.TrimSpace(lines[1]), lines[2]), "trailing data"},
		"newer":       {strings.Replace(export, `"format":1`, `"format":2`, 1), "format 2 of the export is not known"},
		"bad_record":  {strings.Replace(export, `"version":2`, `"version":0`, 1), "malformed"},
		"new_field":   {strings.Replace(export, `"born":1`, `"born":1,"colour":"red"`, 1), "unknown field"},
	} {
		t.Run(name, func(t *testing.T) {
			target := stores.FS.New(t)
			r := pawlWith(t, c.text, "import", "--store", flag(target))
			require.Equal(t, exitNegative, r.code, r.err)
			require.Contains(t, r.err, c.want)
			require.NotContains(t, r.err, "\x1b")
			require.NoDirExists(t, strings.TrimPrefix(target, "fs:"))
		})
	}
}

// An import that waits for its input can be interrupted, and removes its temporary files.
func TestInterruptedImport(t *testing.T) {
	target := stores.SQLite.New(t)
	cmd, temp := command(t, "import", "--store", target)
	reader, writer := pipe(t)
	defer writer.Close()
	cmd.Stdin = reader
	var errOut strings.Builder
	cmd.Stderr = &errOut
	require.NoError(t, cmd.Start())
	testkit.Eventually(t, func() bool { // it is past the start when it has its temporary store
		found, err := filepath.Glob(filepath.Join(temp, "*", "*"))
		return err == nil && len(found) > 0
	}, "no temporary store")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode(), errOut.String())
	require.Contains(t, errOut.String(), "interrupted")
	requireEmpty(t, temp)
	require.NoFileExists(t, strings.TrimPrefix(target, "sqlite:"))
}
