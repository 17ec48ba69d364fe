package postgres

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// TestCommitWaitsForAStandby: a commit that no standby has is not visible, also after its caller was
// told that the outcome is unknown. It is visible when the server stops waiting for a standby.
//
// Proves STORE-14.
func TestCommitWaitsForAStandby(t *testing.T) {
	url := pgtest.New(t).URL("postgres")
	s := openAt(t, url, Config{})
	must(t, s, put("fast", 0), put("batched", 0), put("several", 0), put("native", 0))
	conn, probe := pgtest.Connect(t, url), pgtest.Connect(t, url)
	execute(t, url, "ALTER SYSTEM SET synchronous_standby_names = 'absent'", "SELECT pg_reload_conf()")
	var known atomic.Bool
	probed := make(chan error, 1)
	go func() { // the last probe waits as soon as the server knows of the setting
		var err error
		for err == nil && !known.Load() {
			_, err = probe.Exec(context.Background(), "DROP TABLE IF EXISTS probe; CREATE TABLE probe ()")
		}
		probed <- err
	}()
	waiting := func() int {
		return value[int](t, conn, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	}
	testkit.Eventually(t, func() bool { return waiting() == 1 })
	known.Store(true)

	for id, commit := range map[string]func(*Store) error{
		"fast": func(s *Store) error {
			_, err := s.Commit(t.Context(), put("fast", 1))
			return err
		},
		"batched": func(s *Store) error {
			s.queue.maxDirect = 0
			_, err := s.Commit(t.Context(), put("batched", 1))
			return err
		},
		"several": func(s *Store) error {
			_, err := s.Commit(t.Context(), together(put("several", 1), put("new", 0)))
			return err
		},
		"native": func(s *Store) error {
			_, err := s.CommitWith(t.Context(), put("native", 1), func(ctx context.Context, tx any) error {
				_, err := tx.(pgx.Tx).Exec(ctx, "SELECT 1")
				return err
			})
			return err
		},
	} {
		own := openAt(t, url, Config{})
		own.config.CommitTimeout = time.Second
		err := commit(own)
		require.ErrorIs(t, err, persist.ErrUnavailable, id)
		require.NotErrorIs(t, err, persist.ErrNotApplied, id)
		require.NoError(t, own.Close()) // its connections have sent all that they ever send
		require.Never(t, func() bool { return load(t, s, id).Version > 1 }, 50*time.Millisecond, time.Millisecond, id)
	}
	require.Equal(t, 5, waiting())
	execute(t, url, "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	require.NoError(t, testkit.Receive(t, probed, "the server still waits"))
	for _, id := range []string{"fast", "batched", "several", "native"} {
		testkit.Eventually(t, func() bool { return load(t, s, id).Version == 2 }, id)
	}
}
