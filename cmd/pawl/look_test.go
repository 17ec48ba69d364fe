package main

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/sqlite"
)

func TestBadInput(t *testing.T) {
	folder := t.TempDir()
	text := filepath.Join(folder, "text")
	require.NoError(t, os.WriteFile(text, []byte("this is no database, and long enough to be looked at as one"), 0o600))
	missing := "sqlite:" + filepath.Join(folder, "missing.db")
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"frob", exitUsage, "unknown command"},
		{"ls --frob", exitUsage, "unknown flag"},
		{"ls a b", exitUsage, "accepts at most 1 arg"},
		{"ls", exitUsage, "no store: set --store or PAWL_STORE"},
		{"ls --store chat.db", exitUsage, "write \"sqlite:chat.db\""},
		{"ls -store chat.db", exitUsage, "write \"sqlite:chat.db\""},
		{"ls -store=tape:1", exitUsage, "unknown scheme \"tape\""},
		{"ls --due --store " + missing, exitUsage, "name a KIND"},
		{"ls a --expired --deleted --store " + missing, exitUsage, "none of the others can be"},
		{"ls a --limit -1 --store " + missing, exitUsage, "--limit not negative"},
		{"get a --store " + missing, exitUsage, "want KIND/ID"},
		{"rm a/b --if-version 0 --store " + missing, exitUsage, "--if-version must be above 0"},
		{"rm pawl.log/b --store " + missing, exitUsage, "part of a log"},
		{"runs --state odd --store " + missing, exitUsage, "--state must be one of pending"},
		{"runs a --limit 1 --store " + missing, exitUsage, "give an ID, or flags"},
		{"streams --follow --store " + missing, exitUsage, "name a STREAM"},
		{"streams a --prefix a --store " + missing, exitUsage, "give a STREAM, or flags"},
		{"streams a --last 0 --store " + missing, exitUsage, "--last must be above 0"},
		{"streams a --from -1 --store " + missing, exitUsage, "must not be negative"},
		{"streams a --from 1 --last 1 --store " + missing, exitUsage, "none of the others can be"},
		{"reactions --limit -1 --store " + missing, exitUsage, "must not be negative"},
		{"erase --store " + missing, exitUsage, "name the user"},
		{"erase --yes --kind a --store " + missing, exitUsage, "name the user"},
		{"erase --label a=b --kind a --store " + missing, exitUsage, "name the user"},
		{"erase --label a --store " + missing, exitUsage, "wants KIND=LABEL"},
		{"erase --label pawl.log=a --store " + missing, exitUsage, "wants KIND=LABEL"},
		{"erase --id a --force --store " + missing, exitUsage, "--force needs --yes"},
		{"erase a --store " + missing, exitUsage, "unknown command"},
		{"erase --id a --store " + missing, exitUnavailable, "there is no file"},
		{"runs --store " + missing, exitUnavailable, "there is no file"},
		{"streams a --store " + missing, exitUnavailable, "there is no file"},
		{"reactions --store " + missing, exitUnavailable, "there is no file"},
		{"copy " + missing, exitUsage, "accepts 2 arg"},
		{"copy " + missing + " " + missing, exitUsage, "the same store"},
		{"copy " + missing + " tape:1", exitUsage, "unknown scheme"},
		{"import /no/such/file --store " + missing, exitUsage, "no such file"},
		{"ls --store " + missing, exitUnavailable, "there is no file"},
		{"ls --migrate --store " + missing, exitUnavailable, "there is no file"},
		{"get a/b --store " + missing, exitUnavailable, "there is no file"},
		{"rm a/b --store " + missing, exitUnavailable, "there is no file"},
		{"watch a --store " + missing, exitUnavailable, "there is no file"},
		{"doctor --store " + missing, exitUnavailable, "there is no file"},
		{"export --store " + missing, exitUnavailable, "there is no file"},
		{"copy " + missing + " sqlite:" + filepath.Join(folder, "target.db"), exitUnavailable, "there is no file"},
		{"ls --store sqlite:" + folder, exitUnavailable, "is not a file"},
		{"ls --store sqlite:" + text, exitUnavailable, "not a database"},
		{"ls --store dir:" + filepath.Join(folder, "none"), exitUnavailable, "no store here"},
		{"ls --store dir:" + folder, exitUnavailable, "no store here"},
		{"ls --store postgres://ann:sesame@127.0.0.1:1/none", exitUnavailable, "postgres://ann:xxxxx@127.0.0.1:1/none"},
		{"ls --store etcd://127.0.0.1:1,127.0.0.1:2/none", exitUnavailable, "store unavailable"},
		{"ls --store etcd://ann:sesame@127.0.0.1:1,127.0.0.1:2/none?other=1", exitUnavailable, "unknown option"},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := pawl(t, strings.Fields(c.args)...)
			require.Equal(t, c.code, r.code, r.err)
			require.Contains(t, r.err, c.want)
			require.NotContains(t, r.err, "sesame")
			require.Empty(t, r.out)
		})
	}
	names, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, names, 1, "a file was created")
}

