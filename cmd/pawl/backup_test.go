package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	core "github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/need"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// tool runs a program of a database. A missing program ends the test.
func tool(t *testing.T, requirement, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		need.Missing(t, requirement, name+" not found in PATH", "install the client programs of the database")
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	require.NoError(t, err, "%s: %s", name, out)
}

// The backups of docs/operations.md, with the programs that it names. A live one is made while a
// process writes, the others while none does. Export and copy have tests of their own.
var backups = []struct {
	name  string
	store stores.Store
	live  bool
	make  func(t *testing.T, location, folder string) (restored string)
}{
	{"folder", stores.FS, false, func(t *testing.T, location, folder string) string {
		target := filepath.Join(folder, "state")
		require.NoError(t, os.CopyFS(target, os.DirFS(strings.TrimPrefix(location, "fs:"))))
		return "fs:" + target
	}},
	{"sqlite_backup", stores.SQLite, true, func(t *testing.T, location, folder string) string {
		target := filepath.Join(folder, "backup.db")
		tool(t, "sqlite3", "sqlite3", strings.TrimPrefix(location, "sqlite:"), ".timeout 30000", ".backup "+target)
		return "sqlite:" + target
	}},
	{"sqlite_vacuum", stores.SQLite, true, func(t *testing.T, location, folder string) string {
		target := filepath.Join(folder, "backup.db")
		tool(t, "sqlite3", "sqlite3", strings.TrimPrefix(location, "sqlite:"), ".timeout 30000", "VACUUM INTO '"+target+"'")
		return "sqlite:" + target
	}},
	{"pg_dump", stores.Postgres, true, func(t *testing.T, location, folder string) string {
		file, target := filepath.Join(folder, "backup.dump"), stores.Postgres.New(t)
		tool(t, "postgres", "pg_dump", "--format=custom", "--file="+file, location)
		tool(t, "postgres", "pg_restore", "--exit-on-error", "--no-owner", "--dbname="+target, file)
		return target
	}},
}

// A backup holds one moment: all that was acknowledged before it began, and no commit in part.
func TestBackup(t *testing.T) {
	for _, b := range backups {
		t.Run(b.name, func(t *testing.T) {
			stores.Need(t, b.store.Name)
			location := b.store.New(t)
			store := stores.OpenFor(t, location)
			fill(t, store)
			fillUsers(t, store, "ann")
			before := records(t, store)
			stop := func() {}
			if b.live {
				stop = transfer(t, store)
			}
			restored := stores.OpenFor(t, b.make(t, location, t.TempDir()))
			stop()
			for _, r := range before {
				got, err := restored.Load(t.Context(), r.Key)
				require.NoError(t, err)
				if got.Now = got.Updated; r.Kind != "user" && !persist.IsLogKind(r.Kind) {
					require.Equal(t, r, got)
				}
			}
			left, right := pair(t, restored)
			require.Equal(t, left, right, "a commit is there in part")
			if require.Equal(t, b.live, left != ""); !b.live {
				requireEqual(t, store, restored)
			}
			rt := openRuntime(t, restored)
			log := newLog(t, rt)
			events, err := log.Last(t.Context(), "ann", 10)
			require.NoError(t, err)
			require.Len(t, events, 1)
			made, err := log.Append(t.Context(), "ann", stream.At(0), doc{"after"})
			require.NoError(t, err)
			require.EqualValues(t, 1, made[0].Version)
			snap, err := core.Session[doc](rt, "ann").SetState(t.Context(), doc{"after"})
			require.NoError(t, err)
			require.EqualValues(t, 4, snap.Version)
		})
	}
}

// transfer writes two records in one commit, again and again until stop. It returns after the first
// commits.
func transfer(t *testing.T, store persist.Store) (stop func()) {
	t.Helper()
	begun, ended := make(chan struct{}), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for n := uint64(0); ; n++ {
			select {
			case <-ended:
				return
			default:
			}
			c := persist.Commit{ID: fmt.Sprintf("transfer.%d", n+1)}
			for _, id := range []string{"left", "right"} {
				c.Writes = append(c.Writes, persist.Write{Key: key("user", id), Expected: n, Version: n + 1, Doc: fmt.Appendf(nil, `{"n":%d}`, n)})
			}
			if _, err := store.Commit(t.Context(), c); err != nil {
				t.Error(err)
				return
			}
			if n == 10 {
				close(begun)
			}
		}
	})
	testkit.Receive(t, begun)
	return func() {
		close(ended)
		running.Wait()
	}
}

// pair returns the documents that transfer has written.
func pair(t *testing.T, store persist.Store) (left, right string) {
	t.Helper()
	for id, text := range map[string]*string{"left": &left, "right": &right} {
		r, err := store.Load(t.Context(), key("user", id))
		if err == nil {
			*text = string(r.Doc)
		}
	}
	return left, right
}
