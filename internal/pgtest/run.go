package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// supervisor is a shell script that runs a server until this process says so, or is gone, which
// the end of its input tells. Its arguments are the folder and the server's command line.
//
// Input: a port, which starts the server, then a line that ends it. If the input ends before either
// line, the folder is removed. Output: the server's process id.
const supervisor = `
folder=$1
shift
keep=
if read -r port; then
	"$@" -c "port=$port" </dev/null >>"$folder/log" 2>&1 &
	exec 3>&-
	echo $!
	read -r keep
	kill -QUIT $! 2>/dev/null
	kill -CONT $! 2>/dev/null
	wait $!
fi
[ "$keep" ] || rm -rf "$folder"
`

// run is one life of a server, from start to end, with its supervisor.
type run struct {
	folder     string
	supervisor *exec.Cmd
	input      io.WriteCloser
	output     *bufio.Reader
	life       *os.File // ends when no process of the server is left
	pid        int
}

var (
	errPortTaken = errors.New("the port is taken")
	errEnded     = errors.New("the server ended")
)

// newRun starts a supervisor that waits for start.
func newRun(p programs, folder string, server []string) (*run, error) {
	life, held, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer held.Close()
	r := &run{folder: folder, life: life}
	r.supervisor = p.command("/bin/sh", append([]string{"-c", supervisor, "pgtest", folder}, server...)...)
	r.supervisor.Dir = folder
	r.supervisor.ExtraFiles = []*os.File{held} // as 3, which every process of the server inherits
	if r.input, err = r.supervisor.StdinPipe(); err != nil {
		return nil, errors.Join(err, life.Close())
	}
	output, err := r.supervisor.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, life.Close())
	}
	r.output = bufio.NewReader(output)
	if err := r.supervisor.Start(); err != nil {
		return nil, errors.Join(err, life.Close())
	}
	return r, nil
}

// start starts the server and returns when it accepts connections, or errPortTaken.
func (r *run) start(port int, url string) error {
	if _, err := fmt.Fprintln(r.input, port); err != nil {
		return fmt.Errorf("the supervisor is gone: %w", err)
	}
	line, err := r.output.ReadString('\n')
	if err != nil {
		return fmt.Errorf("the supervisor is gone: %w", err)
	}
	if r.pid, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the server does not answer: %w\n%s", err, r.log())
		}
		if !r.alive(5 * time.Millisecond) {
			log := r.log()
			if strings.Contains(log, "Address already in use") {
				return errPortTaken
			}
			return fmt.Errorf("%w\n%s", errEnded, log)
		}
	}
}

// alive reports whether a process of the server is left; it takes that long to say yes.
func (r *run) alive(within time.Duration) bool {
	_ = r.life.SetReadDeadline(time.Now().Add(within))
	_, err := r.life.Read(make([]byte, 1)) // nobody writes
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// log returns the end of the server's log.
func (r *run) log() string {
	const enough = 4000
	text, err := os.ReadFile(filepath.Join(r.folder, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-enough):])
}

// kill ends the server and keeps the folder.
func (r *run) kill() error {
	_, err := io.WriteString(r.input, "keep\n")
	return errors.Join(err, r.end())
}

// remove ends the server, if it was started, and removes the folder.
func (r *run) remove() { _ = r.end() }

// end returns when the supervisor and every process of the server are gone.
func (r *run) end() error {
	err := errors.Join(r.input.Close(), r.supervisor.Wait())
	if r.alive(patience) {
		err = errors.Join(err, errors.New("the server does not end"))
	}
	return errors.Join(err, r.life.Close())
}
