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

	"github.com/pawl-go/pawl/persist"
)

// TestTakeSkipsStoppedWriter: while a writer is stopped, anywhere but with the names lock, Take
// returns records whose locks the writer does not hold.
//
// Proves STORE-6.
func TestTakeSkipsStoppedWriter(t *testing.T) {
	start := seed(t)
	first := openAt(t, start, Config{})
	carl := persist.Key{Kind: "account", ID: "carl"} // sorts after the record of the writer
	require.NoError(t, add(context.Background(), first, carl, "seed.1", 1))
	require.NoError(t, os.Remove(first.file(ann)))
	require.NoError(t, first.Close())
	for _, call := range []string{"flock", "renameat2", "fdatasync", "close"} {
		for n := 1; ; n++ {
			dir, log := copied(t, start), filepath.Join(t.TempDir(), "log")
			writer := startTrace(t, "again", dir, "-e", "trace=flock,renameat2,close,fdatasync", "-e", fmt.Sprintf("inject=%s:signal=SIGSTOP:when=%d", call, n), "-o", log)
			if !stopped(t, log) {
				writer.Wait()
				break
			}
			text, err := os.ReadFile(log)
			require.NoError(t, err)
			s := openAt(t, dir, impatient)
			release, err := s.locks.take(atOnce, wanted{namesLock: exclusive})
			if err == nil {
				release()
				took, err := s.Take(context.Background(), persist.Query{Kind: "account"}, persist.Acquire{Holder: "me", For: time.Minute}, nil)
				lines := strings.Split(strings.TrimSpace(string(text)), "\n")
				require.NoError(t, err, "%s %d: %s", call, n, strings.Join(lines[max(0, len(lines)-6):], "\n"))
				require.True(t, slices.ContainsFunc(took, func(r persist.Record) bool { return r.Key == carl }), "%s %d", call, n)
			}
			writer.Child.Resume()
			writer.Wait()
		}
	}
}
