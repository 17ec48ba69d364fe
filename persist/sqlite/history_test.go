package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/disk"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

const (
	historySeed   = "PAWL_SQLITE_SEED"
	historyLength = 12
	// checkpointAt is the length of the log, in pages, at which a commit of a history writes it back
	// and the next one starts it over.
	checkpointAt = 16
)

// player makes a random series of commits, purges and restarts, which depends on its seed and on the
// state of the store only.
type player struct {
	store  powered
	reopen func() (powered, error) // closes the store and opens it again
	random *rand.Rand
	seed   uint64
}

func newPlayer(s powered, seed uint64, reopen func() (powered, error)) *player {
	return &player{s, reopen, rand.New(rand.NewPCG(seed, 0)), seed}
}

// step makes the i-th step of a history.
func (p *player) step(ctx context.Context, i int) (err error) {
	switch p.random.IntN(10) {
	case 0:
		_, err = p.store.Purge(ctx, persist.Query{})
	case 1:
		p.store, err = p.reopen()
	default:
		c := persist.Commit{ID: fmt.Sprintf("history%d.%d", p.seed, i)}
		for _, at := range p.random.Perm(len(powerKeys))[:1+p.random.IntN(3)] {
			if err := p.add(ctx, &c, powerKeys[at], i); err != nil {
				return err
			}
		}
		_, err = p.store.Commit(ctx, c)
	}
	return err
}

// add adds a change of a key to a commit.
func (p *player) add(ctx context.Context, c *persist.Commit, key persist.Key, i int) error {
	choice, length := p.random.IntN(7), p.random.IntN(3)*p.random.IntN(4000)
	r, err := p.store.Load(ctx, key)
	if err != nil && !errors.Is(err, persist.ErrNotFound) {
		return err
	}
	w := set(key, r.Version, i, length)
	w.Gone = r.Deleted
	if r.Absent() {
		w.Expected = 0
	}
	held, lasting := r.Lease.Token != 0, time.Duration(i+1)*day
	document := content{N: i, Next: 1}
	if alive := !r.Absent() && !r.Deleted; alive {
		switch {
		case choice == 0:
			c.Guards = append(c.Guards, persist.Guard{Key: key, Read: true, Version: r.Version, TTL: lasting})
			return nil
		case choice == 1:
			w.Doc, w.Label, w.Deleted, w.Log = nil, "", true, &persist.LogWrite{Clear: true}
			c.Writes = append(c.Writes, w)
			return nil
		case choice == 2 && held:
			c.Guards = append(c.Guards, persist.Guard{Key: key, Token: r.Lease.Token, Release: true})
			return nil
		case choice == 3 && held:
			c.Guards = append(c.Guards, persist.Guard{Key: key, Token: r.Lease.Token, Extend: lasting})
			return nil
		}
		if err := json.Unmarshal(r.Doc, &document); err != nil {
			return err
		}
		document.N = i
	}
	if choice <= 3 && !held {
		w.Acquire = &persist.Acquire{Holder: "player", For: lasting}
	}
	if choice >= 5 {
		log := adding(document.Next, fmt.Sprintf(`"first of %d"`, i), fmt.Sprintf(`{"second of":%d}`, i))
		if choice == 6 && document.Next > 1 {
			log.Drop = document.Next - 1
		}
		w.Log, document.Next = &log, document.Next+2
	}
	document.Fill = string(slices.Repeat([]byte{'a' + byte(i)}, length))
	w.Doc = documentOf(document)
	c.Writes = append(c.Writes, w)
	return nil
}

func init() {
	testkit.Child(powerRole+"history", func() error {
		seed, err := strconv.ParseUint(os.Getenv(historySeed), 10, 64)
		if err != nil {
			return err
		}
		testkit.Begin()
		var s *Store
		reopen := func() (powered, error) {
			if s != nil {
				if err := s.Close(); err != nil {
					return nil, err
				}
			}
			if s, err = openChild(); err != nil {
				return nil, err
			}
			_, err := s.writer.conn.ExecContext(context.Background(), fmt.Sprintf("PRAGMA wal_autocheckpoint=%d", checkpointAt))
			return s, err
		}
		first, err := reopen()
		if err != nil {
			return err
		}
		p := newPlayer(first, seed, reopen)
		for i := range historyLength {
			if err := p.step(context.Background(), i); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
			testkit.Say("%d", i)
		}
		return s.Close()
	})
}

