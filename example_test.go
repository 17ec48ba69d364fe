package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
)

// Cart is the state that the examples use.
type Cart struct {
	Owner string         `json:"owner"`
	Total int64          `json:"total"`
	Items []string       `json:"items"`
	Stock map[string]int `json:"stock"`
}

// start opens a runtime on a store in memory. persist/sqlite has a durable store.
func start() (*pawl.Runtime, context.Context) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	if err != nil {
		panic(err)
	}
	return rt, context.Background()
}

func Example() {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer rt.Close(ctx)

	cart := pawl.Session[Cart](rt, "c42")
	cart.IncState(ctx, "total", 30)
	cart.PushState(ctx, "items", "book")
	snap, err := cart.AtomicState(ctx, func(ctx context.Context, c *Cart) error {
		if c.Total < 20 {
			return errors.New("not worth a discount")
		}
		c.Total -= 5
		return nil
	})
	fmt.Println(snap.Version, snap.State().Total, snap.State().Items, err)
	// Output: 3 25 [book] <nil>
}

func ExampleScope_PatchState() {
	rt, ctx := start()
	cart := pawl.Session[Cart](rt, "c42")
	snap, _ := cart.PatchState(ctx, pawl.Patch{"owner": "ann", "total": 12})
	fmt.Println(snap.State().Owner, snap.State().Total)
	_, err := cart.PatchState(ctx, pawl.Patch{"total": "a lot"})
	fmt.Println(err)
	// Output:
	// ann 12
	// pawl: session/c42: Patch: field "total": int64 cannot hold a string
}

func ExampleScope_SetState() {
	rt, ctx := start()
	snap, _ := pawl.Session[Cart](rt, "c42").SetState(ctx, Cart{Owner: "ann"})
	fmt.Println(snap.Version, snap.State().Owner)
	// Output: 1 ann
}

func ExampleScope_PushState() {
	rt, ctx := start()
	cart := pawl.Session[Cart](rt, "c42")
	cart.PushState(ctx, "items", "book")
	snap, _ := cart.PushState(ctx, "items", "pen")
	fmt.Println(snap.State().Items)
	// Output: [book pen]
}

func ExampleScope_IncState() {
	rt, ctx := start()
	cart := pawl.Session[Cart](rt, "c42")
	cart.IncState(ctx, "total", 5)
	snap, _ := cart.IncState(ctx, "total", -2)
	fmt.Println(snap.State().Total)
	// Output: 3
}

func ExampleScope_SetStateRecord() {
	rt, ctx := start()
	cart := pawl.Session[Cart](rt, "c42")
	cart.SetStateRecord(ctx, "stock", "pen.red", 7) // the key is taken literally
	snap, _ := cart.IncState(ctx, pawl.Field("stock").At("pen.red"), -1)
	fmt.Println(snap.State().Stock)
	// Output: map[pen.red:6]
}

func ExampleScope_DeleteStateRecord() {
	rt, ctx := start()
	cart := pawl.Session[Cart](rt, "c42")
	cart.SetState(ctx, Cart{Stock: map[string]int{"pen": 1, "ink": 2}})
	snap, _ := cart.DeleteStateRecord(ctx, "stock", "pen")
	fmt.Println(snap.Version, snap.State().Stock)
	snap, _ = cart.DeleteStateRecord(ctx, "stock", "pen") // nothing to do, so no new version
	fmt.Println(snap.Version, snap.State().Stock)
	// Output:
	// 2 map[ink:2]
	// 2 map[ink:2]
}

func ExampleScope_AtomicState() {
	rt, ctx := start()
	type Account struct {
		Balance int64 `json:"balance"`
	}
	account := pawl.User[Account](rt, "ann")
	account.IncState(ctx, "balance", 10)

	errShort := errors.New("not enough")
	withdraw := func(amount int64) error {
		_, err := account.AtomicState(ctx, func(ctx context.Context, a *Account) error {
			if a.Balance < amount {
				return errShort // nothing is committed
			}
			a.Balance -= amount
			return nil
		})
		return err
	}
	fmt.Println(withdraw(7), withdraw(7) == errShort)
	// Output: <nil> true
}

