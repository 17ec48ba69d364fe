package fs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/disk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

const (
	historySeed   = "PAWL_FS_SEED"
	historyLength = 25
)

var historyKeys = []persist.Key{ann, bob, receipt, thing("a")}

// store is a store that a history can be played on.
type store interface {
	persist.Store
	persist.Purger
}

// history plays a random series of commits and purges, which depends on seed only. It calls after
// with the number of finished steps.
func history(ctx context.Context, s store, seed uint64, after func(done int) error) error {
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range historyLength {
		if random.IntN(8) == 0 {
			if _, err := s.Purge(ctx, persist.Query{}); err != nil {
				return err
			}
		} else if err := randomCommit(ctx, s, random, i); err != nil {
			return err
		}
		if err := after(i + 1); err != nil {
			return err
		}
	}
	return nil
}

// randomCommit writes, deletes or touches some of the keys.
func randomCommit(ctx context.Context, s store, random *rand.Rand, i int) error {
	c := persist.Commit{ID: "history." + strconv.Itoa(i)}
	for _, at := range random.Perm(len(historyKeys))[:1+random.IntN(3)] {
		key := historyKeys[at]
		choice := random.IntN(5)
		r, err := s.Load(ctx, key)
		if err != nil && !errors.Is(err, persist.ErrNotFound) {
			return err
		}
		gone := r.Absent() || r.Deleted
		if choice == 0 && !gone {
			c.Guards = append(c.Guards, persist.Guard{Key: key, Read: true, Version: r.Version, TTL: time.Duration(i+1) * time.Hour})
			continue
		}
		w := setTo(key, r.Version, i)
		w.Gone = r.Deleted
		if r.Absent() {
			w.Expected = 0
		}
		if choice == 1 && !gone {
			w.Doc, w.Deleted = nil, true
		}
		c.Writes = append(c.Writes, w)
	}
	_, err := s.Commit(ctx, c)
	return err
}

// portrait describes the records of a history. A tombstone and a purged record look alike, so that
// an interrupted purge makes no difference.
func portrait(ctx context.Context, s persist.Store) (string, error) {
	var text strings.Builder
	for _, key := range historyKeys {
		r, err := s.Load(ctx, key)
		switch {
		case errors.Is(err, persist.ErrNotFound) || r.Deleted:
			fmt.Fprintf(&text, "%s is gone; ", key)
		case err != nil:
			return "", err
		case r.Expires.IsZero():
			fmt.Fprintf(&text, "%s has version %d: %s; ", key, r.Version, r.Doc)
		default:
			hours := r.Expires.Sub(r.Now).Round(time.Hour)
			fmt.Fprintf(&text, "%s has version %d: %s for %s; ", key, r.Version, r.Doc, hours)
		}
	}
	return text.String(), nil
}

func init() {
	testkit.Child("history", func() error {
		seed, err := strconv.ParseUint(os.Getenv(historySeed), 10, 64)
		if err != nil {
			return err
		}
		s, err := Open(context.Background(), os.Getenv(childDir), Config{})
		if err != nil {
			return err
		}
		testkit.Begin()
		return history(context.Background(), s, seed, func(done int) error { testkit.Say("%d", done); return nil })
	})
}

// TestPowerFailureInHistory cuts the power at every moment of a series of random commits. The
// acknowledged commits are there, and perhaps the one that was under way.
//
// Proves STORE-6, TX-3.
func TestPowerFailureInHistory(t *testing.T) {
	count, failures := testkit.Times(2, 1, "PAWL_HISTORIES"), 0
	for range count {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		t.Setenv(historySeed, strconv.FormatUint(seed, 10))
		model := memory.New()
		first, err := portrait(t.Context(), model)
		require.NoError(t, err)
		portraits := []string{first}
		require.NoError(t, history(t.Context(), model, seed, func(int) error {
			next, err := portrait(t.Context(), model)
			portraits = append(portraits, next)
			return err
		}))
		dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
		openAt(t, dir, Config{})
		d := disk.New(t, dir, seed)
		require.Len(t, trace(t, "history", dir, disk.Flags(log)...), historyLength)
		d.FeedTrace(t, log, func(answers int) {
			d.Failures(t, 2, func(dir string) {
				failures++
				got, err := portrait(t.Context(), newcomer(t, dir))
				require.NoError(t, err)
				require.Contains(t, portraits[answers:min(answers+2, len(portraits))], got, "after %d commits", answers)
			})
		})
	}
	testkit.Figures(t, "%d histories of %d commits, %d power failures", count, historyLength, failures)
}
