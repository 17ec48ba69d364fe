package disk

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/need"
	"github.com/pawl-go/pawl/internal/testkit"
)

// System calls with several names, by architecture, as the flag -e of strace takes them.
const (
	Renames = "?rename,?renameat,?renameat2"
	Unlinks = "?unlink,?unlinkat"
	Mkdirs  = "?mkdir,?mkdirat"
	Chmods  = "?chmod,?fchmodat,fchmod"
)

// Calls is the value of -e for the system calls that a [Disk] follows.
const Calls = "trace=?open,openat,close,lseek,write,pwrite64,ftruncate,fsync,fdatasync," + Mkdirs + "," + Renames + "," + Unlinks + "," + Chmods

// Flags returns the flags with which strace writes a log for [Disk.FeedTrace], followed by more.
func Flags(log string, more ...string) []string {
	return append([]string{"-xx", "-s", "1000000", "-e", Calls, "-o", log}, more...)
}

// Tracee is a child that strace follows.
type Tracee struct {
	Child  *testkit.Process
	strace *exec.Cmd
	lines  *bufio.Scanner // the output of strace
}

// Start starts a child in a role, attaches strace with flags, and lets the child begin. Strace
// follows the first thread only: the child locks its main goroutine to it in an init function.
func Start(t testing.TB, role string, env, flags []string) *Tracee {
	t.Helper()
	strace := need.Strace(t)
	child := testkit.Start(t, role, append(env, "GORACE=atexit_sleep_ms=0")...) // without it each child takes a second to end
	child.Expect("ready")
	tr := &Tracee{Child: child, strace: exec.Command(strace, append(flags, "-p", strconv.Itoa(child.PID()))...)}
	stderr, err := tr.strace.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, tr.strace.Start())
	tr.lines = bufio.NewScanner(stderr)
	for tr.lines.Scan() && !strings.Contains(tr.lines.Text(), "attached") {
	}
	require.Contains(t, tr.lines.Text(), "attached")
	child.Go()
	return tr
}

// Wait returns the lines that the child prints until it ends, and its standard error.
func (tr *Tracee) Wait() (said []string) {
	for line, ok := tr.Child.Next(); ok; line, ok = tr.Child.Next() {
		said = append(said, line)
	}
	tr.Child.Kill()
	for tr.lines.Scan() {
	}
	_ = tr.strace.Wait()
	if stderr := tr.Child.Stderr(); stderr != "" {
		said = append(said, stderr)
	}
	return said
}