func ExampleScope_Apply() {
	rt, ctx := start()
	snap, err := pawl.Session[Cart](rt, "c42").Apply(ctx, pawl.All{
		pawl.Push{Field: "items", Values: []any{"book", "pen"}},
		pawl.Inc{Field: "total", By: 14},
	})
	fmt.Println(snap.Version, snap.State().Items, snap.State().Total, err)
	// Output: 1 [book pen] 14 <nil>
}

func ExampleScope_Delete() {
	rt, ctx := start()
	cart := pawl.Session[Cart](rt, "c42")
	cart.IncState(ctx, "total", 5)
	cart.Delete(ctx)
	_, err := cart.IncState(ctx, "total", 5)
	fmt.Println(err)
	snap, _ := cart.IncState(ctx, "total", 5, pawl.IfAbsent()) // creates the scope again and continues the versions
	fmt.Println(snap.Version, snap.State().Total)
	// Output:
	// pawl: session/c42: deleted at version 2
	// 3 5
}

func ExampleSnapshot_ReadOnly() {
	rt, ctx := start()
	cart := pawl.Session[Cart](rt, "c42")
	cart.PushState(ctx, "items", "book")
	snap, _ := cart.Snapshot(ctx)
	mine := snap.State() // a copy, which the caller may change
	mine.Items[0] = "pen"
	fmt.Println(snap.ReadOnly().Items, snap.Version) // no copy: do not change it
	// Output: [book] 1
}

func ExampleIfVersion() {
	rt, ctx := start()
	cart := pawl.Session[Cart](rt, "c42")
	seen, _ := cart.PatchState(ctx, pawl.Patch{"owner": "ann"}) // the version that a form shows
	cart.IncState(ctx, "total", 5)                              // another change in the meantime
	_, err := cart.PatchState(ctx, pawl.Patch{"owner": "bob"}, pawl.IfVersion(seen.Version))
	fmt.Println(err, errors.Is(err, pawl.ErrConflict))
	// Output: pawl: session/c42: expected version 1, found 2 true
}

func ExampleIfAbsent() {
	rt, ctx := start()
	claim := func(owner string) error {
		_, err := pawl.Session[Cart](rt, "c42").SetState(ctx, Cart{Owner: owner}, pawl.IfAbsent())
		return err
	}
	fmt.Println(claim("ann"))
	fmt.Println(claim("bob"))
	// Output:
	// <nil>
	// pawl: already exists: session/c42
}

func ExampleIfExists() {
	rt, ctx := start()
	_, err := pawl.Session[Cart](rt, "c43").IncState(ctx, "total", 1, pawl.IfExists())
	fmt.Println(err)
	// Output: pawl: not found: session/c43
}

func ExampleWithTimeout() {
	rt, ctx := start()
	slow := make(chan struct{})
	_, err := pawl.Memory[Cart](rt, "m").AtomicState(ctx, func(ctx context.Context, c *Cart) error {
		<-slow
		return nil
	}, pawl.WithTimeout(time.Second/4))
	fmt.Println(errors.Is(err, pawl.ErrTimeout), pawl.Code(err), pawl.OutcomeUnknown(err))
	close(slow)
	// Output: true SCOPE_MUTATION_TIMEOUT true
}

func ExampleNewLocal() {
	rt, ctx := start()
	request := pawl.NewLocal(rt, pawl.WithTimeout(time.Second))
	tasks := pawl.Sequencer[Cart](request, "tasks")
	tasks.PushState(ctx, "items", "fetch")
	request.Close() // removes its scopes
	_, err := tasks.PushState(ctx, "items", "render")
	fmt.Println(err)
	// Output: pawl: closed
}

// Job is the state of a custom kind.
type Job struct {
	Status string    `json:"status"`
	Tries  int       `json:"tries"`
	RunAt  time.Time `json:"runAt"`
}

// Jobs is declared once and listed in Config.Kinds, so that Open reports mistakes in it.
var Jobs = pawl.Kind[Job]{
	Name:  "job",
	Label: "status", // List can select by this field
	Due:   "runAt",
	TTL:   24 * time.Hour, // after the last write
	Upgrades: []pawl.Upgrade{
		func(d pawl.Doc) error { // to version 1: "done" was a boolean
			d["status"] = "open"
			if d["done"] == true {
				d["status"] = "done"
			}
			delete(d, "done")
			return nil
		},
	},
}

