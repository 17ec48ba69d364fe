package pawltest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/pawltest"
)

type seat struct {
	Guest string `json:"guest"`
}

var seats = pawl.Kind[seat]{Name: "seat"}

// Leases, expiry and budgets in fake time: this test takes no time.
func testSeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := pawltest.NewStore()
		rt, err := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{seats}})
		if err != nil {
			t.Fatal(err)
		}
		defer rt.Close(context.Background())
		seat7 := seats.Scope(rt, "7")

		// A reservation expires after a day.
		if _, err := seat7.SetState(t.Context(), seat{Guest: "ann"}, pawl.WithTTL(24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24*time.Hour - time.Second)
		pawltest.RequireState(t, seat7, seat{Guest: "ann"})
		time.Sleep(time.Second)
		pawltest.RequireAbsent(t, seat7)

		// An outage that is longer than a lease ends it.
		lease, err := seats.Scope(rt, "8").Acquire(t.Context(), pawl.LeaseFor(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // it is renewed
		if err := lease.Context().Err(); err != nil {
			t.Fatal(err)
		}
		store.Down()
		<-lease.Context().Done()
		store.Up()

		// A store that never answers: the call ends with its budget, and the outcome is unknown.
		store.Every(pawltest.Slow(time.Hour))
		_, err = seats.Scope(rt, "9").SetState(t.Context(), seat{Guest: "bob"})
		if !pawl.OutcomeUnknown(err) {
			t.Fatalf("got %v, want an unknown outcome", err)
		}
	})
}

func Example_fakeTime() {
	// In a test file, testSeats is named TestSeats.
	_ = testSeats
}
