// Package protect runs a user's function in the background of the library, where a panic would end
// the process and runtime.Goexit the worker. It also makes error texts that a store accepts.
package protect

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
)

// ErrGoexit is returned for a function that called runtime.Goexit.
var ErrGoexit = errors.New("the function called runtime.Goexit")

// Call calls fn on a goroutine of its own, waits for it and returns its error. A panic is logged
// with its stack and returned as an error; runtime.Goexit gives ErrGoexit.
func Call(log *slog.Logger, fn func() error) error {
	done := make(chan error, 1)
	go func() { // runtime.Goexit ends this goroutine only
		err := ErrGoexit
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("the function panicked: %v", v)
				log.Error("pawl: "+err.Error(), "stack", string(debug.Stack()))
			}
			done <- err
		}()
		err = fn()
	}()
	return <-done
}

// maxText is the maximum length of a stored error text in bytes.
const maxText = 4096

// Text returns the text of err as a document can hold it: valid UTF-8 without NUL, and cut to
// maxText. The errors of mail servers, for example, may have any encoding.
func Text(err error) string {
	s := strings.ReplaceAll(strings.ToValidUTF8(fmt.Sprint(err), "\uFFFD"), "\x00", "\uFFFD")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}