var jobTries = Jobs.MustField("tries") // a misspelled field panics when the program starts

func ExampleKind() {
	ctx := context.Background()
	rt, err := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{Jobs}})
	if err != nil {
		panic(err)
	}
	job := Jobs.Scope(rt, "j1")
	job.PatchState(ctx, pawl.Patch{"status": "open"})
	snap, _ := job.IncState(ctx, jobTries, 1)
	fmt.Println(snap.State().Status, snap.State().Tries)
	// Output: open 1
}

func ExampleKind_List() {
	rt, ctx := start()
	for i, status := range []string{"open", "done", "open"} {
		Jobs.Scope(rt, fmt.Sprint("j", i)).PatchState(ctx, pawl.Patch{"status": status})
	}
	for snap, err := range Jobs.List(ctx, rt, pawl.Query{Labels: []string{"open"}}) {
		fmt.Println(snap.ID, snap.ReadOnly().Status, err)
	}
	// Output:
	// j0 open <nil>
	// j2 open <nil>
}

// file is a custom Persist: any storage that can test a version and write in one step.
type file struct{ now pawl.Snapshot[Cart] }

func (f *file) Load(context.Context) (pawl.Snapshot[Cart], error) { return f.now, nil }

func (f *file) Commit(_ context.Context, expected uint64, next pawl.Snapshot[Cart]) (pawl.Snapshot[Cart], error) {
	if f.now.Version != expected {
		return f.now, pawl.ErrConflict
	}
	f.now = next
	return f.now, nil
}

func ExampleApplyMutation() {
	ctx := context.Background()
	var cart pawl.Container[Cart]
	inc := pawl.Inc{Field: "total", By: 5}

	// Without a Persist the mutation only waits in the queue; with one it also compares and swaps.
	snap, err := pawl.ApplyMutation(ctx, &cart, pawl.ContainerOptions[Cart]{Name: "cart"}, inc)
	fmt.Println(snap.Version, snap.State().Total, err)

	var filed pawl.Container[Cart]
	outside := &file{now: pawl.NewSnapshot(Cart{Total: 100}, 7, time.Time{})}
	snap, err = pawl.ApplyMutation(ctx, &filed, pawl.ContainerOptions[Cart]{Name: "filed", Persist: outside}, inc)
	fmt.Println(snap.Version, snap.State().Total, err)
	// Output:
	// 1 5 <nil>
	// 8 105 <nil>
}

func ExampleLogObserver() {
	plain := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "took" || a.Key == "waited" {
			return slog.Attr{}
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: plain}))
	rt, _ := pawl.Open(pawl.Config{Observer: pawl.LogObserver(logger)})
	pawl.Memory[Cart](rt, "m").IncState(context.Background(), "total", 1)
	// Output:
	// level=DEBUG msg="pawl: mutation started" scope=memory/m path=lock verb=Inc
	// level=DEBUG msg="pawl: mutation committed" scope=memory/m path=lock verb=Inc version=1 batch=1
}

func ExampleObserverFunc() {
	commits := 0
	rt, _ := pawl.Open(pawl.Config{Observer: pawl.ObserverFunc(func(_ context.Context, e pawl.Event) {
		if e.Type == pawl.EventCommitted {
			commits++
		}
	})})
	cart := pawl.Memory[Cart](rt, "m")
	for range 3 {
		cart.IncState(context.Background(), "total", 1)
	}
	fmt.Println(commits)
	// Output: 3
}

func ExampleHTTPStatus() {
	rt, ctx := start()
	_, err := pawl.Session[Cart](rt, "c42").IncState(ctx, "owner", 1)
	status := pawl.HTTPStatus(err)
	fmt.Println(status, http.StatusText(status), pawl.Code(err))
	// Output: 422 Unprocessable Entity FIELD
}

func ExampleIsRetryable() {
	for _, err := range []error{
		&pawl.ConcurrentModificationError{},
		&pawl.ConcurrencyError{},
		&pawl.ScopeMutationTimeoutError{Phase: pawl.PhaseRunning},
		pawl.ErrExists,
	} {
		switch {
		case pawl.IsRetryable(err):
			fmt.Println(pawl.Code(err), "try again")
		case pawl.OutcomeUnknown(err):
			fmt.Println(pawl.Code(err), "look before you try again")
		default:
			fmt.Println(pawl.Code(err), "trying again would not help")
		}
	}
	// Output:
	// CONCURRENT_MODIFICATION try again
	// CONCURRENCY_ERROR try again
	// SCOPE_MUTATION_TIMEOUT look before you try again
	// EXISTS trying again would not help
}

