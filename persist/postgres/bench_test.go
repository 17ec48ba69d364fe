package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

const benchRows = 10_000

// BenchmarkCommit compares the ways that a commit can go: all directly, all in batches, and as the
// store decides.
func BenchmarkCommit(b *testing.B) {
	for _, writers := range []int{1, 2, 4, 8, 16, 32, 64, 512} {
		for _, way := range []struct {
			name   string
			direct int
		}{{"direct", 1 << 20}, {"batched", 0}, {"store", maxDirect}} {
			b.Run(fmt.Sprintf("%s/writers=%d", way.name, writers), func(b *testing.B) { benchCommit(b, way.direct, writers, 16) })
		}
	}
}

func benchCommit(b *testing.B, direct, writers, size int) {
	s, err := Open(b.Context(), connections(b, pgtest.URL(b), size), Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	fillTable(b, s)
	s.queue.maxDirect = direct
	var versions [benchRows]atomic.Uint64
	testkit.Parallel(b, writers, func(_, i int) error {
		row := i * 7919 % benchRows
		expected := 1 + versions[row].Load()
		_, err := s.Commit(context.Background(), put(fmt.Sprint(row), expected))
		if conflict := (*persist.Conflict)(nil); errors.As(err, &conflict) {
			return nil
		}
		versions[row].Add(1)
		return err
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}

// fillTable creates the rows that a benchmark writes to.
func fillTable(b *testing.B, s *Store) {
	const step = 1000
	for first := 0; first < benchRows; first += step {
		c := persist.Commit{ID: fmt.Sprintf("fill.%d", first)}
		for row := first; row < first+step; row++ {
			c.Writes = append(c.Writes, put(fmt.Sprint(row), 0).Writes...)
		}
		if _, err := s.Commit(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}
