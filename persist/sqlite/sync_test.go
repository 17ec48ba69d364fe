package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/need"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// After the last write into the WAL comes a sync, and then the answer. The test traces the system
// calls: the page cache survives every crash but that of the machine.
//
// Proves STORE-7.
func TestSyncBeforeAck(t *testing.T) {
	strace := need.Strace(t)
	trace := filepath.Join(t.TempDir(), "trace")
	command := exec.Command(strace, "-f", "-e", "trace=write,pwrite64,fsync,fdatasync", "-o", trace, os.Args[0])
	command.Env = append(os.Environ(), testkit.Variable+"=TestAcknowledge")
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
	text, err := os.ReadFile(trace)
	require.NoError(t, err)
	const commits = 3
	acked := 0
	synced, written := false, false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.Contains(line, `"acknowledged`):
			require.True(t, written, "nothing was written before acknowledgement %d", acked)
			require.True(t, synced, "acknowledgement %d came before the sync", acked)
			acked++
			synced, written = false, false
		case strings.Contains(line, "sync(") && strings.Contains(line, "= 0"):
			synced = true
		case strings.Contains(line, "pwrite64("):
			synced, written = false, true
		}
	}
	require.Equal(t, commits, acked)
}

// TestAcknowledge is the traced process of TestSyncBeforeAck.
//
// Proves STORE-7.
func TestAcknowledge(t *testing.T) {
	if testkit.Role() == "" {
		t.Skip("only as the child of TestSyncBeforeAck")
	}
	s := openAt(t, dbPath(t), Config{})
	for version := range uint64(3) {
		_, err := s.Commit(t.Context(), put("a", version))
		require.NoError(t, err)
		fmt.Println("acknowledged", version)
	}
}

func init() {
	testkit.Child("fail to sync", func() error {
		runtime.LockOSThread() // strace follows one thread
		s, err := Open(context.Background(), os.Getenv("PAWL_DB"), Config{})
		if err != nil {
			return err
		}
		testkit.Begin()
		_, err = s.Commit(context.Background(), put("a", 0))
		testkit.Say("known: %t", err == nil || errors.Is(err, persist.ErrNotApplied))
		_, err = s.Commit(context.Background(), put("b", 0))
		testkit.Say("%v", err)
		return s.Close()
	})
}

// When COMMIT cannot sync the log, the store does not claim to know the outcome, and continues with
// a new connection.
//
// Proves STORE-7.
func TestFailedCommit(t *testing.T) {
	strace := need.Strace(t)
	child := testkit.Start(t, "fail to sync", "PAWL_DB="+dbPath(t))
	child.Expect("ready")
	command := exec.Command(strace, "-o", os.DevNull, "-e", "inject=fsync,fdatasync:error=EIO:when=1", "-p", strconv.Itoa(child.PID()))
	stderr, err := command.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.Contains(lines.Text(), "attached") {
	}
	child.Go()
	child.Expect("known: false")
	child.Expect("<nil>")
	child.Wait()
	require.NoError(t, command.Wait())
}
