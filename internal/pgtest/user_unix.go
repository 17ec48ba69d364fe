//go:build unix

package pgtest

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// unprivileged returns the user that runs PostgreSQL if the tests run as root, which PostgreSQL
// refuses; nil: the tests do not run as root.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.Atoi(u.Gid)
		if err != nil {
			return nil, err
		}
		return &account{uid: uid, gid: gid}, nil
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and the accounts postgres and nobody do not exist")
}

// detach makes cmd run in a session of its own, as the user; nil: as the current user.
func detach(cmd *exec.Cmd, user *account) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if user != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(user.uid), Gid: uint32(user.gid)}
	}
}
