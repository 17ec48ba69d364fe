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

// supervisor is a shell script that runs a server until this process says so, or is gone, which the
// end of its input tells. Its arguments are the folder, initdb, and the server's command line. The
// first line of its input is the port, which starts the server, the second ends it. If the input ends
// before either, the folder is removed. The log is that of the last run.
//
// A shell makes what it runs in the background ignore SIGQUIT, which means an immediate shutdown,
// until the server installs its handler. Before that, SIGTERM ends it; after SIGQUIT, it means nothing.
const supervisor = `
folder=$1 initdb=$2 keep=
shift 2
if read -r port; then
	: >"$folder/log"
	[ -d "$folder/data" ] || "$initdb" -D "$folder/data" -U ` + superuser + ` --pwfile="$folder/password" \
		--auth=scram-sha-256 -E UTF8 --locale=C --no-sync </dev/null >>"$folder/log" 2>&1
	"$@" -c "port=$port" </dev/null >>"$folder/log" 2>&1 &
	exec 3>&-
	read -r keep
	for signal in QUIT TERM CONT; do kill -$signal $! 2>/dev/null; done
	wait $!
fi
[ "$keep" ] || rm -rf "$folder"
`

// run is one life of a server, from start to end, with its supervisor.
type run struct {
	folder     string
	supervisor *exec.Cmd
	input      io.WriteCloser
	life       *os.File // ends when no process of the server is left
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
	r.supervisor = p.command("/bin/sh", append([]string{"-c", supervisor, "pgtest", folder, p.initdb}, server...)...)
	r.supervisor.Dir = folder
	r.supervisor.ExtraFiles = []*os.File{held} // as 3, which every process of the server inherits
	if r.input, err = r.supervisor.StdinPipe(); err == nil {
		err = r.supervisor.Start()
	}
	if err != nil {
		return nil, errors.Join(err, life.Close())
	}
	return r, nil
}

// start starts the server and returns when it accepts connections, or errPortTaken.
func (r *run) start(port int, url string) error {
	if _, err := fmt.Fprintln(r.input, port); err != nil {
		return fmt.Errorf("the supervisor is gone: %w", err)
	}
	for deadline := time.Now().Add(patience); ; {
		err := answers(url)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the server does not answer: %w\n%s", err, r.log())
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

// answers returns nil if a server accepts connections. Somebody who has the port but is no such server
// may say nothing at all.
func answers(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
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
