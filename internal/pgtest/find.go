package pgtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pawl-go/pawl/internal/need"
)

// programs holds the paths of one PostgreSQL installation and the user that runs them.
type programs struct {
	initdb, postgres string
	user             *account // nil: the user that runs the tests
}

// installed lists the folders of PostgreSQL on Debian and Red Hat.
var installed = []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"}

// find returns the PostgreSQL in PATH, or else the newest in installed. Without one, t ends.
func find(t testing.TB) programs {
	t.Helper()
	const how = "make need-postgres; tests that do not stop their server also run with " + Variable + " set to the URL of one"
	for _, folder := range folders() {
		p := programs{initdb: filepath.Join(folder, "initdb"), postgres: filepath.Join(folder, "postgres")}
		if !executable(p.initdb) || !executable(p.postgres) {
			continue
		}
		var err error
		if p.user, err = unprivileged(); err != nil {
			need.Missing(t, "postgres", err.Error(), how)
		}
		return p
	}
	need.Missing(t, "postgres", "initdb and postgres not found", how)
	return programs{}
}

// folders returns the folders to search, the best first.
func folders() []string {
	var found []string
	for _, name := range []string{"initdb", "postgres"} {
		// A link in PATH leads to the folder with all programs.
		if path, err := exec.LookPath(name); err == nil {
			if path, err = filepath.EvalSymlinks(path); err == nil {
				found = append(found, filepath.Dir(path))
			}
		}
	}
	var versions []string
	for _, pattern := range installed {
		matches, _ := filepath.Glob(pattern)
		versions = append(versions, matches...)
	}
	slices.SortFunc(versions, func(a, b string) int { return majorVersion(b) - majorVersion(a) })
	return append(found, versions...)
}

// majorVersion returns the 15 of /usr/lib/postgresql/15/bin and /usr/pgsql-15/bin.
func majorVersion(folder string) int {
	name := strings.TrimPrefix(filepath.Base(filepath.Dir(folder)), "pgsql-")
	name, _, _ = strings.Cut(name, ".")
	version, _ := strconv.Atoi(name)
	return version
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// folder makes a folder for a server. It is in /tmp if the user has no access to the temporary
// folder of this process, or if that name is too long for a socket.
func (p programs) folder() (string, error) {
	base := os.TempDir()
	const longest = 60
	if len(base) > longest || p.user != nil && !worldAccessible(base) {
		base = "/tmp"
	}
	folder, err := os.MkdirTemp(base, "pawl-postgres-")
	if err != nil {
		return "", err
	}
	return folder, p.own(folder)
}

// worldAccessible reports whether every user may enter a folder.
func worldAccessible(folder string) bool {
	for {
		info, err := os.Stat(folder)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		if parent := filepath.Dir(folder); parent != folder {
			folder = parent
			continue
		}
		return true
	}
}

// own makes the user that runs the programs the owner of a file.
func (p programs) own(path string) error {
	if p.user == nil {
		return nil
	}
	return os.Chown(path, p.user.uid, p.user.gid)
}

// command returns a command that runs as the user, in a session of its own, so that an interrupt of
// the tests does not interrupt the shutdown of the server.
func (p programs) command(name string, arguments ...string) *exec.Cmd {
	cmd := exec.Command(name, arguments...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	detach(cmd, p.user)
	return cmd
}

// account is a user of this machine.
type account struct{ uid, gid int }
