package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// runKind says where the figures of a quiet run, or of a run beside a load, are written.
type runKind struct {
	name      string
	published string    // the file of the published run in results/
	pages     []excerpt // the pages that show the published run
	pictures  bool      // draw plots, and write the table of lost updates
}

// excerpt is a part of a page, between two marks, that shows figures of a published run. publish
// writes it, so it is not edited by hand.
type excerpt struct {
	path  string // from the root of the repository
	part  string // the name in the marks
	table func(rows []Row) string
}

var (
	quietRun = runKind{"quiet", "published.json", []excerpt{
		{"README.md", "lost updates", lostTable},
		{"docs/performance.md", "goals", goalTable},
		{"docs/performance.md", "times", timesTable},
		{"docs/performance.md", "for the record", recordTable},
	}, true}
	loadedRun = runKind{"loaded", "loaded.json", []excerpt{
		{"docs/performance.md", "beside a load", loadedTable},
	}, false}
)

// write writes the rows of a run to a file in a folder, and the pictures next to it.
func (k runKind) write(folder, file string, rows []Row) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(folder, file), rows); err != nil || !k.pictures {
		return err
	}
	if err := writeLost(folder, rows); err != nil {
		return err
	}
	return writePlots(folder, rows)
}

// publish makes a run the published one, and writes its tables into the pages.
func (k runKind) publish(root string, rows []Row) error {
	if err := k.write(filepath.Join(root, "bench", "results"), k.published, rows); err != nil {
		return err
	}
	return k.writePages(root, rows)
}

func (k runKind) writePages(root string, rows []Row) error {
	for _, p := range k.pages {
		path := filepath.Join(root, p.path)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if text, err = replacePart(text, p.part, p.table(rows)); err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// replacePart puts table between the marks of a part. It returns an error if there are no marks.
func replacePart(text []byte, part, table string) ([]byte, error) {
	begin, end := []byte("<!-- "+part+" -->\n"), []byte("<!-- end of "+part+" -->\n")
	before, rest, ok1 := bytes.Cut(text, begin)
	_, after, ok2 := bytes.Cut(rest, end)
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("no marks of %q", part)
	}
	return bytes.Join([][]byte{before, begin, []byte("\n" + table + "\n"), end, after}, nil), nil
}

// column is a column of a Markdown table.
type column struct {
	title string
	cell  func(r *Row) string
}

var (
	comparisonColumns = []column{
		{"", func(r *Row) string { return r.ID }},
		{"work", func(r *Row) string { return r.Work }},
		{"on", func(r *Row) string { return r.Store }},
		{"writers", func(r *Row) string { return strconv.Itoa(r.Writers) }},
		{"Pawl", func(r *Row) string { return figure(r.Ours) }},
		{"peer", func(r *Row) string { return r.versus(r.Peer) }},
		{"", func(r *Row) string { return r.Unit }},
		{"against", func(r *Row) string { return r.PeerName }},
		{"ratio", func(r *Row) string { return r.versus(r.Ratio) }},
	}
	goalColumns = []column{
		{"goal", func(r *Row) string { return strings.NewReplacer("<=", "≤", ">=", "≥").Replace(r.Goal) }},
		{"", func(r *Row) string { return map[bool]string{true: "met", false: "**missed**"}[*r.Met] }},
	}
	timeColumns = []column{
		comparisonColumns[0], comparisonColumns[1], comparisonColumns[2],
		{"median, us", func(r *Row) string { return figure(r.P50) }},
		{"99th percentile, us", func(r *Row) string { return figure(r.P99) }},
	}
	failureColumns = []column{{"failed calls", func(r *Row) string { return strconv.FormatInt(r.Failures, 10) }}}
)

// goalTable shows the rows that have a goal.
func goalTable(rows []Row) string {
	return markdown(having(rows, func(r *Row) bool { return r.Met != nil && r.Unit != "lost updates" }), comparisonColumns, goalColumns)
}

// recordTable shows the rows against a peer that have no goal.
func recordTable(rows []Row) string {
	return markdown(having(rows, func(r *Row) bool { return r.Met == nil && r.PeerName != "" && r.Unit != "conflicts/op" }), comparisonColumns)
}

// timesTable shows the times of Pawl alone that have no goal.
func timesTable(rows []Row) string {
	rows = having(rows, func(r *Row) bool { return r.Met == nil && r.PeerName == "" && r.Unit == halfWithin.unit })
	if len(rows) == 0 {
		return "No run with these rows is published yet.\n"
	}
	return markdown(rows, timeColumns)
}

// loadedTable shows the rows that have a goal on a quiet machine.
func loadedTable(rows []Row) string {
	if len(rows) == 0 {
		return "No run beside a load is published yet.\n"
	}
	text := markdown(having(rows, func(r *Row) bool { return r.Goal != "" }), comparisonColumns, failureColumns)
	return "Beside " + busyProcesses(rows[0].Busy) + ":\n\n" + text
}

func busyProcesses(n int) string {
	if n == 1 {
		return "1 busy process"
	}
	return strconv.Itoa(n) + " busy processes"
}

func markdown(rows []Row, groups ...[]column) string {
	var b strings.Builder
	line := func(cell func(c column) string) {
		b.WriteString("|")
		for _, group := range groups {
			for _, c := range group {
				b.WriteString(cell(c))
			}
		}
		b.WriteString("\n")
	}
	line(func(c column) string { return strings.TrimSuffix(" "+c.title, " ") + " |" })
	line(func(column) string { return "---|" })
	for _, r := range rows {
		line(func(c column) string { return " " + c.cell(&r) + " |" })
	}
	return b.String()
}
