package machine_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/machine"
	"github.com/pawl-go/pawl/persist"
)

// parcel is the entity of these tests.
type parcel struct {
	Status string   `json:"status"`
	Note   string   `json:"note,omitempty"`
	Log    []string `json:"log,omitempty"` // written by bodies with their commits
}

// ledger counts the writes of bodies outside their entity.
type ledger struct {
	Shipped int64 `json:"shipped"`
}

var (
	parcels = pawl.Kind[parcel]{Name: "parcel", Label: "status"}
	ledgers = pawl.Kind[ledger]{Name: "ledger"}
)

// shipping is the workflow of these tests. The requester admin claims, cron does not.
func shipping() machine.Workflow {
	return machine.Workflow{
		Name: "shipping", Module: "depot", Kind: "parcel", Initial: "packed",
		Statuses: []string{"packed", "shipping", "shipped", "returning", "returned"},
		Steps: []machine.Step{
			{
				ID: 10, Key: "ship", Status: "packed",
				Claim:   map[string]machine.Claim{"admin": {"shipping", "packed"}},
				To:      map[string]string{"admin": "shipped", "cron": "shipped"},
				Action:  map[string]string{"admin": "Ship", "cron": "Ship"},
				Effects: map[string][]string{"admin": {"Tell"}},
			},
			{
				ID: 20, Key: "return", Status: "shipped",
				Claim:  map[string]machine.Claim{"admin": {"returning", "shipped"}},
				To:     map[string]string{"admin": "returned"},
				Action: map[string]string{"admin": "Return"},
			},
		},
	}
}

// body is the handler of the action Ship.
type body func(ctx context.Context, a *machine.Action[parcel], in string) error

// depot stands for a process: a runtime, an engine and its machine.
type depot struct {
	rt      *pawl.Runtime
	e       *machine.Engine
	m       *machine.Machine[parcel]
	janitor *machine.Janitor

	mu    sync.Mutex
	ship  body
	tell  func(ctx context.Context, d *machine.Delivery[parcel]) error
	freed []machine.Revert
}

// settings configures a depot.
type settings struct {
	config  machine.Config
	janitor machine.JanitorConfig
	runtime pawl.Config
	change  func(*machine.Workflow)                                      // changes the workflow shipping; nil: not
	tell    func(ctx context.Context, d *machine.Delivery[parcel]) error // set before the engine starts
}

// build creates a depot without starting it.
func build(store persist.Store, s settings) (*depot, error) {
	d := &depot{tell: s.tell}
	s.runtime.Store = store
	s.runtime.Kinds = []pawl.AnyKind{parcels, ledgers}
	var err error
	if d.rt, err = pawl.Open(s.runtime); err != nil {
		return nil, err
	}
	if s.config.Poll == 0 {
		s.config.Poll = 100 * time.Millisecond
	}
	d.e = machine.NewEngine(d.rt, s.config)
	s.janitor.Module = "depot"
	byHand := s.janitor.Interval == 0
	if byHand {
		s.janitor.Interval = time.Hour
	}
	s.janitor.Reverted = func(r machine.Revert) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.freed = append(d.freed, r)
	}
	d.janitor = d.e.AddJanitor(s.janitor)
	if byHand { // or else a round that starts late could free a claim that the test needs
		d.janitor.ByHand()
	}
	w := shipping()
	if s.change != nil {
		s.change(&w)
	}
	d.m = machine.Add(d.e, parcels, w)
	machine.Handle(d.m, "Ship", func(ctx context.Context, a *machine.Action[parcel], in string) error {
		d.mu.Lock()
		ship := d.ship
		d.mu.Unlock()
		if ship == nil {
			return book(ctx, a, in)
		}
		return ship(ctx, a, in)
	})
	machine.Handle(d.m, "Return", func(ctx context.Context, a *machine.Action[parcel], _ machine.NoInput) error { return nil })
	machine.Effect(d.m, "Tell", func(ctx context.Context, e *machine.Delivery[parcel]) error {
		d.mu.Lock()
		tell := d.tell
		d.mu.Unlock()
		if tell == nil {
			return nil
		}
		return tell(ctx, e)
	})
	return d, nil
}

// book is the usual body: it adds itself to the entity and the ledger.
func book(_ context.Context, a *machine.Action[parcel], in string) error {
	a.OnCommit(func(ctx context.Context, tx *pawl.Tx, p *parcel) error {
		p.Log = append(p.Log, in)
		_, err := ledgers.Scope(tx, "all").IncState(ctx, "shipped", 1)
		return err
	})
	return nil
}

// does sets the handler of Ship.
func (d *depot) does(b body) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ship = b
}

// tells sets the handler of the after-effect Tell.
func (d *depot) tells(fn func(ctx context.Context, e *machine.Delivery[parcel]) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tell = fn
}

// letters returns the stored after-effects.
func (d *depot) letters(t testing.TB) (all []machine.Letter) {
	t.Helper()
	for snap, err := range machine.Letters.List(context.WithoutCancel(t.Context()), d.rt, pawl.Query{}) {
		require.NoError(t, err)
		all = append(all, snap.State())
	}
	return all
}

// stop stops the depot's engine and closes its runtime.
func (d *depot) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(d.e.Stop(ctx), d.rt.Close(ctx))
}

// open starts a depot that stops when t ends.
func open(t testing.TB, store persist.Store, s settings) *depot {
	t.Helper()
	d, err := build(store, s)
	require.NoError(t, err)
	require.NoError(t, d.e.Start(context.Background()))
	t.Cleanup(func() { require.NoError(t, d.stop()) })
	return d
}

// pack creates a parcel.
func (d *depot) pack(t testing.TB, id string) {
	t.Helper()
	_, err := d.m.Create(t.Context(), id, parcel{})
	require.NoError(t, err)
}

// fire fires the step ship as an admin.
func (d *depot) fire(ctx context.Context, id, in string) (machine.Outcome[parcel], error) {
	return d.m.Fire(ctx, machine.Trigger{ID: id, Step: "ship", By: "admin", Input: in})
}

// parcel returns the stored parcel.
func (d *depot) parcel(t testing.TB, id string) parcel {
	t.Helper()
	p, err := parcels.Scope(d.rt, id).State(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	return p
}

// shipped returns the count in the ledger.
func (d *depot) shipped(t testing.TB) int64 {
	t.Helper()
	l, err := ledgers.Scope(d.rt, "all").State(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	return l.Shipped
}

// record returns the stored record of the entity.
func (d *depot) record(t testing.TB, id string) persist.Record {
	t.Helper()
	r, err := d.rt.Store().Load(context.WithoutCancel(t.Context()), pawl.Key{Kind: "parcel", ID: id})
	require.NoError(t, err)
	return r
}

// reverts returns the reverts that the depot's janitor has reported.
func (d *depot) reverts() []machine.Revert {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.freed)
}
