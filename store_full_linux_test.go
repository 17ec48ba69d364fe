package pawl_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/disk"
	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// The disk with PostgreSQL's tables is full. Changes that need room are refused, and are not there;
// acknowledged ones are there once. They succeed again, without help, when there is room.
//
// Proves STORE-14.
func TestFullDiskOfTheServer(t *testing.T) {
	stores.Need(t, "postgres")
	small := disk.Mount(t, "24m") // before the server, which uses it until it ends
	server := pgtest.New(t)
	conn := pgtest.Connect(t, server.URL("postgres"))
	tables := filepath.Join(small.Dir, "tables")
	var data string
	require.NoError(t, conn.QueryRow(t.Context(), "SHOW data_directory").Scan(&data))
	info, err := os.Stat(data)
	require.NoError(t, err)
	owner := info.Sys().(*syscall.Stat_t) // the user that the server runs as
	require.NoError(t, os.Mkdir(tables, 0o700))
	require.NoError(t, os.Chown(tables, int(owner.Uid), int(owner.Gid)))
	require.NoError(t, os.Chmod(filepath.Dir(small.Dir), 0o755)) // the server has to get through it
	for _, text := range []string{"CREATE TABLESPACE small LOCATION '" + tables + "'", "CREATE DATABASE small TABLESPACE small"} {
		_, err := conn.Exec(t.Context(), text)
		require.NoError(t, err)
	}
	rt := openRuntime(t, pawl.Config{Store: stores.OpenFor(t, server.URL("small"))})
	seed(t, purses.Scope(rt, "bank"), purse{})
	w := startTellers(rt)
	kept := map[string]bool{} // large documents, by whether they were acknowledged
	store := func() error {
		id := fmt.Sprint("large ", len(kept))
		_, err := notes.Scope(rt, id).SetState(context.Background(), note{incompressible(100 << 10)})
		require.False(t, pawl.OutcomeUnknown(err), "%v", err)
		kept[id] = err == nil
		return err
	}
	rounds := testkit.Times(5, 2, "PAWL_ROUNDS")
	for range rounds {
		require.NoError(t, store())
		small.Fill(0)
		require.ErrorIs(t, store(), pawl.ErrUnavailable)
		require.ErrorIs(t, store(), pawl.ErrUnavailable)
		small.Empty()
		require.NoError(t, store())
	}
	w.check(t)
	for id, acknowledged := range kept {
		snap, err := notes.Scope(rt, id).Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, acknowledged, snap.Exists(), id)
	}
	acknowledged, refused, unknown := w.sum()
	testkit.Figures(t, "%d times full, %d large documents; meanwhile %d changes acknowledged, %d refused, %d of unknown outcome",
		rounds, len(kept), acknowledged, refused, unknown)
}

type note struct{ Text string }

var notes = pawl.Kind[note]{Name: "note"}

// incompressible returns n random letters.
func incompressible(n int) string {
	text := make([]byte, n)
	for i := range text {
		text[i] = byte('a' + rand.IntN(26))
	}
	return string(text)
}
