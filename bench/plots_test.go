package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// manyRows returns rows for every plot.
func manyRows() (rows []Row) {
	for _, writers := range []int{1, 64, 1024} {
		n := float64(writers)
		for _, peer := range []string{"sync.Mutex", "a < b & c"} {
			rows = append(rows,
				Row{ID: "W1", Work: "small struct, IncState", Store: "memory", Writers: writers, Ours: 1e6 / n, Peer: 2e6, PeerName: peer, Unit: "ops/s"},
				Row{ID: "W2", Work: "one hot row", Store: "PostgreSQL", Writers: writers, Ours: 5000 * n, Peer: 5000 / n, PeerName: peer, Unit: "ops/s", P50: 100, P99: 900, PeerP50: 300, PeerP99: 40_000},
				Row{ID: "W2", Work: "one hot row", Store: "PostgreSQL", Writers: writers, Ours: 0, Peer: n / 8, PeerName: peer, Unit: "conflicts/op"})
		}
		rows = append(rows,
			Row{ID: "G1", Work: "PushState to a list of " + thousands(writers), Store: "memory", Writers: 1, Ours: 300 * n, Unit: "ns/op", Size: n},
			Row{ID: "G1", Work: "PushState to a list of 1 to 1,024", Store: "memory", Writers: 1, Ours: 1, Unit: "exponent"},
			Row{ID: "G3", Work: "append to a conversation of " + thousands(writers) + " messages", Store: "SQLite", Writers: 1, Ours: 1e5, Unit: "ns/op", Size: n},
			Row{ID: "G2", Work: "idle scopes: " + thousands(writers), Store: "memory", Writers: 1, Ours: 500, Unit: "bytes/scope", Size: n},
			Row{ID: "W4", Work: "PatchState of one field of " + thousands(writers) + " bytes", Store: "SQLite", Writers: 1, Ours: 1e6, Unit: "ns/op", Size: n})
	}
	return rows
}

// words returns the texts of a picture, and asserts that it is well-formed.
func words(t *testing.T, svg string) (all []string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	inside := false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			inside = token.Name.Local == "text"
			for _, a := range token.Attr {
				require.NotContains(t, a.Value, "NaN")
				require.NotContains(t, a.Value, "Inf")
			}
		case xml.CharData:
			if inside {
				all = append(all, string(token))
			}
		case xml.EndElement:
			inside = false
		}
	}
}

func TestPlots(t *testing.T) {
	want := map[string][]string{
		"throughput-memory.svg":   {"small struct: operations per second", "Pawl, IncState", "sync.Mutex", "a < b & c", "1,024"},
		"throughput-postgres.svg": {"Pawl", "sync.Mutex", "64"},
		"latency.svg":             {"one hot row, PostgreSQL, 1 writer", "Pawl", "900 µs", "40 ms"},
		"conflicts.svg":           {"one hot row, PostgreSQL, 64 writers", "Pawl", "8"},
		"growth.svg":              {"PushState to a list of n: n^1.00", "append to a conversation of n messages, SQLite: n^0.00", "PatchState of one field of n bytes, SQLite: n^0.00", "idle scopes"},
	}
	require.Len(t, plots, len(want))
	for name, plot := range plots {
		require.Subset(t, words(t, plot(manyRows())), want[name], name)
		for _, r := range manyRows() { // a single row must not break a plot
			words(t, plot([]Row{r}))
		}
		require.Empty(t, plot(nil), name)
		require.Empty(t, plot([]Row{{ID: "W1", Unit: "ops/s"}, {ID: "W2", Unit: "ops/s"}, {ID: "G1", Unit: "ns/op"}}), name)
	}
}

// A plot without rows leaves its file unchanged.
func TestPlotWithoutRows(t *testing.T) {
	folder := t.TempDir()
	old := filepath.Join(folder, "latency.svg")
	require.NoError(t, os.WriteFile(old, []byte("before"), 0o644))
	require.NoError(t, writePlots(folder, manyRows()[:1])) // of W1
	text, err := os.ReadFile(old)
	require.NoError(t, err)
	require.Equal(t, "before", string(text))
	require.FileExists(t, filepath.Join(folder, "throughput-memory.svg"))
	require.NoFileExists(t, filepath.Join(folder, "growth.svg"))
}

func TestAxes(t *testing.T) {
	a := decades([]float64{0, 3, 250}, 0, 300)
	require.Equal(t, []float64{1, 10, 100, 1000}, a.ticks())
	require.InDelta(t, 100, a.at(10), 1e-9)
	require.Equal(t, []float64{10, 100}, decades([]float64{10, 10}, 0, 1).ticks())
	require.Equal(t, []float64{0, 5, 10}, axis{0, 12.9, false, 0, 1}.ticks())
	require.Equal(t, []float64{0, 2, 4, 6, 8}, axis{0, 9, false, 0, 1}.ticks())
	require.Equal(t, []string{"0.5", "20", "1.5k", "2M"}, []string{short(0.5), short(20), short(1500), short(2e6)})
	require.Equal(t, []string{"20 ns", "1 µs", "1.5 ms", "2 s"}, []string{lasting(20), lasting(1000), lasting(1.5e6), lasting(2e9)})
}

// Names of lines that end at the same place do not overlap.
func TestLabelsApart(t *testing.T) {
	all := apart([]label{{y: 100}, {y: 98}, {y: 99}, {y: 20}}, 0, 110)
	for i := range all[1:] {
		require.GreaterOrEqual(t, all[i+1].place-all[i].place, 14.0)
	}
	require.LessOrEqual(t, all[3].place, 110.0)
}