// The password of PAWL_STORE is not shown by the help.
func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"ls", "-h"}, {"help", "copy"}} {
		cmd, _ := command(t, args...)
		cmd.Env = append(cmd.Env, Variable+"=postgres://ann:sesame@h/db")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err)
		require.NotContains(t, string(out), "sesame")
		require.Contains(t, string(out), "--store")
	}
}

func TestLook(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		location = flag(location)
		require.Empty(t, ok(t, "ls", "session", "--store", location))
		fill(t, store)

		kinds := ok(t, "ls", "--store", location)
		require.Contains(t, kinds, "KIND")
		require.Regexp(t, `session\s+5\s`, kinds)
		for _, c := range []struct{ flags, ids string }{
			{"", "ann bob cid"},
			{"--label open", "ann"},
			{"--label open --label done", "ann bob"},
			{"--prefix b", "bob"},
			{"--due", "ann"},
			{"--held", "cid"},
			{"--expired", "eve"},
			{"--deleted", "dan"},
			{"--limit 2", "ann bob"},
		} {
			args := append([]string{"ls", "session", "--store", location}, strings.Fields(c.flags)...)
			var ids, listed []string
			for line := range strings.Lines(ok(t, append(args, "--json")...)) {
				var r seenRecord
				require.NoError(t, json.Unmarshal([]byte(line), &r))
				ids = append(ids, r.ID)
			}
			require.Equal(t, strings.Fields(c.ids), ids, c.flags)
			for line := range strings.Lines(ok(t, args...)) {
				listed = append(listed, strings.Fields(line)[0])
			}
			require.Equal(t, append([]string{"ID"}, ids...), listed)
		}

		shown := ok(t, "get", "session/ann", "--store", location)
		for _, want := range []string{"version  2 (born at 1, schema 0)", "label    open", "2001-09-09T01:46:40Z", "filler.2", `"title": "Ho"`} {
			require.Contains(t, shown, want)
		}
		require.Contains(t, ok(t, "get", "session", "cid", "--store", location), "host:1 until")
		require.Contains(t, ok(t, "get", "session/bob", "--store", location), "12345678901234567890")
		for id, want := range map[string]string{"zoe": "no record", "dan": "deleted", "eve": "expired"} {
			r := pawl(t, "get", "session/"+id, "--store", location)
			require.Equal(t, exitNegative, r.code)
			require.Contains(t, r.err, want)
		}
		cmd, _ := command(t, "get", "session/ann")
		cmd.Env = append(cmd.Env, Variable+"="+location)
		again, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, shown, string(again))
		require.Equal(t, "session\nstream", kindsOnly(ok(t, "__complete", "ls", "--store", location, "")))
	})
}

// kindsOnly returns the completions without those of kinds that keep logs.
func kindsOnly(completed string) string {
	var kinds []string
	for _, line := range strings.Split(completed, "\n") {
		if line != "" && !strings.HasPrefix(line, ":") && !persist.IsLogKind(line) {
			kinds = append(kinds, line)
		}
	}
	return strings.Join(kinds, "\n")
}

