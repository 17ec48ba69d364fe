//go:build unix

package main

import (
	"io"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// A terminal gets a progress bar, unless the output is for a program.
func TestProgress(t *testing.T) {
	location := stores.SQLite.New(t)
	put(t, stores.OpenFor(t, location), "w", many("n", 20)...)
	for _, json := range []string{"--json=false", "--json"} {
		terminal, side, err := pty.Open()
		require.NoError(t, err)
		cmd, _ := command(t, "copy", location, stores.SQLite.New(t), json)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, side
		require.NoError(t, cmd.Run())
		_, err = io.WriteString(side, "END")
		require.NoError(t, err)
		var shown strings.Builder
		for buf := make([]byte, 1024); !strings.HasSuffix(shown.String(), "END"); {
			n, err := terminal.Read(buf)
			require.NoError(t, err)
			shown.Write(buf[:n])
		}
		require.NoError(t, side.Close())
		require.NoError(t, terminal.Close())
		require.NotContains(t, out.String(), "copying")
		if json == "--json" {
			require.Equal(t, "END", shown.String())
		} else {
			require.Contains(t, shown.String(), "copying")
			require.Contains(t, shown.String(), "/40")
		}
	}
}
