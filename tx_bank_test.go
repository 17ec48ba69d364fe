package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/stretchr/testify/require"
)

func init() { testkit.Child("bank", bankChild) }

const (
	bankAccounts = 100
	bankEach     = 1000 // initial balance of an account
	bankTellers  = 16   // goroutines per process
	bankBranches = 3    // processes
	bankKills    = 7    // kills per process; PAWL_KILLS overrides it
)

// bankSlip records one transfer. It is written in the same transaction.
type bankSlip struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Amount int64  `json:"amount"`
}

var bankSlips = pawl.Kind[bankSlip]{Name: "slip"}

func bankAccount(i int) string { return fmt.Sprintf("account-%02d", i) }

// bankChild transfers money until it is killed, and prints the outcome of each transfer.
func bankChild() error {
	return processChild(func(ctx context.Context, rt *pawl.Runtime) error {
		failed := make(chan error)
		for i := range bankTellers {
			go func() {
				for n := 0; ; n++ {
					slip := fmt.Sprintf("%s-%d-%d", os.Getenv(processName), i, n)
					if err := bankTransfer(ctx, rt, slip); err != nil {
						failed <- err
						return
					}
				}
			}()
		}
		return <-failed
	})
}

// bankTransfer moves a random amount between two accounts and writes a slip. One transfer in four
// uses the same few accounts, and every other transfer reads the balance first.
func bankTransfer(ctx context.Context, rt *pawl.Runtime, slip string) error {
	pool := bankAccounts
	if rand.IntN(4) == 0 {
		pool = 4
	}
	s := bankSlip{From: bankAccount(rand.IntN(pool)), To: bankAccount(rand.IntN(pool)), Amount: rand.Int64N(50)}
	reads := rand.IntN(2) == 0
	testkit.Say("submit %s", slip)
	err := pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		from, to := purses.Scope(tx, s.From), purses.Scope(tx, s.To)
		if reads {
			has, err := from.State(ctx)
			if err != nil {
				return err
			}
			if has.Balance < s.Amount {
				return errPoor
			}
		}
		if _, err := from.IncState(ctx, "balance", -s.Amount); err != nil {
			return err
		}
		if _, err := to.IncState(ctx, "balance", s.Amount); err != nil {
			return err
		}
		_, err := bankSlips.Scope(tx, slip).SetState(ctx, s, pawl.IfAbsent())
		return err
	})
	switch {
	case err == nil:
		testkit.Say("acknowledged %s", slip)
	case errors.Is(err, errPoor), errors.Is(err, pawl.ErrConflict):
		testkit.Say("refused %s", slip)
	default:
		return err
	}
	return nil
}

// Three processes transfer money and are killed repeatedly; every reader sees the same total. In
// the end all acknowledged transfers are complete and no refused transfer is present.
//
// Proves TX-1, TX-2, TX-3, CAS-6.
func TestBankIsConserved(t *testing.T) {
	for _, s := range stores.Shared {
		t.Run(s.Name, func(t *testing.T) { testBank(t, s.New(t)) })
	}
}

func testBank(t *testing.T, location string) {
	kills := killsOf(bankKills)
	rt := openRuntime(t, pawl.Config{Store: stores.OpenFor(t, location)})
	for i := range bankAccounts {
		seed(t, purses.Scope(rt, bankAccount(i)), purse{Balance: bankEach})
	}
	heard := make([][]string, bankBranches)
	var branches, readings atomic.Int32
	branches.Store(bankBranches)
	t.Run("open", func(t *testing.T) {
		for i := range bankBranches {
			t.Run(fmt.Sprint("branch", i), func(t *testing.T) {
				t.Parallel()
				defer branches.Add(-1)
				for n := range kills {
					heard[i] = append(heard[i], killAtWork(t, "bank", location, fmt.Sprintf("b%d-%d", i, n), rand.IntN(150))...)
				}
			})
		}
		t.Run("auditor", func(t *testing.T) {
			t.Parallel()
			for branches.Load() > 0 {
				require.EqualValues(t, bankAccounts*bankEach, bankTotal(t, rt))
				readings.Add(1)
			}
		})
	})
	if t.Failed() {
		return
	}
	fates := map[string]string{}
	for _, lines := range heard {
		for _, line := range lines {
			if what, slip, _ := strings.Cut(line, " "); what != "ready" {
				fates[slip] = what
			}
		}
	}
	want := map[string]int64{}
	counts := map[string]int{}
	for snap, err := range bankSlips.List(t.Context(), rt, pawl.Query{}) {
		require.NoError(t, err)
		fate := fates[snap.ID]
		require.Contains(t, []string{"submit", "acknowledged"}, fate, "slip %s is present", snap.ID)
		s := snap.State()
		want[s.From] -= s.Amount
		want[s.To] += s.Amount
		delete(fates, snap.ID)
		counts[fate+" and present"]++
	}
	for slip, fate := range fates {
		require.NotEqual(t, "acknowledged", fate, "%s was acknowledged and is lost", slip)
		counts[fate+" and absent"]++
	}
	for i := range bankAccounts {
		s, err := purses.Scope(rt, bankAccount(i)).State(t.Context())
		require.NoError(t, err)
		require.Equal(t, bankEach+want[bankAccount(i)], s.Balance, "the slips do not match the balance of %s", bankAccount(i))
	}
	require.EqualValues(t, bankAccounts*bankEach, bankTotal(t, rt))
	t.Logf("%d kills, %d readings, transfers: %v", kills*bankBranches, readings.Load(), counts)
	require.Greater(t, counts["acknowledged and present"], 5*kills, "too few transfers were acknowledged")
	require.Positive(t, readings.Load())
}

// bankTotal returns the sum of all balances, read in one transaction.
func bankTotal(t testing.TB, rt *pawl.Runtime) (total int64) {
	t.Helper()
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		total = 0
		for i := range bankAccounts {
			s, err := purses.Scope(tx, bankAccount(i)).State(ctx)
			if err != nil {
				return err
			}
			total += s.Balance
		}
		return nil
	})
	require.NoError(t, err)
	return total
}
