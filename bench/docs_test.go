package main

import (
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the tables of the published runs into the pages")

// The pages show the figures of the published runs. A published run beside a load may be missing.
func TestPagesShowPublishedRuns(t *testing.T) {
	for _, kind := range []runKind{quietRun, loadedRun} {
		var rows []Row
		text, err := os.ReadFile(filepath.Join("results", kind.published))
		if err == nil {
			err = json.Unmarshal(text, &rows)
		}
		if kind.name != loadedRun.name || !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}
		if *update {
			require.NoError(t, kind.writePages("..", rows))
		}
		for _, p := range kind.pages {
			was, err := os.ReadFile(filepath.Join("..", p.path))
			require.NoError(t, err)
			now, err := replacePart(was, p.part, p.table(rows))
			require.NoError(t, err)
			require.Equal(t, string(now), string(was), "%s, %s: go test -run TestPagesShowPublishedRuns -update", p.path, p.part)
		}
	}
}

// The table of a loaded run has the load and the failed calls, and no verdict.
func TestLoadedTable(t *testing.T) {
	rows := []Row{
		{ID: "M3", Work: "a", Store: "memory", Writers: 64, Ours: 900, Peer: 300, PeerName: "sync.Mutex", Ratio: 3, Unit: "ns/op", Goal: "<= 4", Failures: 1, Busy: 2},
		{ID: "W1", Work: "b", Store: "memory", Busy: 2},
	}
	require.Equal(t, `Beside 2 busy processes:

| | work | on | writers | Pawl | peer | | against | ratio | failed calls |
|---|---|---|---|---|---|---|---|---|---|
| M3 | a | memory | 64 | 900 | 300 | ns/op | sync.Mutex | 3 | 1 |
`, loadedTable(rows))
}

// The table of times has those of Pawl alone without a goal.
func TestTimesTable(t *testing.T) {
	met := true
	rows := []Row{
		{ID: "W7", Work: "a", Store: "PostgreSQL", Ours: 900, P50: 900, P99: 2000, Unit: "us"},
		{ID: "R1", Work: "b", Ours: 1, P50: 1, P99: 1, Unit: "us", PeerName: "River"},
		{ID: "X1", Work: "c", Ours: 1, P50: 1, P99: 1, Unit: "us", Met: &met},
		{ID: "G1", Work: "d", Ours: 1, P50: 1, P99: 1, Unit: "ns/op"},
	}
	require.Equal(t, `| | work | on | median, us | 99th percentile, us |
|---|---|---|---|---|
| W7 | a | PostgreSQL | 900 | 2000 |
`, timesTable(rows))
	require.Equal(t, "No run with these rows is published yet.\n", timesTable(rows[1:]))
}

// A run beside a load does not change the files of a quiet run.
func TestLoadedRunKeepsQuietFiles(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, quietRun.write(folder, "quiet.json", manyRows()))
	before, err := filepath.Glob(filepath.Join(folder, "*"))
	require.NoError(t, err)
	require.Len(t, before, 1+len(plots))
	for _, path := range before {
		require.NoError(t, os.WriteFile(path, []byte("quiet"), 0o644))
	}
	require.NoError(t, loadedRun.write(folder, "loaded.json", manyRows()))
	for _, path := range before {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "quiet", string(text), path)
	}
	require.FileExists(t, filepath.Join(folder, "loaded.json"))
}

// replacePart returns an error for a page without marks.
func TestReplacePart(t *testing.T) {
	_, err := replacePart([]byte("nothing"), "goals", "x")
	require.ErrorContains(t, err, `"goals"`)
	now, err := replacePart([]byte("a\n<!-- goals -->\nold\n<!-- end of goals -->\nb\n"), "goals", "new\n")
	require.NoError(t, err)
	require.Equal(t, "a\n<!-- goals -->\n\nnew\n\n<!-- end of goals -->\nb\n", string(now))
}
