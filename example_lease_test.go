package pawl_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/sqlite"
)

type Parcel struct {
	Status string    `json:"status"`
	Due    time.Time `json:"due"`
}

var Parcels = pawl.Kind[Parcel]{Name: "parcel", Label: "status", Due: "due"}

// Of all processes, one caller at a time holds the lease. Once the lease is lost, commits with its
// context are refused.
func ExampleScope_Hold() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	parcel := Parcels.Scope(rt, "7")

	err := parcel.Hold(ctx, func(ctx context.Context, l *pawl.Lease) error {
		_, err := parcel.Acquire(ctx)
		var held *pawl.HeldError
		fmt.Println(errors.As(err, &held), held.Holder)

		snap, err := parcel.PatchState(ctx, pawl.Patch{"status": "shipped"})
		fmt.Println(snap.Version, err)
		return err
	}, pawl.LeaseFor(time.Minute), pawl.WaitForLease(), pawl.HeldBy("the shipping clerk"))
	fmt.Println(err)
	// Output:
	// true the shipping clerk
	// 2 <nil>
	// <nil>
}

// The status and the lease change together, or not at all.
func ExampleWithMutation() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	parcel := Parcels.Scope(rt, "7")
	_, _ = parcel.SetState(ctx, Parcel{Status: "packed"})

	claim := pawl.WithMutation(pawl.Atomic(func(_ context.Context, p *Parcel) error {
		if p.Status != "packed" {
			return errors.New("parcel is " + p.Status)
		}
		p.Status = "shipping"
		return nil
	}))
	l, err := parcel.Acquire(ctx, claim)
	fmt.Println(l.Token(), err)
	_ = l.Release(ctx)
	_, err = parcel.Acquire(ctx, claim)
	fmt.Println(err)
	// Output:
	// 2 <nil>
	// parcel is shipping
}

// Workers divide the due parcels among themselves.
func ExampleKind_Take() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	_, _ = Parcels.Scope(rt, "now").SetState(ctx, Parcel{Status: "packed", Due: time.Now().Add(-time.Hour)})
	_, _ = Parcels.Scope(rt, "later").SetState(ctx, Parcel{Status: "packed", Due: time.Now().Add(time.Hour)})

	taken, err := Parcels.Take(ctx, rt, pawl.Query{Due: true, Limit: 10})
	if err != nil {
		panic(err)
	}
	for _, job := range taken {
		err := job.Lease.Run(func(ctx context.Context, l *pawl.Lease) error {
			_, err := Parcels.Scope(rt, job.ID).SetState(ctx, Parcel{Status: "shipped"})
			return err
		})
		fmt.Println(job.ID, job.ReadOnly().Status, err)
	}
	// Output: now packed <nil>
}

// Taking a parcel also sets its status, in the same version.
func ExampleKind_Take_withMutation() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	_, _ = Parcels.Scope(rt, "a").SetState(ctx, Parcel{Status: "packed", Due: time.Now().Add(-time.Hour)})

	taken, err := Parcels.Take(ctx, rt, pawl.Query{Labels: []string{"packed"}, Due: true},
		pawl.WithMutation(pawl.Patch{"status": "shipping", "due": time.Time{}}))
	if err != nil {
		panic(err)
	}
	fmt.Println(taken[0].Version, taken[0].ReadOnly().Status)
	_ = taken[0].Lease.Release(ctx)
	// Output: 2 shipping
}

// A scope becomes due a while after its commit, by the store's clock.
func ExampleWithDueIn() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	reminders := pawl.Kind[pawl.Doc]{Name: "reminder"} // without a field for the due time
	_, _ = reminders.Scope(rt, "later").PatchState(ctx, pawl.Patch{"text": "call"}, pawl.WithDueIn(time.Hour))
	_, _ = reminders.Scope(rt, "now").PatchState(ctx, pawl.Patch{"text": "write"}, pawl.WithDueIn(0))

	time.Sleep(time.Millisecond)
	for snap, err := range reminders.List(ctx, rt, pawl.Query{Due: true}) {
		fmt.Println(snap.ID, snap.State()["text"], err)
	}
	// Output: now write <nil>
}

// Watch delivers the current state first, and then newer ones.
func ExampleScope_Watch() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{})
	counter := pawl.Memory[map[string]int](rt, "counter")
	_, _ = counter.IncState(ctx, "n", 1)

	for change, err := range counter.Watch(ctx) {
		if err != nil {
			panic(err)
		}
		n := (*change.ReadOnly())["n"]
		fmt.Println(change.Version, n)
		if n == 3 {
			break
		}
		_, _ = counter.IncState(ctx, "n", 1)
	}
	// Output:
	// 1 1
	// 2 2
	// 3 3
}

// An expired scope reads as absent at once. The sweeper frees its space.
func ExampleSweeper() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	visit := pawl.Session[pawl.Doc](rt, "visit")
	_, _ = visit.PatchState(ctx, pawl.Patch{"page": "home"}, pawl.WithTTL(time.Microsecond))

	sweeper, err := pawl.NewSweeper(rt, pawl.SweeperConfig{})
	if err != nil {
		panic(err)
	}
	for swept := (pawl.Swept{}); swept.Cleared == 0; {
		swept, _ = sweeper.Sweep(ctx) // or call Start once, and Stop at the end
	}
	snap, err := visit.IncState(ctx, "visits", 1) // starts from empty state and continues the versions
	fmt.Println(snap.Version, snap.State(), err)
	// Output: 3 map[visits:1] <nil>
}

// State and rows of the application change together, either with SQL inside Pawl's commit or with
// Pawl's commit inside a transaction of the application.
func ExampleCommitThrough() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "pawl")
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "state.db")
	store, err := sqlite.Open(ctx, file, sqlite.Config{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	rt, _ := pawl.Open(pawl.Config{Store: store})
	db, _ := sql.Open(sqlite.Driver, "file:"+file+"?_txlock=immediate&_synchronous=FULL&_pragma=synchronous(FULL)")
	defer db.Close()
	_, _ = db.Exec(`CREATE TABLE audit (line TEXT)`)

	err = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := Parcels.Scope(tx, "7").PatchState(ctx, pawl.Patch{"status": "packed"}); err != nil {
			return err
		}
		return pawl.WithNative(tx, func(ctx context.Context, db *sql.Tx) error {
			_, err := db.ExecContext(ctx, `INSERT INTO audit VALUES ('packed 7')`)
			return err
		})
	})
	fmt.Println(err)

	sqlTx, _ := db.BeginTx(ctx, nil)
	_, _ = sqlTx.Exec(`INSERT INTO audit VALUES ('shipped 7')`)
	err = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := Parcels.Scope(tx, "7").PatchState(ctx, pawl.Patch{"status": "shipped"})
		return err
	}, pawl.CommitThrough(store.Join(sqlTx)))
	fmt.Println(err, sqlTx.Rollback())

	state, _ := Parcels.Scope(rt, "7").State(ctx)
	var lines int
	_ = db.QueryRow(`SELECT count(*) FROM audit`).Scan(&lines)
	fmt.Println(state.Status, lines)
	// Output:
	// <nil>
	// <nil> <nil>
	// packed 1
}
