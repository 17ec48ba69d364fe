package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// row is a proof that was run. The figures of one that failed say so.
type row struct {
	proof  proof
	long   bool
	at     time.Time
	result result
}

// The rows stand between these lines of docs/reliability.md, one row to a line.
const (
	tableBegin = "<!-- proofs -->\n"
	tableEnd   = "<!-- end of proofs -->\n"
)

// publish writes rows into docs/reliability.md, and what their tests printed beside it. What other
// proofs have left there stays.
func publish(docs string, rows []row) error {
	path := filepath.Join(docs, "reliability.md")
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := insert(string(page), rows)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	path = filepath.Join(docs, "reliability.log.gz")
	before, err := unpack(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	packed, err := pack(replaceOutput(before, rows))
	if err != nil {
		return err
	}
	return os.WriteFile(path, packed, 0o644)
}

// outputBegin begins the line above what the tests of a proof printed.
const outputBegin = "== proof "

// replaceOutput returns log with what the tests of these rows printed, in the order of proofs.
func replaceOutput(log string, rows []row) string {
	parts := make(map[string]string) // by the name of the proof
	for _, part := range strings.Split("\n"+log, "\n"+outputBegin)[1:] {
		name, _, _ := strings.Cut(part, ": ")
		parts[name] = strings.TrimSuffix(part, "\n")
	}
	for _, r := range rows {
		parts[r.proof.name] = fmt.Sprintf("%s: %s\n%s", r.proof.name, r.proof.command(r.long), strings.TrimSuffix(r.result.output, "\n"))
	}
	var out strings.Builder
	for _, p := range proofs {
		if part := parts[p.name]; part != "" {
			fmt.Fprintf(&out, "%s%s\n", outputBegin, part)
		}
	}
	return out.String()
}

// unpack returns the text of a compressed file, "" if there is none.
func unpack(path string) (string, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	r, err := gzip.NewReader(file)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(r)
	return string(text), err
}

func pack(text string) ([]byte, error) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := io.WriteString(w, text); err != nil {
		return nil, err
	}
	err := w.Close()
	return packed.Bytes(), err
}

// insert returns page with these rows in its table. Rows are in the order of proofs. A proof that did
// not run keeps its row.
func insert(page string, rows []row) (string, error) {
	before, rest, found := strings.Cut(page, tableBegin)
	table, after, foundEnd := strings.Cut(rest, tableEnd)
	if !found || !foundEnd {
		return "", fmt.Errorf("the lines %q and %q are missing", strings.TrimSpace(tableBegin), strings.TrimSpace(tableEnd))
	}
	lines := make(map[string]string) // by the name of the proof
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); len(cells) > 1 {
			lines[strings.TrimPrefix(cells[0], "| ")] = line
		}
	}
	for _, r := range rows {
		lines[r.proof.name] = r.line()
	}
	var out strings.Builder
	out.WriteString("\n| proof | claim | command | figures | a bug that it finds | date and machine |\n|---|---|---|---|---|---|\n")
	for _, p := range proofs {
		out.WriteString(lines[p.name])
	}
	out.WriteString("\n")
	return before + tableBegin + out.String() + tableEnd + after, nil
}

func (r row) line() string {
	cell := func(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
	code := func(text string) string { return "`" + cell(text) + "`" }
	figures := make([]string, len(r.result.figures))
	for i, f := range r.result.figures {
		figures[i] = cell(f)
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s, %d cores, %s/%s |\n", r.proof.name, cell(r.proof.claim), code(r.proof.command(r.long)),
		strings.Join(figures, "<br>"), code(r.proof.bug), r.at.UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
}
