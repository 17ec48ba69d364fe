package fs

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

const (
	accounts = 40 // enough for a list to take a while
	balance  = 1000
)

func account(i int) persist.Key { return persist.Key{Kind: "account", ID: strconv.Itoa(i)} }

// left and right have the same number at every moment.
var left, right = persist.Key{Kind: "pair", ID: "left"}, persist.Key{Kind: "pair", ID: "right"}

// witnessed returns a store with accounts and a pair.
func witnessed(t *testing.T, dir string) *Store {
	t.Helper()
	s := openAt(t, dir, Config{LockTimeout: time.Minute})
	var seed []by
	for i := range accounts {
		seed = append(seed, by{account(i), balance})
	}
	require.NoError(t, addAll(t.Context(), s, "seed.1", seed...))
	require.NoError(t, addAll(t.Context(), s, "seed.2", by{left, 1}, by{right, 1}))
	return s
}

// transfers returns changes that move 1 from an account to another.
func transfers() []by {
	from := rand.IntN(accounts)
	return []by{{account(from), -1}, {account((from + 1 + rand.IntN(accounts-1)) % accounts), 1}}
}

// lookAround asserts the invariants of the accounts and the pair.
func lookAround(t *testing.T, s *Store) {
	lookAtSum(t, s)
	lookAtPair(t, s)
	lookAtBoth(t, s)
}

// lookAtSum lists the accounts and asserts their sum.
func lookAtSum(t *testing.T, s *Store) {
	page, err := s.List(context.Background(), persist.Query{Kind: "account"})
	if err != nil {
		t.Errorf("List: %v", err)
		return
	}
	sum := 0
	for _, r := range page.Records {
		n, err := numberOf(r)
		if err != nil {
			t.Error(err)
		}
		sum += n
	}
	if len(page.Records) != accounts || sum != accounts*balance {
		t.Errorf("%d accounts have %d together", len(page.Records), sum)
	}
}

// lookAtPair loads the pair one after the other: after a new state of the first comes no older
// state of the second.
func lookAtPair(t *testing.T, s *Store) {
	keys := []persist.Key{left, right}
	rand.Shuffle(2, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	var numbers [2]int
	for i, key := range keys {
		r, err := s.Load(context.Background(), key)
		if err == nil {
			numbers[i], err = numberOf(r)
		}
		if err != nil {
			t.Errorf("Load: %v", err)
		}
	}
	if numbers[0] > numbers[1] {
		t.Errorf("%s had %d, and after that %s had %d", keys[0], numbers[0], keys[1], numbers[1])
	}
}

// lookAtBoth loads the pair at one moment and asserts that both are equal.
func lookAtBoth(t *testing.T, s *Store) {
	records, err := s.LoadAll(context.Background(), []persist.Key{left, right})
	if err != nil {
		t.Errorf("LoadAll: %v", err)
	} else if string(records[0].Doc) != string(records[1].Doc) {
		t.Errorf("%s has %s while %s has %s", left, records[0].Doc, right, records[1].Doc)
	}
}

// TestNoReaderSeesHalf: while another store commits several records at a time, a reader sees all of
// a commit or nothing.
//
// Proves TX-3.
func TestNoReaderSeesHalf(t *testing.T) {
	longPair := []by{{left, 1}, {right, 1}} // a long commit is in part done for longer
	for i := range 20 {
		longPair = append(longPair, by{persist.Key{Kind: "pair", ID: "middle" + strconv.Itoa(i)}, 1})
	}
	for name, test := range map[string]struct {
		change func() []by
		look   func(*testing.T, *Store)
	}{
		"List":    {transfers, lookAtSum},
		"Load":    {func() []by { return longPair }, lookAtPair},
		"LoadAll": {func() []by { return longPair }, lookAtBoth},
	} {
		t.Run(name, func(t *testing.T) {
			dir := scratch(t)
			s, other := witnessed(t, dir), openAt(t, dir, Config{LockTimeout: time.Minute})
			var done atomic.Bool
			var writer sync.WaitGroup
			writer.Go(func() {
				defer done.Store(true)
				for n := range 100 {
					if err := addAll(context.Background(), other, "writer."+strconv.Itoa(n), test.change()...); err != nil {
						t.Error(err)
						return
					}
				}
			})
			looks := 0
			for ; !done.Load(); looks++ {
				test.look(t, s)
			}
			writer.Wait()
			t.Logf("looked %d times", looks)
		})
	}
}
