package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/disk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// TestPowerFailure cuts the power at every moment of a commit. All of the commit is on the disk or
// nothing, and all of it once it was acknowledged.
//
// Proves TX-3, STORE-6.
func TestPowerFailure(t *testing.T) {
	for role, c := range commits {
		dir, log := seed(t), filepath.Join(t.TempDir(), "log")
		d := newDisk(t, dir)
		require.Equal(t, []string{committed, "done"}, trace(t, role, dir, disk.Flags(log)...))
		moments, failures := 0, 0
		d.FeedTrace(t, log, func(answers int) {
			moments++
			d.Failures(t, 15, func(dir string) {
				failures++
				s := newcomer(t, dir)
				there := state(t, c, byLoad(t, s))
				require.True(t, there || answers == 0, "an acknowledged commit is lost")
				require.Equal(t, there, state(t, c, byList(t, s)))
			})
		})
		testkit.Figures(t, "%s: %d moments, %d power failures", role, moments, failures)
	}
}

func init() {
	testkit.Child("purge", func() error {
		ctx := context.Background()
		s, err := Open(ctx, os.Getenv(childDir), Config{})
		if err != nil {
			return err
		}
		testkit.Begin()
		_, err = s.Commit(ctx, commits["transfer"])
		if err == nil {
			_, err = s.Commit(ctx, persist.Commit{ID: "child.2", Writes: []persist.Write{{Key: receipt, Expected: 1, Version: 2, Deleted: true}}})
		}
		removed := 0
		if err == nil {
			removed, err = s.Purge(ctx, persist.Query{})
		}
		testkit.Say("%d", removed)
		return err
	})
}

// TestPowerFailureAfterPurge: a journal that a power failure brings back does not restore a purged
// record.
//
// Proves TX-3.
func TestPowerFailureAfterPurge(t *testing.T) {
	dir, log := seed(t), filepath.Join(t.TempDir(), "log")
	d := newDisk(t, dir)
	require.Equal(t, []string{"1"}, trace(t, "purge", dir, disk.Flags(log)...))
	deleted := false // durably
	d.FeedTrace(t, log, func(answers int) {
		d.Failures(t, 15, func(dir string) {
			s := newcomer(t, dir)
			r := byLoad(t, s)(receipt)
			if r.Absent() && r.Version > 0 || r.Deleted {
				return
			}
			require.False(t, deleted || answers > 0, "version %d of a deleted record is back", r.Version)
		})
		if r, err := newcomer(t, d.Synced(t)).read(receipt); err == nil && r.Deleted {
			deleted = true
		}
	})
	require.True(t, deleted)
}

// TestFailedSystemCalls lets the first, second, third... call of each sort fail. The error of the
// commit tells its outcome, the store works without being opened again, and a power failure
// afterwards changes neither.
//
// Proves STORE-6, TX-3.
func TestFailedSystemCalls(t *testing.T) {
	start := seed(t)
	outcomes := map[string]int{}
	for role, c := range commits {
		for calls, failure := range map[string]string{
			"openat": "EMFILE", "write": "ENOSPC", "ftruncate": "EIO", "fsync": "EIO", "fdatasync": "EIO", "?rename,?renameat": "EROFS", "?renameat2": "EROFS",
			disk.Unlinks: "EACCES", disk.Mkdirs: "ENOSPC", "?chmod,?fchmodat": "EPERM", "fchmod": "EPERM", "flock": "ENOLCK",
		} {
			for n := 1; ; n++ {
				dir, log := copied(t, start), filepath.Join(t.TempDir(), "log")
				d := newDisk(t, dir)
				said := trace(t, role+" and more", dir, disk.Flags(log, "-e", fmt.Sprintf("inject=%s:error=%s:when=%d", calls, failure, n))...)
				if !failedBeforeAnswer(t, log) {
					break
				}
				if slices.ContainsFunc(said, func(line string) bool { return strings.Contains(line, "netpollBreak") }) {
					n-- // the call was one of Go's runtime, which woke a thread
					continue
				}
				require.Len(t, said, 3, "%s %d: %q", calls, n, said)
				require.Equal(t, "done", said[2], "%s %d", calls, n)
				outcome, there := said[0], said[1] == "true"
				require.True(t, outcome == unknown || there == (outcome == committed), "%s %d: %q", calls, n, said)
				outcomes[outcome]++
				heard := 0
				d.FeedTrace(t, log, func(answers int) {
					if answers == heard && !strings.HasSuffix(calls, "sync") { // only a failed sync shows at every later moment
						return
					}
					heard = answers
					d.Failures(t, 1, func(dir string) {
						s := newcomer(t, dir)
						now := state(t, c, byLoad(t, s))
						require.False(t, now && outcome == refused, "%s %d: a commit that was not applied is there", calls, n)
						require.True(t, answers < 2 || now == there, "%s %d: a commit that was there is lost", calls, n)
						require.True(t, answers < 3 || slices.Contains(byLoad(t, s)(bob).Commits, "top.1"), "%s %d: the commit on top is lost", calls, n)
					})
				})
			}
		}
	}
	testkit.Figures(t, "commits with a failed call, by what their error said: %v", outcomes)
	require.Len(t, outcomes, 3)
}

