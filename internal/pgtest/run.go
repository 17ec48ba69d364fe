package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// supervisor is a shell script that runs a server until this process asks it to stop or ends. Its
// arguments are the folder, initdb, and the server's command line. The first line of its input is
// the port and starts the server; the second line stops it. The input ends with this process: if it
// ends before either line, the folder is removed. The log file holds the last run only.
//
// SIGQUIT means an immediate shutdown, but a shell makes its background processes ignore it until
// the server installs its handler. SIGTERM ends a server before that, and has no effect after
// SIGQUIT.
//
// Tests open thousands of connections. With scram-sha-256 in place of md5, hashing the password for them
// takes a fifth of the processor time of the tests of the store.
const supervisor = `
folder=$1 initdb=$2 keep=
shift 2
if read -r port; then
	: >"$folder/log"
	[ -d "$folder/data" ] || "$initdb" -D "$folder/data" -U ` + superuser + ` --pwfile="$folder/password" \
		--auth=md5 -E UTF8 --locale=C --no-sync </dev/null >>"$folder/log" 2>&1
	"$@" -c "port=$port" </dev/null >>"$folder/log" 2>&1 &
	exec 3>&-
	read -r keep
	for signal in QUIT TERM CONT; do kill -$signal $! 2>/dev/null; done
	wait $!
fi
[ "$keep" ] || rm -rf "$folder"
`

// run is one run of a server, from start to end, with its supervisor.
type run struct {
	folder     string
	supervisor *exec.Cmd
	input      io.WriteCloser
	alivePipe  *os.File // reaches its end when no process of the server is left
}

var (
	errPortTaken = errors.New("port is in use")
	errEnded     = errors.New("server ended")
)

// newRun starts a supervisor that waits for start.
func newRun(p programs, folder string, server []string) (*run, error) {
	alivePipe, held, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer held.Close()
	r := &run{folder: folder, alivePipe: alivePipe}
	r.supervisor = p.command("/bin/sh", append([]string{"-c", supervisor, "pgtest", folder, p.initdb}, server...)...)
	r.supervisor.Dir = folder
	r.supervisor.ExtraFiles = []*os.File{held} // file 3, which every process of the server inherits
	if r.input, err = r.supervisor.StdinPipe(); err == nil {
		err = r.supervisor.Start()
	}
	if err != nil {
		return nil, errors.Join(err, alivePipe.Close())
	}
	return r, nil
}

// start starts the server and waits until it accepts connections. It returns errPortTaken if the
// port is in use, and errEnded if the server ended.
func (r *run) start(port int, url string) error {
	if _, err := fmt.Fprintln(r.input, port); err != nil {
		return fmt.Errorf("supervisor ended: %w", err)
	}
	for deadline := time.Now().Add(timeout); ; {
		err := answers(url)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("server does not answer: %w\n%s", err, r.log())
		}
		if !r.alive(5 * time.Millisecond) {
			log := r.log()
			if strings.Contains(log, "Address already in use") {
				return fmt.Errorf("%w\n%s", errPortTaken, log)
			}
			return fmt.Errorf("%w\n%s", errEnded, log)
		}
	}
}

// answers returns nil if a server accepts connections. Its timeout is short, because another
// program on the port may never answer.
func answers(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// alive reports whether a process of the server is left after the given time. It returns false as
// soon as none is.
func (r *run) alive(after time.Duration) bool {
	_ = r.alivePipe.SetReadDeadline(time.Now().Add(after))
	_, err := r.alivePipe.Read(make([]byte, 1)) // no process writes to the pipe
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// log returns the end of the server's log.
func (r *run) log() string {
	const limit = 4000
	text, err := os.ReadFile(filepath.Join(r.folder, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-limit):])
}

// kill ends the server at once and keeps the folder.
func (r *run) kill() error {
	_, err := io.WriteString(r.input, "keep\n")
	return errors.Join(err, r.end())
}

// remove ends the server, if it was started, and removes the folder.
func (r *run) remove() { _ = r.end() }

// end waits until the supervisor and every process of the server have ended.
func (r *run) end() error {
	err := errors.Join(r.input.Close(), r.supervisor.Wait())
	if r.alive(timeout) {
		err = errors.Join(err, fmt.Errorf("server still running after %v", timeout))
	}
	return errors.Join(err, r.alivePipe.Close())
}