// Ids, labels, holders and documents reach a terminal without the characters that it obeys.
func TestHostileText(t *testing.T) {
	location := stores.SQLite.New(t)
	store := stores.OpenFor(t, location)
	const evil = "a\x1b[2J\u009b31m\u202e\x7f\n\tb\U000e0001\""
	text, err := json.Marshal(map[string]string{evil: evil})
	require.NoError(t, err)
	raw := strings.NewReplacer(`\u202e`, "\u202e").Replace(string(text))
	put(t, store, "w", persist.Write{Key: key("kind"+evil, evil), Version: 1, Doc: []byte(raw), Label: evil, Acquire: &persist.Acquire{Holder: evil, For: time.Hour}})
	for _, args := range [][]string{
		{"ls"}, {"ls", "kind" + evil}, {"get", "kind" + evil, evil}, {"get", "kind" + evil, evil + "x"}, {"rm", "kind" + evil, evil}, {"export"},
	} {
		for _, json := range []string{"--json=false", "--json"} {
			r := pawl(t, append(args, json, "--store", location)...)
			for _, c := range r.out + r.err {
				require.True(t, c == '\n' || unicode.IsPrint(c), "%q in %q", c, r.out+r.err)
			}
		}
	}
	var got seenRecord
	require.NoError(t, json.Unmarshal([]byte(ok(t, "get", "kind"+evil, evil, "--json", "--store", location)), &got))
	require.Equal(t, evil, got.ID)
	var doc map[string]string
	require.NoError(t, json.Unmarshal(got.Doc, &doc))
	require.Equal(t, map[string]string{evil: evil}, doc)
}

func TestRemove(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		fill(t, store)
		location = flag(location)
		for args, want := range map[string]string{
			"rm session/zoe":                "no record",
			"rm session/dan":                "deleted already",
			"rm session/eve":                "expired already",
			"rm session/ann --if-version 1": "version is 2, not 1",
			"rm session/cid":                "leased by \"host:1\"",
		} {
			r := pawl(t, append(strings.Fields(args), "--store", location)...)
			require.Equal(t, exitNegative, r.code)
			require.Contains(t, r.err, want)
		}
		require.Equal(t, "deleted session/ann at version 3\n", ok(t, "rm", "session/ann", "--if-version", "2", "--store", location))
		ok(t, "rm", "session/cid", "--force", "--store", location)
		require.JSONEq(t, `{"kind":"stream","id":"s","version":2,"deleted":true}`, ok(t, "rm", "stream/s", "--json", "--store", location))
		for _, id := range []string{"ann", "cid"} {
			r, err := store.Load(t.Context(), key("session", id))
			require.NoError(t, err)
			require.True(t, r.Deleted)
			require.Zero(t, r.Lease)
		}
		left, err := persist.Logs(store).ReadLog(t.Context(), persist.LogQuery{Key: key("stream", "s")})
		require.NoError(t, err)
		require.Empty(t, left)
	})
}

func TestWatch(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		put(t, store, "before", persist.Write{Key: key("session", "old"), Version: 1, Doc: []byte(`{}`)})
		for _, what := range []string{"session", "session/" + t.Name()} {
			id := t.Name()
			if what == "session" {
				id = "ann"
			}
			w := start(t, "watch", what, "--store", flag(location))
			lines := bufio.NewScanner(w.out)
			next := func(want ...string) {
				t.Helper()
				require.True(t, lines.Scan(), "watch has ended")
				for _, text := range append(want, id) {
					require.Contains(t, lines.Text(), text)
				}
			}
			w.until("watching session")
			k := key("session", id)
			put(t, store, "w", persist.Write{Key: k, Version: 1, Doc: []byte("{\"a\":\"\u009b\"}")})
			next("version 1 alive", `{"a":"\u009b"}`)
			put(t, store, "x", persist.Write{Key: k, Expected: 1, Version: 2, Doc: []byte(`{}`), Acquire: &persist.Acquire{Holder: "h", For: time.Hour}})
			next("version 2 alive lease h until")
			_, err := store.Commit(t.Context(), persist.Commit{Guards: []persist.Guard{{Key: k, Token: 2, Release: true}}})
			require.NoError(t, err)
			next("version 2 alive lease -")
			put(t, store, "y", persist.Write{Key: k, Expected: 2, Version: 3, Deleted: true})
			next("version 3 deleted")
			w.signal(syscall.SIGINT)
			code, errOut := w.wait()
			require.Zero(t, code, errOut)
		}
	})
}

// A reader that leaves is no reason for a message or for files that are left behind.
func TestBrokenPipe(t *testing.T) {
	location := stores.SQLite.New(t)
	put(t, stores.OpenFor(t, location), "w", many("n", 2000)...)
	for _, args := range []string{"ls n", "ls n --json", "export"} {
		cmd, temp := command(t, append(strings.Fields(args), "--store", location)...)
		reader, writer, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, reader.Close())
		var errOut strings.Builder
		cmd.Stdout, cmd.Stderr = writer, &errOut
		_ = cmd.Run()
		require.NoError(t, writer.Close())
		require.Equal(t, exitOutput, cmd.ProcessState.ExitCode())
		require.Empty(t, errOut.String())
		requireEmpty(t, temp)
	}
}

