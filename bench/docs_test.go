package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The figures in the pages are those of a run, and of one.
func TestPagesShowARun(t *testing.T) {
	text, err := os.ReadFile(published)
	require.NoError(t, err)
	var rows []Row
	require.NoError(t, json.Unmarshal(text, &rows))
	for _, p := range pages {
		was, err := os.ReadFile(filepath.Join("..", p.path))
		require.NoError(t, err)
		now, err := replacePart(was, p.part, p.table(rows))
		require.NoError(t, err)
		require.Equal(t, string(now), string(was), "%s, %s: run make bench", p.path, p.part)
	}
}

// A page without marks is not touched.
func TestMarks(t *testing.T) {
	_, err := replacePart([]byte("nothing"), "goals", "x")
	require.ErrorContains(t, err, `"goals"`)
	now, err := replacePart([]byte("a\n<!-- goals -->\nold\n<!-- end of goals -->\nb\n"), "goals", "new\n")
	require.NoError(t, err)
	require.Equal(t, "a\n<!-- goals -->\n\nnew\n\n<!-- end of goals -->\nb\n", string(now))
}
