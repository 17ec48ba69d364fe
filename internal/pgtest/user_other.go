//go:build !unix

package pgtest

import (
	"errors"
	"os/exec"
)

func unprivileged() (*account, error) {
	return nil, errors.New("a server of one's own is started on Unix only")
}

func detach(*exec.Cmd, *account) {}
