package sqlite

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/need"
	"github.com/pawl-go/pawl/internal/testkit"
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
