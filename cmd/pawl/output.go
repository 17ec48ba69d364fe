package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// errOutput is wrapped by an error of writing the output.
var errOutput = errors.New("cannot write the output")

// output is the standard output.
type output struct {
	json bool // --json
	buf  *bufio.Writer
}

func newOutput(w io.Writer) *output { return &output{buf: bufio.NewWriterSize(w, 64<<10)} }

// Write is for libraries that print.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.buf.Write(p)
	return n, outputError(err)
}

// printf prints a text. Arguments that come from a store are escaped by the caller.
func (o *output) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(o.buf, format, args...)
	return outputError(err)
}

// value prints v as one line of JSON.
func (o *output) value(v any) error {
	line, err := encode(v)
	if err != nil {
		return err
	}
	_, err = o.buf.Write(append(line, '\n'))
	return outputError(err)
}

func (o *output) flush() error { return outputError(o.buf.Flush()) }

func outputError(err error) error {
	if err == nil || errors.Is(err, errOutput) {
		return err
	}
	return fmt.Errorf("%w: %w", errOutput, err)
}

// encode returns v as JSON on one line, which a terminal can show.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return visibleJSON(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// visibleJSON returns JSON of the same value in which all characters that a terminal may obey are
// escaped. Such characters occur only inside strings. Bytes that are not UTF-8 become U+FFFD, as
// they do in every JSON decoder of Go.
func visibleJSON(text []byte) []byte {
	shown := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			shown = append(shown, `\ufffd`...)
		case r < ' ' || unicode.IsPrint(r): // JSON has line breaks and tabs between its tokens only
			shown = append(shown, text[:size]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			shown = fmt.Appendf(shown, `\u%04x\u%04x`, high, low)
		default:
			shown = fmt.Appendf(shown, `\u%04x`, r)
		}
		text = text[size:]
	}
	return shown
}

// visible returns a name for a terminal: as it is, or in quotes with escapes if it contains
// characters that cannot be printed, quotes or spaces at its ends.
func visible(name string) string {
	if name == "" || strings.HasPrefix(name, `"`) || strings.TrimSpace(name) != name || visibleText(name) != name {
		return strconv.Quote(name)
	}
	return name
}

// visibleText returns a text with escapes for the characters that cannot be printed.
func visibleText(text string) string {
	printable := func(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }
	if !strings.ContainsFunc(text, func(r rune) bool { return !printable(r) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// stamp returns a time for people, and - for none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
