package fs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/disk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

func init() {
	testkit.Child("two looks", traced(func(s *Store) (answers []string, err error) {
		for _, key := range []persist.Key{ann, bob} {
			r, err := s.Load(context.Background(), key)
			if err != nil {
				return nil, err
			}
			answers = append(answers, has(r))
		}
		return answers, nil
	}))
	testkit.Child("one list", traced(func(s *Store) (answers []string, err error) {
		page, err := s.List(context.Background(), persist.Query{Kind: "account"})
		for _, r := range page.Records {
			answers = append(answers, has(r))
		}
		return answers, err
	}))
}

// TestReaderInterrupted stops a reader of two records after each of its system calls on files, runs
// a writer, which finishes or is killed at some point, and resumes the reader; then the power
// fails. A reader that saw one record of a commit sees the other, and a commit that was seen is not
// lost.
//
// Proves TX-3, STORE-6.
func TestReaderInterrupted(t *testing.T) {
	start := seed(t)
	runs := 0
	for role, kills := range map[string][]string{
		"transfer": {"", disk.Renames + ":signal=SIGKILL:when=2", disk.Renames + ":signal=SIGKILL:when=3", disk.Renames + ":signal=SIGKILL:when=4"},
		"deposit":  {"", "fsync:signal=SIGKILL:when=3", disk.Chmods + ":signal=SIGKILL:when=1"},
		"again":    {"", "fdatasync:signal=SIGKILL:when=1", disk.Renames + ":signal=SIGKILL:when=2", "fsync:signal=SIGKILL:when=4"},
	} {
		for _, kill := range kills {
			for _, call := range []string{"openat", "close", "fstat", "getdents64"} {
				readers := map[string]int{"two looks": 1}
				if role == "again" && call == "openat" { // its second commit may overwrite a file that the reader has opened
					readers["one list"] = 7 // the list has read the names and released the names lock
				}
				for reader, n := range readers {
					for ; interrupt(t, start, reader, fmt.Sprintf("%s:signal=SIGSTOP:when=%d", call, n), role, kill); n++ {
						runs++
					}
				}
			}
		}
	}
	t.Logf("%d interleavings", runs)
	require.Greater(t, runs, 50)
}

// interrupt stops a reader at one point and kills a writer at another. It reports false if the
// reader never reached its point.
func interrupt(t *testing.T, start, look, stop, role, kill string) bool {
	t.Helper()
	dir, logs := copied(t, start), t.TempDir()
	d := newDisk(t, dir)
	reading, writing := filepath.Join(logs, "reader"), filepath.Join(logs, "writer")
	reader := startTrace(t, look, dir, disk.Flags(reading, "-e", "inject="+stop)...)
	if !stopped(t, reading) {
		reader.Wait()
		return false
	}
	flags := disk.Flags(writing)
	if kill != "" {
		flags = append(flags, "-e", "inject="+kill)
	}
	killed := len(trace(t, role, dir, flags...)) == 0
	if !strings.HasPrefix(kill, "fdatasync") { // a spare that the reader has open is not overwritten
		require.Equal(t, kill != "", killed)
	}
	reader.Child.Resume()
	seen := reader.Wait()
	require.Len(t, seen, 2, "%q", seen)
	c := commits[role]
	half := len(c.Writes) > 1 && seen[0] == "true" && seen[1] == "false"
	require.False(t, half, "reader: %s, writer: %s: a commit was seen in part", stop, kill)
	d.FeedTrace(t, writing, func(int) {})
	d.FeedTrace(t, reading, func(int) {})
	d.Failures(t, 3, func(dir string) {
		there := state(t, c, byLoad(t, newcomer(t, dir)))
		require.True(t, there || !slices.Contains(seen, "true"), "reader: %s, writer: %s: a commit that was seen is lost", stop, kill)
	})
	return true
}

// stopped waits until a child has stopped. It reports false if the child has ended instead.
func stopped(t *testing.T, log string) bool {
	t.Helper()
	var text []byte
	testkit.EventuallyWithin(t, time.Minute, func() bool {
		var err error
		text, err = os.ReadFile(log)
		return err == nil && (strings.Contains(string(text), "stopped by SIGSTOP") || strings.Contains(string(text), "+++ exited"))
	})
	return strings.Contains(string(text), "stopped by SIGSTOP")
}

func init() {
	testkit.Child("is ann expired", traced(func(s *Store) ([]string, error) {
		r, err := s.Load(context.Background(), ann)
		return []string{fmt.Sprint(r.Expired(r.Now))}, err
	}))
}

// TestClockBeforeRead: a record that expires while it is read is judged by a time before the read. A
// writer may have renewed it since.
//
// Proves STORE-8.
func TestClockBeforeRead(t *testing.T) {
	for ttl := time.Second; ; ttl *= 2 {
		dir, log := seed(t), filepath.Join(t.TempDir(), "log")
		s := openAt(t, dir, Config{})
		write := setTo(ann, 1, 1)
		write.TTL = ttl
		_, err := s.Commit(t.Context(), persist.Commit{ID: "test.1", Writes: []persist.Write{write}})
		require.NoError(t, err)
		// The reader has opened the file of ann and not read it yet.
		reader := startTrace(t, "is ann expired", dir, "-e", "trace=openat", "-e", "inject=openat:signal=SIGSTOP:when=1", "-o", log)
		require.True(t, stopped(t, log))
		expired := func() bool {
			r := load(t, s, ann)
			return r.Expired(r.Now)
		}
		inTime := !expired()
		testkit.EventuallyWithin(t, time.Minute, expired)
		reader.Child.Resume()
		if answer := reader.Wait(); inTime {
			require.Equal(t, []string{"false"}, answer)
			return
		}
	}
}
