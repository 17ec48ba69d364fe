//go:build !unix

package pgtest

import (
	"errors"
	"os/exec"
)

func unprivileged() (*account, error) {
	return nil, errors.New("private servers are supported on Unix only")
}

func detach(*exec.Cmd, *account) {}
