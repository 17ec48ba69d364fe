package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
)

// binary is the path of the program, which TestMain builds.
var binary string

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "pawl-test")
	if err != nil {
		panic(err)
	}
	testkit.Main(func() int {
		binary = filepath.Join(folder, "pawl")
		args := []string{"build", "-buildvcs=false", "-o", binary}
		if testkit.Race {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}, stores.Stop, func() { _ = os.RemoveAll(folder) })
}

// result is what a run of the program left.
type result struct {
	code     int
	out, err string
}

// command returns the program with arguments, in an empty folder, with temp as its $TMPDIR.
func command(t *testing.T, args ...string) (cmd *exec.Cmd, temp string) {
	t.Helper()
	temp = t.TempDir()
	cmd = exec.CommandContext(t.Context(), binary, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), Variable+"=", "TMPDIR="+temp)
	cmd.WaitDelay = testkit.Patience
	return cmd, temp
}

// pawl runs the program, which leaves no temporary files.
func pawl(t *testing.T, args ...string) result {
	t.Helper()
	return pawlWith(t, "", args...)
}

// pawlWith runs the program with a standard input.
func pawlWith(t *testing.T, in string, args ...string) result {
	t.Helper()
	cmd, temp := command(t, args...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errOut
	_ = cmd.Run()
	requireEmpty(t, temp)
	requireEmpty(t, cmd.Dir)
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

func requireEmpty(t *testing.T, folder string) {
	t.Helper()
	names, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, names, "%s is not empty", folder)
}

// ok returns the output of a run that must succeed.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	r := pawl(t, args...)
	require.Zero(t, r.code, r.err)
	return r.out
}

// flag returns the location of a test store as --store takes it.
func flag(location string) string { return strings.Replace(location, "fs:", "dir:", 1) }

// another returns the location of a new store of another sort than location.
func another(t *testing.T, location string) string {
	if stores.Name(location) == "sqlite" {
		return stores.FS.New(t)
	}
	return stores.SQLite.New(t)
}

// put commits writes, each by a commit of its own writer.
func put(t *testing.T, store persist.Store, writer string, writes ...persist.Write) {
	t.Helper()
	for i, w := range writes {
		_, err := persist.Logs(store).Commit(t.Context(), persist.Commit{ID: fmt.Sprintf("%s.%d", writer, i+1), Writes: []persist.Write{w}})
		require.NoError(t, err)
	}
}

func key(kind, id string) persist.Key { return persist.Key{Kind: kind, ID: id} }

// many returns writes that create n records of a kind.
func many(kind string, n int) (writes []persist.Write) {
	for i := range n {
		writes = append(writes, persist.Write{Key: key(kind, fmt.Sprintf("%04d", i)), Version: 1, Doc: fmt.Appendf(nil, `{"n":%d}`, i)})
	}
	return writes
}

// fill writes records of several states, and log entries, to a store.
func fill(t *testing.T, store persist.Store) {
	t.Helper()
	put(t, store, "filler",
		persist.Write{Key: key("session", "ann"), Version: 1, Doc: []byte(`{"title":"Hi"}`), Label: "open"},
		persist.Write{Key: key("session", "ann"), Expected: 1, Version: 2, Doc: []byte(`{"title":"Ho"}`), Label: "open", Due: time.Unix(1e9, 0)},
		persist.Write{Key: key("session", "bob"), Version: 1, Doc: []byte(`{"big":12345678901234567890}`), Label: "done"},
		persist.Write{Key: key("session", "cid"), Version: 1, Doc: []byte(`{}`), Acquire: &persist.Acquire{Holder: "host:1", For: time.Hour}},
		persist.Write{Key: key("session", "dan"), Version: 1, Doc: []byte(`{}`)},
		persist.Write{Key: key("session", "dan"), Expected: 1, Version: 2, Deleted: true},
		persist.Write{Key: key("session", "eve"), Version: 1, Doc: []byte(`{}`), TTL: time.Microsecond},
		persist.Write{Key: key("stream", "s"), Version: 1, Doc: []byte(`{}`), Log: &persist.LogWrite{First: 1, Entries: entries(`{ "a" : 1.0 }`, "\"\u202e\"")}},
	)
}

func entries(texts ...string) (all []json.RawMessage) {
	for _, text := range texts {
		all = append(all, json.RawMessage(text))
	}
	return all
}

// running is a run of the program that has not ended.
type running struct {
	t    *testing.T
	cmd  *exec.Cmd
	temp string
	out  *os.File // its standard output
	err  *os.File // its standard error
	said strings.Builder
}

// start starts the program.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{t: t}
	r.cmd, r.temp = command(t, args...)
	var out, errOut *os.File
	r.out, out = pipe(t)
	r.err, errOut = pipe(t)
	r.cmd.Stdout, r.cmd.Stderr = out, errOut
	require.NoError(t, r.cmd.Start())
	require.NoError(t, out.Close())
	require.NoError(t, errOut.Close())
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	})
	return r
}

func pipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = reader.Close() })
	return reader, writer
}

// until reads the standard error until it contains text.
func (r *running) until(text string) {
	r.t.Helper()
	buf := make([]byte, 1024)
	for !strings.Contains(r.said.String(), text) {
		n, err := r.err.Read(buf)
		r.said.Write(buf[:n])
		require.NoError(r.t, err, "the program has ended: %s", &r.said)
	}
}

// signal sends a signal.
func (r *running) signal(s syscall.Signal) {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(s))
}

// wait returns the exit code and the standard error; the code is -1 if a signal ended the process.
func (r *running) wait() (int, string) {
	r.t.Helper()
	rest, err := io.ReadAll(r.err)
	require.NoError(r.t, err)
	r.said.Write(rest)
	_ = r.cmd.Wait()
	return r.cmd.ProcessState.ExitCode(), r.said.String()
}
