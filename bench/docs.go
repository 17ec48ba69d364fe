package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The pages that show figures of a run. Each has them between two marks, and nobody types them.
var pages = []struct {
	path, part string // from the root of the repository; the name in the marks
	table      func(rows []Row) string
}{
	{"README.md", "lost updates", lostTable},
	{"docs/performance.md", "goals", goalTable},
	{"docs/performance.md", "for the record", recordTable},
}

// published is the run that the pages show; latest.json may be a later and shorter one.
const published = "results/published.json"

// writeDocs puts the tables of a run into the pages.
func writeDocs(root string, rows []Row) error {
	if err := writeJSON(filepath.Join(root, "bench", published), rows); err != nil {
		return err
	}
	for _, p := range pages {
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

// replacePart puts table between the marks of a part.
func replacePart(text []byte, part, table string) ([]byte, error) {
	begin, end := []byte("<!-- "+part+" -->\n"), []byte("<!-- end of "+part+" -->\n")
	before, rest, ok1 := bytes.Cut(text, begin)
	_, after, ok2 := bytes.Cut(rest, end)
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("no marks of %q", part)
	}
	return bytes.Join([][]byte{before, begin, []byte("\n" + table + "\n"), end, after}, nil), nil
}

// goalTable is every row that has a goal.
func goalTable(rows []Row) string {
	return markdown(rows, func(r Row) bool { return r.Met != nil && r.Unit != "lost updates" })
}

// recordTable is every row against a peer that has none.
func recordTable(rows []Row) string {
	return markdown(rows, func(r Row) bool { return r.Met == nil && r.PeerName != "" && r.Unit != "conflicts/op" })
}

func markdown(rows []Row, shown func(Row) bool) string {
	var b strings.Builder
	b.WriteString("| | work | on | writers | Pawl | peer | | against | ratio | goal | |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		if !shown(r) {
			continue
		}
		peer, ratio, met := "", "", ""
		if r.PeerName != "" {
			peer, ratio = figure(r.Peer), figure(r.Ratio)
		}
		if r.Met != nil {
			met = map[bool]string{true: "met", false: "**missed**"}[*r.Met]
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %s | %s | %s | %s | %s | %s | %s |\n", r.ID, r.Work, r.Store, r.Writers, figure(r.Ours), peer, r.Unit, r.PeerName, ratio,
			strings.NewReplacer("<=", "≤", ">=", "≥").Replace(r.Goal), met)
	}
	return b.String()
}
