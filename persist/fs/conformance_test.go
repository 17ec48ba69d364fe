package fs

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/persisttest"
)

func TestMain(m *testing.M) {
	testkit.Main(func() int { return persisttest.Main(m, openAny) })
}

func openAny(dir string) (persist.Store, error) {
	return Open(context.Background(), dir, Config{LockTimeout: time.Minute}) // the default is too short for a busy disk
}

// Proves STORE-1, STORE-3.
func TestConformance(t *testing.T) { persisttest.Run(t, openAny, persisttest.Options{}) }

// A store of files keeps logs as documents.
//
// Proves STORE-1, STORE-3.
func TestLogs(t *testing.T) {
	persisttest.RunLogs(t, func(dir string) (persist.Store, error) {
		store, err := openAny(dir)
		if err != nil {
			return nil, err
		}
		return persist.Logs(store), nil
	}, persisttest.Options{})
}

// A log is refused, not lost, by a store that does not keep it.
//
// Proves STORE-1.
func TestLogsAreUnsupported(t *testing.T) {
	store, err := openAny(t.TempDir())
	require.NoError(t, err)
	defer store.Close()
	key := persist.Key{Kind: "thing", ID: "1"}
	for _, log := range []*persist.LogWrite{{}, {Clear: true}, {Entries: []json.RawMessage{[]byte(`1`)}}} {
		_, err = store.Commit(t.Context(), persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: key, Version: 1, Doc: []byte(`{}`), Log: log}}})
		require.ErrorIs(t, err, persist.ErrUnsupported)
		_, err = store.Load(t.Context(), key)
		require.ErrorIs(t, err, persist.ErrNotFound)
	}
}
