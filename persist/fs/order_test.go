package fs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/disk"
)

// events returns the changes that a child made to files, as words: "sync tmp/" is a sync of the
// folder, "sync tmp/*" a sync of a file in it.
func events(t *testing.T, root, log string) []string {
	t.Helper()
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	open := map[string]string{"1": "answer"}
	name := func(quotedPath string) string {
		rel, err := filepath.Rel(root, quotedPath)
		require.NoError(t, err)
		if strings.HasSuffix(rel, extension) {
			return filepath.Dir(rel) + "/*"
		}
		return rel + "/"
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		call := disk.Call.FindStringSubmatch(line)
		if call == nil {
			continue
		}
		args := strings.Split(call[2], ", ")
		switch call[1] {
		case "openat":
			open[call[3]] = name(strings.Trim(args[1], `"`))
		case "write":
			found = append(found, "write "+open[args[0]])
		case "fsync", "fdatasync":
			found = append(found, "sync "+open[args[0]])
		case "fchmodat", "chmod":
			found = append(found, "chmod "+name(strings.Trim(args[len(args)-2], `"`)))
		case "renameat", "renameat2", "rename":
			paths := slices.DeleteFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, `"`) })
			found = append(found, "rename "+name(strings.Trim(paths[0], `"`))+" "+name(strings.Trim(paths[1], `"`)))
		}
	}
	return found
}

// TestSyncBeforeAck looks at the system calls of a commit, because a missing sync shows only when
// the machine crashes: each file is written and synced, then renamed, then the folder is synced,
// then the commit is acknowledged.
//
// Proves STORE-6.
func TestSyncBeforeAck(t *testing.T) {
	for role, want := range map[string][]string{
		"deposit": {
			"write tmp/*", "sync tmp/*",
			"rename tmp/* records/account/*", "sync records/account/",
			"chmod records/account/*", // not earlier
			"write answer", "write answer",
		},
		"again": {
			"write tmp/*", "sync tmp/*",
			"rename tmp/* records/account/*", "sync records/account/",
			"chmod records/account/*",
			"write tmp/*", "sync tmp/*", // into the file that the commit before replaced
			"rename tmp/* records/account/*", "sync records/account/",
			"chmod records/account/*",
			"write answer", "write answer",
		},
		"transfer": {
			"write tmp/*", "sync tmp/*", "write tmp/*", "sync tmp/*",
			"sync records/", // there is a new folder
			"write tmp/*", "sync tmp/*",
			"sync tmp/",
			"write tmp/*", "sync tmp/*", // the journal
			"rename tmp/* journal/*", "sync journal/",
			"rename tmp/* records/account/*", "rename tmp/* records/account/*", "rename tmp/* records/receipt/*",
			"sync records/account/", "sync records/receipt/",
			"write answer", "write answer",
		},
	} {
		dir, log := seed(t), filepath.Join(t.TempDir(), "log")
		trace(t, role, dir, "-s", "100000", "-e", disk.Calls, "-o", log)
		got := events(t, dir, log)
		// The process does not know the folder of accounts yet, so it syncs the folder above once.
		at := slices.Index(got, "sync records/")
		require.GreaterOrEqual(t, at, 0)
		require.Equal(t, want, slices.Delete(got, at, at+1))
	}
}