func ExampleRuntime_Close() {
	rt, ctx := start()
	pawl.Session[Cart](rt, "c42").IncState(ctx, "total", 1)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	fmt.Println(rt.Close(ctx)) // finishes accepted work; its error names functions that still run at the deadline
	// Output: <nil>
}

func ExampleTransact() {
	rt, ctx := start()
	pawl.User[Cart](rt, "ann").IncState(ctx, "total", 30)
	move := func(from, to string, amount int64) error {
		return pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
			has, err := pawl.User[Cart](tx, from).State(ctx) // the commit tests that this read is still current
			if err != nil {
				return err
			}
			if has.Total < amount {
				return errors.New(from + " has only " + fmt.Sprint(has.Total))
			}
			if _, err := pawl.User[Cart](tx, from).IncState(ctx, "total", -amount); err != nil {
				return err
			}
			_, err = pawl.User[Cart](tx, to).IncState(ctx, "total", amount)
			tx.AfterCommit(func() { fmt.Println("moved", amount) })
			return err
		})
	}
	fmt.Println(move("ann", "bob", 20))
	fmt.Println(move("ann", "bob", 20))
	bob, _ := pawl.User[Cart](rt, "bob").State(ctx)
	fmt.Println(bob.Total)
	// Output:
	// moved 20
	// <nil>
	// ann has only 10
	// 20
}

func ExampleScope_In() {
	rt, ctx := start()
	cart, owner := pawl.Session[Cart](rt, "c42"), pawl.User[Cart](rt, "ann")
	err := pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := cart.In(tx).PushState(ctx, "items", "book"); err != nil {
			return err
		}
		_, err := owner.In(tx).IncState(ctx, "total", 12)
		return err
	})
	items, _ := cart.State(ctx)
	spent, _ := owner.State(ctx)
	fmt.Println(err, items.Items, spent.Total)
	// Output: <nil> [book] 12
}

// Scopes of two kinds are read at one moment.
func ExampleReadAll() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	a, b := pawl.User[pawl.Doc](rt, "ann"), pawl.Session[pawl.Doc](rt, "s1")
	_, _ = a.PatchState(ctx, pawl.Patch{"name": "Ann"})
	_, _ = b.PatchState(ctx, pawl.Patch{"page": "home"})

	var user, session pawl.Snapshot[pawl.Doc]
	err := pawl.ReadAll(ctx, a.Into(&user), b.Into(&session))
	fmt.Println(user.State()["name"], session.State()["page"], err)
	// Output: Ann home <nil>
}

// The scopes of one user are deleted together.
func ExampleKind_DeletePrefix() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	notes := pawl.Kind[pawl.Doc]{Name: "note"}
	for _, id := range []string{"ann/1", "ann/2", "bob/1"} {
		_, _ = notes.Scope(rt, id).PatchState(ctx, pawl.Patch{"text": "hello"})
	}
	fmt.Println(notes.DeletePrefix(ctx, rt, "ann/"))
	// Output: 2 <nil>
}

// A deleted scope, an expired one and one that never was are all absent.
func ExampleIsAbsent() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	_, err := pawl.Session[pawl.Doc](rt, "s1").PatchState(ctx, pawl.Patch{"page": "home"}, pawl.IfExists())
	fmt.Println(pawl.IsAbsent(err))
	// Output: true
}

// A range of ids, from its end.
func ExampleKind_List_reverse() {
	ctx := context.Background()
	rt, _ := pawl.Open(pawl.Config{Store: memory.New()})
	days := pawl.Kind[pawl.Doc]{Name: "day"}
	for _, id := range []string{"01-30", "01-31", "02-01", "02-02"} {
		_, _ = days.Scope(rt, id).PatchState(ctx, pawl.Patch{"open": true})
	}
	for day, err := range days.List(ctx, rt, pawl.Query{From: "01-31", Before: "02-02", Reverse: true}) {
		fmt.Println(day.ID, err)
	}
	// Output:
	// 02-01 <nil>
	// 01-31 <nil>
}