// chronicle plays the first steps of a history on a model and returns the portraits before and after
// each step.
func chronicle(t *testing.T, model powered, seed uint64, steps int) []string {
	t.Helper()
	first, err := portrait(t.Context(), model)
	require.NoError(t, err)
	portraits := []string{first}
	p := newPlayer(model, seed, func() (powered, error) { return model, nil })
	for i := range steps {
		require.NoError(t, p.step(t.Context(), i))
		next, err := portrait(t.Context(), model)
		require.NoError(t, err)
		portraits = append(portraits, next)
	}
	return portraits
}

// trial counts what the histories of a test did.
type trial struct {
	mixtures, moments, failures, checkpoints int

	found left
}

// play lets a child play a history in the folder dir, and cuts the power at every moment. Portraits
// are those before and after each step. It returns one of the folders that a power failure has left,
// chosen at random, and the number of steps that are in it.
func (tr *trial) play(t *testing.T, dir string, seed uint64, portraits []string) (next string, steps int) {
	t.Helper()
	log, random, seen := filepath.Join(t.TempDir(), "log"), rand.New(rand.NewPCG(seed, 1)), 0
	d := powerDisk(t, dir, seed)
	said := disk.Start(t, powerRole+"history", []string{powerDir + "=" + dir, fmt.Sprintf("%s=%d", historySeed, seed)}, disk.Flags(log)).Wait()
	require.Len(t, said, historyLength, "%s", said)
	checkpoints := 0 // before the last step has ended
	d.FeedTrace(t, log, func(answers int) {
		tr.moments++
		if answers < historyLength {
			checkpoints = d.Syncs(powerFile) // only a checkpoint writes to this file
		}
		d.Failures(t, tr.mixtures, func(dir string) {
			tr.failures++
			seen++
			chosen := random.IntN(seen) == 0
			if chosen { // before it is opened
				next = t.TempDir()
				require.NoError(t, os.CopyFS(next, os.DirFS(dir)))
			}
			got, possible := tr.found.portrait(t, dir), portraits[answers:min(answers+2, len(portraits))]
			require.Contains(t, possible, got, "after %d commits", answers)
			if chosen {
				steps = answers + slices.Index(possible, got)
			}
		})
	})
	d.Verify(t)
	tr.checkpoints += checkpoints
	return next, steps
}

// TestPowerFailureInHistory cuts the power at every moment of a series of random commits, with
// checkpoints and restarts in between. The acknowledged commits are there, and perhaps the one that
// was under way. Another series goes on in one of the databases that a power failure has left, and
// the power fails again.
//
// Proves STORE-7, TX-3.
func TestPowerFailureInHistory(t *testing.T) {
	count := testkit.Times(1, 1, "PAWL_HISTORIES")
	tr := trial{mixtures: testkit.Times(4, 1), found: left{}}
	for range count {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		dir := t.TempDir()
		s, err := Open(t.Context(), filepath.Join(dir, powerFile), Config{})
		require.NoError(t, err)
		require.NoError(t, s.Close())
		next, steps := tr.play(t, dir, seed, chronicle(t, memory.New(), seed, historyLength))

		model := memory.New()
		chronicle(t, model, seed, steps)
		tr.play(t, next, seed+1, chronicle(t, model, seed+1, historyLength))
	}
	testkit.Figures(t, "%d histories of %d commits, each followed by another one after a power failure: %d checkpoints, %d moments, %d power failures, which left %d different contents",
		count, historyLength, tr.checkpoints, tr.moments, tr.failures, len(tr.found))
	require.Positive(t, tr.checkpoints)
}