func TestFullDisk(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no /dev/full")
	}
	location := stores.SQLite.New(t)
	fill(t, stores.OpenFor(t, location))
	cmd, temp := command(t, "export", "--store", location)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	var errOut strings.Builder
	cmd.Stdout, cmd.Stderr = full, &errOut
	_ = cmd.Run()
	require.Equal(t, exitOutput, cmd.ProcessState.ExitCode())
	require.Contains(t, errOut.String(), "cannot write the output")
	requireEmpty(t, temp)
}

func TestOtherSchemas(t *testing.T) {
	location := stores.SQLite.New(t)
	fill(t, stores.OpenFor(t, location))
	db, err := sql.Open(sqlite.Driver, strings.TrimPrefix(location, "sqlite:"))
	require.NoError(t, err)
	defer db.Close()
	_, err = db.Exec("UPDATE pawl_meta SET value = 99 WHERE name = 'schema'")
	require.NoError(t, err)
	target := stores.SQLite.New(t)
	for _, args := range []string{"ls", "doctor", "export", "rm session/ann", "ls --migrate", "copy " + location + " " + target} {
		r := pawl(t, append(strings.Fields(args), "--store", location)...)
		require.Equal(t, exitSchema, r.code, args)
		require.Contains(t, r.err, "newer release")
	}
	require.NoFileExists(t, strings.TrimPrefix(target, "sqlite:"))

	_, err = db.Exec("DROP TABLE pawl_log; UPDATE pawl_meta SET value = 1 WHERE name = 'schema'")
	require.NoError(t, err)
	r := pawl(t, "ls", "--store", location)
	require.Equal(t, exitSchema, r.code)
	require.Contains(t, r.err, "--migrate")
	require.Contains(t, ok(t, "ls", "--migrate", "--store", location), "session")
	ok(t, "ls", "--store", location)
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		require.NotEmpty(t, ok(t, "completion", shell))
	}
	if bash, err := exec.LookPath("bash"); err == nil {
		cmd := exec.CommandContext(t.Context(), bash, "-n")
		cmd.Stdin = strings.NewReader(ok(t, "completion", "bash"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

func TestDoctor(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		store := stores.OpenFor(t, location)
		put(t, store, "w", many("n", 3)...)
		out := ok(t, "doctor", "--store", flag(location))
		for _, want := range []string{"ok    schema: version", "ok    clock: ", "3 records of 1 kind", "ok    leases: none", "ok    due work: none", "ok    tombstones: none"} {
			require.Contains(t, out, want)
		}
		require.NotContains(t, out, "LOOK")

		past := time.Now().Add(-30 * 24 * time.Hour).Truncate(time.Microsecond)
		record := persist.Record{Version: 1, Born: 1, Doc: []byte(`{}`), Updated: past}
		var all []persist.Record
		for id, change := range map[string]func(*persist.Record){
			"lease":   func(r *persist.Record) { r.Lease = persist.Lease{Holder: "dead:1", Token: 1, Until: past} },
			"due":     func(r *persist.Record) { r.Due = past },
			"expired": func(r *persist.Record) { r.Expires = past },
			"deleted": func(r *persist.Record) { r.Doc, r.Deleted = nil, true },
		} {
			r := record
			r.Key = key("old", id)
			change(&r)
			all = append(all, r)
		}
		answered := record // its lease runs out, because no request asks for it again
		answered.Key, answered.Doc, answered.Lease = key("idempotency", "a"), []byte(`{"done":true}`), persist.Lease{Holder: "me", Token: 1, Until: past}
		all = append(all, answered)
		require.NoError(t, store.(persist.Restorer).Restore(t.Context(), all, 0))
		r := pawl(t, "doctor", "--json", "--store", flag(location))
		require.Equal(t, exitNegative, r.code)
		require.Contains(t, r.err, "4 findings need attention")
		found := map[string]finding{}
		for line := range strings.Lines(r.out) {
			var f finding
			require.NoError(t, json.Unmarshal([]byte(line), &f))
			require.Equal(t, f.OK, f.Advice == "", line)
			found[f.Check] = f
		}
		for check, want := range map[string]string{"leases": "1 lease of dead:1 ran out", "due work": "old/due", "expired": "old/expired", "tombstones": "old/deleted"} {
			require.False(t, found[check].OK)
			require.Contains(t, found[check].Found, want)
		}
		ok(t, "doctor", "--grace", "8760h", "--tombstones", "8760h", "--store", flag(location))
	})
}