// failedBeforeAnswer reports whether a system call failed before the child printed the outcome.
func failedBeforeAnswer(t testing.TB, log string) bool {
	t.Helper()
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	before, _, _ := strings.Cut(string(text), "write(1,")
	return strings.Contains(before, "INJECTED")
}

func init() {
	testkit.Child("look", traced(func(s *Store) ([]string, error) {
		r, err := s.Load(context.Background(), bob)
		return []string{has(r)}, err
	}))
	testkit.Child("list", traced(func(s *Store) ([]string, error) {
		page, err := s.List(context.Background(), persist.Query{Kind: "account"})
		if len(page.Records) != 2 {
			return []string{"false"}, err
		}
		return []string{has(page.Records[1])}, err
	}))
	testkit.Child("confirm", traced(func(s *Store) ([]string, error) {
		_, err := s.Commit(context.Background(), persist.Commit{Guards: []persist.Guard{{Key: bob, Read: true, Version: 2}}})
		if conflict := (*persist.Conflict)(nil); errors.As(err, &conflict) {
			return []string{"false"}, nil
		}
		return []string{"true"}, err
	}))
}

// TestPowerFailureAfterKill kills a writer, runs a reader, and cuts the power at every moment of
// the reader. All of the commit is on the disk or nothing, and all of it once the reader returned
// it.
//
// Proves TX-3, STORE-6.
func TestPowerFailureAfterKill(t *testing.T) {
	start := seed(t)
	runs, failures := 0, 0
	for role, c := range commits {
		next := []string{"look", "list", "confirm"}
		if c.Writes[0].Expected > 1 {
			next = next[:2] // confirm expects version 2
		}
		for _, calls := range []string{"fsync", "fdatasync", "?rename,?renameat", "?renameat2", disk.Unlinks, "?chmod,?fchmodat", "fchmod"} {
			for n := 1; ; n++ {
				dir, logs := copied(t, start), t.TempDir()
				d := newDisk(t, dir)
				log := filepath.Join(logs, "writer")
				said := trace(t, role, dir, disk.Flags(log, "-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", calls, n))...)
				if len(said) > 0 {
					break
				}
				d.FeedTrace(t, log, func(int) {})
				log = filepath.Join(logs, "next")
				said = trace(t, next[runs%len(next)], dir, disk.Flags(log)...)
				require.Len(t, said, 1)
				d.FeedTrace(t, log, func(answers int) {
					d.Failures(t, 4, func(dir string) {
						failures++
						s := newcomer(t, dir)
						there := state(t, c, byLoad(t, s))
						require.True(t, there || answers == 0 || said[0] == "false", "%s returned a commit that is lost", next[runs%len(next)])
						require.Equal(t, there, state(t, c, byList(t, s)))
					})
				})
				runs++
			}
		}
	}
	testkit.Figures(t, "%d kills, %d power failures", runs, failures)
}

// TestPowerFailureAfterKilledFinisher kills a writer whose file is tentative, then a reader at each
// of its syncs, runs another reader, and cuts the power at every moment of it. A commit that a
// reader returned is not lost.
//
// Proves STORE-6.
func TestPowerFailureAfterKilledFinisher(t *testing.T) {
	start, kills := seed(t), 0
	for _, next := range []string{"look", "list", "confirm"} {
		for n := 1; ; n++ {
			dir, logs := copied(t, start), t.TempDir()
			d := newDisk(t, dir)
			play := func(role string, inject ...string) (said []string) {
				log := filepath.Join(logs, "log")
				said = trace(t, role, dir, disk.Flags(log, inject...)...)
				d.FeedTrace(t, log, func(answers int) {
					if answers > 0 && said[0] == "true" {
						d.Failures(t, 4, func(dir string) {
							require.True(t, state(t, commits["deposit"], byLoad(t, newcomer(t, dir))), "%s, after %d: a commit that was seen is lost", role, n)
						})
					}
				})
				return said
			}
			require.Empty(t, play("deposit", "-e", "inject=fsync:signal=SIGKILL:when=3"))
			if len(play(next, "-e", fmt.Sprintf("inject=fsync:signal=SIGKILL:when=%d", n))) > 0 {
				break
			}
			kills++
			require.Equal(t, []string{"true"}, play("look"))
		}
	}
	require.GreaterOrEqual(t, kills, 6) // each syncs a file and a folder
}
