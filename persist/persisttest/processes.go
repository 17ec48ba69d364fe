package persisttest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

func (s suite) processes() map[string]func(*testing.T) {
	if s.options.Volatile {
		return nil
	}
	return map[string]func(*testing.T){
		"ten processes open an empty location":     s.openTogether,
		"every acknowledged increment counts once": s.incrementTogether,
		"one creator wins":                         s.createTogether,
		"transfers conserve the sum":               s.transferTogether,
		"a killed writer loses no acknowledgement": s.killed,
	}
}

// Proves STORE-3, STORE-9.
func (s suite) openTogether(t *testing.T) {
	location := s.location(t)
	s.crowd(t, 10, "open", location)
	s.at(t, location).must(create(thing))
}

const incrementsEach, incrementWriters = 20, 3

func incrementRole(ctx context.Context, c *child) error {
	var writers errgroup.Group
	for i := range incrementWriters {
		writers.Go(func() error {
			for n := range incrementsEach {
				id := fmt.Sprintf("%s-%d.%d", c.name, i, n)
				if err := increment(ctx, c.store, thing, id); err != nil {
					return err
				}
				testkit.Say("%s", id)
			}
			return nil
		})
	}
	return writers.Wait()
}

// Proves STORE-3, STORE-2.
func (s suite) incrementTogether(t *testing.T) {
	f := s.fresh(t)
	said := slices.Concat(s.crowd(t, 3, "increment", f.location)...)
	require.Len(t, said, 3*incrementWriters*incrementsEach)
	r := f.load(thing)
	require.EqualValues(t, len(said), r.Version)
	require.ElementsMatch(t, said, parseTally(t, r).Acks)
}

const creations = 100

func createRole(ctx context.Context, c *child) error {
	for i := range creations {
		w := create(key(fmt.Sprint(i)))
		w.Doc = fmt.Appendf(nil, "%q", c.name)
		_, err := c.store.Commit(ctx, persist.Commit{ID: fmt.Sprintf("%s.%d", c.name, i), Writes: []persist.Write{w}})
		switch {
		case err == nil:
			testkit.Say("%d %s", i, w.Doc)
		case !isConflict(err):
			return err
		}
	}
	return nil
}

// createTogether: of two creators in two processes, one wins and the other gets a conflict.
//
// Proves STORE-3.
func (s suite) createTogether(t *testing.T) {
	f := s.fresh(t)
	said := slices.Concat(s.crowd(t, 2, "create", f.location)...)
	var want []string
	for i := range creations {
		r := f.load(key(fmt.Sprint(i)))
		require.EqualValues(t, 1, r.Version)
		want = append(want, fmt.Sprintf("%d %s", i, r.Doc))
	}
	require.ElementsMatch(t, want, said)
}

const transfersEach = 40

func transferRole(ctx context.Context, c *child) error {
	accounts := []persist.Key{key("a"), key("b")}
	for n := range transfersEach {
		from := rand.IntN(2)
		if err := transfer(ctx, c.store, accounts[from], accounts[1-from], fmt.Sprintf("%s.%d", c.name, n)); err != nil {
			return err
		}
	}
	return nil
}

// Proves STORE-3, STORE-2.
func (s suite) transferTogether(t *testing.T) {
	s.needsSeveralKeys(t)
	f := s.fresh(t)
	for _, k := range []persist.Key{key("a"), key("b")} {
		w := create(k)
		w.Doc = []byte(`{"sum": 100}`)
		f.must(w)
	}
	s.crowd(t, 3, "transfer", f.location)
	a, b := f.load(key("a")), f.load(key("b"))
	require.Equal(t, 200, parseTally(t, a).Sum+parseTally(t, b).Sum)
	require.EqualValues(t, 1+3*transfersEach, a.Version)
	require.EqualValues(t, 1+3*transfersEach, b.Version)
}

func foreverRole(ctx context.Context, c *child) error {
	var writers errgroup.Group
	for i := range 2 {
		writers.Go(func() error {
			for n := 0; ; n++ {
				id := fmt.Sprintf("%s-%d.%d", c.name, i, n)
				if err := increment(ctx, c.store, thing, id); err != nil {
					return err
				}
				testkit.Say("%s", id)
			}
		})
	}
	return writers.Wait()
}

// killed: kill -9 at any moment loses no acknowledged change and applies none twice. The next
// process continues to write.
//
// Proves STORE-3, STORE-7.
func (s suite) killed(t *testing.T) {
	location := s.location(t)
	acked := map[string]bool{}
	var survivor *fixture // from the middle on, this process has the store open and writes too
	for round := range 20 {
		if round == 10 {
			survivor = s.at(t, location)
		}
		p := s.spawn(t, "forever", location, fmt.Sprintf("p%d", round))
		p.Go()
		for range 1 + rand.IntN(8) {
			acked[p.Line()] = true
			if survivor != nil {
				id := fmt.Sprintf("survivor.%d", len(acked))
				require.NoError(t, increment(t.Context(), survivor.store, thing, id))
				acked[id] = true
			}
		}
		for _, line := range p.Kill() {
			acked[line] = true
		}
	}
	content := parseTally(t, s.at(t, location).load(thing))
	require.Len(t, content.Acks, content.Sum)
	count := map[string]int{}
	for _, id := range content.Acks {
		count[id]++
		require.Equal(t, 1, count[id], "%s was applied twice", id)
	}
	for id := range acked {
		require.Equal(t, 1, count[id], "%s was acknowledged and is lost", id)
	}
}
