// Package guarantees compares the table in docs/guarantees.md with the tests that cite it.
//
// A row of the table reads "| LOCK-7 | words | TestA, TestB |". A test cites it by the word
// Proves and the id, several ids separated by commas or "and", in the doc comment of the test or
// in a comment inside it, such as the one at the end of a t.Run line.
package guarantees

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// A Row is one guarantee of the table.
type Row struct {
	ID    string
	Words string   // the guarantee
	Tests []string // the tests that prove it
}

const idPattern = `[A-Z][A-Z0-9]*-[0-9]+[a-z]?`

var isID = regexp.MustCompile(`^` + idPattern + `$`)

// ReadTable returns the rows of the table in the named file.
func ReadTable(name string) ([]Row, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return parseTable(string(data)), nil
}

// parseTable returns the rows whose first cell is an id. It ignores all other lines, such as the
// head of the table.
func parseTable(text string) []Row {
	var rows []Row
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := splitCells(line)
		id := strings.Trim(cells[0], "`*")
		if !isID.MatchString(id) {
			continue
		}
		row := Row{ID: id}
		if len(cells) > 1 {
			row.Words = cells[1]
		}
		if len(cells) > 2 {
			for _, test := range strings.Split(cells[2], ",") {
				if test = strings.Trim(test, " `"); test != "" {
					row.Tests = append(row.Tests, test)
				}
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// splitCells returns the cells of a table row. A bar inside a cell is written \|.
func splitCells(line string) []string {
	const bar = "\x00"
	line = strings.ReplaceAll(line, `\|`, bar)
	cells := strings.Split(strings.Trim(line, "|"), "|")
	for i, cell := range cells {
		cells[i] = strings.TrimSpace(strings.ReplaceAll(cell, bar, "|"))
	}
	return cells
}

// Update returns the text of the page with the third cell of every row replaced by the names of the
// tests that cite it.
func Update(text string, tests Tests) string {
	citing := make(map[string][]string)
	for name, ids := range tests.Functions {
		for _, id := range ids {
			if !slices.Contains(citing[id], name) {
				citing[id] = append(citing[id], name)
			}
		}
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		rows := parseTable(line)
		if len(rows) == 0 {
			b.WriteString(line)
			continue
		}
		names := citing[rows[0].ID]
		slices.Sort(names)
		fmt.Fprintf(&b, "| %s | %s | %s |\n", rows[0].ID, strings.ReplaceAll(rows[0].Words, "|", `\|`), strings.Join(names, ", "))
	}
	return b.String()
}

// Compare returns the differences between the table and the tests; empty: none.
func Compare(rows []Row, tests Tests) []string {
	var differences []string
	report := func(format string, args ...any) { differences = append(differences, fmt.Sprintf(format, args...)) }

	if len(rows) == 0 {
		report("table has no row")
	}
	known := make(map[string]bool)
	for _, row := range rows {
		if known[row.ID] {
			report("%s has two rows", row.ID)
		}
		known[row.ID] = true
		if row.Words == "" {
			report("%s has no words", row.ID)
		}
		if len(row.Tests) == 0 {
			report("%s names no test", row.ID)
		}
		for _, name := range row.Tests {
			// TestLock/fifo is a subtest; its citation is inside TestLock.
			function, _, _ := strings.Cut(name, "/")
			if ids, ok := tests.Functions[function]; !ok {
				report("%s names %s, which does not exist", row.ID, name)
			} else if !slices.Contains(ids, row.ID) {
				report("%s names %s, which does not cite it", row.ID, name)
			}
		}
	}
	for _, c := range tests.Citations {
		if !known[c.ID] {
			report("%s cites %s, which is not in the table", c.Where, c.ID)
		}
		if c.Function == "" {
			report("%s cites %s outside a test", c.Where, c.ID)
		}
	}
	return differences
}
