// Command pawl looks at stores of Pawl, moves them and checks them.
//
//	pawl ls --store sqlite:chat.db
//	pawl get session/ann --store sqlite:chat.db
//	pawl copy sqlite:chat.db postgres://ann:secret@localhost/chat
//
// docs/cli.md describes the commands and the exit codes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/etcd/scheme"
	"github.com/pawl-go/pawl/persist/open"
)

// Exit codes, documented in docs/cli.md.
const (
	exitOK          = 0
	exitNegative    = 1 // a negative answer: not found, findings, refused
	exitUsage       = 2
	exitUnavailable = 3 // the store is missing, cannot be reached or cannot be read
	exitSchema      = 4 // the store needs a newer release, or a migration
	exitUnknown     = 5 // it is not known whether the change was made
	exitOutput      = 6 // the output could not be written
	exitInterrupted = 130
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run runs one command and returns the exit code.
func run(args []string, in io.Reader, out *os.File, errOut io.Writer) int {
	// A closed pipe is then an error of the write, not the end of the process: temporary files are
	// removed, and commits are answered.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	schemes := open.Standard()
	scheme.Add(schemes)
	a := &app{schemes: schemes, in: in, out: newOutput(out), errOut: errOut, settling: settling}
	return a.execute(ctx, args)
}

// execute runs one command, explains its error, and returns the exit code.
func (a *app) execute(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(doubleDashes(args))
	err := root.ExecuteContext(ctx)
	err = errors.Join(err, a.out.flush())
	code := a.exitCode(ctx, err)
	switch {
	case err == nil || errors.Is(err, syscall.EPIPE): // the reader of the output has left
	case code == exitInterrupted:
		fmt.Fprintln(a.errOut, "pawl: interrupted"+a.hint)
	case code == exitUsage && !a.started:
		fmt.Fprintf(a.errOut, "pawl: %s\nRun 'pawl -h' for help.\n", message(err))
	default:
		fmt.Fprintf(a.errOut, "pawl: %s%s\n", message(err), a.hint)
	}
	return code
}

// doubleDashes lets -store stand for --store, as the flags of the examples are written.
func doubleDashes(args []string) []string {
	changed := make([]string, len(args))
	for i, arg := range args {
		if arg == "--" {
			copy(changed[i:], args[i:])
			break
		}
		if arg == "-store" || strings.HasPrefix(arg, "-store=") {
			arg = "-" + arg
		}
		changed[i] = arg
	}
	return changed
}

// codedError is an error with the exit code that it leads to.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// negative returns the error of a negative answer.
func negative(format string, args ...any) error {
	return &codedError{exitNegative, fmt.Errorf(format, args...)}
}

// misused returns the error of a wrong argument.
func misused(format string, args ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, args...)}
}

// exitCode returns the exit code for the error of a command.
func (a *app) exitCode(ctx context.Context, err error) int {
	var coded *codedError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errOutput):
		return exitOutput
	case !a.started || errors.Is(err, open.ErrLocation):
		return exitUsage
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))):
		return exitInterrupted
	case errors.As(err, &coded):
		return coded.code
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.Is(err, persist.ErrNewerSchema) || errors.Is(err, persist.ErrOlderSchema):
		return exitSchema
	}
	return exitUnavailable
}

// message returns the text of err on one line, with advice where there is some. Names in it may come
// from a store, so what cannot be printed is escaped.
func message(err error) string {
	text := visibleText(strings.ReplaceAll(err.Error(), "\n", "; "))
	switch {
	case errors.Is(err, persist.ErrNewerSchema):
		text += "; use the pawl of that release"
	case errors.Is(err, persist.ErrOlderSchema):
		text += "; --migrate does it, and older releases cannot open the store afterwards"
	}
	return text
}
