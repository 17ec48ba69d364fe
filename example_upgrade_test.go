package pawl_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
)

// The samples of docs/upgrades.md. internal/source compares them.

// Release 1.
type PersonV1 struct {
	Name string `json:"name"`
}

var PeopleV1 = pawl.Kind[PersonV1]{Name: "person"}

// Release 2 knows the new fields and writes them. Name stays the truth, because release 1 still
// changes it, and leaves the fields that it does not know as they are.
type PersonV2 struct {
	Name  string `json:"name"`
	First string `json:"first"`
	Last  string `json:"last"`
}

var PeopleV2 = pawl.Kind[PersonV2]{Name: "person"}

func (p *PersonV2) rename(name string) {
	p.Name = name
	p.First, p.Last, _ = strings.Cut(name, " ")
}

// fillIn brings the new fields of every document up to date. Run it in release 2, once no process
// of release 1 is left.
func fillIn(ctx context.Context, rt *pawl.Runtime) error {
	for person, err := range PeopleV2.List(ctx, rt, pawl.Query{}) {
		if err != nil {
			return err
		}
		_, err = PeopleV2.Scope(rt, person.ID).AtomicState(ctx, func(_ context.Context, p *PersonV2) error {
			p.rename(p.Name)
			return nil
		}, pawl.IfExists())
		if err != nil && !errors.Is(err, pawl.ErrNotFound) && !errors.Is(err, pawl.ErrDeleted) {
			return err
		}
	}
	return nil
}

// Release 3 reads the new fields. It still writes Name, as long as processes of release 2 run.
type PersonV3 struct {
	Name  string `json:"name"`
	First string `json:"first"`
	Last  string `json:"last"`
}

var PeopleV3 = pawl.Kind[PersonV3]{Name: "person"}

// A type changes while old processes run, without an upgrade step: no process is refused anything.
func ExampleKind_addingFields() {
	ctx := context.Background()
	store := memory.New() // shared by all releases
	one, _ := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{PeopleV1}})
	two, _ := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{PeopleV2}})
	three, _ := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{PeopleV3}})

	PeopleV1.Scope(one, "a").PatchState(ctx, pawl.Patch{"name": "Ann Arbor"})
	PeopleV2.Scope(two, "a").AtomicState(ctx, func(_ context.Context, p *PersonV2) error {
		p.rename("Ann Other")
		return nil
	})
	PeopleV1.Scope(one, "a").PatchState(ctx, pawl.Patch{"name": "Ann Third"}) // keeps first and last
	p, _ := PeopleV2.Scope(two, "a").State(ctx)
	fmt.Printf("%+v\n", p) // stale first and last: in release 2, Name is the truth
	fmt.Println(fillIn(ctx, two))
	now, _ := PeopleV3.Scope(three, "a").State(ctx)
	fmt.Println(now.First, now.Last)
	// Output:
	// {Name:Ann Third First:Ann Last:Other}
	// <nil>
	// Ann Third
}

// Before: a price in euros.
type ItemV1 struct {
	Title string  `json:"title"`
	Price float64 `json:"price"`
}

var ItemsV1 = pawl.Kind[ItemV1]{Name: "item"}

// After: a price in cents.
type ItemV2 struct {
	Title string `json:"title"`
	Cents int64  `json:"cents"`
}

var ItemsV2 = pawl.Kind[ItemV2]{
	Name: "item",
	Upgrades: []pawl.Upgrade{ // append only: the length is the schema version
		func(d pawl.Doc) error { // from 0 to 1
			var euros float64
			switch price := d["price"].(type) {
			case nil: // absent
			case int64: // a whole number in JSON
				euros = float64(price)
			case float64:
				euros = price
			default:
				return fmt.Errorf("price is a %T", price) // refused as *SchemaError, and left as it is
			}
			delete(d, "price")
			d["cents"] = int64(math.Round(euros * 100))
			return nil
		},
	},
}

// A type changes by an upgrade step: from the first write of the new release on, the old release is
// refused the document.
func ExampleUpgrade() {
	ctx := context.Background()
	store := memory.New() // shared by both releases
	old, _ := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{ItemsV1}})
	upgraded, _ := pawl.Open(pawl.Config{Store: store, Kinds: []pawl.AnyKind{ItemsV2}})

	ItemsV1.Scope(old, "pen").SetState(ctx, ItemV1{Title: "Pen", Price: 2.5})
	item, err := ItemsV2.Scope(upgraded, "pen").State(ctx) // upgraded on the way; nothing is written
	fmt.Println(item.Cents, err)
	_, err = ItemsV1.Scope(old, "pen").PatchState(ctx, pawl.Patch{"title": "A pen"}) // so this still works
	fmt.Println(err)

	ItemsV2.Scope(upgraded, "pen").IncState(ctx, "cents", 10) // stored in the new form
	_, err = ItemsV1.Scope(old, "pen").State(ctx)
	var schema *pawl.SchemaError
	if errors.As(err, &schema) {
		fmt.Println("stored", schema.Stored, "known", schema.Known)
	}
	item, _ = ItemsV2.Scope(upgraded, "pen").State(ctx)
	fmt.Printf("%+v\n", item)
	// Output:
	// 250 <nil>
	// <nil>
	// stored 1 known 0
	// {Title:A pen Cents:260}
}
