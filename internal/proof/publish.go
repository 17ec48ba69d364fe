package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// row is a proof that passed.
type row struct {
	proof   proof
	long    bool
	at      time.Time
	figures []string
}

// The rows stand between these lines of docs/reliability.md, one row to a line.
const (
	tableBegin = "<!-- proofs -->\n"
	tableEnd   = "<!-- end of proofs -->\n"
)

// publish writes rows into docs/reliability.md, and log beside it. The rows of other proofs stay.
func publish(docs string, rows []row, log string) error {
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
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte(log)); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(docs, "reliability.log.gz"), packed.Bytes(), 0o644)
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
	code := func(text string) string { // a code span may not be empty
		if text == "" {
			return "none yet"
		}
		return "`" + cell(text) + "`"
	}
	figures := make([]string, len(r.figures))
	for i, f := range r.figures {
		figures[i] = cell(f)
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s, %d cores, %s/%s |\n", r.proof.name, cell(r.proof.claim), code(r.proof.command(r.long)),
		strings.Join(figures, "<br>"), code(r.proof.bug), r.at.UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
}
